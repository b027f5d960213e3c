//! Loads a machine description.

use super::check;
use super::description::Machine;
use toml::Table;

impl Machine {
    /// Parses the text of a machine file (TOML).
    ///
    /// # Errors
    /// One line per defect: the key, the problem, the remedy.
    pub fn load(text: &str) -> Result<Machine, String> {
        // Errors of syntax and types have line numbers only where the text itself is parsed.
        toml::from_str::<Machine>(text).map_err(|error| error.to_string())?;
        Machine::from_table(text.parse().map_err(|error: toml::de::Error| error.to_string())?)
    }

    pub(super) fn from_table(file: Table) -> Result<Machine, String> {
        let machine: Machine = file.clone().try_into().map_err(|error| error.to_string())?;
        let mut defects = check::defects(&machine);
        defects.extend(machine.calibrated.iter().flat_map(|one| one.defects(&file)));
        if defects.is_empty() { Ok(machine) } else { Err(defects.join("\n")) }
    }
}
