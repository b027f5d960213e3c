"""Exceptions: one for each thing that a caller can do about a refusal."""


class HighwaterError(Exception):
    """Any refusal of this package. Contents of arrays are as they were."""


class SettingError(HighwaterError, ValueError):
    """A setting is refused; the message says what is wrong and what is right."""


class DeviceError(HighwaterError, OSError):
    """A swap device cannot be opened."""


class UserfaultfdError(HighwaterError, OSError):
    """This system does not permit userfaultfd, or lacks it; see ``highwater doctor``."""


class SystemRefusal(HighwaterError, OSError):
    """The system refuses a thread or addresses."""


class FullError(HighwaterError, MemoryError):
    """Memory and swap together could not hold the array beside the others."""


class AddressesError(HighwaterError, MemoryError):
    """Not enough free addresses side by side: delete other arrays first."""


class OutOfMemoryError(HighwaterError, MemoryError):
    """A page cannot be brought in: swap is full, or refuses writes."""


class PinnedError(HighwaterError, MemoryError):
    """All pages that may be pinned are."""


class ReadError(HighwaterError, OSError):
    """A swap device or file could not read a page; its contents may be lost."""


class WriteError(HighwaterError, OSError):
    """A swap device or file could not write a page, which stays in memory."""


class FileError(HighwaterError, OSError):
    """A file cannot be opened, locked, or changed in length."""


class InUseError(HighwaterError, OSError):
    """The file is mapped elsewhere, and one of the two writes: neither would see the changes of
    the other."""


class ReadOnlyError(HighwaterError, ValueError):
    """The file is mapped for reading only."""


class FilesError(HighwaterError, OSError):
    """Too many files are mapped: delete arrays of some first."""


class ForkedError(HighwaterError, RuntimeError):
    """The memory belongs to the parent of this forked process."""


class RangeError(HighwaterError, IndexError):
    """A range ends behind its array."""


class BudgetError(HighwaterError, RuntimeError):
    """A smaller budget is not reached: pages do not leave memory for now."""
