//! Errors: one variant for each remedy that a caller has, and a message of one line.

use crate::files::PLACES;
use highwater_devices::OpenError;
use highwater_mm::{FaultError, StartError};
use highwater_platform::IoError;
use highwater_units::Bytes;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a call was refused. Contents of paged memory are as they were before the call, except
/// that a call on several pages may have changed those before the page that failed.
#[derive(Debug)]
pub enum Error {
    /// A setting is refused; the text says what is wrong and what is right.
    Setting(String),
    /// A swap device cannot be opened.
    Device(OpenError),
    /// This system does not permit userfaultfd, or lacks it: `highwater doctor` says what to
    /// change.
    Userfaultfd(io::Error),
    /// The system refuses a thread or addresses.
    System(io::Error),
    /// Memory and swap together cannot hold that much: free something, raise the budget, or give
    /// larger swap devices.
    Full {
        /// The memory that the call needs.
        wanted: Bytes,
        /// The memory that is left.
        left: Bytes,
    },
    /// No part of the address range has room for a mapping of this length: the gaps between
    /// long-lived mappings are too short. Free some mappings, or allocate large mappings first.
    Addresses {
        /// The length of the mapping.
        wanted: Bytes,
    },
    /// A page cannot be brought in, since no frame can be freed: swap is full, or refuses writes.
    OutOfMemory,
    /// Half of the budget is pinned, and no more may be. Drop a page guard.
    Pinned {
        /// The number of pages that may be pinned at the same time.
        most: u32,
    },
    /// A swap device or file could not read a page; its contents may be lost.
    Read(IoError),
    /// A swap device or file could not write a page, which stays in memory.
    Write(IoError),
    /// A file cannot be opened, locked, or changed in length.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file has another mapping, in this or another process, and one of the two is for writing:
    /// they would not see each other's changes.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is mapped for reading only.
    ReadOnly,
    /// No more files can be mapped: drop one first.
    Files {
        /// The number of files that may be mapped at the same time.
        most: usize,
    },
    /// The memory belongs to the parent of this process: a forked child has none of it.
    Forked,
    /// The range ends beyond the end of the mapping.
    Range {
        /// The end of the range, in bytes.
        end: u64,
        /// The length of the mapping, in bytes.
        len: u64,
    },
    /// The new budget was not reached: pages cannot be evicted for now.
    Budget {
        /// The current budget.
        reached: Bytes,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Setting(what) => f.write_str(what),
            Error::Device(error) => error.fmt(f),
            Error::Userfaultfd(error) => {
                write!(f, "userfaultfd: {error} (highwater doctor says more)")
            }
            Error::System(error) => write!(f, "no threads or addresses: {error}"),
            Error::Full { wanted, left } => {
                write!(f, "memory and swap have {left} left, and {wanted} are needed")
            }
            Error::Addresses { wanted } => {
                write!(f, "no {wanted} of free addresses side by side; free other mappings first")
            }
            Error::OutOfMemory => FaultError::OutOfMemory.fmt(f),
            Error::Pinned { most } => {
                write!(f, "all pages that may be pinned are: {most}; unpin some first")
            }
            Error::Read(error) => FaultError::Read(*error).fmt(f),
            Error::Write(error) => FaultError::Write(*error).fmt(f),
            // Quoted with escapes: a path may hold a line break, the message may not.
            Error::File { path, error } => write!(f, "file {path:?}: {error}"),
            Error::InUse { path } => write!(
                f,
                "file {path:?} is locked, or mapped elsewhere, for writing here or there: close it \
                 there first"
            ),
            Error::ReadOnly => f.write_str("the file is mapped for reading only"),
            Error::Files { most } => {
                write!(f, "{most} files are mapped, or were in too many sizes; drop some first")
            }
            Error::Forked => {
                f.write_str("paged memory belongs to the parent of this forked process")
            }
            Error::Range { end, len } => write!(f, "{end} is behind the end, {len}"),
            Error::Budget { reached } => {
                write!(f, "the budget is {reached} for now: other pages do not leave memory")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Userfaultfd(error) | Error::System(error) => Some(error),
            Error::Device(error) => Some(error),
            Error::File { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<FaultError> for Error {
    fn from(error: FaultError) -> Error {
        match error {
            FaultError::OutOfMemory => Error::OutOfMemory,
            FaultError::Read(error) => Error::Read(error),
            FaultError::Write(error) => Error::Write(error),
            FaultError::ReadOnly => Error::ReadOnly,
            FaultError::BeyondEnd => unreachable!("ranges are checked"),
            FaultError::Poisoned => unreachable!("only pages of programs are poisoned"),
        }
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Error {
        match error {
            StartError::Config(what) => Error::Setting(what.to_owned()),
            StartError::Thread(error) | StartError::Attach(error) => Error::System(error),
            StartError::Places => Error::Files { most: PLACES },
            StartError::Spaces | StartError::File(_) => {
                unreachable!("spaces are few, and files have places")
            }
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error {
            Error::Full { .. } | Error::OutOfMemory | Error::Addresses { .. } => {
                io::ErrorKind::OutOfMemory
            }
            Error::Setting(_) | Error::Range { .. } => io::ErrorKind::InvalidInput,
            Error::File { ref error, .. } => error.kind(),
            Error::InUse { .. } => io::ErrorKind::WouldBlock,
            Error::ReadOnly => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
