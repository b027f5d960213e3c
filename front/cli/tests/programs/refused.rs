//! Programs whose requests are refused, and leave memory as it was.

use crate::place::{Limits, Place};

/// Runs one section, which needs 16 MiB at most, within 4 MiB.
fn compare(section: &str) {
    let place = Place::beside_others();
    let program = place.c_program("refused", &["8", section]);
    let unlimited = place.run(&program).expect_success(section);
    let limits = Limits { swap_size: 128 << 20, ..Limits::of(4 << 20) };
    place.compare_output(section, &unlimited, &limits, &program);
}

#[test]
fn a_block_that_cannot_grow_takes_no_addresses() {
    compare("growth");
}

#[test]
fn protections_and_contents_stay_where_the_kernel_has_no_mapping_left() {
    compare("crowded");
}

#[test]
fn pages_that_may_not_be_touched_are_not_populated() {
    compare("populated");
}

#[test]
fn pages_that_pkey_mprotect_protects_can_leave() {
    compare("keys");
}
