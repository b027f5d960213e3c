//! Memory system calls: same results as the kernel's, and atomic for other threads.

use crate::place::{Limits, Place};
use highwater_platform::testing::skip_or_fail;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Values of `--mapping`.
const WAYS: [&str; 2] = ["auto", "copy"];

/// Calls made through the C library's functions, and calls made by number. Both kinds are paged.
#[test]
fn memory_calls_return_the_kernels_results() {
    let place = Place::beside_others();
    let program = place.c_program("calls", &[]);
    let unlimited = place.run(&program).expect_success("calls");
    for (program, mapping) in
        [(&program, "auto"), (&program, "copy"), (&place.c_program("calls", &["number"]), "auto")]
    {
        let limits = Limits { mapping, ..Limits::of(4 * MIB) };
        place.compare_output("calls", &unlimited, &limits, program).expect_swapping();
    }
}

/// Races for some seconds within limits, and for one second without Highwater: both print the same.
fn race(options: &[&str]) {
    let place = Place::new();
    let [short, long] =
        ["1", "3"].map(|seconds| place.c_program("replaced", &[&[seconds], options].concat()));
    let unlimited = place.run(&short).expect_success("replaced");
    for mapping in WAYS {
        let limits = Limits { mapping, ..Limits::of(4 * MIB) };
        place.compare_output(&format!("replaced, {mapping}"), &unlimited, &limits, &long);
    }
}

#[test]
fn replaced_pages_are_not_visible_elsewhere() {
    race(&[]);
}

#[test]
fn pages_are_swapped_in_with_their_protections() {
    race(&["past"]);
}

/// A core file contains the memory in use, but neither the holes of the managed range nor the
/// manager's memory.
#[test]
fn core_files_have_the_size_of_the_memory_in_use() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        return skip_or_fail("this system does not write core files where programs are");
    }
    let place = Place::new();
    let directory = place.path("cores");
    std::fs::create_dir(&directory).expect("a directory");
    let path = directory.to_str().expect("a path of letters");
    let program = place.c_program("dumps", &[path, "100"]);
    place.run_within(&Limits::of(128 * MIB), &program);
    let Some(core) = core_in(&directory) else {
        return skip_or_fail("no core file was written (a limit?)");
    };
    let length = core.metadata().expect("a file").len();
    assert!(length < 300 * MIB, "a core file of {} MiB for 100 MiB", length / MIB);
    assert!(has(&core, "in use: 8bd1a6f2"), "what is resident is in it");
    assert!(!has(&core, "left out: 8bd1a6f2"), "what the program leaves out is not");
}

/// Whether a file contains a text. Another process reads the file, because the peak of this process
/// counts towards the peak of every program that a later test starts.
fn has(file: &Path, text: &str) -> bool {
    let found = Command::new("grep").args(["-q", "-a", "-F", text]).arg(file).status();
    found.expect("grep").success()
}

fn core_in(directory: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(directory).expect("the directory").flatten();
    entries.next().map(|entry| entry.path())
}
