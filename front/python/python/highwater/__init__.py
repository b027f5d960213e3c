"""NumPy arrays larger than RAM.

Pages beyond a budget are written to swap devices of this process::

    import highwater

    highwater.configure(memory="512MB", swap="dir:/var/tmp:20GB")
    a = highwater.zeros((50_000, 5_000))
    with highwater.allocator():
        b = a * 2           # NumPy's own arrays are paged, too

Arrays are ordinary ``numpy.ndarray`` objects. An access to an array cannot raise an exception, so a
page that cannot be brought in ends the process with one line. Wherever possible, an earlier call
raises instead. A forked child has none of its parent's arrays: start processes by spawn.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._errors import (
    AddressesError,
    BudgetError,
    DeviceError,
    FileError,
    FilesError,
    ForkedError,
    FullError,
    HighwaterError,
    InUseError,
    OutOfMemoryError,
    PinnedError,
    RangeError,
    ReadError,
    ReadOnlyError,
    SettingError,
    SystemRefusal,
    UserfaultfdError,
    WriteError,
)
from ._highwater import Block, Memory, __version__, handler, set_handler
from ._memmap import find_block, memmap as memmap_array, of_file

__all__ = [
    "AddressesError",
    "BudgetError",
    "DeviceError",
    "FileError",
    "FilesError",
    "ForkedError",
    "FullError",
    "HighwaterError",
    "InUseError",
    "OutOfMemoryError",
    "PinnedError",
    "RangeError",
    "ReadError",
    "ReadOnlyError",
    "SettingError",
    "SystemRefusal",
    "UserfaultfdError",
    "WriteError",
    "__version__",
    "advise",
    "allocator",
    "array",
    "budget",
    "configure",
    "discard",
    "empty",
    "full",
    "left",
    "load",
    "memmap",
    "prefetch",
    "save",
    "serves_system_calls",
    "stats",
    "zeros",
]

_CHUNK = 1 << 20
"""The number of bytes that one step copies, by way of memory that is not paged."""

_lock = threading.Lock()
_memory: Memory | None = None


def configure(
    memory: str | int | None = None,
    swap: str | list[str] | tuple[str, ...] | None = None,
    *,
    memory_max: str | int | None = None,
    kswapd: str | int | None = None,
    faults: str | None = None,
    large_pages: bool = False,
) -> None:
    """Sets up the memory of arrays that are made from now on.

    memory: the budget for pages in RAM, "512MB" or a number of bytes. Default: half of the
        available memory.
    swap: devices, "dir:/var/tmp:20GB", "zram:1G", "tier:zram:1G+dir:/var/tmp:8G". Default: a file
        in $TMPDIR, /var/tmp or /tmp, as large as half of the free space.
    memory_max: the highest budget that `budget` may set. Default: twice `memory`.
    kswapd: the number of kswapd threads, which free memory in the background, 1 to 16 or "auto".
        Default: 1.
    faults: the threads that serve page faults, "handlers" or "in-thread". Default: handlers where
        they can also serve the faults of system calls, else in-thread.
    large_pages: whether aligned blocks of 2 MiB are brought in and evicted as a whole.

    Arrays that were made earlier keep their memory, with its own budget, until they are deleted.
    Raises SettingError, DeviceError, UserfaultfdError, SystemRefusal.
    """
    devices = [swap] if isinstance(swap, str) else list(swap or [])
    made = Memory(
        memory=_text(memory),
        swap=devices,
        memory_max=_text(memory_max),
        kswapd=_text(kswapd),
        faults=faults,
        large_pages="on" if large_pages else "off",
    )
    global _memory
    with _lock:
        _memory = made


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def _configured() -> Memory:
    """The memory; if `configure` was not called, one with default settings."""
    if _memory is None:
        configure()
    assert _memory is not None
    return _memory


def _make(shape: Any, dtype: DTypeLike, order: str) -> tuple[NDArray[Any], Block | None]:
    """An array of zeros, and the block in which it lies; None for the block of an empty array."""
    of = np.dtype(dtype)
    if of.hasobject:
        raise TypeError(f"{of}: arrays of objects hold pointers, not contents, and are not paged")
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r} is neither 'C' nor 'F'")
    sides = (shape,) if np.ndim(shape) == 0 else tuple(shape)
    count = 1
    for side in sides:
        if side < 0:
            raise ValueError("negative dimensions are not allowed")
        count *= int(side)
    if count * of.itemsize == 0:
        return np.zeros(sides, of, order=order), None  # type: ignore[call-overload]
    block = _configured().block(count * of.itemsize)
    bytes_ = np.asarray(block)
    made: NDArray[Any] = np.ndarray(sides, of, buffer=bytes_, order=order)  # type: ignore
    return made, block


def zeros(shape: Any, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """As numpy.zeros. The array takes memory as it is written. Raises FullError, ForkedError."""
    return _make(shape, dtype, order)[0]


def empty(shape: Any, dtype: DTypeLike = float, order: str = "C") -> NDArray[Any]:
    """As numpy.empty. The contents and the exceptions are those of `zeros`."""
    return _make(shape, dtype, order)[0]


def full(
    shape: Any, fill_value: Any, dtype: DTypeLike | None = None, order: str = "C"
) -> NDArray[Any]:
    """As numpy.full. Raises OutOfMemoryError and other subclasses of `HighwaterError`."""
    of = np.asarray(fill_value).dtype if dtype is None else np.dtype(dtype)
    made, block = _make(shape, of, order)
    if np.ndim(fill_value) > 0:
        made[...] = fill_value
        return made
    tile = np.full(max(1, min(made.size, _CHUNK // max(1, of.itemsize))), fill_value, of)
    if block is not None:
        for at in range(0, made.nbytes, tile.nbytes):
            block.write(at, tile.ctypes.data, min(tile.nbytes, made.nbytes - at))
    return made


def array(
    object: ArrayLike, dtype: DTypeLike | None = None, order: str | None = None
) -> NDArray[Any]:
    """A paged copy, as numpy.array makes it. Raises as `full` does."""
    source = np.asarray(object, dtype)
    is_fortran = source.flags.f_contiguous and not source.flags.c_contiguous
    layout = order or ("F" if is_fortran else "C")
    made, block = _make(source.shape, source.dtype, layout)
    is_alike = source.flags.f_contiguous if layout == "F" else source.flags.c_contiguous
    if block is not None and is_alike:
        block.write(0, source.ctypes.data, made.nbytes)
    else:
        made[...] = source
    return made


def memmap(
    filename: str | os.PathLike[str],
    dtype: DTypeLike = np.uint8,
    mode: str = "r+",
    offset: int = 0,
    shape: Any = None,
    order: str = "C",
) -> memmap_array:
    """As numpy.memmap: an array in a file; the budget limits how much of the file is in memory.

    mode: "r" reads an existing file, "r+" also changes the file, and makes it longer if it is
        shorter than the array, "w+" makes a file of zeros, replacing an existing file. "c" is
        refused.

    `flush()` of the array writes the changes, and returns when they are durable. Changes are also
    written when the last array of the file is deleted, and when Python exits; a process that is
    killed loses the changes that it did not flush. The file is locked (flock): several processes or
    memmaps may use the file at the same time only if all of them are for reading.

    Raises InUseError, FilesError, FullError, ForkedError; OSError as open() does; ValueError.
    """
    return of_file(_configured(), filename, dtype, mode, offset, shape, order)


def _block_of(array: NDArray[Any]) -> tuple[Block, int, int]:
    """The block of a contiguous array of this package, and the array's first and last byte."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError("the array is not contiguous")
    base = find_block(array)
    if base is None:
        raise ValueError("the array is not one of highwater's")
    start = array.ctypes.data - base.__array_interface__["data"][0]
    return base, start, start + array.nbytes


def prefetch(array: NDArray[Any]) -> None:
    """Requests the pages of an array that will be used soon. This is a hint; it does not wait."""
    block, start, end = _block_of(array)
    block.prefetch(start, end)


def advise(array: NDArray[Any], access: str) -> None:
    """Says how a whole array is going to be used. "random": a fault reads only its own page.
    "detect" (the default): sequential access is recognised and read ahead."""
    if access not in ("random", "detect"):
        raise ValueError(f"access {access!r} is neither 'random' nor 'detect'")
    _block_of(array)[0].read_ahead(access == "detect")


def discard(array: NDArray[Any]) -> None:
    """Sets a contiguous array to zeros, and frees its whole pages. Arrays in files are refused."""
    block, start, end = _block_of(array)
    if block.is_file():
        raise ValueError("the array is in a file, whose contents stay")
    block.discard(start, end)


def save(file: str | IO[bytes], array: NDArray[Any]) -> None:
    """As numpy.save, but copies the array part by part: system calls get no pointer into the array.

    numpy.save works, too, where `serves_system_calls` is true; elsewhere it raises OSError.
    """
    with contextlib.ExitStack() as stack:
        to = stack.enter_context(open(file, "wb")) if isinstance(file, str) else file
        is_fortran = _is_fortran(array)
        is_whole = is_fortran or array.flags.c_contiguous
        # A view. If the array is not contiguous, its slices are copied when they are used.
        flat: Any = array.ravel(order="K") if is_whole else array.flat
        header = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": is_fortran,
            "shape": array.shape,
        }
        np.lib.format.write_array_header_1_0(to, header)
        step = max(1, _CHUNK // max(1, array.itemsize))
        for at in range(0, array.size, step):
            to.write(flat[at : at + step].tobytes())


def load(file: str | IO[bytes]) -> NDArray[Any]:
    """A paged array from a file of numpy.save or `save`. Raises as `full` does."""
    with contextlib.ExitStack() as stack:
        of = stack.enter_context(open(file, "rb")) if isinstance(file, str) else file
        version = np.lib.format.read_magic(of)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"version {version} of the file format is not known")
        shape, fortran, dtype = read(of)
        made, block = _make(shape, dtype, "F" if fortran else "C")
        at = 0
        while block is not None and at < made.nbytes:
            part = of.read(min(_CHUNK, made.nbytes - at))
            if not part:
                raise EOFError(f"the file ends after {at} of {made.nbytes} bytes")
            block.write(at, np.frombuffer(part, np.uint8).ctypes.data, len(part))
            at += len(part)
        return made


def _is_fortran(array: NDArray[Any]) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


@contextlib.contextmanager
def allocator() -> Iterator[None]:
    """In this context, NumPy allocates the data of arrays of 64 KiB and more from paged memory
    (NEP 49). An allocation that is refused raises MemoryError. Arrays may outlive the context."""
    memory = _configured()
    memory.budget()  # raises ForkedError
    if not memory.serves_system_calls():
        warnings.warn(
            "system calls into paged arrays fail here (EFAULT): numpy.fromfile may return fewer "
            "elements; use highwater.load",
            RuntimeWarning,
            stacklevel=3,
        )
    api = _numpy_api()
    before = set_handler(api, handler(memory))
    try:
        yield
    finally:
        set_handler(api, before)


def _numpy_api() -> object:
    """The table of NumPy's C functions."""
    try:
        from numpy._core import _multiarray_umath as core  # type: ignore[attr-defined]
    except ImportError:  # NumPy 1
        from numpy.core import _multiarray_umath as core
    api: object = core._ARRAY_API
    return api


def stats() -> dict[str, int]:
    """All counters by name, as in /proc/vmstat: pgfault, pgmajfault, pswpin, pswpout, ..."""
    return _configured().stats()


def budget(size: str | int | None = None) -> int:
    """The budget in bytes. If a size is given, first sets the budget, and waits until the pages
    above it have been evicted. Raises SettingError, FullError, BudgetError."""
    if size is not None:
        _configured().set_budget(str(size))
    return _configured().budget()


def left() -> int:
    """The number of bytes that further arrays may have, in memory and swap together."""
    return _configured().left()


def serves_system_calls() -> bool:
    """Whether system calls accept pointers into arrays: file.write(a), socket.send(a), numpy.save.
    If not, these calls raise OSError (EFAULT); use `save` and `load`."""
    return _configured().serves_system_calls()
