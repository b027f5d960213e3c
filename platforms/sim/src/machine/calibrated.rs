//! Costs whose values are fixed by published base values (`[[calibrated]]` in a machine file), and
//! loading the file with other values for these costs.
//!
//! ```text
//! cost = "costs.sections.lru.item" ── place ──> a value of the file
//! cost = "device.*.mib"                         one of each device
//! cost = "set.work"                             a setting of the experiment: not in the file
//! ```

use super::description::{Calibrated, Machine};
use toml::{Table, Value};

/// The beginning of the name of a cost that is a setting of an experiment.
const SETTING: &str = "set.";

impl Calibrated {
    /// The key of the setting, if the cost is one.
    pub fn setting(&self) -> Option<&str> {
        self.cost.strip_prefix(SETTING)
    }

    /// One line per defect.
    pub(super) fn defects(&self, file: &Table) -> Vec<String> {
        let Calibrated { cost, search, step, by, allowed } = self;
        let mut found = Vec::new();
        if self.setting().is_none() && value(file, cost).is_none() {
            found.push(format!("calibrated {cost}: the file has no such number"));
        }
        if search[0] >= search[1] {
            found.push(format!(
                "calibrated {cost}: search = {search:?}, give the least and the most"
            ));
        }
        if allowed[0] > allowed[1] || allowed[0] < search[0] || allowed[1] > search[1] {
            found
                .push(format!("calibrated {cost}: allowed = {allowed:?} is no part of {search:?}"));
        }
        if *step == 0 {
            found.push(format!("calibrated {cost}: step = 0, give the distance of two values"));
        }
        if by.is_empty() {
            found.push(format!("calibrated {cost}: by is empty, name the base values that fix it"));
        }
        found
    }
}

impl Machine {
    /// Parses the text of a machine file with other values of some costs.
    ///
    /// # Errors
    /// As [`Machine::load`]; also if the file does not have a cost.
    pub fn load_with(text: &str, costs: &[(&str, u64)]) -> Result<Machine, String> {
        let mut file: Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        for (cost, to) in costs {
            let to = i64::try_from(*to).map_err(|_| format!("{cost} = {to}: too large"))?;
            let places = places(&mut file, cost);
            if places.is_empty() {
                return Err(format!("{cost}: the file has no such number"));
            }
            places.into_iter().for_each(|place| *place = Value::Integer(to));
        }
        Machine::from_table(file)
    }

    /// The value of a cost in the text of a machine file; of several devices, the value of the
    /// first.
    pub fn cost_in(text: &str, cost: &str) -> Option<u64> {
        value(&text.parse().ok()?, cost)
    }
}

fn value(file: &Table, cost: &str) -> Option<u64> {
    let mut file = file.clone();
    let number = places(&mut file, cost).first()?.as_integer()?;
    u64::try_from(number).ok()
}

/// The numbers that a cost names.
fn places<'a>(file: &'a mut Table, cost: &str) -> Vec<&'a mut Value> {
    let mut words = cost.split('.');
    let Some(first) = words.next().and_then(|word| file.get_mut(word)) else { return Vec::new() };
    let found = words.fold(vec![first], |found, word| {
        found.into_iter().flat_map(|value| inner(value, word)).collect()
    });
    found.into_iter().filter(|value| value.is_integer()).collect()
}

/// The value of a key; among devices, the one of that name, or all for `*`.
fn inner<'a>(value: &'a mut Value, word: &str) -> Vec<&'a mut Value> {
    match value {
        Value::Table(table) => table.get_mut(word).into_iter().collect(),
        Value::Array(devices) => {
            let named = |device: &Value| device.get("name").and_then(Value::as_str) == Some(word);
            devices.iter_mut().filter(|device| word == "*" || named(device)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::SMALL;
    use super::*;

    const ENTRY: &str = r#"
[[calibrated]]
cost = "costs.sections.lru.item"
search = [10, 100]
by = ["swap-2020: lock share: LRU lists"]
allowed = [25, 30]
"#;

    #[test]
    fn a_cost_is_found_and_replaced() {
        assert_eq!(Machine::cost_in(SMALL, "costs.sections.lru.item"), Some(30));
        let costs = [("costs.sections.lru.item", 77), ("device.b.mib", 5), ("costs.fault", 601)];
        let machine = Machine::load_with(SMALL, &costs).expect("sound");
        assert_eq!(machine.costs.sections.of("lru").item, 77);
        assert_eq!((machine.devices[0].mib, machine.devices[1].mib), (96, 5));
        assert_eq!(machine.costs.fault, 601);
        let all = Machine::load_with(SMALL, &[("device.*.mib", 70)]).expect("sound");
        assert!(all.devices.iter().all(|device| device.mib == 70));
        for none in ["costs.faults", "device.c.mib", "name", "costs", ""] {
            let error = Machine::load_with(SMALL, &[(none, 1)]).expect_err("nothing to replace");
            assert!(error.contains("no such number"), "{error}");
        }
    }

    #[test]
    fn a_calibrated_cost_is_one_of_the_file() {
        let sound = format!("{SMALL}{ENTRY}");
        let machine = Machine::load(&sound).expect("sound");
        assert_eq!(machine.calibrated[0].allowed, [25, 30]);
        for (from, to, expected) in [
            ("sections.lru.item", "sections.lru.items", "no such number"),
            ("[10, 100]", "[100, 10]", "give the least"),
            ("[25, 30]", "[5, 30]", "no part of"),
            ("[25, 30]", "[25, 30]\nstep = 0", "step = 0"),
            ("[\"swap-2020: lock share: LRU lists\"]", "[]", "by is empty"),
        ] {
            let error = Machine::load(&sound.replace(from, to)).expect_err("it is broken");
            assert!(error.contains(expected), "{error}");
        }
        let setting = sound.replace("costs.sections.lru.item", "set.work");
        assert_eq!(Machine::load(&setting).expect("sound").calibrated[0].setting(), Some("work"));
    }
}
