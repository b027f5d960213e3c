//! The verdict of a run: doing what it says has the effect that it says.

use crate::inputs::{random_lines, repeating};
use crate::place::{Limits, Place, Swap, note, program};
use crate::run::Program;

const MIB: u64 = 1 << 20;

/// Runs a program in a part of its need, and then in the memory that the verdict names: nine of ten
/// reads are to go. Twice as many as promised may be left.
fn follow(what: &str, place: &Place, program: &Program, swap: Swap) {
    let unlimited = place.run(program).expect_success(what);
    let limits = Limits { swap, ..Limits::quarter(&unlimited) };
    let tight = place.compare_with(what, &unlimited, &limits, program);
    assert_eq!(tight.text("/verdict/limited_by"), "swap_reads", "{}", tight.figures());
    let (reads, memory) = (tight.number("/swap_in/bytes"), tight.number("/verdict/budget_bytes"));
    let need = unlimited.peak;
    assert!(memory < need * 5 / 4, "{what}: {memory} of {need} bytes");
    let limits = Limits { memory, ..limits };
    let wide = place.compare_output(what, &unlimited, &limits, program);
    let left = wide.number("/swap_in/bytes");
    note(&format!("{what}: {} MiB read, {} in {} MiB", reads / MIB, left / MIB, memory / MIB));
    assert!(left * 5 <= reads, "{what}: {left} of {reads} bytes in {memory}");
}

#[test]
fn as_much_memory_as_the_verdict_names_avoids_the_reads_of_a_sort() {
    let place = Place::new();
    random_lines(&place.path("text"), 48 * MIB);
    let sort = program("sort", &["-S", "512M", "--parallel=2", "text"]);
    follow("sort, verdict", &place, &sort, Swap::Dir);
}

#[test]
fn as_much_memory_as_the_verdict_names_avoids_the_reads_of_a_compressor() {
    let place = Place::new();
    repeating(&place.path("data"), 48_000_000);
    let xz = program("xz", &["-9", "-T1", "-k", "-c", "data"]);
    follow("xz, verdict", &place, &xz, Swap::Dir);
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
