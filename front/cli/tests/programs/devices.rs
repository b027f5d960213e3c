//! Swap devices are added to a running session and removed from it, while its processes check the
//! contents they work on.

use crate::place::Place;
use crate::shares::Session;

const MIB: u64 = 1 << 20;

/// The devices that a process of the session uses now, as it has published them.
pub(crate) fn devices(session: &Session) -> Vec<String> {
    let text = session.ctl("swap").unwrap_or_default();
    let of_process = text.lines().filter_map(|line| line.strip_prefix("process "));
    let device = of_process.filter_map(|line| line.split_once(' ')?.1.split_once(" = "));
    let mut found: Vec<String> = device.map(|(device, _)| device.to_owned()).collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn pages_move_from_device_to_device_while_processes_use_them() {
    let place = Place::new();
    let program = place.compile("devices", "devices", &[]);
    let dir = place.path("swap");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.display();
    let script = format!("echo ready; read go; exec {} 2 24", program.display());
    let (sh, shell) = (std::path::Path::new("sh"), ["-c", &script]);
    let mut session = Session::swapping("devices", 24 * MIB, &["ram:256M"], &[sh], &shell);
    session.expect_line("ready");
    // Change the devices before the program starts: it begins with the device that is left.
    let file = format!("dir:{dir}:256M");
    for request in [format!("swap-add={file}"), "swap-remove=ram:256M".to_owned()] {
        assert!(session.ctl(&request).is_some(), "{request}");
    }
    session.tell("go");
    session.expect_line("started");
    session.until("three processes use the file", |members| {
        members.len() == 3 && devices(&session) == [file.clone()]
    });
    // Then change them under load, in both directions; each child reads its parent's device.
    for (add, remove, left) in [
        ("ram:256M".to_owned(), dir.to_string(), "ram:256M"),
        (file.clone(), "ram:256M".to_owned(), file.as_str()),
    ] {
        let added = session.ctl(&format!("swap-add={add}"));
        assert_eq!(added, Some(format!("swap-add = {add}\n")));
        assert!(session.ctl(&format!("swap-remove={remove}")).is_some(), "{remove}");
        session.until("the others use the one that is left", |_| devices(&session) == [left]);
        assert_eq!(session.swap().len(), 1, "its room, and no other");
    }
    session.finish();
    session.expect_line("ended");
    session.end();
}

/// Programs that may not write files of this size, alone and beside one that may.
#[test]
fn a_device_that_no_process_can_use_is_not_added() {
    let place = Place::new();
    let program = place.compile("devices", "devices", &[]);
    let program = program.display();
    let file = format!("dir:{}:256M", place.path("").display());
    let alone = format!("ulimit -f 1000; exec {program} 1 24");
    let beside = format!("exec 3<&0; {program} 0 8 <&3 & ({alone}) <&3; wait");
    let sh = std::path::Path::new("sh");
    let reason = format!("swap \"{file}\": files are limited to 500 KiB here (ulimit -f)");
    for (name, script, programs) in [("alone", &alone, 1), ("beside", &beside, 2)] {
        let arguments = ["-c", script];
        let mut session = Session::swapping(name, 24 * MIB, &["ram:256M"], &[sh], &arguments);
        (0..programs).for_each(|_| session.expect_line("started"));
        let request = format!("swap-add={file}");
        if name == "alone" {
            for _ in 0..2 {
                let refusal = session.refusal(&request);
                let expected = format!("no process of the session can use {reason}; name");
                assert!(refusal.contains(&expected), "{refusal}");
                assert_eq!(session.swap().len(), 1, "it is not left there");
            }
        } else {
            let expected = format!("swap-add = {file}; 2 processes cannot use it: {reason}\n");
            assert_eq!(session.ctl(&request), Some(expected));
            assert_eq!(session.swap().len(), 2);
        }
        session.finish();
        (0..programs).for_each(|_| session.expect_line("ended"));
        session.end();
    }
}

#[test]
fn a_device_stays_where_its_pages_have_no_other_room() {
    let place = Place::new();
    let program = place.compile("devices", "devices", &[]);
    let mut session =
        Session::swapping("stays", 16 * MIB, &["ram:256M"], &[&program], &["1", "40"]);
    session.expect_line("started");
    assert!(session.refusal("swap-remove=ram:256M").contains("is the only swap device"));
    assert!(session.refusal("swap-remove=/nowhere").contains("there are ram:256M"));
    assert!(session.refusal("swap-add=dir:/nonexistent:1G").contains("create the directory"));
    assert!(session.refusal("swap-add=ram:256M").contains("a swap device of this session already"));
    // The device has slots for three times its size, for pages that compress. These pages do not.
    assert!(session.ctl("swap-add=zram:16M").is_some());
    session.until("all have published what they use", |members| {
        members.len() == 2 && session.slots() > 24 * MIB
    });
    for _ in 0..2 {
        let line = session.refusal("swap-remove=ram:256M");
        assert!(line.contains("ram:256M stays") && line.contains("lack room for"), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        session.until("both are in use", |_| {
            devices(&session) == ["ram:256M".to_owned(), "zram:16M:lz4".to_owned()]
        });
    }
    session.finish();
    session.expect_line("ended");
    session.end();
}
