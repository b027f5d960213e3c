//! The machines that can be simulated: the files of lab/machines, part of the program.

use highwater_sim::Machine;

/// Name and text of each.
const FILES: [(&str, &str); 7] = [
    ("xeon-48c-2-ramdisks", include_str!("../machines/xeon-48c-2-ramdisks.toml")),
    ("xeon-48c-2-optane", include_str!("../machines/xeon-48c-2-optane.toml")),
    ("xeon-48c-2-p3600", include_str!("../machines/xeon-48c-2-p3600.toml")),
    ("xeon-e5v3-72t-ramdisk", include_str!("../machines/xeon-e5v3-72t-ramdisk.toml")),
    ("x7-2l-52c-8nvme", include_str!("../machines/x7-2l-52c-8nvme.toml")),
    ("spr-112c-224t", include_str!("../machines/spr-112c-224t.toml")),
    ("desktop-2012-kvm", include_str!("../machines/desktop-2012-kvm.toml")),
];

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// A machine by name.
pub fn find(name: &str) -> Option<Machine> {
    let (_, text) = FILES.iter().find(|(other, _)| *other == name)?;
    Some(Machine::load(text).expect("the files are sound: a test loads them all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_is_sound_and_called_as_its_file() {
        assert!(names().all(|name| find(name).expect("listed").name == name));
        assert_eq!(find("xeon"), None);
    }
}
