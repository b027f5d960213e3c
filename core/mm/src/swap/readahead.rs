//! Sequential faults, and the pages that a fault reads or maps along with the one it needs.
//!
//! ```text
//! Streams      by page: where a fault is expected, with its window         Ahead::Virtual
//! SlotWindows  by CPU: how many slots around the last one were used        Ahead::Slot
//! Owners       the page for which a slot was taken                         Ahead::Slot
//! ```
//! **Streams** are expectations: after a fault got the pages up to `v`, a fault is expected at `v`.
//! A fault exactly there continues the stream and doubles its window, up to 64 KiB; any other
//! starts with one page. No lock and no thread is part of it, so any number of streams, of any
//! threads, run in any space; two that hash to one place make each other start over. A fault costs
//! one load and one store. The kernel's VMA readahead keeps one window for each mapping and learns
//! from hits on single pages; here windows are mapped whole, and the next fault at the end is the
//! hit.
//!
//! **Slot windows** follow the kernel's swapin_nr_pages: two more than the pages used of those read
//! ahead since the last time, as a power of two; one page if none were used and the fault is not
//! next to the last one; at least half of the last window. The kernel has one window for all; here
//! each CPU has one.

use crate::frame::Owner;
use highwater_platform::{Atomic, Platform};
use highwater_units::{CpuId, RUN_PAGES_MAX, Slot, SpaceId, Vpn};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The pages that a fault reads along with the one it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// No others.
    Off,
    /// The next pages of the space.
    Virtual,
    /// The pages of the slots around it.
    Slot,
}

/// The origin of the pages of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Zeroed frames, or frames that were in memory.
    Memory,
    /// A device.
    Device,
}

/// How a fault continues a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Pages to read or map: 1, or more if the fault was expected.
    pub pages: usize,
    /// Pages that were read ahead before and count as hits, now that the stream continues.
    pub read_ahead: usize,
}

/// Expectations kept for each CPU, and in all at least. With fewer, the streams of 224 CPUs often
/// displace each other, and a stream that starts over needs more expectations.
const STREAMS_PER_CPU: usize = 64;
const STREAMS_MIN: usize = 1024;

/// A word: space (16 bits) | page (40) | source (1) | window (7).
const WINDOW_BITS: u32 = 8;
const WINDOW: u64 = (1 << 7) - 1;
const FROM_DEVICE: u64 = 1 << 7;
const _: () = assert!(RUN_PAGES_MAX as u64 <= WINDOW, "windows fit their bits");
const VPN_BITS: u32 = 40;

/// Expectations of sequential faults.
pub struct Streams<P: Platform>(Vec<P::Atomic<u64>>);

impl<P: Platform> Streams<P> {
    /// No expectations, for a machine of `cpus` CPUs.
    pub fn new(cpus: usize) -> Streams<P> {
        let places = (STREAMS_PER_CPU * cpus).next_power_of_two().max(STREAMS_MIN);
        Streams((0..places).map(|_| Atomic::new(0)).collect())
    }

    /// How a fault at `vpn` continues a stream.
    pub fn window(&self, space: SpaceId, vpn: Vpn) -> Stream {
        let place = self.place(space, vpn);
        let expected = place.load(Relaxed);
        if expected >> WINDOW_BITS != key(space, vpn) {
            return Stream { pages: 1, read_ahead: 0 };
        }
        let window = (expected & WINDOW) as usize;
        let pages = (2 * window).clamp(1, RUN_PAGES_MAX);
        if expected & FROM_DEVICE == 0 {
            return Stream { pages, read_ahead: 0 };
        }
        // Hits count once.
        place.store(expected & !FROM_DEVICE, Relaxed);
        Stream { pages, read_ahead: window.saturating_sub(1) }
    }

    /// Expects a fault at `next`, after one of `pages` pages.
    pub fn expect(&self, space: SpaceId, next: Vpn, pages: usize, source: Source) {
        let from = match source {
            Source::Device if pages > 1 => FROM_DEVICE,
            Source::Device | Source::Memory => 0,
        };
        let expected = key(space, next) << WINDOW_BITS | from | pages as u64;
        self.place(space, next).store(expected, Relaxed);
    }

    fn place(&self, space: SpaceId, vpn: Vpn) -> &P::Atomic<u64> {
        let hash = key(space, vpn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[hash as usize % self.0.len()]
    }
}

fn key(space: SpaceId, vpn: Vpn) -> u64 {
    u64::from(space.0) << VPN_BITS | (vpn.0 & ((1 << VPN_BITS) - 1))
}

/// The last read of a CPU by slots, on a cache line of its own. Hints: threads may share a CPU.
#[repr(align(64))]
struct SlotWindow {
    /// Pages used since then.
    hits: AtomicU32,
    /// The slot and the window: slot bits << 8 | window.
    last: AtomicU64,
}

/// The windows of slots, by CPU.
pub struct SlotWindows(Vec<SlotWindow>);

impl SlotWindows {
    /// No reads yet.
    pub(super) fn new(cpus: usize) -> SlotWindows {
        let window = |_| SlotWindow { hits: AtomicU32::new(0), last: AtomicU64::new(0) };
        SlotWindows((0..cpus).map(window).collect())
    }

    /// Counts the use of a page that was read ahead.
    pub fn hit(&self, cpu: CpuId) {
        self.0[usize::from(cpu.0)].hits.fetch_add(1, Relaxed);
    }

    /// Slots to read for a fault on one: a power of two, at most `most`.
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

/// A word for each slot of a cluster.
type Words<P> = Box<[<P as highwater_platform::Atomics>::Atomic<u64>]>;

/// The page for which each slot of a device was taken: a hint, to be checked under the page's
/// entry.
pub(super) struct Owners<P: Platform>(Vec<OnceLock<Words<P>>>);

/// Bits of a page number in an owner's word.
const OWNER_VPN_BITS: u32 = 47;

impl<P: Platform> Owners<P> {
    /// No pages yet, for `clusters` clusters.
    pub(super) fn new(clusters: usize) -> Owners<P> {
        Owners((0..clusters).map(|_| OnceLock::new()).collect())
    }

    /// Notes that slots of a cluster were taken for the pages from `owner` on.
    pub(super) fn note(&self, first: u32, slots: usize, owner: Owner) {
        let (cluster, at) = super::cluster::split(first);
        let empty = || (0..super::cluster::CLUSTER_SLOTS).map(|_| Atomic::new(0)).collect();
        let words = &self.0[cluster].get_or_init(empty)[at..at + slots];
        for (vpn, word) in (owner.vpn.0..).zip(words) {
            let bits = (u64::from(owner.space.0) << OWNER_VPN_BITS | vpn) << 1 | 1;
            word.store(bits, Relaxed);
        }
    }

    /// The page for which a slot was taken last.
    pub(super) fn get(&self, slot: u32) -> Option<Owner> {
        let (cluster, at) = super::cluster::split(slot);
        let bits = self.0.get(cluster)?.get()?[at].load(Relaxed);
        let (space, vpn) = (bits >> 1 >> OWNER_VPN_BITS, bits >> 1 & ((1 << OWNER_VPN_BITS) - 1));
        (bits & 1 == 1).then_some(Owner { space: SpaceId(space as u16), vpn: Vpn(vpn) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::Prng;

    /// A fault at `at`: its window, and the next page of the stream.
    fn step(streams: &Streams<TestPlatform>, space: SpaceId, at: Vpn) -> (usize, Vpn) {
        let window = streams.window(space, at).pages;
        let next = at.offset(window as u64);
        streams.expect(space, next, window, Source::Device);
        (window, next)
    }

    /// Windows of `faults` sequential faults from `first`.
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

    #[test]
    fn streams_in_two_spaces_are_apart() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        sequential(&streams, SpaceId(1), 0, 5);
        assert_eq!(streams.window(SpaceId(2), Vpn(31)).pages, 1);
        assert_eq!(streams.window(SpaceId(1), Vpn(31)).pages, 16);
    }

    /// Expectations belong to pages, not to threads.
    #[test]
    fn threads_that_take_turns_have_streams_of_their_own() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let mut places = [0, 1000, 5000, 1 << 20].map(Vpn);
        let mut random = Prng::new(1);
        for round in 0..7 {
            for at in &mut places {
                let (window, next) = step(&streams, SpaceId(0), *at);
                assert_eq!(window, (1 << round).min(RUN_PAGES_MAX));
                *at = next;
                // And a random fault.
                step(&streams, SpaceId(0), Vpn((1 << 30) + random.below(1 << 18)));
            }
        }
    }

    #[test]
    fn hits_count_once_and_when_the_stream_continues() {
        let streams: Streams<TestPlatform> = Streams::new(2);
        let space = SpaceId(0);
        streams.expect(space, Vpn(8), 8, Source::Device);
        assert_eq!(streams.window(space, Vpn(8)), Stream { pages: 16, read_ahead: 7 });
        assert_eq!(streams.window(space, Vpn(8)), Stream { pages: 16, read_ahead: 0 });
        streams.expect(space, Vpn(30), 8, Source::Memory);
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
    fn owners_keep_their_extremes() {
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
