//! Why there is no manager, or no space.

use crate::machine::SPACES_MAX;
use highwater_platform::AttachError;
use std::fmt;

/// Why a manager or a space could not be made.
#[derive(Debug)]
pub enum StartError {
    /// A setting is out of its bounds; the text says which.
    Config(&'static str),
    /// The system gives no thread.
    Thread(std::io::Error),
    /// The system gives no address space, or refuses to hand its faults over.
    Attach(std::io::Error),
    /// There are 256 spaces.
    Spaces,
    /// A device that is not for files, or too small, or taken by another space.
    File(u8),
    /// All places for files that come and go are taken.
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
