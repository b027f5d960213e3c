//! Devices: reads return what was written, for any source and target frames.

use super::frames::{assert_filled, fill};
use highwater_platform::{Direction, Io, Platform};
use highwater_units::{FrameList, Pfn, Prng, RUN_PAGES_MAX};

/// Frames to write from; as many others to read into.
const FRAMES: u32 = 32;

pub(super) fn check<P: Platform>(platform: &P) {
    let devices = platform.devices();
    assert!(!devices.is_empty(), "a world has a device");
    assert_eq!(platform.devices(), devices, "devices are constant");
    let all: Vec<Pfn> = (0..2 * FRAMES).map(Pfn).collect();
    platform.populate(&all).expect("memory within the budget");
    for (device, info) in devices.iter().enumerate().filter(|(_, info)| !info.read_only) {
        assert!(info.pages >= 4 * FRAMES, "{} is too small for this", info.name);
        let mut random = Prng::new(device as u64);
        (0..30)
            .for_each(|round| round_trip(platform, device as u8, info.pages, round, &mut random));
        (0..10).for_each(|round| in_flight(platform, device as u8, round));
    }
}

/// Two batches in flight at once, which finish in either order.
fn in_flight<P: Platform>(platform: &P, device: u8, round: u64) {
    let mut random = Prng::new(round);
    let (from, to) = (shuffled(0, &mut random), shuffled(FRAMES, &mut random));
    from.iter().for_each(|pfn| fill(platform, *pfn, round));
    to.iter().for_each(|pfn| fill(platform, *pfn, round + 2000));
    for (direction, frames) in [(Direction::Write, &from), (Direction::Read, &to)] {
        let half = (FRAMES / 2) as usize;
        let mut low = cut(0, &frames[..half], &mut random);
        let mut high = cut(3 * FRAMES, &frames[half..], &mut random);
        let begun = [&mut low, &mut high].map(|batch| platform.start(device, direction, batch));
        let (mut low, mut high) = (low.clone(), high.clone());
        let [first, second] = begun;
        match round % 2 {
            0 => {
                platform.finish(first, &mut low);
                platform.finish(second, &mut high);
            }
            _ => {
                platform.finish(second, &mut high);
                // Poll `is_over` in one round of three; the result does not matter.
                let polls = if round.is_multiple_of(3) { 1000 } else { 0 };
                (0..polls).take_while(|_| !platform.is_over(&first)).for_each(|attempt| {
                    platform.relax(attempt.min(8));
                });
                platform.finish(first, &mut low);
            }
        }
        assert!(low.iter().chain(&high).all(|io| io.result.is_ok()), "{low:?} {high:?}");
    }
    for (origin, pfn) in from.iter().zip(&to) {
        assert_filled(platform, *pfn, *origin, round);
    }
}

/// Writes batches from shuffled frames, and reads them into others with different transfer sizes.
fn round_trip<P: Platform>(platform: &P, device: u8, pages: u32, round: u64, random: &mut Prng) {
    let first = random.below(u64::from(pages - FRAMES) + 1) as u32;
    let (from, to) = (shuffled(0, random), shuffled(FRAMES, random));
    from.iter().for_each(|pfn| fill(platform, *pfn, round));
    let mut writes = cut(first, &from, random);
    platform.write(device, &mut writes);
    assert!(writes.iter().all(|io| io.result.is_ok()), "{writes:?}");
    from.iter().for_each(|pfn| assert_filled(platform, *pfn, *pfn, round));
    from.iter().for_each(|pfn| fill(platform, *pfn, round + 1000));
    to.iter().for_each(|pfn| fill(platform, *pfn, round + 2000));
    let mut reads = cut(first, &to, random);
    let skipped = reads.pop();
    platform.read(device, &mut reads);
    assert!(reads.iter().all(|io| io.result.is_ok()), "{reads:?}");
    for (origin, pfn) in from.iter().zip(&to) {
        if skipped.is_some_and(|io| io.frames.iter().any(|other| other == *pfn)) {
            assert_filled(platform, *pfn, *pfn, round + 2000);
        } else {
            assert_filled(platform, *pfn, *origin, round);
        }
    }
}

fn shuffled(first: u32, random: &mut Prng) -> Vec<Pfn> {
    let mut frames: Vec<Pfn> = (first..first + FRAMES).map(Pfn).collect();
    // Few swaps, so that some frames stay adjacent.
    for _ in 0..random.below(20) {
        let mut any = || random.below(u64::from(FRAMES)) as usize;
        frames.swap(any(), any());
    }
    frames
}

/// Transfers of 1 to 16 pages to consecutive slots, in random order.
fn cut(first: u32, frames: &[Pfn], random: &mut Prng) -> Vec<Io> {
    let (mut batch, mut at) = (Vec::new(), 0);
    while at < frames.len() {
        let most = RUN_PAGES_MAX.min(frames.len() - at) as u64;
        let len = 1 + random.below(most) as usize;
        let list: FrameList = frames[at..at + len].iter().copied().collect();
        batch.push(Io::new(first + at as u32, list));
        at += len;
    }
    let turn = random.below(batch.len() as u64) as usize;
    batch.rotate_left(turn);
    batch
}
