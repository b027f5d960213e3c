//! Programs that map files, with the file pages in the budget.

use crate::place::{Limits, Place};
use crate::python::python;
use crate::report::Report;
use crate::run::Program;

const MIB: u64 = 1 << 20;
/// Sections of `mapped` whose mappings stay within the budget, ...
const SERVED: [&str; 3] = ["scan", "forks", "threads"];
/// ... and sections that leave some mappings to the kernel.
const HANDED_OVER: [&str; 5] = ["offsets", "writes", "ends", "many", "locks"];

/// `limits`, with served mappings of files.
fn mapping(limits: Limits) -> Limits {
    Limits { map_files: "read", ..limits }
}

fn expect_reads(report: &Report) {
    assert!(report.number("/vmstat/pgfile_in") > 0, "no file was served");
}

/// Runs a program without limits and within `limits`, and checks the bounds.
fn compare(place: &Place, what: &str, limits: Limits, program: &Program) {
    let unlimited = place.run(program).expect_success(what);
    expect_reads(&place.compare_bounds(what, &unlimited, &mapping(limits), program));
}

#[test]
fn file_mappings_count_in_the_budget() {
    let place = Place::beside_others();
    let program = place.c_program("mapped", &[&["48"], &SERVED[..]].concat());
    compare(&place, "mapped", Limits::of(12 * MIB), &program);
}

#[test]
fn file_mappings_count_in_the_budget_when_copied() {
    let place = Place::beside_others();
    let program = place.c_program("mapped", &[&["32"], &SERVED[..]].concat());
    compare(&place, "mapped, copied", Limits { mapping: "copy", ..Limits::of(8 * MIB) }, &program);
}

#[test]
fn mappings_left_to_the_kernel_have_the_same_contents() {
    let place = Place::beside_others();
    let program = place.c_program("mapped", &[&["32"], &HANDED_OVER[..]].concat());
    let unlimited = place.run(&program).expect_success("mapped");
    for way in ["move", "copy"] {
        let limits = Limits { mapping: way, ..mapping(Limits::of(8 * MIB)) };
        let what = format!("mapped, taken over, {way}");
        expect_reads(&place.compare_output(&what, &unlimited, &limits, &program));
    }
}

#[test]
fn numpy_reads_a_mapped_file() {
    let place = Place::beside_others();
    compare(&place, "mapped.py", Limits::of(64 * MIB), &python("mapped.py", &["file", "144"]));
}
