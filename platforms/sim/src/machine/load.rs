//! Loads a machine description.

use super::check;
use super::description::Machine;

impl Machine {
    /// Parses the text of a machine file (TOML).
    ///
    /// # Errors
    /// One line per defect: the key, the problem, the remedy.
    pub fn load(text: &str) -> Result<Machine, String> {
        let machine: Machine = toml::from_str(text).map_err(|error| error.to_string())?;
        match check::defects(&machine) {
            defects if defects.is_empty() => Ok(machine),
            defects => Err(defects.join("\n")),
        }
    }
}
