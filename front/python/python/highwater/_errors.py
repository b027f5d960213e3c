"""Exceptions: one for each remedy that a caller has when a call is refused."""


class HighwaterError(Exception):
    """Any refusal of this package. Contents of arrays are as they were before the call, except
    that a call on several pages may have changed those before the page that failed."""


class SettingError(HighwaterError, ValueError):
    """A setting is refused; the message says what is wrong and what is right."""


class DeviceError(HighwaterError, OSError):
    """A swap device cannot be opened."""


class UserfaultfdError(HighwaterError, OSError):
    """This system does not permit userfaultfd, or lacks it: ``highwater doctor`` says more."""


class SystemRefusal(HighwaterError, OSError):
    """The system refuses a thread or addresses."""


class FullError(HighwaterError, MemoryError):
    """Memory and swap together could not hold the array and all others."""


class AddressesError(HighwaterError, MemoryError):
    """No free range of addresses is long enough: delete other arrays first."""


class OutOfMemoryError(HighwaterError, MemoryError):
    """A page cannot be brought in, since no frame can be freed: swap is full, or refuses writes."""


class PinnedError(HighwaterError, MemoryError):
    """Half of the budget is pinned, and no more may be."""


class ReadError(HighwaterError, OSError):
    """A swap device or file could not read a page; its contents may be lost."""


class WriteError(HighwaterError, OSError):
    """A swap device or file could not write a page, which stays in memory."""


class FileError(HighwaterError, OSError):
    """A file cannot be opened, locked, or changed in length."""


class InUseError(HighwaterError, OSError):
    """The file has another mapping, and one of the two is for writing: they would not see each
    other's changes."""


class ReadOnlyError(HighwaterError, ValueError):
    """The file is mapped for reading only."""


class FilesError(HighwaterError, OSError):
    """No more files can be mapped: delete the arrays of one first."""


class ForkedError(HighwaterError, RuntimeError):
    """The memory belongs to the parent of this forked process."""


class RangeError(HighwaterError, IndexError):
    """A range ends beyond the end of its array."""


class BudgetError(HighwaterError, RuntimeError):
    """The new budget was not reached: pages cannot be evicted for now."""
