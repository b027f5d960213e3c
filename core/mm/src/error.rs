//! What can go wrong for a caller, one small enum per call family.

use highwater_platform::IoError;
use std::fmt;

/// A page could not be made present, or written. The page is as it was; nothing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// No frame: memory is in use and swap is full, or cannot be written.
    OutOfMemory,
    /// It is beyond the end of its space, or of its file, which may have been truncated.
    BeyondEnd,
    /// It is to be changed, but its file is open for reading only.
    ReadOnly,
    /// Its contents could not be read from their device.
    Read(IoError),
    /// Its contents could not be written: to swap, for a forked child to read, or to their file.
    Write(IoError),
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultError::OutOfMemory => write!(f, "memory and swap are full"),
            FaultError::BeyondEnd => write!(f, "a page is beyond the end of its space or file"),
            FaultError::ReadOnly => write!(f, "a page of a file that is open for reading only"),
            FaultError::Read(error) => write!(f, "a page could not be read: {error}"),
            FaultError::Write(error) => write!(f, "a page could not be written: {error}"),
        }
    }
}

impl std::error::Error for FaultError {}

/// A block was not made a large page. Its pages are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseError {
    /// Large pages are off, or not for such a space.
    Unsupported,
    /// It has no contents.
    Nothing,
    /// There are no 512 adjacent frames for it.
    NoMemory,
    /// Its pages are in use, or could not be read: it can be tried again.
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

/// An object was not given back. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// No object begins there.
    Foreign,
    /// It is free: it was given back already.
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
