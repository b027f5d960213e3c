"""Arrays four times the budget: NumPy's results are those of ordinary arrays."""

import io
import pickle
import warnings

import highwater
import numpy as np
import pytest

LARGE = 8 << 20
"""Elements of 8 bytes: 64 MiB, four times the budget."""


def test_sum_and_sort_are_those_of_an_ordinary_array(memory):
    source = np.random.default_rng(1).integers(0, 1 << 40, LARGE)
    paged = highwater.array(source)
    assert paged.sum() == source.sum()
    paged.sort()
    source.sort()
    assert np.array_equal(paged, source)
    counted = highwater.stats()
    assert counted["pswpin"] > 4096 and counted["nr_resident_peak"] <= 4096


def test_a_blocked_product_is_that_of_ordinary_arrays(memory):
    side, block = 1600, 400
    ordinary = [np.random.default_rng(n).integers(0, 9, (side, side)).astype(float) for n in (1, 2)]
    a, b = (highwater.array(matrix) for matrix in ordinary)
    product = highwater.zeros((side, side))
    for i in range(0, side, block):
        for j in range(0, side, block):
            for k in range(0, side, block):
                product[i : i + block, j : j + block] += (
                    a[i : i + block, k : k + block] @ b[k : k + block, j : j + block]
                )
    assert np.array_equal(product, ordinary[0] @ ordinary[1])


def test_arrays_are_made_as_numpy_makes_them(memory):
    made = highwater.empty((3, 5), "f4", order="F")
    assert made.flags.f_contiguous and made.dtype == np.float32 and made.flags.writeable
    assert not highwater.zeros(70_000, "u1").any()
    for shape, value, dtype in [((300, 1000), 7, None), (200_000, 2.5, "f4"), ((), 3j, None)]:
        expected = np.full(shape, value, dtype)
        found = highwater.full(shape, value, dtype)
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    assert np.array_equal(highwater.full((3, 2), [1, 2]), [[1, 2]] * 3)
    for source in [np.arange(20_000).reshape(100, 200).T, np.arange(20_000)[::3], [[1, 2], [3, 4]]]:
        found = highwater.array(source)
        assert np.array_equal(found, source)
        assert found.flags.f_contiguous == np.array(source).flags.f_contiguous
    records = np.zeros(10_000, [("a", "i4"), ("b", "S7")])
    records["a"] = np.arange(10_000)
    assert np.array_equal(highwater.array(records), records)
    assert highwater.zeros((0, 5)).shape == (0, 5)


def test_arrays_live_as_long_as_their_views(memory):
    before = highwater.left()
    view = highwater.full(LARGE // 4, 3)[10:20].reshape(2, 5)
    assert highwater.left() == before - 2 * LARGE
    highwater.zeros(LARGE).fill(1)
    assert np.array_equal(view, np.full((2, 5), 3))
    del view
    assert highwater.left() == before


def test_hints_and_discarding(memory):
    a = highwater.full(LARGE // 2, 5)
    highwater.advise(a, "random")
    highwater.prefetch(a[1000:5000])
    assert a[::4096].sum() == 5 * a[::4096].size
    highwater.advise(a, "detect")
    highwater.discard(a[100:-100])
    assert not a[100:-100].any() and a[:100].sum() == 500 and a[-100:].sum() == 500
    with pytest.raises(ValueError, match="not contiguous"):
        highwater.prefetch(a[::2])
    with pytest.raises(ValueError, match="not one of highwater's"):
        highwater.discard(np.zeros(9))


def test_numpy_allocates_paged_arrays(memory):
    before = highwater.left()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with highwater.allocator():
            a = np.arange(LARGE // 4)
            b = a * 2 + 1
            small = np.arange(10)
            grown = np.zeros(9)
            grown.resize(LARGE // 8, refcheck=False)
            grown.resize(LARGE // 4, refcheck=False)
            with pytest.raises(MemoryError):
                np.empty(1 << 40, "u1")
    outside = np.arange(LARGE // 4)
    assert highwater.left() == before - (a.nbytes + b.nbytes + grown.nbytes)
    assert np.array_equal(b, outside * 2 + 1) and small.sum() == 45 and not grown.any()
    del a, b, grown
    assert highwater.left() == before


def test_files_and_pickles(memory, tmp_path):
    a = highwater.array(np.arange(LARGE // 2).reshape(2048, -1))
    for source in (a, a.T, a[::3, 5:]):
        name = str(tmp_path / "a.npy")
        highwater.save(name, source)
        assert np.array_equal(np.load(name), source)
        assert np.array_equal(highwater.load(name), source)
    stream = io.BytesIO()
    np.save(stream, a)
    stream.seek(0)
    assert np.array_equal(highwater.load(stream), a)
    assert np.array_equal(pickle.loads(pickle.dumps(a)), a)
    with open(name, "rb") as file:
        short = io.BytesIO(file.read(100_000))
    with pytest.raises(EOFError):
        highwater.load(short)


def test_system_calls_are_served_or_raise(memory, tmp_path):
    a = highwater.array(np.arange(LARGE))
    name = str(tmp_path / "a")
    if highwater.serves_system_calls():
        np.save(name + ".npy", a)
        assert np.array_equal(np.load(name + ".npy"), a)
        with open(name, "wb") as file:
            file.write(a)
        with open(name, "rb") as file:
            a[:] = 0
            assert file.readinto(a) == a.nbytes
        assert np.array_equal(a, np.arange(LARGE))
        return
    assert memory == "in-thread"
    with pytest.raises(OSError):
        np.save(name + ".npy", a)
    with pytest.raises(OSError):
        with open(name, "wb", buffering=0) as file:
            file.write(a)
    with pytest.warns(RuntimeWarning, match="EFAULT"), highwater.allocator():
        pass
