//! The machines that can be simulated: the files of lab/machines, part of the program.

use highwater_sim::Machine;

/// Name and text of each.
const FILES: [(&str, &str); 8] = [
    ("xeon-48c-2-ramdisks", include_str!("../machines/xeon-48c-2-ramdisks.toml")),
    ("xeon-48c-2-optane", include_str!("../machines/xeon-48c-2-optane.toml")),
    ("xeon-48c-2-p3600", include_str!("../machines/xeon-48c-2-p3600.toml")),
    ("xeon-e5v3-72t-ramdisk", include_str!("../machines/xeon-e5v3-72t-ramdisk.toml")),
    ("x7-2l-52c-8nvme", include_str!("../machines/x7-2l-52c-8nvme.toml")),
    ("spr-112c-224t", include_str!("../machines/spr-112c-224t.toml")),
    ("server-128c-8nvme", include_str!("../machines/server-128c-8nvme.toml")),
    ("desktop-2012-kvm", include_str!("../machines/desktop-2012-kvm.toml")),
];

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The text of a machine's file.
pub fn text(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(other, _)| *other == name).map(|(_, text)| *text)
}

/// A machine by name.
pub fn find(name: &str) -> Option<Machine> {
    let text = text(name)?;
    Some(Machine::load(text).expect("the files are sound: a test loads them all"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::lock_class;
    use highwater_platform::LockClass;

    #[test]
    fn every_machine_is_sound_and_called_as_its_file() {
        assert!(names().all(|name| find(name).expect("listed").name == name));
        assert_eq!(find("xeon"), None);
    }

    /// Names in `[costs.sections]` that are no lock class: their costs would never be charged.
    fn unknown_sections(machine: &Machine) -> Vec<&str> {
        let known = |name: &str| {
            let mut classes = lock_class::ALL.iter().chain([&LockClass::TEST]);
            classes.any(|class| class.name() == name)
        };
        machine.costs.sections.names().filter(|name| !known(name)).collect()
    }

    #[test]
    fn every_section_is_the_default_or_a_lock_class() {
        for name in names() {
            let machine = find(name).expect("listed");
            assert_eq!(unknown_sections(&machine), [""; 0], "{name}");
        }
        let (name, text) = FILES[0];
        let misspelt = text.replacen("\nswap_device = ", "\nswap_devise = ", 1);
        let machine = Machine::load(&misspelt).expect("a section may have any name");
        assert_eq!(unknown_sections(&machine), ["swap_devise"], "{name}");
    }
}
