//! Errors of public methods: one enum for each family of methods.

use highwater_platform::IoError;
use std::fmt;

/// A page could not be made present, or could not be written. The page keeps its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// No frame is free, and none could be reclaimed: swap is full, or writes to it fail.
    OutOfMemory,
    /// The page is beyond the end of its space or file.
    BeyondEnd,
    /// A write access to a page of a read-only file.
    ReadOnly,
    /// The device could not read the page.
    Read(IoError),
    /// The page could not be read earlier, and is lost (`Manager::poison`).
    Poisoned,
    /// The device could not write the page: to swap for a snapshot, or to its file.
    Write(IoError),
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultError::OutOfMemory => write!(f, "memory and swap are full"),
            FaultError::BeyondEnd => write!(f, "a page is beyond the end of its space or file"),
            FaultError::ReadOnly => write!(f, "a page of a file that is open for reading only"),
            FaultError::Read(error) => write!(f, "a page could not be read: {error}"),
            FaultError::Poisoned => write!(f, "a page is lost that could not be read"),
            FaultError::Write(error) => write!(f, "a page could not be written: {error}"),
        }
    }
}

impl std::error::Error for FaultError {}

/// A block could not be collapsed into a large page. Its pages are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseError {
    /// Large pages are off, or the space does not support them.
    Unsupported,
    /// The block has no contents.
    Nothing,
    /// No block of 512 adjacent frames is free.
    NoMemory,
    /// Pages of the block are in use, or could not be read. The caller can try again.
    Busy,
}

impl fmt::Display for CollapseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollapseError::Unsupported => write!(f, "large pages are off"),
            CollapseError::Nothing => write!(f, "a block has no contents"),
            CollapseError::NoMemory => write!(f, "there is no block of frames"),
            CollapseError::Busy => write!(f, "pages of a block are in use"),
        }
    }
}

impl std::error::Error for CollapseError {}

/// An object could not be freed. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// No object begins at this address.
    Foreign,
    /// The object is free already (double free).
    Free,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeError::Foreign => write!(f, "no object begins there"),
            FreeError::Free => write!(f, "the object is free already"),
        }
    }
}

impl std::error::Error for FreeError {}
