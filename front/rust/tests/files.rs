//! Mapped files: contents equal a model in memory, and plain reads of the file after a sync.

use crate::common::{PAGE, WAYS, alone, lines, memory};
use highwater::{Error, FaultThreads, FileAccess, FileMapping, Memory};
use highwater_units::Prng;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// A file with different bytes in each page.
fn file(dir: &TempDir, name: &str, len: usize) -> std::path::PathBuf {
    let path = dir.path().join(name);
    let bytes: Vec<u8> = (0..len).map(|at| (at / PAGE * 7 + at % 251) as u8).collect();
    fs::write(&path, bytes).expect("written");
    path
}

fn part(random: &mut Prng, len: usize) -> (usize, usize) {
    let at = random.below(len as u64) as usize;
    (at, (random.below(20_000) as usize).min(len - at))
}

/// One random operation on the mapping and on its model.
fn operate(mapping: &mut FileMapping, model: &mut Vec<u8>, random: &mut Prng, path: &Path) {
    let (at, len) = part(random, model.len());
    match random.below(100) {
        0 => {
            let len = 1 + random.below(24 << 20) as usize;
            mapping.resize(len).expect("another length");
            model.resize(len, 0);
        }
        1 => {
            mapping.sync().expect("written");
            assert!(fs::read(path).expect("the file") == *model, "after a sync");
        }
        2..5 => {
            mapping.sync_range(at..at + len).expect("written");
            let found = fs::read(path).expect("the file");
            assert!(found[at..at + len] == model[at..at + len], "a part that was synced");
        }
        5..30 => {
            let bytes = vec![random.next_u64() as u8; len];
            mapping.write_at(at, &bytes).expect("written");
            model[at..at + len].copy_from_slice(&bytes);
        }
        30..55 => {
            let byte = random.next_u64() as u8;
            mapping.bytes_mut().expect("for writing")[at..at + len].fill(byte);
            model[at..at + len].fill(byte);
        }
        55..60 => mapping.prefetch(at..at + len),
        60..80 => {
            let mut found = vec![0; len];
            mapping.read_at(at, &mut found).expect("read");
            assert!(found == model[at..at + len], "bytes {at} to {}", at + len);
        }
        _ => assert!(mapping[at..at + len] == model[at..at + len], "bytes {at}, by a pointer"),
    }
}

#[test]
fn random_operations_match_a_model_and_the_file() {
    for (way, seed) in WAYS.into_iter().zip(1..) {
        let (dir, memory) = (directory(), memory(way));
        let path = file(&dir, "a", (20 << 20) + 1000);
        let mut model = fs::read(&path).expect("the file");
        let mut mapping = memory.map_file(&path, FileAccess::ReadWrite).expect("mapped");
        let mut random = Prng::new(seed);
        for _ in 0..600 {
            operate(&mut mapping, &mut model, &mut random, &path);
        }
        assert_eq!(mapping.len(), model.len());
        mapping.close().expect("written");
        assert!(fs::read(&path).expect("the file") == model, "after it was closed");
        let counters = memory.statistics().expect("counters");
        assert!(counters.get("nr_resident_peak") <= Some((8 << 20) / PAGE as u64));
        assert!(memory.left().expect("ours") >= 64 << 20, "nothing is kept");
    }
}

#[test]
fn a_file_that_is_dropped_has_all_changes() {
    let (dir, memory) = (directory(), memory(WAYS[1]));
    let path = dir.path().join("new");
    let mut mapping = memory.create_file(&path, 3 * PAGE + 5).expect("made");
    assert!(mapping.iter().all(|byte| *byte == 0));
    mapping.bytes_mut().expect("for writing").fill(9);
    drop(mapping);
    assert!(fs::read(&path).expect("the file") == vec![9; 3 * PAGE + 5]);
    let again = memory.create_file(&path, 10).expect("made anew");
    assert_eq!(again[..], [0; 10]);
    drop(again);
    let mut empty = memory.create_file(&path, 0).expect("empty");
    assert!(empty.is_empty() && empty.sync().is_ok());
    empty.resize(1).expect("longer");
    empty.page_mut(0).expect("a page").fill(3);
    empty.resize(0).expect("empty");
    empty.resize(2).expect("longer");
    assert_eq!(empty[..], [0, 0]);
}

#[test]
fn mappings_that_would_not_see_each_other_are_refused() {
    let (dir, memory) = (directory(), memory(WAYS[1]));
    let path = file(&dir, "a", 3 * PAGE);
    let other = crate::common::memory(WAYS[1]);
    use FileAccess::{Read, ReadWrite};
    let writer = memory.map_file(&path, ReadWrite).expect("mapped");
    for access in [Read, ReadWrite] {
        let refused = other.map_file(&path, access).expect_err("refused");
        assert!(matches!(&refused, Error::InUse { .. }), "{refused}");
        assert_eq!(refused.to_string().lines().count(), 1);
    }
    assert!(matches!(other.create_file(&path, 1), Err(Error::InUse { .. })));
    drop(writer);
    let readers = [memory.map_file(&path, Read), other.map_file(&path, Read)];
    assert!(readers.iter().all(Result::is_ok), "nobody writes");
    assert!(matches!(memory.map_file(&path, ReadWrite), Err(Error::InUse { .. })));
    drop(readers);
    assert!(memory.map_file(&path, ReadWrite).is_ok(), "all are closed");
    let none = memory.map_file(dir.path().join("none"), Read).expect_err("refused");
    assert!(none.to_string().contains("none\": No such file"), "{none}");
    let pipe = dir.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().expect("UTF-8")).expect("a path");
    // SAFETY: a path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for (path, access) in [(dir.path(), Read), (&pipe, Read), (&pipe, ReadWrite)] {
        let refused = memory.map_file(path, access).expect_err("refused").to_string();
        assert!(refused.contains("neither a file nor"), "{refused}");
    }
}

#[test]
fn a_file_for_reading_cannot_be_written() {
    let (dir, memory) = (directory(), memory(WAYS[1]));
    let mut mapping = memory.map_file(file(&dir, "a", 2 * PAGE), FileAccess::Read).expect("mapped");
    let refused = [
        mapping.bytes_mut().err(),
        mapping.write_at(0, &[1]).err(),
        mapping.page_mut(0).err(),
        mapping.resize(1).err(),
        // SAFETY: no other thread uses the page.
        unsafe { mapping.page_shared(0) }.err(),
        // SAFETY: a byte of this thread, which is not stored.
        unsafe { mapping.copy_in(0, [1].as_ptr(), 1) }.err(),
    ];
    assert!(refused.iter().all(|error| matches!(error, Some(Error::ReadOnly))), "{refused:?}");
    mapping.sync().expect("nothing to write");
}

/// Threads use one file by pointers, while another thread opens and closes files at the addresses
/// that the first file leaves free, and all anonymous memory is used.
#[test]
fn threads_use_files_that_come_and_go() {
    for way in WAYS {
        let (dir, memory) = (directory(), memory(way));
        let mut shared = memory.map_file(file(&dir, "a", 12 << 20), FileAccess::ReadWrite);
        let bytes = shared.as_mut().expect("mapped").bytes_mut().expect("for writing");
        let mut rest = memory.map(memory.left().expect("ours") as usize - (1 << 20)).expect("room");
        std::thread::scope(|scope| {
            for (number, stripe) in bytes.chunks_mut(3 << 20).enumerate() {
                scope.spawn(move || {
                    for round in 0..3 {
                        stripe.fill((number * 3 + round) as u8);
                        assert!(stripe.iter().all(|byte| *byte == (number * 3 + round) as u8));
                    }
                });
            }
            let memory: &Memory = &memory;
            scope.spawn(move || {
                for round in 0..30u8 {
                    let path = dir.path().join(format!("b{}", round % 3));
                    let len = PAGE * (1 + usize::from(round));
                    let mut made = memory.create_file(&path, len).expect("made");
                    made.bytes_mut().expect("for writing").fill(round + 1);
                    drop(made);
                    assert!(fs::read(&path).expect("the file") == vec![round + 1; len]);
                    let read = memory.map_file(&path, FileAccess::Read).expect("mapped");
                    assert!(read.iter().all(|byte| *byte == round + 1));
                }
                drop(dir);
            });
            scope.spawn(|| rest.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1));
        });
        assert!(rest.iter().step_by(PAGE).all(|byte| *byte == 1));
        drop(rest);
        let shared = shared.expect("mapped");
        let ends = shared.chunks(3 << 20).map(|stripe| (stripe[0], stripe[(3 << 20) - 1]));
        assert!(ends.enumerate().all(|(n, ends)| ends == ((n * 3 + 2) as u8, (n * 3 + 2) as u8)));
    }
}

#[track_caller]
fn ends(name: &str, way: FaultThreads, part: &str, act: impl FnOnce(&Memory, &TempDir)) {
    let output = alone(name, || act(&memory(way), &directory()));
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{:?}", lines(&output));
    let lines = lines(&output);
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(line.contains("of a mapped file: ") && line.contains(part), "{line}");
}

#[test]
fn a_store_to_a_file_for_reading_ends_the_process_with_a_line() {
    let name = "files::a_store_to_a_file_for_reading_ends_the_process_with_a_line";
    ends(name, WAYS[0], "for reading only", |memory, dir| {
        let mapping = memory.map_file(file(dir, "a", PAGE), FileAccess::Read).expect("mapped");
        // SAFETY: none: this must end the process.
        unsafe { mapping.as_ptr().cast_mut().write_volatile(1) };
    });
}

fn truncated(memory: &Memory, dir: &TempDir) -> FileMapping {
    let path = file(dir, "a", 4 << 20);
    let mapping = memory.map_file(&path, FileAccess::Read).expect("mapped");
    fs::OpenOptions::new().write(true).open(path).expect("it").set_len(9).expect("shorter");
    mapping
}

#[test]
fn a_page_that_the_file_has_lost_ends_the_process_with_a_line() {
    let name = "files::a_page_that_the_file_has_lost_ends_the_process_with_a_line";
    ends(name, WAYS[1], "a page could not be read", |memory, dir| {
        let mapping = truncated(memory, dir);
        println!("{}", mapping[3 << 20]);
    });
}

#[test]
fn a_page_that_the_file_has_lost_is_an_error_of_a_checked_call() {
    let mapping = truncated(&memory(WAYS[0]), &directory());
    assert!(matches!(mapping.read_at(3 << 20, &mut [0]), Err(Error::Read(_))));
}

/// A sync that fails keeps the changes for the next sync; changes that are lost when the mapping is
/// dropped are reported.
#[test]
fn changes_that_cannot_be_written_stay_or_are_reported() {
    let output = alone("files::changes_that_cannot_be_written_stay_or_are_reported", || {
        let (memory, dir) = (memory(WAYS[0]), directory());
        let path = file(&dir, "a", 4 << 20);
        let mut mapping = memory.map_file(&path, FileAccess::ReadWrite).expect("mapped");
        mapping.write_at(2 << 20, &[1; 100]).expect("written");
        crate::ends::limit_files(1 << 20);
        assert!(matches!(mapping.sync(), Err(Error::Write(_))));
        assert_eq!(mapping[2 << 20], 1);
        assert!(matches!(mapping.resize(5 << 20), Err(Error::Write(_))));
        crate::ends::limit_files(libc::RLIM_INFINITY);
        mapping.sync().expect("written");
        assert_eq!(fs::read(&path).expect("the file")[2 << 20], 1);
        mapping.write_at(2 << 20, &[2; 100]).expect("written");
        crate::ends::limit_files(1 << 20);
        drop(mapping);
        crate::ends::limit_files(libc::RLIM_INFINITY);
        let again = memory.map_file(&path, FileAccess::Read).expect("its lock is free");
        assert_eq!(again[2 << 20], 1, "the file is as it was");
    });
    let lines = lines(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(lines.len() == 1 && lines[0].contains("a\" are lost"), "{lines:?}");
}

/// A child has no access to a mapped file, and its end affects neither the lock nor the changes.
#[test]
fn a_forked_child_leaves_files_alone() {
    let output = alone("files::a_forked_child_leaves_files_alone", || {
        let (memory, dir) = (memory(WAYS[1]), directory());
        let path = file(&dir, "a", 4 << 20);
        let mut mapping = memory.map_file(&path, FileAccess::ReadWrite).expect("mapped");
        mapping.bytes_mut().expect("for writing").fill(8);
        let mut kept = Some(mapping);
        let status = crate::forked::child(|| {
            let mut mapping = kept.take().expect("copied");
            let refused = [mapping.sync().err(), mapping.read_at(0, &mut [0]).err()];
            let right = refused.iter().all(|error| matches!(error, Some(Error::Forked)));
            let right =
                right && matches!(memory.map_file(&path, FileAccess::Read), Err(Error::Forked));
            drop(mapping);
            i32::from(!right)
        });
        assert_eq!(status, 0);
        assert!(matches!(memory.map_file(&path, FileAccess::Read), Err(Error::InUse { .. })));
        kept.take().expect("the parent's").close().expect("written");
        assert!(fs::read(&path).expect("the file").iter().all(|byte| *byte == 8));
    });
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn so_many_files_may_be_mapped() {
    let (dir, memory) = (directory(), memory(WAYS[1]));
    let path = |n: usize| dir.path().join(n.to_string());
    let mapped: Vec<_> = (0..200).map_while(|n| memory.create_file(path(n), 5 + n).ok()).collect();
    assert_eq!(mapped.len(), 120);
    let refused = memory.create_file(path(200), 1).expect_err("too many");
    assert!(matches!(refused, Error::Files { most: 120 }), "{refused}");
    drop(mapped);
    assert!(memory.create_file(path(200), 1 << 20).is_ok());
    assert_eq!(fs::metadata(path(7)).expect("the file").len(), 12);
}
