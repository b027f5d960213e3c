//! The verdict of a run: following its advice has the effect that it predicts.

use crate::inputs::{random_lines, words};
use crate::place::{Limits, Place, Swap, note, program, source};
use crate::report::Report;
use crate::run::{Program, Run};

const MIB: u64 = 1 << 20;

/// Runs a program with a part of the memory it needs, and then with the memory that the verdict
/// names: at least half of the reads must be gone.
fn follow(what: &str, place: &Place, unlimited: &Run, program: &Program) -> Report {
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(unlimited) };
    let tight = place.compare_with(what, unlimited, &limits, program);
    assert_eq!(tight.text("/verdict/limited_by"), "swap_reads", "{}", tight.figures());
    let (reads, memory) = (tight.number("/swap_in/bytes"), tight.number("/verdict/budget_bytes"));
    let need = unlimited.peak;
    assert!(memory < need * 5 / 4, "{what}: {memory} of {need} bytes");
    let limits = Limits { memory, ..limits };
    let wide = place.compare_output(what, unlimited, &limits, program);
    let left = wide.number("/swap_in/bytes");
    note(&format!("{what}: {} MiB read, {} in {} MiB", reads / MIB, left / MIB, memory / MIB));
    assert!(left * 2 <= reads, "{what}: {left} of {reads} bytes in {memory}");
    tight
}

/// Runs a program on the compressed memory that the verdict on a run names: it holds the data. The
/// data compress about as estimated, though the estimate samples all pages written, and not only
/// those held.
fn compress(what: &str, place: &Place, unlimited: &Run, tight: &Report, program: &Program) {
    let of = |key: &str| tight.number(&format!("/verdict/zram/{key}"));
    let limits =
        Limits { swap: Swap::Compressed(of("swap_bytes")), ..Limits::of(of("budget_bytes")) };
    let inside = place.compare_output(what, unlimited, &limits, program);
    let [expected, times] =
        ["compresses", "times"].map(|key| tight.real(&format!("/verdict/zram/{key}")));
    let [held, used] =
        ["bytes", "used_bytes"].map(|key| inside.real(&format!("/compression/{key}")));
    let [before, after] = [tight, &inside].map(|report| report.real("/elapsed_seconds"));
    let compressed = held / used;
    let [slow, read] = ["/tiers/slow_read_bytes", "/swap_in/bytes"].map(|key| inside.number(key));
    assert!(slow * 4 <= read, "{what}: {slow} of {read} bytes from the slow level");
    note(&format!("{what}: {before:.1} s, on zram {after:.1}; {times:.1} times were estimated"));
    assert!((0.5..2.0).contains(&(compressed / expected)), "{what}: {compressed} for {expected}");
}

#[test]
fn a_sort_is_helped_by_memory_and_by_zram_as_the_verdict_says() {
    let place = Place::new();
    words(&place.path("text"), 400_000);
    let sort = program("sort", &["-S", "512M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    let tight = follow("sort, verdict", &place, &unlimited, &sort);
    compress("sort, verdict", &place, &unlimited, &tight, &sort);
}

/// Regression: the objects compress so well that `zram:` alone, which has three slots for each page
/// of its size, was full at the size that the verdict named.
#[test]
fn objects_of_python_are_helped_by_zram_as_the_verdict_says() {
    let place = Place::new();
    let objects = program("python3", &[source("objects.py").to_str().expect("a path in UTF-8")]);
    let unlimited = place.run(&objects).expect_success("objects");
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(&unlimited) };
    let tight = place.compare_with("objects, verdict", &unlimited, &limits, &objects);
    compress("objects, verdict", &place, &unlimited, &tight, &objects);
}

#[test]
fn a_program_with_enough_memory_was_not_slowed() {
    let place = Place::new();
    random_lines(&place.path("text"), 4 * MIB);
    let sort = program("sort", &["-S", "64M", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    let report = place.compare_output("sort, ample", &unlimited, &Limits::of(256 * MIB), &sort);
    assert_eq!(report.text("/verdict/limited_by"), "nothing", "{}", report.figures());
}
