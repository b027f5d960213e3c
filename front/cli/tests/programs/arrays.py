"""NumPy on 400 MB: sort, reductions, a blocked matrix product.

    python3 arrays.py {sort|reduce|product} [MB]

All sums are of integers, so that they are exact whatever the order of the additions.
"""

import hashlib
import sys

import numpy as np

PIECE = 1 << 20


def digest(array):
    """Hashes piece by piece: no copy of the array is made."""
    flat = array.reshape(-1).view(np.uint8)
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, flat.size, PIECE):
        found.update(flat[start : start + PIECE])
    return found.hexdigest()


def fill(array, seed):
    """Random integers, piece by piece."""
    source = np.random.default_rng(seed)
    for start in range(0, array.size, PIECE):
        piece = array[start : start + PIECE]
        piece[:] = source.integers(-(1 << 40), 1 << 40, piece.size)


def sort(megabytes):
    data = np.empty(megabytes * 10**6 // 8, np.int64)
    fill(data, 1)
    total = int(data.sum())
    print("unsorted", digest(data), total)
    data.sort()
    for start in range(0, data.size - 1, PIECE):
        piece = data[start : start + PIECE + 1]
        assert (piece[:-1] <= piece[1:]).all()
    assert int(data.sum()) == total
    print("sorted", digest(data), data[0], data[-1])


def reduce(megabytes):
    data = np.empty(megabytes * 10**6 // 8, np.float64)
    fill(data, 2)
    table = data[: data.size // 1000 * 1000].reshape(1000, -1)
    print("min, max", data.min(), data.max(), data.argmin(), data.argmax())
    print("rows", digest(table.sum(axis=1)), "columns", digest(table.max(axis=0)))
    np.abs(data, out=data)
    np.mod(data, 1024.0, out=data)
    print("sum", data.sum(), "dot", np.dot(data, data), "nonzero", np.count_nonzero(data))
    np.cumsum(data, out=data)
    print("running sums", digest(data), data[-1])


def product(megabytes):
    """C = A B over blocks; three squares of small integers."""
    block = 512
    side = round((megabytes * 10**6 / 3 / 8) ** 0.5 / block) * block
    source = np.random.default_rng(3)
    left, right = np.empty((side, side)), np.empty((side, side))
    for row in range(side):
        left[row] = source.integers(-9, 10, side)
        right[row] = source.integers(-9, 10, side)
    result = np.zeros((side, side))
    for i in range(0, side, block):
        for k in range(0, side, block):
            part = left[i : i + block, k : k + block]
            result[i : i + block] += part @ right[k : k + block]
    weights = np.arange(side, dtype=np.float64)
    assert np.array_equal(result @ weights, left @ (right @ weights))
    print("product", side, digest(result))


USES = {"sort": sort, "reduce": reduce, "product": product}

if __name__ == "__main__":
    USES[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 400)
