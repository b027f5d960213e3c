//! The library with real page faults, served by handler threads and by the faulting thread.

#[allow(dead_code, reason = "an example: its `main` is called, without arguments")]
#[path = "../examples/btree.rs"]
mod btree;
mod budget;
mod checked;
mod common;
mod containers;
mod contents;
mod crash;
mod ends;
mod files;
mod forked;
#[allow(dead_code, reason = "as above")]
#[path = "../examples/hash_join.rs"]
mod hash_join;
mod many;
#[path = "../examples/sort.rs"]
mod sort;
#[allow(dead_code, reason = "as above")]
#[path = "../examples/traversal.rs"]
mod traversal;

#[test]
fn the_examples_check_their_results() {
    btree::main().expect("loaded");
    hash_join::main().expect("joined");
    sort::main().expect("sorted");
    traversal::main().expect("traversed");
}
