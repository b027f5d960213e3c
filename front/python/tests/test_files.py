"""Arrays in files: the contents are those of numpy.memmap, stay within the budget, and are in the
file after a flush."""

import copy
import multiprocessing
import pickle
import signal

import highwater
import numpy as np
import pytest
from test_refusals import run

LARGE = 4 << 20
"""Elements of 8 bytes: 32 MiB, twice the budget."""


def test_contents_are_those_of_numpy(memory, tmp_path):
    path = tmp_path / "a"
    a = highwater.memmap(path, np.int64, "w+", shape=LARGE)
    assert type(a).__name__ == "memmap" and not a.any()
    a[:] = np.random.default_rng(1).integers(0, 1 << 60, LARGE)
    a.flush()
    assert np.array_equal(np.fromfile(path, np.int64), a)
    expected = np.fromfile(path, np.int64)[::-1] + 1
    a[:] = expected
    a[5:10].flush()
    assert np.array_equal(a, expected)
    del a
    found = np.fromfile(path, np.int64)
    assert np.array_equal(found, expected)
    assert highwater.stats()["nr_resident_peak"] <= 4096


@pytest.mark.parametrize("order", ["C", "F"])
def test_modes_offsets_and_shapes_are_numpys(memory, tmp_path, order):
    path = str(tmp_path / "a")
    np.arange(3000, dtype="i4").tofile(path)
    parts = [("i4", 0, None), ("i2", 6, None), ("i4", 4096, (19, 7)), ("u1", 1, 9)]
    for dtype, offset, shape in parts:
        ours = highwater.memmap(path, dtype, "r", offset, shape, order)
        numpys = np.memmap(path, dtype, "r", offset, shape, order)
        assert np.array_equal(ours, numpys) and ours.dtype == numpys.dtype
        assert ours.flags.f_contiguous == numpys.flags.f_contiguous and not ours.flags.writeable
        assert (ours.mode, ours.offset, ours.filename) == ("r", offset, path)
    del ours, numpys
    longer = highwater.memmap(path, "i4", "r+", offset=8, shape=(2, 2000), order=order)
    longer[1, 1999] = -5
    del longer
    expected = np.memmap(path, "i4", "r", offset=8, shape=(2, 2000), order=order)
    assert expected[1, 1999] == -5 and expected.size * 4 + 8 == len(open(path, "rb").read())


def test_what_is_computed_is_ordinary(memory, tmp_path):
    a = highwater.memmap(tmp_path / "a", "f8", "w+", shape=(40, 50))
    a[...] = 2
    for result in (a + 1, a[a > 1], a[[1, 2]], a.sum(axis=0), np.asarray(a)):
        assert type(result) is np.ndarray
    assert type(a.sum()) is np.float64 and type(a[0, 0]) is np.float64
    view = a[3:9].T
    assert type(view).__name__ == "memmap" and view.filename == a.filename
    view.flush()
    for copied in (pickle.loads(pickle.dumps(view)), copy.deepcopy(view)):
        assert np.array_equal(copied, view)
    assert type(pickle.loads(pickle.dumps(a))) is np.ndarray
    with pytest.raises(ValueError, match="contents stay"):
        highwater.discard(a)
    highwater.prefetch(a)
    highwater.advise(a, "random")


def test_refusals_are_those_of_numpy_or_say_what_to_do(memory, tmp_path):
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        highwater.memmap(path, mode="r")
    path.write_bytes(b"12345")
    for settings, part in [
        ({"mode": "c"}, "highwater.array"),
        ({"mode": "x"}, "none of"),
        ({"mode": "w+"}, "needs the shape"),
        ({"mode": "r", "shape": 6}, "has 5"),
        ({"dtype": "i4", "mode": "r"}, "no multiple of 4"),
        ({"mode": "r", "offset": -1}, "negative"),
    ]:
        with pytest.raises(ValueError, match=part):
            highwater.memmap(path, **settings)
    with pytest.raises(TypeError, match="objects"):
        highwater.memmap(path, object)
    a = highwater.memmap(path)
    for mode in ("r", "r+"):
        with pytest.raises(highwater.InUseError, match="mapped elsewhere") as raised:
            highwater.memmap(path, mode=mode)
        assert isinstance(raised.value, OSError)
    del a
    b = highwater.memmap(path, mode="r")
    assert highwater.memmap(path, mode="r").tobytes() == b.tobytes() == b"12345"
    with pytest.raises(ValueError, match="read-only"):
        b[0] = 1
    with pytest.raises(ValueError):
        b.flags.writeable = True


def test_changes_are_in_the_file_when_python_exits(memory, tmp_path):
    path = tmp_path / "a"
    code, lines, output = run(f"""
        highwater.configure(memory="8M", swap="ram:16M", faults="{memory}")
        a = highwater.memmap({str(path)!r}, "u1", "w+", shape=16 << 20)
        a.fill(7)
        keep = [a]
        keep.append(keep)
        """)
    assert code == 0 and not lines, output
    assert path.read_bytes() == bytes([7]) * (16 << 20)


def test_a_forked_child_leaves_the_file_to_its_parent(memory, tmp_path):
    path = tmp_path / "a"
    code, lines, output = run(f"""
        highwater.configure(memory="8M", swap="ram:16M", faults="{memory}")
        a = highwater.memmap({str(path)!r}, "u1", "w+", shape=1 << 20)
        a.fill(7)
        child = os.fork()
        if child == 0:
            try:
                a.flush()
            except highwater.ForkedError:
                del a
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        a[0] = 8
        a.flush()
        """)
    assert code == 0 and not lines, output
    assert path.read_bytes() == bytes([8]) + bytes([7]) * ((1 << 20) - 1)


def test_a_file_that_lost_pages_ends_an_access_with_a_line(memory, tmp_path):
    code, lines, output = run(f"""
        highwater.configure(memory="8M", swap="ram:16M", faults="{memory}")
        np.zeros(1 << 20).tofile({str(tmp_path / "a")!r})
        a = highwater.memmap({str(tmp_path / "a")!r}, mode="r")
        os.truncate({str(tmp_path / "a")!r}, 5)
        print(a[-1])
        """)
    assert code == -signal.SIGABRT, output
    assert len(lines) == 1 and "mapped file: a page could not be read" in lines[0], output


def total(array):
    return int(array.sum())


def test_spawned_processes_get_copies_of_parts(memory, tmp_path):
    a = highwater.memmap(tmp_path / "a", "i8", "w+", shape=1000)
    a[:] = np.arange(1000)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(total, [a[:10], a[10:20]]) == [45, 145]
