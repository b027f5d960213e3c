//! Programs that use more pages than fit into memory, round after round.

use crate::place::{Limits, Mode, Place, Swap, note};

const MIB: u64 = 1 << 20;
/// Pages of the program's memory.
const SET: u64 = 24 * MIB / 4096;

/// The fraction of the pages that a round reads from swap, with memory for three quarters of them.
/// `work`: parts of the memory, rounds, and how often each part is used in a round.
fn read_in_a_round(place: &Place, swap: Swap, work: [&str; 3], order: &str) -> f64 {
    let [parts, rounds, repeats] = work;
    let arguments = ["24", parts, rounds, repeats, order];
    let rounds: u64 = rounds.parse().unwrap();
    let program = place.c_program("rounds", &arguments);
    let mode = Some(Mode::InThread);
    let limits = Limits { swap, swap_size: 256 * MIB, mode, ..Limits::of(18 * MIB) };
    let unlimited = place.run(&program).expect_success("rounds");
    let report = place.compare_output("rounds", &unlimited, &limits, &program);
    let read = report.number("/vmstat/pswpin") as f64 / (SET * rounds) as f64;
    note(&format!("{arguments:?}, {swap:?}: {read:.2} of the pages are read in a round"));
    read
}

/// Regression: the LRU evicts each page of a loop before its next use, so every round read all
/// pages.
#[test]
fn a_loop_reads_what_does_not_fit() {
    let place = Place::beside_others();
    for swap in [Swap::Dir, Swap::Ram] {
        let read = read_in_a_round(&place, swap, ["1", "20", "1"], "along");
        assert!(read < 0.75, "{swap:?}: {read}");
    }
}

/// Active pages of the part that was used before must not keep their frames.
#[test]
fn parts_that_are_used_one_after_the_other_are_read_once() {
    let place = Place::beside_others();
    for (swap, order) in [(Swap::Dir, "along"), (Swap::Ram, "along"), (Swap::Ram, "about")] {
        let read = read_in_a_round(&place, swap, ["2", "10", "10"], order);
        assert!(read < 1.6, "{order}, {swap:?}: {read}");
    }
}
