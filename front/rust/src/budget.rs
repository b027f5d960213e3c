//! Sizes of budgets, as people write them.

use crate::error::Error;
use highwater_devices::size;
use highwater_session::FLOOR;
use highwater_units::Bytes;

/// A size in whole pages, if it is large enough for a budget and the machine has that much memory.
pub(crate) fn within(name: &str, text: &str, exists: Bytes) -> Result<Bytes, Error> {
    let least = Bytes::of_pages(FLOOR);
    let given = size(text).map_err(|error| {
        Error::Setting(format!("{name} '{text}' is not a size ({error}); give for example 512M"))
    })?;
    match given {
        given if given < least => {
            Err(Error::Setting(format!("{name} of {given} is too small: give {least} or more")))
        }
        given if given > exists => Err(Error::Setting(format!(
            "{name} of {given} is more than the memory of this machine, {exists}"
        ))),
        given => Ok(Bytes::of_pages(given.pages())),
    }
}
