//! Guards, copies and streams: they return an error where a fault could not be served.

use crate::common::{PAGE, WAYS, memory};
use highwater::{Error, FaultThreads, Memory};
use std::io::{Read, Seek, SeekFrom, Write};

fn filled(memory: &Memory, mib: usize) -> highwater::Mapping {
    let mut mapping = memory.map(mib << 20).expect("room");
    for (page, bytes) in mapping.chunks_mut(PAGE).enumerate() {
        bytes.fill(page as u8 ^ (page >> 8) as u8);
    }
    mapping
}

fn expected(page: usize) -> u8 {
    page as u8 ^ (page >> 8) as u8
}

#[test]
fn half_of_the_budget_can_be_pinned() {
    for way in WAYS {
        let memory = memory(way);
        let mapping = filled(&memory, 24);
        let most = (8 << 20) / PAGE / 2;
        let guards: Vec<_> =
            (0..most).map(|page| mapping.page(page * PAGE).expect("may be pinned")).collect();
        match mapping.page(most * PAGE) {
            Err(Error::Pinned { most: limit }) => assert_eq!(limit as usize, most),
            other => panic!("{:?}", other.err()),
        }
        // Pinned pages stay in memory while all others are used.
        let sum: usize = mapping.chunks(PAGE).map(|page| usize::from(page[5])).sum();
        assert_eq!(sum, (0..(24 << 20) / PAGE).map(|page| usize::from(expected(page))).sum());
        for (page, guard) in guards.iter().enumerate() {
            assert!(guard.len() == PAGE && guard.iter().all(|byte| *byte == expected(page)));
        }
        drop(guards);
        assert_eq!(mapping.page(most * PAGE).expect("unpinned")[0], expected(most));
    }
}

#[test]
fn a_guard_is_for_writing_and_ends_with_the_mapping() {
    let memory = memory(WAYS[0]);
    let mut mapping = memory.map(PAGE + 10).expect("room");
    mapping.page_mut(PAGE + 3).expect("inside").fill(3);
    assert_eq!(mapping.page(PAGE).expect("inside").len(), 10);
    assert_eq!((mapping[PAGE - 1], mapping[PAGE], mapping[PAGE + 9]), (0, 3, 3));
    let end = (PAGE + 10) as u64;
    for refused in [mapping.page(PAGE + 10).err(), mapping.page_mut(usize::MAX).err()] {
        assert!(matches!(refused, Some(Error::Range { len, .. }) if len == end), "{refused:?}");
    }
    assert!(matches!(mapping.read_at(PAGE, &mut [0; 11]), Err(Error::Range { .. })));
    assert!(matches!(mapping.discard(0..PAGE + 11), Err(Error::Range { .. })));
}

#[test]
fn streams_copy_to_files_and_back() {
    for way in WAYS {
        let memory = memory(way);
        let mapping = filled(&memory, 20);
        let mut file = tempfile::tempfile().expect("a file");
        let copied = std::io::copy(&mut mapping.reader(), &mut file).expect("copied");
        assert_eq!(copied, mapping.len() as u64);
        file.rewind().expect("a file");
        let mut again = memory.map(20 << 20).expect("room");
        let copied = std::io::copy(&mut file, &mut again.writer()).expect("copied");
        assert_eq!(copied, again.len() as u64);
        assert!(again[..] == mapping[..]);
        let mut writer = again.writer();
        assert_eq!(writer.seek(SeekFrom::End(-2)).expect("a position"), (20 << 20) - 2);
        assert_eq!(writer.write(b"abc").expect("two of them"), 2);
        assert_eq!(writer.write(b"abc").expect("none"), 0);
        let (mut reader, mut tail) = (again.reader(), Vec::new());
        reader.seek(SeekFrom::Start((20 << 20) - 3)).expect("a position");
        reader.read_to_end(&mut tail).expect("the rest");
        assert_eq!(tail, [expected((20 << 20) / PAGE - 1), b'a', b'b']);
    }
}

/// A system call with a plain pointer works, or fails with EFAULT and changes nothing. The memory
/// says which.
#[test]
fn system_calls_are_served_or_fail_loudly() {
    for way in WAYS {
        let memory = memory(way);
        let mapping = filled(&memory, 20);
        let mut file = tempfile::tempfile().expect("a file");
        let written = file.write_all(&mapping);
        match memory.serves_system_calls() {
            true => {
                assert_eq!(way, FaultThreads::Handlers);
                written.expect("served");
                file.rewind().expect("a file");
                let mut again = vec![0; 20 << 20];
                file.read_exact(&mut again).expect("read");
                assert!(again[..] == mapping[..]);
            }
            false => {
                let error = written.expect_err("pages are missing");
                assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            }
        }
    }
}
