//! Swap that fails: a program goes on with the right contents, or ends with one line. Never wrong
//! contents, never a bare signal, never a hang. The table is that of docs/promises.md.

use crate::inputs::random_lines;
use crate::place::{Limits, Mode, Place, Swap, note, program};
use crate::run::{Program, Run};
use crate::shortage::{FULL, expect_clear_end, expect_one_line};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Far above what a run takes: an allocation whose writes fail waits 2 s once.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Highwater's messages when no page can be written, when one cannot be read, and when one is not
/// what was written.
const WRITES: &str = "memory is full, and writes to swap fail";
const READ: &str = "a page could not be read: Input/output error";
const CHANGED: &str = "returned a page that was changed since it was written";

/// What may become of a program.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// It ends well.
    Well,
    /// It ends with a line that gives this reason.
    Ends(&'static str),
    /// One of both: the fault may strike a page that was only read ahead.
    Either(&'static str),
}
use Outcome::{Either, Ends, Well};

/// Faults, and what becomes of a program.
const TABLE: [(&str, Outcome); 15] = [
    ("delay=300", Well),
    ("write=once", Well),
    ("write=200", Well),
    ("write=always,after=300", Ends(WRITES)),
    ("full=once", Well),
    ("full=200", Well),
    ("full=always,after=300", Ends(FULL)),
    ("read=once", Either(READ)),
    ("read=20", Either(READ)),
    ("read=always", Ends(READ)),
    ("short=once,after=50", Either(READ)),
    ("short=20", Either(READ)),
    ("lost=once", Either(CHANGED)),
    ("lost=always,after=100", Ends(CHANGED)),
    ("read=5,write=100,short=5,full=100,delay=50", Either(READ)),
];

/// Runs a program in 4 MiB over a swap file with these faults.
fn compare(place: &Place, program: &Program, unlimited: &Run, faults: &'static str, mode: Mode) {
    let outcome = TABLE.iter().find(|row| row.0 == faults).expect("a row of the table").1;
    let what = format!("{} {faults} {mode:?}", program[0].display());
    let swap = Swap::Flaky(faults);
    let limits = Limits { swap, swap_size: 64 * MIB, mode: Some(mode), ..Limits::of(4 * MIB) };
    let run = place.run_with_time_limit(&limits, program, TIME_LIMIT);
    let struck = place.report().number("/vmstat/injected_faults");
    note(&format!("{what}: {struck} faults, {}, {:.1} s", run.status, run.elapsed.as_secs_f64()));
    match (outcome, run.status.success()) {
        (Well | Either(_), true) => {
            assert_eq!(run.text(), unlimited.text(), "{what}");
            assert_eq!(run.errors, "", "{what}");
        }
        (Ends(reason) | Either(reason), false) => {
            expect_clear_end(&what, &run);
            expect_one_line(&what, &run, reason);
        }
        (Well, false) | (Ends(_), true) => panic!("{what}: {} {}", run.status, run.errors),
    }
    assert!(struck > 0, "{what}: no fault was injected");
}

#[test]
fn sort_on_a_disk_that_fails() {
    let place = Place::new();
    random_lines(&place.path("text"), 8 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    for (faults, _) in TABLE {
        compare(&place, &sort, &unlimited, faults, Mode::InThread);
    }
}

#[test]
fn mappings_on_a_disk_that_fails() {
    let place = Place::new();
    let maps = place.c_program("mixed", &["12", "maps"]);
    let unlimited = place.run(&maps).expect_success("maps");
    for (at, (faults, _)) in TABLE.into_iter().enumerate() {
        let mode = [Mode::Handlers, Mode::Copies][at % 2];
        compare(&place, &maps, &unlimited, faults, mode);
    }
}
