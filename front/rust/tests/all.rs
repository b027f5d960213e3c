//! The library with real page faults, served by handler threads and in the thread that faults.

mod budget;
mod checked;
mod common;
mod contents;
mod ends;
mod files;
mod forked;
#[allow(dead_code, reason = "an example: its `main` is called")]
#[path = "../examples/hash_join.rs"]
mod hash_join;
mod many;
#[path = "../examples/sort.rs"]
mod sort;

#[test]
fn the_examples_check_their_results() {
    hash_join::main().expect("joined");
    sort::main().expect("sorted");
}
