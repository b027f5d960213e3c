//! Swap that fails: a program goes on with the right contents, or ends with one line. It never gets
//! wrong contents, never ends by a bare signal, and never hangs. docs/promises.md has this table
//! for users.

use crate::inputs::random_lines;
use crate::place::{Limits, Mode, Place, Swap, note, program};
use crate::run::{Program, Run};
use crate::shortage::{FULL, REFUSED, expect_no_bare_signal, expect_one_line};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Far above what a run takes: an allocation whose writes fail waits 2 s once.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Highwater's messages when no page can be written, when a page cannot be read, and when a page
/// was changed since it was written.
const WRITES: &str = "memory is full, and writes to disk fail";
const READ: &str = "a page could not be read: Input/output error";
const CHANGED: &str = "returned a page that was changed since it was written";

/// The messages when a fault leaves no room: those of programs whose allocation fails, and ours.
const NO_ROOM: &[&str] = &[REFUSED, "memory exhausted", FULL];

/// The outcomes of a program.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// It ends well.
    Well,
    /// It ends with a line that gives one of these reasons.
    Ends(&'static [&'static str]),
    /// Either of the two: the fault may hit a page that is only read ahead.
    Either(&'static [&'static str]),
}
use Outcome::{Either, Ends, Well};

/// Faults per 1000 transfers, and the outcome of a program whose swap has these faults. The first
/// 100 transfers, of at most 16 pages each, hold less than the programs need.
const TABLE: [(&str, Outcome); 15] = [
    ("delay=20", Well),
    ("write=once", Well),
    ("write=200", Well),
    ("write=always,after=100", Ends(&[WRITES])),
    ("full=once", Either(NO_ROOM)),
    ("full=200", Either(NO_ROOM)),
    ("full=always,after=100", Ends(NO_ROOM)),
    ("read=once", Either(&[READ])),
    ("read=20", Either(&[READ])),
    ("read=always", Ends(&[READ])),
    ("short=once,after=50", Either(&[READ])),
    ("short=20", Either(&[READ])),
    ("lost=20", Either(&[CHANGED])),
    ("lost=always,after=100", Ends(&[CHANGED])),
    (
        "read=5,write=100,short=5,full=50,delay=20",
        Either(&[READ, REFUSED, "memory exhausted", FULL]),
    ),
];

/// Faults of both replicas. A read that fails on one replica is repeated on the other.
const REPLICAS: [(&str, Outcome); 6] = [
    ("write=200", Well),
    ("write=always", Ends(&[WRITES])),
    ("write=always,after=100", Ends(&[WRITES])),
    ("full=always,after=100", Ends(NO_ROOM)),
    ("read=always", Ends(&[READ])),
    ("lost=always,after=100", Ends(&[CHANGED])),
];

/// Runs a program in 4 MiB over swap with faults.
fn compare(
    place: &Place,
    program: &Program,
    unlimited: &Run,
    (swap, outcome): (Swap, Outcome),
    mode: Mode,
) {
    let limits = Limits { swap, swap_size: 64 * MIB, mode: Some(mode), ..Limits::of(4 * MIB) };
    compare_in(place, program, unlimited, outcome, &limits);
}

fn compare_in(
    place: &Place,
    program: &Program,
    unlimited: &Run,
    outcome: Outcome,
    limits: &Limits,
) {
    let what = format!("{} {:?} {:?}", program[0].display(), limits.swap, limits.mode);
    let run = place.run_with_time_limit(limits, program, TIME_LIMIT);
    let struck = place.report().number("/vmstat/injected_faults");
    let (text, expected) = (run.text(), unlimited.text());
    note(&format!("{what}: {struck} faults, {}, {:.1} s", run.status, run.elapsed.as_secs_f64()));
    match (outcome, run.status.success()) {
        (Well | Either(_), true) => {
            assert!(text == expected && run.errors.is_empty(), "{what}: {}", run.errors);
        }
        (Ends(reasons) | Either(reasons), false) => {
            expect_no_bare_signal(&what, &run);
            expect_one_line(&what, &run, reasons);
            assert!(expected.starts_with(&text), "{what}: what it printed is wrong");
        }
        (Well, false) | (Ends(_), true) => panic!("{what}: {} {}", run.status, run.errors),
    }
    assert!(struck > 0, "{what}: no fault was injected");
}

#[test]
fn sort_on_a_disk_that_fails() {
    let place = Place::beside_others();
    random_lines(&place.path("text"), 5 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    for (faults, outcome) in TABLE.into_iter().filter(|(_, outcome)| !matches!(outcome, Ends(_))) {
        compare(&place, &sort, &unlimited, (Swap::Flaky(faults), outcome), Mode::InThread);
    }
}

/// Both replicas fail, as a single disk would.
#[test]
fn sort_on_two_disks_that_fail() {
    let place = Place::beside_others();
    random_lines(&place.path("text"), 5 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    for (row, mode) in REPLICAS.into_iter().zip(Mode::ALL.into_iter().cycle()) {
        let (faults, outcome) = row;
        compare(&place, &sort, &unlimited, (Swap::FlakyReplicas(faults), outcome), mode);
    }
}

/// The time that a program waits for failing writes does not grow with its memory.
#[test]
fn much_memory_whose_writes_fail_is_not_waited_for_longer() {
    let place = Place::new();
    random_lines(&place.path("text"), 128 * MIB);
    let sort = program("sort", &["-S", "512M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    let swap = Swap::FlakyReplicas("write=always");
    let limits = Limits { swap, swap_size: 512 * MIB, ..Limits::of(96 * MIB) };
    let began = Instant::now();
    compare_in(&place, &sort, &unlimited, Ends(&[WRITES]), &limits);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn mappings_on_a_disk_that_fails() {
    let place = Place::beside_others();
    let maps = place.c_program("mixed", &["12", "maps"]);
    let unlimited = place.run(&maps).expect_success("maps");
    for ((faults, outcome), mode) in TABLE.into_iter().zip(Mode::ALL.into_iter().cycle()) {
        compare(&place, &maps, &unlimited, (Swap::Flaky(faults), outcome), mode);
    }
}

/// A program that handles SIGBUS gets it at the pages that are lost, with a line; lost.c says what
/// it checks. Where handlers serve faults on a kernel without UFFDIO_POISON, nothing can raise it:
/// the program ends like others.
#[test]
fn a_program_that_handles_sigbus_goes_on_without_lost_pages() {
    const SIGBUS: &str = ": the program gets SIGBUS at 0x";
    let place = Place::beside_others();
    let lost = place.c_program("lost", &["12"]);
    for mode in Mode::ALL {
        for (faults, reason) in [("read=200", READ), ("lost=20,after=50", CHANGED)] {
            let swap = Swap::Flaky(faults);
            let limits =
                Limits { swap, swap_size: 64 * MIB, mode: Some(mode), ..Limits::of(4 * MIB) };
            for limits in [Limits { mapping: "copy", ..limits }, limits] {
                let run = place.run_with_time_limit(&limits, &lost, TIME_LIMIT);
                let what = format!("{faults} {mode:?} {}", limits.mapping);
                note(&format!("{what}: {} {}", run.status, run.text().trim_end()));
                if mode != Mode::InThread && limits.mapping == "copy" {
                    expect_no_bare_signal(&what, &run);
                    expect_one_line(&what, &run, &[reason]);
                    continue;
                }
                assert!(run.status.success(), "{what}: {} {}", run.status, run.errors);
                let explained = |line: &str| line.contains(reason) && line.contains(SIGBUS);
                assert!(run.errors.lines().all(explained), "{what}: {}", run.errors);
                assert!(place.report().number("/vmstat/pgpoisoned") >= 5, "{what}");
                assert_one_line_a_page(&what, &run.errors);
            }
        }
    }
}

/// A line for each page, and at most 16 from each of the three processes.
fn assert_one_line_a_page(what: &str, errors: &str) {
    let most = 3 * 16;
    let lines = errors.lines().count();
    assert!((5..=most).contains(&lines), "{what}: {lines} lines");
    let last = errors.lines().filter(|line| line.ends_with("further lost pages are not reported"));
    assert!(last.count() <= 3, "{what}: {errors}");
}

/// A user cannot inject faults by accident.
#[test]
fn faults_are_refused_without_the_variable_of_the_tests() {
    let place = Place::beside_others();
    for arguments in [&["run"][..], &["doctor"]] {
        let mut command = crate::common::highwater();
        command.args(arguments).args(["--swap", "flaky:read=once+ram:16M"]);
        if arguments == ["run"] {
            command.args(["--", "true"]);
        }
        let run = Run::of(&mut command, &place.path(""), "refused", TIME_LIMIT);
        assert_eq!(run.status.code(), Some(2), "{}", run.errors);
        assert!(run.errors.contains("flaky: injects faults, for the tests"), "{}", run.errors);
    }
}
