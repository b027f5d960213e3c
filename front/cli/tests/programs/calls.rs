//! Calls on memory: they say what the system says, and other threads see each as one step.

use crate::place::{Limits, Place};

const MIB: u64 = 1 << 20;
/// Ways to get pages into programs and out of them.
const WAYS: [&str; 2] = ["auto", "copy"];

/// Runs a program without limits and within 4 MiB, with either way: the same output.
fn compare(place: &Place, name: &str, arguments: &[&str]) {
    let program = place.c_program(name, arguments);
    let unlimited = place.run(&program).expect_success(name);
    for mapping in WAYS {
        let limits = Limits { mapping, ..Limits::of(4 * MIB) };
        place.compare_output(&format!("{name}, {mapping}"), &unlimited, &limits, &program);
    }
}

#[test]
fn calls_on_memory_say_what_the_system_says() {
    compare(&Place::new(), "calls", &[]);
}

#[test]
fn pages_that_are_replaced_are_nobody_elses() {
    compare(&Place::new(), "replaced", &["3"]);
}

#[test]
fn pages_come_back_with_known_protections() {
    compare(&Place::new(), "replaced", &["3", "past"]);
}
