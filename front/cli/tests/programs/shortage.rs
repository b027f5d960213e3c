//! Very little memory, or not enough memory and swap together: a clear end, never wrong data.

use crate::place::{Limits, Place, Swap, tell};
use crate::run::{Program, Run};
use std::os::unix::process::ExitStatusExt;

const MIB: u64 = 1 << 20;
const LITTLE: Limits =
    Limits { memory: 4 * MIB, swap: Swap::Ram, swap_size: 256 * MIB, mapping: "auto" };

#[test]
fn four_mebibytes_are_slow_but_enough() {
    let place = Place::new();
    let program = place.c_program("mixed", &["24"]);
    let unlimited = place.run(&program).expect_success("mixed");
    place.compare_with("mixed in 4 MiB", &unlimited, &LITTLE, &program);
    let program = place.c_program("heap", &["56", "refusals"]);
    let unlimited = place.run(&program).expect_success("heap");
    place.compare_with("heap in 4 MiB", &unlimited, &LITTLE, &program);
}

/// Says what happened in one line, and no checksum: it saw the end coming, or was ended.
fn expect_clear_end(what: &str, run: &Run) {
    let said = run.errors.trim_end();
    tell(&format!("{what}: {}, \"{said}\"", run.status));
    assert!(!run.status.success(), "{what}: ended well");
    // A status over 128 is a signal that was passed on.
    let signal = run.status.signal().or(run.status.code().map(|code| code - 128));
    assert!(![Some(libc::SIGSEGV), Some(libc::SIGBUS)].contains(&signal), "{what}: {said}");
    assert_eq!(run.text(), "", "{what}: a checksum though memory was full");
    let full = said.contains("memory and swap") && said.contains("full");
    let refused = said.contains("Cannot allocate memory");
    assert!(said.lines().count() == 1 && (full || refused), "{what}: \"{said}\"");
}

fn expect_shortage(place: &Place, what: &str, swap: Swap, program: &Program) {
    let limits = Limits { memory: 8 * MIB, swap, swap_size: 16 * MIB, mapping: "auto" };
    expect_clear_end(what, &place.run_within(&limits, program));
}

#[test]
fn full_swap_is_a_clear_end() {
    let place = Place::new();
    expect_shortage(
        &place,
        "maps, full RAM",
        Swap::Ram,
        &place.c_program("mixed", &["64", "maps"]),
    );
    expect_shortage(
        &place,
        "maps, full file",
        Swap::Dir,
        &place.c_program("mixed", &["64", "maps"]),
    );
    let threads = place.c_program("mixed", &["64", "threads32"]);
    expect_shortage(&place, "32 threads, full RAM", Swap::Ram, &threads);
    let heap = place.c_program("heap", &["64", "refusals"]);
    expect_shortage(&place, "malloc, full RAM", Swap::Ram, &heap);
    let kernel = place.c_program("buffers", &["64", "read"]);
    expect_shortage(&place, "read(), full RAM", Swap::Ram, &kernel);
}
