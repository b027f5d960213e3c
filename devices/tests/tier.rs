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
/// An incompressible page, by slot.
const RANDOM: u64 = 1;

/// A tier whose thread runs until it is dropped.
fn tier(fast: &str, dir: &Path) -> Box<dyn Device> {
    let spec = Spec::parse(&format!("tier:{fast}:1M+dir:{}:8M", dir.display())).unwrap();
    let device = open(&spec).unwrap();
    std::thread::spawn(device.thread().expect("a tier has one"));
    assert!(device.thread().is_none(), "and one only");
    device
}

fn seed(slot: u32) -> u64 {
    4 * u64::from(slot) + RANDOM
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
    for fast in ["ram", "zram"] {
        let (device, frames) = (tier(fast, dir.path()), Frames::new(1));
        let filled = FAST * 9 / 10 + 2;
        (0..filled).for_each(|slot| put(&*device, &frames, slot, seed(slot)));
        let low = u64::from(FAST * 8 / 10);
        let done = when(&*device, |now| now.fast_pages <= low + 4);
        assert_eq!(done.slow_writes, 0, "{fast}: {done:?}");
        assert!(done.written_back > 8 * done.writeback_ios, "{fast}: {done:?}");
        assert!((0..filled).all(|slot| holds(&*device, &frames, slot, seed(slot))), "{fast}");
        let read = device.tiering().unwrap().slow_reads;
        assert_eq!(read, done.written_back, "{fast}: what was moved is read from there");
    }
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

/// Pages that take no memory stay in the fast level.
#[test]
fn pages_of_one_word_are_not_written_back() {
    const SAME: u64 = 4;
    let dir = tempfile::tempdir().unwrap();
    let (device, frames) = (tier("zram", dir.path()), Frames::new(1));
    (0..300).for_each(|slot| put(&*device, &frames, slot, SAME * u64::from(slot)));
    (300..540).for_each(|slot| put(&*device, &frames, slot, seed(slot)));
    let done = when(&*device, |now| now.written_back > 0);
    assert!(done.slow_pages <= 240, "{done:?}");
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
