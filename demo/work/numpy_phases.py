"""NumPy on an array of float64: two sums, a gather of random elements, a sort.

    numpy_phases.py [MB [PHASE,...]]

No two pages are equal, and none compresses.
"""

import hashlib
import sys

import numpy as np
from phase import phase

PIECE = 1 << 20
GATHERED = 300_000


def digest(array):
    """Of the bytes, piece by piece: no copy of the array is made."""
    flat, found = array.view(np.uint8), hashlib.blake2b(digest_size=16)
    for start in range(0, flat.size, PIECE):
        found.update(flat[start : start + PIECE])
    return found.hexdigest()


def gather(array):
    places = np.random.default_rng(2).integers(0, array.size, GATHERED)
    return digest(array[places])


def main(megabytes="400", wanted="sums,gather,sort,hash"):
    array = np.empty(int(megabytes) * 10**6 // 8)
    source = np.random.default_rng(1)
    uses = {
        "sums": ("two sums", lambda: f"{array.sum()} {array.sum()}"),
        "gather": (f"gather of {GATHERED:,} elements", lambda: gather(array)),
        "sort": ("sort", lambda: array.sort()),
        "hash": ("hash", lambda: digest(array)),
    }
    phase("fill", lambda: source.random(out=array)[-1])
    for name in wanted.split(","):
        phase(*uses[name])


if __name__ == "__main__":
    main(*sys.argv[1:])
