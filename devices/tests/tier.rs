//! The thread of a tier: it writes pages back when the fast level fills up, and can be paused.

mod common;

use common::{Frames, read, write};
use highwater_devices::{Device, Spec, Tiering, open};
use highwater_platform::Io;
use highwater_units::{FrameList, Order, Pfn};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pages of the fast level.
const FAST: u32 = 256;
/// Kinds of pages, by the rest of their seed: incompressible, and compressible to less than half.
const RANDOM: u64 = 1;
const SMALL: u64 = 2;

/// A tier whose thread runs until it is dropped.
fn tier(fast: &str, dir: &Path) -> Box<dyn Device> {
    let spec = Spec::parse(&format!("tier:{fast}:1M+dir:{}:8M", dir.display())).unwrap();
    let device = open(&spec).unwrap();
    std::thread::spawn(device.thread().expect("a tier has one"));
    assert!(device.thread().is_none(), "and one only");
    device
}

fn seed(slot: u32) -> u64 {
    seed_of(slot, RANDOM)
}

fn seed_of(slot: u32, kind: u64) -> u64 {
    4 * u64::from(slot) + kind
}

fn put(device: &dyn Device, frames: &Frames, slot: u32, seed: u64) {
    frames.fill(Pfn(0), seed);
    let mut one = [Io::new(slot, FrameList::one(Pfn(0)))];
    write(device, frames, &mut one);
    assert_eq!(one[0].result, Ok(()));
}

fn holds(device: &dyn Device, frames: &Frames, slot: u32, seed: u64) -> bool {
    frames.fill(Pfn(0), 99);
    let mut one = [Io::new(slot, FrameList::one(Pfn(0)))];
    read(device, frames, &mut one);
    one[0].result == Ok(()) && frames.holds(Pfn(0), seed)
}

/// The statistics of a tier, as soon as they satisfy a condition.
fn when(device: &dyn Device, enough: impl Fn(&Tiering) -> bool) -> Tiering {
    let begun = Instant::now();
    loop {
        let now = device.tiering().unwrap();
        if enough(&now) {
            return now;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{now:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pages_of_a_full_fast_level_are_written_back() {
    let dir = tempfile::tempdir().unwrap();
    for (fast, kind) in [("ram", RANDOM), ("zram", SMALL)] {
        let (device, frames) = (tier(fast, dir.path()), Frames::new(1));
        let seed = |slot| seed_of(slot, kind);
        let used = || match device.compression() {
            Some(held) => held.used.pages(),
            None => device.tiering().unwrap().fast_pages,
        };
        device.pause();
        let fills = |slot: &u32| {
            put(&*device, &frames, *slot, seed(*slot));
            used() > u64::from(FAST * 9 / 10)
        };
        let filled = (0..).find(fills).expect("it has an end") + 1;
        device.resume();
        // From 90 % down to 80 %.
        let low = u64::from(filled * 8 / 9);
        let done = when(&*device, |now| now.written_back > 0 && now.fast_pages <= low + 4);
        assert_eq!(done.slow_writes, 0, "{fast}: {done:?}");
        assert!(done.written_back > 8 * done.writeback_ios, "{fast}: {done:?}");
        assert!((0..filled).all(|slot| holds(&*device, &frames, slot, seed(slot))), "{fast}");
        let read = device.tiering().unwrap().slow_reads;
        assert_eq!(read, done.written_back, "{fast}: what was moved is read from there");
    }
}

#[test]
fn pages_that_hardly_compress_pass_by_a_level_that_compresses() {
    let dir = tempfile::tempdir().unwrap();
    let (device, frames) = (tier("zram", dir.path()), Frames::new(1));
    let kind = |slot: u32| if slot.is_multiple_of(3) { RANDOM } else { SMALL };
    let seed = |slot| seed_of(slot, kind(slot));
    (0..300).for_each(|slot| put(&*device, &frames, slot, seed(slot)));
    let Tiering { fast_pages, slow_pages, slow_writes, .. } = device.tiering().unwrap();
    assert_eq!((fast_pages, slow_pages, slow_writes), (200, 100, 100));
    assert!((0..300).all(|slot| holds(&*device, &frames, slot, seed(slot))));
}

#[test]
fn nothing_moves_during_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let (device, frames) = (tier("ram", dir.path()), Frames::new(1));
    device.pause();
    (0..FAST).for_each(|slot| put(&*device, &frames, slot, seed(slot)));
    std::thread::sleep(Duration::from_millis(50));
    put(&*device, &frames, FAST, seed(FAST));
    let paused = device.tiering().unwrap();
    assert_eq!((paused.written_back, paused.slow_writes), (0, 1));
    device.resume();
    when(&*device, |now| now.written_back > 0);
}

#[test]
fn room_in_memory_is_wanted_and_room_on_the_disk_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (device, frames) = (tier("zram", dir.path()), Frames::new(1));
    put(&*device, &frames, 0, seed_of(0, SMALL));
    put(&*device, &frames, 1, seed_of(1, RANDOM));
    let scarce = [0, 1, 2].map(|slot| device.is_scarce(slot));
    assert_eq!(scarce, [true, false, false], "compressed, on the disk, empty");
    device.pause();
    assert!(!device.inherit().is_scarce(0), "a child cannot free it");
}

/// Pages that take no memory stay in the fast level.
#[test]
fn pages_of_one_word_are_not_written_back() {
    const SAME: u64 = 4;
    /// More than the fast level holds.
    const SLOTS: u32 = 2000;
    let dir = tempfile::tempdir().unwrap();
    let (device, frames) = (tier("zram", dir.path()), Frames::new(1));
    (0..300).for_each(|slot| put(&*device, &frames, slot, SAME * u64::from(slot)));
    let seed = |slot| seed_of(slot, SMALL);
    (300..SLOTS).for_each(|slot| put(&*device, &frames, slot, seed(slot)));
    let done = when(&*device, |now| now.written_back > 0);
    assert!(done.slow_pages <= u64::from(SLOTS - 300), "{done:?}");
    assert!((0..300).all(|slot| holds(&*device, &frames, slot, SAME * u64::from(slot))));
    assert_eq!(device.tiering().unwrap().slow_reads, 0, "they were all in the fast level");
}

/// Twice the size of the fast level.
#[test]
fn a_large_block_may_be_in_both_levels() {
    const PAGES: u32 = 512;
    let dir = tempfile::tempdir().unwrap();
    let (device, frames) = (tier("ram", dir.path()), Frames::new(PAGES));
    device.pause();
    (0..PAGES).for_each(|page| frames.fill(Pfn(page), seed(page)));
    let mut block = [Io::block(100, Pfn(0), Order::LARGE)];
    write(&*device, &frames, &mut block);
    assert_eq!(block[0].result, Ok(()));
    (0..PAGES).for_each(|page| frames.fill(Pfn(page), 99));
    read(&*device, &frames, &mut block);
    assert_eq!(block[0].result, Ok(()));
    assert!((0..PAGES).all(|page| frames.holds(Pfn(page), seed(page))));
    let Tiering { fast_pages, slow_pages, slow_reads, .. } = device.tiering().unwrap();
    assert_eq!((fast_pages, slow_pages, slow_reads), (256, 256, 256));
}
