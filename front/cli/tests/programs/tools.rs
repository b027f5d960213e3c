//! Everyday tools that need much memory: GNU sort, xz, zstd.

use crate::inputs::{random_lines, repeating};
use crate::place::{Limits, Place, Swap, program};
use crate::run::Program;

const MIB: u64 = 1 << 20;
const TEXT_BYTES: u64 = 48 * MIB;
/// Input size of xz and zstd.
const DATA_BYTES: u64 = 48_000_000;

/// Sorts in memory: the buffer is larger than the text.
fn sort(place: &Place) -> Program {
    random_lines(&place.path("text"), TEXT_BYTES);
    program("sort", &["-S", "512M", "--parallel=2", "text"])
}

#[test]
fn gnu_sort() {
    let place = Place::beside_others();
    place.compare("sort", &sort(&place));
}

#[test]
fn gnu_sort_on_disk() {
    let place = Place::beside_others();
    let program = sort(&place);
    let unlimited = place.run(&program).expect_success("sort");
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(&unlimited) };
    place.compare_with("sort, swap on disk", &unlimited, &limits, &program);
}

#[test]
fn gnu_sort_when_copied() {
    let place = Place::beside_others();
    let program = sort(&place);
    let unlimited = place.run(&program).expect_success("sort");
    let limits = Limits { mapping: "copy", ..Limits::quarter(&unlimited) };
    place.compare_with("sort, copied", &unlimited, &limits, &program);
}

#[test]
fn xz() {
    let place = Place::beside_others();
    repeating(&place.path("data"), DATA_BYTES);
    place.compare("xz -9", &program("xz", &["-9", "-T1", "-k", "-c", "data"]));
}

#[test]
fn zstd() {
    let place = Place::beside_others();
    repeating(&place.path("data"), DATA_BYTES);
    let arguments = ["--ultra", "-22", "--long=27", "--single-thread", "-q", "-c", "data"];
    place.compare("zstd --ultra -22", &program("zstd", &arguments));
}
