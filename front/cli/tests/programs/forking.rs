//! Programs that fork while other threads, signal handlers or stacks of their own interfere.

use crate::place::{Limits, Mode, Place, Swap};
use procfs::process::all_processes;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Runs one section, which needs 8 MiB, within 4 MiB.
fn compare(section: &str, limits: &Limits) {
    let place = Place::beside_others();
    let program = place.c_program("forking", &["8", section]);
    let unlimited = place.run(&program).expect_success(section);
    place.compare_output(section, &unlimited, limits, &program).expect_swapping();
}

#[test]
fn a_signal_handler_may_close_and_duplicate_descriptors_and_fork() {
    compare("handlers", &Limits::of(4 * MIB));
}

#[test]
fn a_thread_may_fork_on_a_stack_in_paged_memory() {
    compare("coroutine", &Limits::of(4 * MIB));
    compare("thread", &Limits::of(4 * MIB));
}

/// Regression: if the fork shared no page, the child lacked the stack pages that it returned to.
#[test]
fn a_thread_may_fork_on_a_paged_stack_where_no_page_is_shared() {
    let limits = Limits::of(4 * MIB);
    for limits in [Limits { large_pages: "on", ..limits }, Limits { map_files: "read", ..limits }] {
        compare("coroutine", &limits);
        // With handlers, the C library's data about the thread lies on that stack (docs/limits.md).
        compare("thread", &Limits { mode: Some(Mode::InThread), ..limits });
    }
}

/// Regression (deadlock): fork waited for a thread that held the lock of the list of streams, and
/// this thread waited for pages that fork had locked.
#[test]
fn threads_may_flush_streams_and_allocate_while_another_forks() {
    compare("streams", &Limits::of(4 * MIB));
}

/// Regression: the child's helper inherited the program's limit on descriptors. The helper's
/// guardian could not open a descriptor of the process whose end it waits for, so it stayed for
/// ever and kept all memory of the child.
#[test]
fn no_process_is_left_where_a_child_may_open_no_descriptor() {
    compare("few", &Limits::of(4 * MIB));
    compare("few", &Limits { mode: Some(Mode::Handlers), ..Limits::of(4 * MIB) });
    let of_program = |line: Vec<String>| {
        line.first().is_some_and(|it| it.ends_with("forking")) && line.iter().any(|it| it == "few")
    };
    let is_left = || {
        let mut lines = all_processes().unwrap().flatten().filter_map(|it| it.cmdline().ok());
        lines.any(of_program)
    };
    let until = Instant::now() + Duration::from_secs(5);
    while is_left() {
        assert!(Instant::now() < until, "a process is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Regression: after chroot, a child looked for its swap directory below the new root, and was
/// killed.
#[test]
fn a_process_may_change_its_root_and_fork() {
    let limits = Limits { swap: Swap::Dir, ..Limits::of(4 * MIB) };
    compare("root", &limits);
    compare("root", &Limits { mode: Some(Mode::Handlers), ..limits });
}

/// Most of a child's pages are swapped out, so that it needs a manager at once or never.
#[test]
fn a_child_has_its_memory_however_it_first_needs_it() {
    let place = Place::beside_others();
    let program = place.c_program("needs", &["12"]);
    let unlimited = place.run(&program).expect_success("needs");
    for limit in [4, 32] {
        place.compare_output("needs", &unlimited, &Limits::of(limit * MIB), &program);
    }
}
