//! Errors of the library as Python exceptions: the classes in
//! `front/python/python/highwater/_errors.py` have the same names.

use highwater::Error;
use pyo3::prelude::*;

/// The exception for an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = py.import("highwater._errors").and_then(|module| module.getattr(class_of(error)));
    match class.and_then(|class| class.call1((error.to_string(),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failure) => failure,
    }
}

/// The name of the exception class for an error.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Setting(_) => "SettingError",
        Error::Device(_) => "DeviceError",
        Error::Userfaultfd(_) => "UserfaultfdError",
        Error::System(_) => "SystemRefusal",
        Error::Full { .. } => "FullError",
        Error::Addresses { .. } => "AddressesError",
        Error::OutOfMemory => "OutOfMemoryError",
        Error::Pinned { .. } => "PinnedError",
        Error::Read(_) => "ReadError",
        Error::Write(_) => "WriteError",
        Error::File { .. } => "FileError",
        Error::InUse { .. } => "InUseError",
        Error::ReadOnly => "ReadOnlyError",
        Error::Files { .. } => "FilesError",
        Error::Forked => "ForkedError",
        Error::Range { .. } => "RangeError",
        Error::Budget { .. } => "BudgetError",
    }
}
