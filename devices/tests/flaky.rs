//! Injected faults: each is reported as its kind says, is counted, and never makes a wrong page
//! count as read.

mod common;

use common::Frames;
use highwater_devices::{Device, Injection, OpenOptions, Seal, Spec, open_with};
use highwater_platform::{Direction, Io, IoError};
use highwater_units::{FrameList, Pfn};
use std::path::Path;

const EIO: Result<(), IoError> = Err(IoError::Failed(libc::EIO));
const OLD: u64 = 5;
const NEW: u64 = 9;
/// Slots 0 to 3 from frames 0 to 3.
const PAGES: u32 = 4;

fn open(faults: &str, device: &str, seal: Seal) -> Box<dyn Device> {
    let spec = Spec::parse_with(&format!("flaky:{faults}+{device}"), Injection::Allowed).unwrap();
    open_with(&spec, &OpenOptions { seal, ..OpenOptions::default() }).unwrap()
}

/// Every device that can have faults below it or around it.
fn devices(dir: &Path) -> [(String, Seal); 4] {
    let file = format!("dir:{}:4M", dir.display());
    let memory = |kind: &str| (format!("{kind}:4M"), Seal::Off);
    [(file.clone(), Seal::On), (file, Seal::Off), memory("ram"), memory("zram")]
}

/// Transfers slots 0 to 3, by the device's queue if it has one.
fn transfer(device: &dyn Device, frames: &Frames, direction: Direction) -> Result<(), IoError> {
    let list: FrameList = (0..PAGES).map(Pfn).collect();
    let mut batch = [Io::new(0, list)];
    // SAFETY: the frames are populated, and nothing else touches them.
    unsafe {
        if let Some(started) = device.start(frames.arena(), direction, &mut batch) {
            device.finish(frames.arena(), started, &mut batch);
        }
    }
    batch[0].result
}

fn write(device: &dyn Device, frames: &Frames, seed: u64) -> Result<(), IoError> {
    (0..PAGES).for_each(|frame| frames.fill(Pfn(frame), seed));
    transfer(device, frames, Direction::Write)
}

/// The seed of the contents that are read: one of those written here.
fn read(device: &dyn Device, frames: &Frames) -> Result<Option<u64>, IoError> {
    transfer(device, frames, Direction::Read)?;
    let all = |seed: &u64| (0..PAGES).all(|frame| frames.holds(Pfn(frame), *seed));
    Ok([OLD, NEW].into_iter().find(all))
}

#[test]
fn a_fault_fails_its_transfer_once_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(PAGES);
    for (spec, seal) in devices(dir.path()) {
        // The transfers are a write, and three reads.
        for (faults, written, first) in [
            ("read=once", Ok(()), EIO),
            ("read=once,after=1", Ok(()), EIO),
            ("short=once,after=1", Ok(()), EIO),
            ("delay=once", Ok(()), Ok(())),
            ("write=once", EIO, Ok(())),
            ("short=once", EIO, Ok(())),
            ("full=once", Err(IoError::Full), Ok(())),
        ] {
            let what = format!("{faults} {spec} {seal}");
            let device = open(faults, &spec, seal);
            assert_eq!(write(&*device, &frames, OLD), written, "{what}");
            if written.is_err() {
                assert_eq!(write(&*device, &frames, OLD), Ok(()), "{what}: again");
            }
            assert_eq!(read(&*device, &frames).map(|_| ()), first, "{what}");
            assert_eq!(read(&*device, &frames), Ok(Some(OLD)), "{what}");
            assert_eq!((device.injected(), device.altered()), (1, false), "{what}");
        }
    }
}

/// An older page comes back: the seal detects this, and nothing else can.
#[test]
fn a_lost_write_is_noticed_by_the_seal() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(PAGES);
    for (spec, seal) in devices(dir.path()) {
        let device = open("lost=always,after=1", &spec, seal);
        assert_eq!(write(&*device, &frames, OLD), Ok(()), "{spec}");
        assert_eq!(read(&*device, &frames), Ok(Some(OLD)), "{spec}");
        assert_eq!(write(&*device, &frames, NEW), Ok(()), "{spec}");
        let altered = Err(IoError::Failed(libc::EBADMSG));
        let (expected, noticed) = match seal {
            Seal::On => (altered, true),
            Seal::Off => (Ok(Some(OLD)), false),
        };
        assert_eq!(read(&*device, &frames), expected, "{spec} {seal}");
        assert_eq!((device.altered(), device.injected()), (noticed, 1), "{spec} {seal}");
    }
}

/// Errors of queued batches: some strike before the queue, some after the transfer.
#[test]
fn faults_at_a_rate_never_pass_a_wrong_page_off_as_read() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(PAGES);
    for (spec, seal) in devices(dir.path()) {
        let device = open("read=100,write=100,short=100,full=100,seed=7", &spec, seal);
        let mut failed = 0;
        for round in 0..400 {
            let seed = [OLD, NEW][round % 2];
            let written = write(&*device, &frames, seed);
            match read(&*device, &frames) {
                Ok(found) if written.is_ok() => assert_eq!(found, Some(seed), "{spec} {seal}"),
                // After an error the contents of the slots are undefined, which the seal detects.
                Err(IoError::Failed(libc::EBADMSG)) if written.is_err() && seal == Seal::On => {}
                found => failed += u64::from(found.is_err()),
            }
            failed += u64::from(written.is_err());
        }
        assert_eq!(device.injected(), failed, "{spec} {seal}");
        assert!(failed > 100, "{failed}");
    }
}
