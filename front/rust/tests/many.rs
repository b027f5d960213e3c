//! Memories are opened and closed many times; a SIGBUS handler that was installed before is still
//! called.

use crate::common::{WAYS, alone, lines, memory};
use highwater::PagedVec;

fn count(path: &str) -> usize {
    std::fs::read_dir(path).expect("/proc").count()
}

fn mapped_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmSize:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[test]
fn dropping_returns_threads_descriptors_and_addresses() {
    let output = alone("many::dropping_returns_threads_descriptors_and_addresses", || {
        // SAFETY: a setting of the C library: its arenas for threads would be taken for a leak.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        let use_one = || {
            for way in WAYS {
                let memory = memory(way);
                let words = PagedVec::<u64>::zeroed(&memory, 2 << 20).expect("room");
                drop(memory);
                assert_eq!(words.iter().sum::<u64>(), 0, "its vector keeps a memory alive");
            }
        };
        use_one();
        let seen = || (count("/proc/self/task"), count("/proc/self/fd"));
        let (before, kib) = (seen(), mapped_kib());
        // More memories, one after the other, than SIGBUS can serve at the same time.
        (0..20).for_each(|_| use_one());
        assert_eq!(seen(), before, "threads and descriptors");
        assert!(mapped_kib() < kib + (8 << 10), "{} KiB, before {kib}", mapped_kib());
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?} {stderr}", output.status);
}

#[test]
fn memories_are_used_side_by_side() {
    let memories: Vec<_> = (0..4).map(|index| memory(WAYS[index % 2])).collect();
    let vectors: Vec<_> = memories
        .iter()
        .zip(1u64..)
        .map(|(memory, n)| PagedVec::from_slice(memory, &vec![n; 2 << 20]).expect("room"))
        .collect();
    for (vector, n) in vectors.iter().zip(1..) {
        assert!(vector.iter().all(|word| *word == n));
    }
}

extern "C" fn on_bus(_: libc::c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(42) };
}

#[test]
fn a_handler_that_was_there_before_gets_other_signals() {
    let output = alone("many::a_handler_that_was_there_before_gets_other_signals", || {
        // SAFETY: a handler of this process.
        unsafe { libc::signal(libc::SIGBUS, on_bus as *const () as usize) };
        let memory = memory(WAYS[1]);
        let words = PagedVec::from_slice(&memory, &vec![1u8; 20 << 20]).expect("room");
        assert!(words.iter().all(|word| *word == 1));
        let file = tempfile::tempfile().expect("a file");
        // SAFETY: a mapping beyond the end of a file, where a load raises SIGBUS.
        unsafe {
            use std::os::fd::AsRawFd;
            let (protection, fd) = (libc::PROT_READ, file.as_raw_fd());
            let none = std::ptr::null_mut();
            let page = libc::mmap(none, 4096, protection, libc::MAP_SHARED, fd, 0);
            page.cast::<u8>().read_volatile();
        }
    });
    assert_eq!(output.status.code(), Some(42), "{:?}", lines(&output));
}
