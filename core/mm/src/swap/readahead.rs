//! Detection of sequential access, and the readahead windows of swap.
//!
//! ```text
//! Streams      by page: the next expected fault and its window           Ahead::Virtual
//! SlotWindows  by CPU: readahead hits since the last slot window         Ahead::Slot
//! Owners       by slot: the page that it was allocated for               Ahead::Slot
//! ```
//! **Streams** are expectations: after a fault that brought in pages up to `v`, the next fault is
//! expected at `v`, or at the first page after it that is not mapped. A fault exactly there
//! continues the stream and doubles the window, up to 64 KiB; any other fault starts with one page,
//! and may begin a stream to higher or to lower addresses (a quicksort has one of each). There is
//! no lock and no state of threads: any thread can have any number of streams in any space, at one
//! load and one or two stores for each fault. Two streams that hash to one place reset each other.
//! This differs from the kernel's VMA readahead, which has one window for each mapping and learns
//! from hits on single pages. Windows here are mapped whole, so the next fault is at their end.
//!
//! **Trust**: a stream that continues has used the pages that it read ahead. The part of windows
//! that are continued is averaged for each region of 16 MiB. Where it is low, cold pages lie among
//! the used ones, and pages that are read ahead must not displace pages in use.
//!
//! **Slot windows** follow the kernel (swapin_nr_pages). A window is the number of pages read ahead
//! and used since the last one, plus two, rounded up to a power of two. Without any such hit it is
//! one page, or two if the fault is adjacent to the last one, but at least half of the last window.
//! The kernel has one window for the system; here each CPU has its own.

use super::by_slot::BySlot;
use crate::frame::Owner;
use highwater_platform::{Atomic, Platform};
use highwater_units::{CpuId, Direction, RUN_PAGES_MAX, Slot, SpaceId, Vpn};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Which pages are read along with a page of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// None.
    Off,
    /// The pages after it in its space.
    Virtual,
    /// The pages in the slots around its own.
    Slot,
}

/// How a fault fits the expected accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Pages to bring in: 1, or more if the fault was expected.
    pub pages: usize,
    /// The way the stream goes.
    pub direction: Direction,
    /// Pages that the stream read ahead and has now used.
    pub read_ahead: usize,
}

/// How often streams continue, and so how many of the pages that they read ahead are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nearly always.
    Full,
    /// Not always: some pages are read in vain.
    Limited,
}

/// Expectations for each CPU, and in all at least. With fewer, the streams of 224 writing CPUs
/// often reset each other, and a stream that starts anew uses more expectations.
const STREAMS_PER_CPU: usize = 64;
const STREAMS_MIN: usize = 1024;

/// An expectation's word: 16 bits of space, 39 bits of page, 1 bit of direction, 3 bits of window
/// (its binary logarithm), 5 bits of pages read ahead whose use is not counted yet.
const VPN_BITS: u32 = 39;
const KEY_SHIFT: u32 = 9;
const DOWN: u64 = 1 << 8;
/// No expectation: the key of no page.
const NONE: u64 = u64::MAX;
const WINDOW_SHIFT: u32 = 5;
const WINDOW: u64 = 0b111;
const AHEAD: u64 = 0b1_1111;
const _: () = assert!(RUN_PAGES_MAX.ilog2() as u64 <= WINDOW, "windows fit their bits");
const _: () = assert!(RUN_PAGES_MAX as u64 <= AHEAD, "pages read ahead fit their bits");

/// Pages of a region whose streams are judged together: 16 MiB.
const REGION_PAGES: u64 = 1 << 12;
/// Judgements; regions that hash to one place share it.
const REGIONS: usize = 256;
/// Windows that a judgement remembers.
const MEMORY: u32 = 64;
/// The judgement if all streams go on.
const ALL: u32 = 1 << 16;
/// Under 7/8 of all, trust is limited. Windows whose streams have yet to continue do not count in
/// the judgement, so it is never quite `ALL`.
const FULL_MIN: u32 = ALL / 8 * 7;

/// Expectations of sequential faults.
pub struct Streams<P: Platform> {
    expected: Vec<P::Atomic<u64>>,
    /// For each region, the part of the windows read from devices after which the stream continued:
    /// an average that forgets.
    went_on: Vec<P::Atomic<u32>>,
}

impl<P: Platform> Streams<P> {
    /// No expectations; room for `cpus` CPUs.
    pub fn new(cpus: usize) -> Streams<P> {
        let places = (STREAMS_PER_CPU * cpus).next_power_of_two().max(STREAMS_MIN);
        Streams {
            expected: (0..places).map(|_| Atomic::new(NONE)).collect(),
            went_on: (0..REGIONS).map(|_| Atomic::new(ALL)).collect(),
        }
    }

    /// Looks up a fault at `vpn`.
    pub fn window(&self, space: SpaceId, vpn: Vpn) -> Stream {
        let place = self.place(space, vpn);
        let word = place.load(Relaxed);
        if word >> KEY_SHIFT != key(space, vpn) {
            return Stream { pages: 1, direction: Direction::Up, read_ahead: 0 };
        }
        let pages = (2 << (word >> WINDOW_SHIFT & WINDOW)).min(RUN_PAGES_MAX);
        let direction = if word & DOWN == 0 { Direction::Up } else { Direction::Down };
        let read_ahead = (word & AHEAD) as usize;
        if read_ahead > 0 {
            // The hits are counted once.
            place.store(word & !AHEAD, Relaxed);
            let went_on = self.went_on(space, vpn);
            went_on.store((went_on.load(Relaxed) + ALL / MEMORY).min(ALL), Relaxed);
        }
        Stream { pages, direction, read_ahead }
    }

    /// Expects the next fault after one at `wanted` that brought in `pages` pages and read `ahead`
    /// of them ahead. It is expected at the first page beyond them for which `is_mapped` is false.
    /// A fault that continues no stream may begin one in either direction. If mapped pages were
    /// skipped, the stream keeps its window.
    pub fn advance(
        &self,
        space: SpaceId,
        wanted: Vpn,
        pages: Range<Vpn>,
        ahead: usize,
        is_mapped: impl Fn(Vpn) -> bool,
    ) {
        let stream = self.window(space, wanted);
        let count = (pages.end.0 - pages.start.0) as usize;
        let expect = |direction, window, ahead| {
            let beside = match direction {
                Direction::Up => Some(pages.end),
                Direction::Down => pages.start.beside(Direction::Down),
            };
            let Some(beside) = beside else { return };
            let next = first_unmapped(beside, direction, &is_mapped).unwrap_or(beside);
            let window = if next == beside { count } else { window };
            self.expect(space, next, direction, window, ahead);
        };
        match stream.pages {
            1 => {
                expect(Direction::Up, 1, ahead);
                expect(Direction::Down, 1, 0);
            }
            window => expect(stream.direction, window, ahead),
        }
    }

    /// Expects a fault at `next`, after one that brought in `pages` pages and read `ahead` of them
    /// ahead.
    pub fn expect(
        &self,
        space: SpaceId,
        next: Vpn,
        direction: Direction,
        pages: usize,
        ahead: usize,
    ) {
        let place = self.place(space, next);
        let before = place.load(Relaxed);
        let ahead = match ahead {
            // Stores of a stream follow its loads, and expect the same page.
            0 if before >> KEY_SHIFT == key(space, next) => before & AHEAD,
            0 => 0,
            ahead => {
                let went_on = self.went_on(space, next);
                let part = went_on.load(Relaxed);
                went_on.store(part - part / MEMORY, Relaxed);
                ahead as u64
            }
        };
        let window = u64::from(pages.clamp(1, RUN_PAGES_MAX).ilog2()) << WINDOW_SHIFT;
        let down = if direction == Direction::Down { DOWN } else { 0 };
        place.store(key(space, next) << KEY_SHIFT | down | window | ahead, Relaxed);
    }

    /// How often the streams in the region of a page go on.
    pub fn trust(&self, space: SpaceId, vpn: Vpn) -> Trust {
        match self.went_on(space, vpn).load(Relaxed) {
            FULL_MIN.. => Trust::Full,
            _ => Trust::Limited,
        }
    }

    fn place(&self, space: SpaceId, vpn: Vpn) -> &P::Atomic<u64> {
        &self.expected[hash(key(space, vpn)) % self.expected.len()]
    }

    fn went_on(&self, space: SpaceId, vpn: Vpn) -> &P::Atomic<u32> {
        &self.went_on[hash(key(space, Vpn(vpn.0 / REGION_PAGES))) % REGIONS]
    }
}

/// Pages that a stream skips if they are mapped already.
const PASSED_MAX: usize = 64;

/// The first page from one on that is not mapped.
fn first_unmapped(from: Vpn, direction: Direction, is_mapped: impl Fn(Vpn) -> bool) -> Option<Vpn> {
    let beside = |vpn: &Vpn| vpn.beside(direction);
    let mut pages = std::iter::successors(Some(from), beside).take(PASSED_MAX);
    pages.find(|vpn| !is_mapped(*vpn))
}

fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

fn key(space: SpaceId, vpn: Vpn) -> u64 {
    u64::from(space.0) << VPN_BITS | (vpn.0 & ((1 << VPN_BITS) - 1))
}

/// A CPU's last slot window, on a cache line of its own. A hint: threads share a CPU.
#[repr(align(64))]
struct SlotWindow {
    /// Pages of it that were used.
    hits: AtomicU32,
    /// Slot bits << 8 | window.
    last: AtomicU64,
}

/// The slot windows of all CPUs.
pub struct SlotWindows(Vec<SlotWindow>);

impl SlotWindows {
    /// No windows yet.
    pub(super) fn new(cpus: usize) -> SlotWindows {
        let window = |_| SlotWindow { hits: AtomicU32::new(0), last: AtomicU64::new(0) };
        SlotWindows((0..cpus).map(window).collect())
    }

    /// Counts the use of a page that was read ahead.
    pub fn hit(&self, cpu: CpuId) {
        self.0[usize::from(cpu.0)].hits.fetch_add(1, Relaxed);
    }

    /// The number of slots to read for a fault on `slot`: a power of two, at most `most`.
    pub fn window(&self, cpu: CpuId, slot: Slot, most: usize) -> u32 {
        let of_cpu = &self.0[usize::from(cpu.0)];
        let hits = of_cpu.hits.swap(0, Relaxed);
        let last = of_cpu.last.load(Relaxed);
        let (last, window) = (Slot::from_bits(last >> 8), (last & 0xff) as u32);
        let beside = last.device == slot.device && last.index.abs_diff(slot.index) == 1;
        let window = slot_window(hits, beside, window, most as u32);
        of_cpu.last.store(slot.to_bits() << 8 | u64::from(window), Relaxed);
        window
    }
}

fn slot_window(hits: u32, beside: bool, before: u32, most: u32) -> u32 {
    let most = 1 << most.ilog2();
    let wanted = match hits {
        0 if beside => 2,
        0 => 1,
        hits => (hits + 2).next_power_of_two().max(4),
    };
    wanted.min(most).max(before / 2).min(most)
}

/// The page that each slot of a device was allocated for. A hint, to be checked with the entry
/// held.
pub(super) struct Owners<P: Platform>(BySlot<P::Atomic<u64>>);

/// Bits of a page number in an owner's word.
const OWNER_VPN_BITS: u32 = 47;

impl<P: Platform> Owners<P> {
    /// No owners, for `slots` slots.
    pub(super) fn new(slots: u32) -> Owners<P> {
        Owners(BySlot::new(slots))
    }

    /// Records that slots of a cluster were allocated for the pages from `owner` on.
    pub(super) fn note(&self, first: u32, slots: usize, owner: Owner) {
        for (vpn, slot) in (owner.vpn.0..).zip(first..first + slots as u32) {
            let bits = (u64::from(owner.space.0) << OWNER_VPN_BITS | vpn) << 1 | 1;
            self.0.get_or_make(slot, || Atomic::new(0)).store(bits, Relaxed);
        }
    }

    /// The page that a slot was last allocated for.
    pub(super) fn get(&self, slot: u32) -> Option<Owner> {
        let bits = self.0.get(slot)?.load(Relaxed);
        let (space, vpn) = (bits >> 1 >> OWNER_VPN_BITS, bits >> 1 & ((1 << OWNER_VPN_BITS) - 1));
        (bits & 1 == 1).then_some(Owner { space: SpaceId(space as u16), vpn: Vpn(vpn) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::Prng;

    /// A fault at `at`; returns its window and the next fault.
    fn step(streams: &Streams<TestPlatform>, space: SpaceId, at: Vpn) -> (usize, Vpn) {
        let window = streams.window(space, at).pages;
        let next = at.offset(window as u64);
        streams.expect(space, next, Direction::Up, window, window - 1);
        (window, next)
    }

    /// The windows of `faults` sequential faults from `first` on.
    fn sequential(
        streams: &Streams<TestPlatform>,
        space: SpaceId,
        first: u64,
        faults: usize,
    ) -> Vec<usize> {
        let mut at = Vpn(first);
        let mut one = |_| {
            let (window, next) = step(streams, space, at);
            at = next;
            window
        };
        (0..faults).map(&mut one).collect()
    }

    #[test]
    fn a_stream_doubles_its_window() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        assert_eq!(sequential(&streams, SpaceId(3), 500, 7), [1, 2, 4, 8, 16, 16, 16]);
    }

    /// Advances a stream from a fault at `at` with the pages of its window, none of them mapped
    /// before; returns the window.
    fn fault(streams: &Streams<TestPlatform>, at: u64, is_mapped: impl Fn(Vpn) -> bool) -> Stream {
        let stream = streams.window(SpaceId(4), Vpn(at));
        let pages = match stream.direction {
            Direction::Up => Vpn(at)..Vpn(at + stream.pages as u64),
            Direction::Down => Vpn(at + 1 - stream.pages as u64)..Vpn(at + 1),
        };
        streams.advance(SpaceId(4), Vpn(at), pages, stream.pages - 1, is_mapped);
        stream
    }

    #[test]
    fn a_stream_to_lower_addresses_doubles_its_window() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let mut at = 1000;
        for pages in [1, 2, 4, 8, 16, 16] {
            let stream = fault(&streams, at, |_| false);
            assert_eq!(stream.pages, pages, "at {at}");
            assert!(pages == 1 || stream.direction == Direction::Down);
            at -= pages as u64;
        }
        fault(&streams, 0, |_| false);
    }

    #[test]
    fn a_stream_passes_over_mapped_pages_and_keeps_its_window() {
        for direction in [Direction::Up, Direction::Down] {
            let streams: Streams<TestPlatform> = Streams::new(2);
            let mapped = |vpn: Vpn| (500..540).contains(&vpn.0);
            let (first, beyond) = match direction {
                Direction::Up => (499, 540),
                Direction::Down => (540, 499),
            };
            let next = Vpn(first);
            streams.expect(SpaceId(4), next, direction, 4, 3);
            // The window of 8 is cut short by the mapped pages.
            let stream = streams.window(SpaceId(4), next);
            assert_eq!((stream.pages, stream.direction), (8, direction));
            streams.advance(SpaceId(4), next, next..next.offset(1), 0, mapped);
            assert_eq!(streams.window(SpaceId(4), Vpn(beyond)).pages, 16);
        }
    }

    #[test]
    fn trust_follows_how_many_streams_go_on() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let (space, mut random) = (SpaceId(4), Prng::new(3));
        let mut run = |percent, windows: u64| {
            for at in (0..windows).map(|window| Vpn(window * 16 % 4000)) {
                streams.expect(space, at, Direction::Up, 16, 15);
                if random.percent(percent) {
                    streams.window(space, at);
                }
            }
            streams.trust(space, Vpn(5))
        };
        assert_eq!(run(100, 1000), Trust::Full);
        assert_eq!(run(75, 1000), Trust::Limited);
        assert_eq!(run(100, 1000), Trust::Full);
        assert_eq!(streams.trust(space, Vpn(1 << 20)), Trust::Full, "another region");
    }

    #[test]
    fn streams_in_two_spaces_are_apart() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        sequential(&streams, SpaceId(1), 0, 5);
        assert_eq!(streams.window(SpaceId(2), Vpn(31)).pages, 1);
        assert_eq!(streams.window(SpaceId(1), Vpn(31)).pages, 16);
    }

    /// Expectations do not depend on threads.
    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let mut places = [0, 1000, 5000, 1 << 20].map(Vpn);
        let mut random = Prng::new(1);
        for round in 0..7 {
            for at in &mut places {
                let (window, next) = step(&streams, SpaceId(0), *at);
                assert_eq!(window, (1 << round).min(RUN_PAGES_MAX));
                *at = next;
                // A random fault in between.
                step(&streams, SpaceId(0), Vpn((1 << 30) + random.below(1 << 18)));
            }
        }
    }

    #[test]
    fn readahead_hits_count_once_when_the_stream_continues() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let space = SpaceId(0);
        streams.expect(space, Vpn(8), Direction::Up, 8, 7);
        assert_eq!(streams.window(space, Vpn(8)).read_ahead, 7);
        assert_eq!(streams.window(space, Vpn(8)).read_ahead, 0);
        streams.expect(space, Vpn(30), Direction::Up, 8, 0);
        assert_eq!(streams.window(space, Vpn(30)).read_ahead, 0);
    }

    #[test]
    fn random_faults_hardly_read_ahead() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let mut random = Prng::new(9);
        let mut pages = 0;
        for _ in 0..10_000 {
            pages += step(&streams, SpaceId(0), Vpn(random.below(1 << 18))).0;
        }
        assert!(pages < 10_200, "{pages} pages for 10000 faults");
    }

    #[test]
    fn slot_windows_grow_by_hits_and_shrink_by_halves() {
        for (hits, beside, before, most, expected) in [
            (0, false, 0, 16, 1),
            (0, true, 0, 16, 2),
            (1, false, 1, 16, 4),
            (3, false, 4, 16, 8),
            (7, true, 8, 16, 16),
            (15, false, 16, 16, 16),
            (0, false, 16, 16, 8),
            (0, true, 16, 16, 8),
            (0, false, 2, 16, 1),
            (9, false, 16, 11, 8),
            (9, false, 16, 1, 1),
        ] {
            let window = slot_window(hits, beside, before, most);
            assert_eq!(window, expected, "{hits} {beside} {before} {most}");
        }
    }

    #[test]
    fn slot_windows_of_cpus_are_apart() {
        let windows = SlotWindows::new(2);
        let slot = |index| Slot { device: 3, index };
        assert_eq!(windows.window(CpuId(0), slot(100), 16), 1);
        windows.hit(CpuId(0));
        windows.hit(CpuId(0));
        assert_eq!(windows.window(CpuId(1), slot(7), 16), 1);
        assert_eq!(windows.window(CpuId(1), slot(8), 16), 2);
        assert_eq!(windows.window(CpuId(0), slot(900), 16), 4);
        assert_eq!(windows.window(CpuId(0), slot(500), 16), 2);
    }

    #[test]
    fn owners_keep_extreme_values() {
        let owners: Owners<TestPlatform> = Owners::new(3);
        assert_eq!((owners.get(600), owners.get(1 << 20)), (None, None));
        let (space, last) = (SpaceId(u16::MAX), (1 << OWNER_VPN_BITS) - 1);
        owners.note(600, 2, Owner { space, vpn: Vpn(last - 1) });
        owners.note(0, 1, Owner { space: SpaceId(0), vpn: Vpn(0) });
        assert_eq!(owners.get(601), Some(Owner { space, vpn: Vpn(last) }));
        assert_eq!(owners.get(0), Some(Owner { space: SpaceId(0), vpn: Vpn(0) }));
        assert_eq!(owners.get(602), None);
    }
}
