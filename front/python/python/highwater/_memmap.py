"""Arrays in files, as numpy.memmap; the budget limits how much of a file is in memory."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ._errors import ForkedError
from ._highwater import Block, Memory

_MODES = {
    "r": "r",
    "readonly": "r",
    "r+": "r+",
    "readwrite": "r+",
    "w+": "w+",
    "write": "w+",
}
"""NumPy's names of modes, without "c", which is refused."""

_files: weakref.WeakSet[Block] = weakref.WeakSet()
"""Blocks whose changes are written when Python exits."""


@atexit.register
def _sync_all() -> None:
    for block in list(_files):
        try:
            block.sync()
        except ForkedError:
            pass


def find_block(array: NDArray[Any]) -> Block | None:
    """The block that an array lies in."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Block) else None


class memmap(np.ndarray[Any, Any]):
    """An array in a file, made by `highwater.memmap`. Its views are of this class, too; results
    computed from it are ordinary arrays."""

    filename: str | None
    offset: int | None
    mode: str | None

    def __array_finalize__(self, obj: Any) -> None:
        is_view = isinstance(obj, memmap) and np.may_share_memory(obj, self)
        for name in ("filename", "offset", "mode"):
            setattr(self, name, getattr(obj, name, None) if is_view else None)

    def flush(self) -> None:
        """Writes all changes to the file, and returns when they are durable. Raises WriteError if
        some cannot be written; these are kept for the next flush."""
        block = find_block(self)
        if block is not None:
            block.sync()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            return array
        plain = np.asarray(array)
        return plain[()] if return_scalar or plain.ndim == 0 else plain

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        is_copy = isinstance(found, memmap) and find_block(found) is None
        return np.asarray(found) if is_copy else found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def of_file(
    memory: Memory,
    filename: str | os.PathLike[str],
    dtype: DTypeLike,
    mode: str,
    offset: int,
    shape: Any,
    order: str,
) -> memmap:
    """See `highwater.memmap`."""
    way = _checked_mode(mode)
    of = np.dtype(dtype)
    if of.hasobject:
        raise TypeError(f"{of}: arrays of objects hold pointers, not contents")
    if order not in ("C", "F"):
        raise ValueError(f"order {order!r} is neither 'C' nor 'F'")
    if offset < 0:
        raise ValueError(f"offset {offset} is negative")
    path = os.path.abspath(os.fspath(filename))
    sides = None if shape is None else _sides(shape)
    if sides is None and way == "w+":
        raise ValueError("mode 'w+' needs the shape")
    nbytes = 0 if sides is None else offset + _count(sides) * of.itemsize
    if way == "w+" and nbytes == 0:
        raise ValueError("a file of no bytes cannot be mapped")
    # Raises the exceptions that open() raises.
    with open(path, {"r": "rb", "r+": "r+b", "w+": "ab"}[way]):
        pass
    block = memory.map_file(path, way, nbytes)
    if sides is None:
        sides = (_elements(len(block), offset, of),)
    elif len(block) < nbytes:
        raise ValueError(f"the array ends at byte {nbytes}, and the file has {len(block)}")
    _files.add(block)
    made = np.ndarray.__new__(
        memmap, sides, of, buffer=np.asarray(block), offset=offset, order=order  # type: ignore
    )
    made.filename, made.offset, made.mode = path, offset, way
    return made


def _checked_mode(mode: str) -> str:
    if mode in ("c", "copyonwrite"):
        raise ValueError(
            "mode 'c' is not supported: highwater.array(highwater.memmap(..., mode='r')) is a copy "
            "that may be changed"
        )
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r} is none of 'r', 'r+', 'w+'")
    return _MODES[mode]


def _sides(shape: Any) -> tuple[int, ...]:
    sides = (int(shape),) if np.ndim(shape) == 0 else tuple(int(side) for side in shape)
    if any(side < 0 for side in sides):
        raise ValueError("negative dimensions are not allowed")
    return sides


def _count(sides: tuple[int, ...]) -> int:
    count = 1
    for side in sides:
        count *= side
    return count


def _elements(length: int, offset: int, of: np.dtype[Any]) -> int:
    """The number of elements from an offset to the end of a file."""
    if length == 0:
        raise ValueError("an empty file cannot be mapped")
    if offset > length or (length - offset) % of.itemsize != 0:
        raise ValueError(
            f"the file's {length} bytes behind offset {offset} are no multiple of {of.itemsize}"
        )
    return (length - offset) // of.itemsize
