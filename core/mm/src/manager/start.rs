//! Errors of starting a manager and of adding a space.

use crate::machine::SPACES_MAX;
use highwater_platform::AttachError;
use std::fmt;

/// Why a manager could not start, or a space could not be added.
#[derive(Debug)]
pub enum StartError {
    /// A setting is out of range; the text names it and its range.
    Config(&'static str),
    /// The platform refused a thread.
    Thread(std::io::Error),
    /// The platform refused an address range, or the handling of its faults.
    Attach(std::io::Error),
    /// The manager has 256 spaces already.
    Spaces,
    /// The device is not for files, is too small, or has another space.
    File(u8),
    /// No device of role Place is free, or the manager has 256 spaces already.
    Places,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(what) => write!(f, "{what}"),
            StartError::Thread(error) => write!(f, "no thread for kswapd: {error}"),
            StartError::Attach(error) => write!(f, "no memory for a space: {error}"),
            StartError::File(device) => {
                write!(f, "device {device} is no file for a space of this size, or has one")
            }
            StartError::Places => write!(f, "there is no place for a further file"),
            StartError::Spaces => write!(f, "a manager has at most {SPACES_MAX} spaces"),
        }
    }
}

impl std::error::Error for StartError {}

impl StartError {
    pub(super) fn refused(error: AttachError) -> StartError {
        StartError::Attach(std::io::Error::from_raw_os_error(error.0))
    }
}
