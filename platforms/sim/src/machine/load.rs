//! Loads the description of a machine.

use super::check;
use super::description::Machine;

impl Machine {
    /// Parses the text of a machine's TOML file.
    ///
    /// # Errors
    /// One line for each defect: the key, what is wrong with it, what to do.
    pub fn load(text: &str) -> Result<Machine, String> {
        let machine: Machine = toml::from_str(text).map_err(|error| error.to_string())?;
        match check::defects(&machine) {
            defects if defects.is_empty() => Ok(machine),
            defects => Err(defects.join("\n")),
        }
    }
}
