//! System calls that change the program's process, while the manager's threads run in another
//! process.

use crate::place::{Limits, Place, Swap};

const MIB: u64 = 1 << 20;

/// Runs one section, which needs 16 MiB, within 8 MiB.
fn compare(section: &str, swap: Swap) {
    compare_within(section, &Limits { swap, ..Limits::of(8 * MIB) });
}

fn compare_within(section: &str, limits: &Limits) {
    let place = Place::beside_others();
    let program = place.c_program("helper", &["16", section]);
    let unlimited = place.run(&program).expect_success(section);
    place.compare_output(section, &unlimited, limits, &program);
}

#[test]
fn a_process_ends_with_its_last_thread() {
    compare("threads", Swap::Ram);
}

#[test]
fn a_program_sees_one_thread_and_no_child() {
    compare("seen", Swap::Ram);
}

/// Regression: the kernel dropped the exit status of a helper that had ended normally, and the
/// program that was executed next was killed.
#[test]
fn a_program_that_ignores_its_children_may_execute_another() {
    compare("ignored", Swap::Ram);
}

#[test]
fn credentials_may_change_in_every_thread() {
    compare("groups", Swap::Ram);
}

#[test]
fn children_are_served_after_dropping_privileges() {
    compare("privileges", Swap::Ram);
    compare("privileges", Swap::Dir);
}

#[test]
fn descriptors_may_be_closed_past_the_c_library() {
    compare("closed", Swap::Ram);
    compare("closed", Swap::Dir);
}

#[test]
fn a_strict_seccomp_filter_does_not_affect_the_manager() {
    compare_within("strict", &Limits::of(8 * MIB).by_handlers());
}

#[test]
fn other_processes_read_swapped_out_contents_not_zeros() {
    compare_within("read", &Limits::of(8 * MIB).by_handlers());
}

/// Regression: such a read made the kernel map zero pages if the range was not yet registered.
#[test]
fn reading_a_new_child_does_not_change_its_contents() {
    compare("early", Swap::Ram);
}

#[test]
fn descriptors_do_not_grow_with_generations() {
    // Each of 24 generations writes to the pages it inherits, and all share the devices' room.
    for swap in [Swap::Ram, Swap::Dir] {
        let limits = Limits { swap, swap_size: 24 * 16 * MIB, ..Limits::of(8 * MIB) };
        compare_within("generations", &limits);
    }
}
