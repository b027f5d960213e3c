//! Devices write to pages that are pinned for I/O, while other pages are swapped in and out.

use crate::place::{Limits, Place, program};
use std::path::Path;

const MIB: u64 = 1 << 20;
const NEED: &str = "24";
/// Calls by which a program may come to pin pages (`pins.c`).
const WAYS: [&str; 15] = [
    "open",
    "open64",
    "openat",
    "openat64",
    "open_2",
    "openat64_2",
    "mkostemp",
    "fcntl",
    "syscall",
    "openat2",
    "uring",
    "ioctl",
    "liburing",
    "handler",
    "vfork",
];

fn compare(place: &Place, memory: u64, pins: &Path, arguments: [&str; 3]) {
    let name = arguments.join(" ");
    let program = program(pins, &arguments);
    let unlimited = place.run(&program).expect_success(&name);
    place.compare_output(&name, &unlimited, &Limits::of(memory).by_handlers(), &program);
}

#[test]
fn pinned_pages_keep_what_devices_write() {
    let place = Place::beside_others();
    let options = ["-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,liburing.so.2"];
    place.compile("pins", "liburing.so.2", &options);
    let pins = place.compile("pins", "pins", &[]);
    WAYS.iter().for_each(|way| compare(&place, 6 * MIB, &pins, [NEED, "late", way]));
    for when in ["early", "fork", "exec"] {
        ["open", "uring"].iter().for_each(|way| compare(&place, 6 * MIB, &pins, [NEED, when, way]));
    }
}

/// Of 11 MiB, 8 are in flight.
#[test]
fn pages_that_a_disk_writes_to_are_not_swapped_out() {
    let place = Place::beside_others();
    let pins = place.compile("pins", "pins", &[]);
    compare(&place, 11 * MIB, &pins, ["0", "direct", "30"]);
}
