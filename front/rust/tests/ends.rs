//! Faults that cannot be served: a call that can return an error returns one; otherwise the process
//! writes one line and ends. There is never a signal without a line, and contents are never wrong.

use crate::common::{PAGE, WAYS, alone, builder, lines, memory};
use highwater::{Error, FaultThreads, Memory, PagedVec};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

/// Limits the length of the files of this process.
pub(crate) fn limit_files(len: u64) {
    let limit = libc::rlimit { rlim_cur: len, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a limit of this process, and the signal of the limit, which is ignored: writes fail
    // instead.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

/// 48 MiB of numbers, in a memory whose swap file cannot grow beyond 8 MiB.
fn failing(way: FaultThreads) -> (Memory, PagedVec<u64>) {
    let dir = tempfile::tempdir().expect("a directory");
    let swap = format!("dir:{}:64M", dir.path().display());
    limit_files(libc::RLIM_INFINITY);
    let memory = builder(way).swap(swap).build().expect("userfaultfd");
    let words = PagedVec::<u64>::zeroed(&memory, 6 << 20).expect("room");
    limit_files(8 << 20);
    (memory, words)
}

#[track_caller]
fn ends(name: &str, way: FaultThreads) {
    let output = alone(name, || {
        let (_memory, mut words) = failing(way);
        words.fill(1);
    });
    let lines = lines(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{way:?}: {lines:?}");
    let [line] = lines.as_slice() else { panic!("{way:?}: {lines:?}") };
    let start = "highwater: memory is full, and writes to disk fail: the process is ended (memory ";
    assert!(line.starts_with(start) && line.contains("check the disk of swap dir:"), "{line}");
}

#[test]
fn handlers_end_the_process_with_a_line() {
    ends("ends::handlers_end_the_process_with_a_line", WAYS[0]);
}

#[test]
fn a_thread_that_faults_ends_the_process_with_a_line() {
    ends("ends::a_thread_that_faults_ends_the_process_with_a_line", WAYS[1]);
}

/// Checked calls fail, and all contents stay, those of earlier mappings included.
#[test]
fn checked_calls_return_an_error() {
    let output = alone("ends::checked_calls_return_an_error", || {
        for way in WAYS {
            let (memory, mut words) = failing(way);
            let before = PagedVec::<u64>::from_slice(&memory, &[7; 4096]).expect("room");
            let part = vec![3; 4096];
            let failed = (0..words.len())
                .step_by(4096)
                .find_map(|at| words.write_at(at, &part).err().map(|error| (at, error)));
            let (end, error) = failed.expect("nowhere to write");
            assert!(matches!(error, Error::OutOfMemory), "{error}");
            assert!(end * 8 >= 14 << 20, "memory and 8 MiB of swap are used: {end}");
            // The device has enough free slots, but accepts no pages.
            assert!(matches!(memory.map(16 << 20), Err(Error::Full { .. })));
            // The pages that are read below need frames.
            let end = end - (256 << 10);
            words.truncate(end);
            words.shrink_to_fit().expect("less");
            let mut found = vec![0; 4096];
            for at in (0..end).step_by(4096) {
                words.read_at(at, &mut found).expect("stored");
                assert_eq!(found, part, "at {at}");
            }
            assert_eq!(before[..], [7; 4096]);
            words.truncate(0);
            words.shrink_to_fit().expect("less");
            words.extend_from_slice(&part).expect("room again");
        }
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && lines(&output).is_empty(), "{:?} {stderr}", output.status);
}

/// 32 MiB of numbers. The numbers in swap are lost: the swap file is truncated.
fn losing(way: FaultThreads) -> (Memory, PagedVec<u64>) {
    damaged(way, |file| file.set_len(0).expect("truncated"))
}

/// 32 MiB of numbers. The pages in swap are changed: a few bytes of each page.
fn changing(way: FaultThreads) -> (Memory, PagedVec<u64>) {
    damaged(way, |file| {
        let pages = (0..file.metadata().expect("the file").len()).step_by(PAGE);
        pages.for_each(|at| file.write_all_at(&[0xa5; 16], at + 80).expect("written"));
    })
}

/// 32 MiB of numbers, most of them in a swap file that is damaged.
fn damaged(way: FaultThreads, damage: impl Fn(&File)) -> (Memory, PagedVec<u64>) {
    let dir = tempfile::tempdir().expect("a directory");
    let swap = format!("dir:{}:64M", dir.path().display());
    let memory = builder(way).swap(swap).build().expect("userfaultfd");
    let numbers: Vec<u64> = (0..4 << 20).collect();
    let words = PagedVec::from_slice(&memory, &numbers).expect("room");
    // Afterwards all pages are in the file, so no later write makes the truncated file longer.
    (0..2).for_each(|_| assert!(words.iter().copied().eq(0..4 << 20)));
    let open = std::fs::read_dir("/proc/self/fd").expect("/proc").filter_map(Result::ok);
    let is_in = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|file| file.starts_with(dir.path()))
    };
    let path = open.map(|entry| entry.path()).find(is_in).expect("the swap file");
    damage(&File::options().write(true).open(path).expect("the swap file"));
    (memory, words)
}

/// A checked call fails, or returns the numbers that were stored.
#[test]
fn checked_calls_return_no_lost_page() {
    let output = alone("ends::checked_calls_return_no_lost_page", || {
        for way in WAYS {
            let (_memory, words) = losing(way);
            let (mut found, mut lost) = ([0; 512], 0);
            for first in (0..words.len()).step_by(512) {
                match words.read_at(first, &mut found) {
                    Ok(()) => assert!(found.iter().copied().eq(first as u64..first as u64 + 512)),
                    Err(Error::Read(_)) => lost += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(lost > words.len() / 512 / 2, "{way:?}: {lost} pages");
        }
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && lines(&output).is_empty(), "{:?} {stderr}", output.status);
}

#[track_caller]
fn loses(name: &str, memory: impl FnOnce() -> (Memory, PagedVec<u64>), reasons: [&str; 2]) {
    let output = alone(name, || {
        let (_memory, words) = memory();
        assert!(words.iter().copied().eq(0..4 << 20));
    });
    let lines = lines(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{lines:?}");
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(reasons.iter().all(|reason| line.contains(reason)), "{line}");
}

const LOST: [&str; 2] = ["a page could not be read: ", "check the disk of swap dir:"];
const CHANGED: [&str; 2] = ["highwater: swap dir:", "a page that was changed since it was written"];

#[test]
fn handlers_return_no_lost_page() {
    loses("ends::handlers_return_no_lost_page", || losing(WAYS[0]), LOST);
}

#[test]
fn a_thread_that_faults_returns_no_lost_page() {
    loses("ends::a_thread_that_faults_returns_no_lost_page", || losing(WAYS[1]), LOST);
}

#[test]
fn handlers_return_no_changed_page() {
    loses("ends::handlers_return_no_changed_page", || changing(WAYS[0]), CHANGED);
}

#[test]
fn a_thread_that_faults_returns_no_changed_page() {
    loses("ends::a_thread_that_faults_returns_no_changed_page", || changing(WAYS[1]), CHANGED);
}

#[test]
fn memory_that_was_freed_cannot_be_used() {
    let output = alone("ends::memory_that_was_freed_cannot_be_used", || {
        let memory = memory(WAYS[1]);
        let mapping = memory.map(4096).expect("room");
        let address = mapping.as_ptr();
        drop(mapping);
        // SAFETY: none: this must end the process.
        unsafe { address.read_volatile() };
    });
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    let lines = lines(&output);
    assert!(lines.len() == 1 && lines[0].contains("paged memory that no mapping has"), "{lines:?}");
}

extern "C" fn touch(_: libc::c_int) {
    let address = TOUCHED.load(std::sync::atomic::Ordering::Relaxed);
    // SAFETY: none: the handler must not touch paged memory.
    unsafe { address.read_volatile() };
}

static TOUCHED: std::sync::atomic::AtomicPtr<u8> =
    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

/// A signal handler interrupts a fault, and faults itself.
#[test]
fn a_fault_within_a_fault_ends_the_process_with_a_line() {
    let output = alone("ends::a_fault_within_a_fault_ends_the_process_with_a_line", || {
        let memory = memory(WAYS[1]);
        let mut used = memory.map(40 << 20).expect("room");
        let mut other = memory.map(4096).expect("room");
        TOUCHED.store(other.as_mut_ptr(), std::sync::atomic::Ordering::Relaxed);
        let often = libc::timeval { tv_sec: 0, tv_usec: 50 };
        let timer = libc::itimerval { it_interval: often, it_value: often };
        // SAFETY: a handler and a timer of this process.
        unsafe {
            libc::signal(libc::SIGALRM, touch as *const () as usize);
            libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
        }
        loop {
            used.iter_mut().step_by(4096).for_each(|byte| *byte += 1);
            other.discard(0..4096).expect("inside");
        }
    });
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    let lines = lines(&output);
    assert!(lines.len() == 1 && lines[0].contains("signal handler"), "{lines:?}");
}
