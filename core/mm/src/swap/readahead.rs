//! Who accesses memory sequentially, and how many pages to bring in or map ahead.
//!
//! A table of expectations: whoever just got pages up to `v` is expected at `v` next, with a
//! window. A fault exactly there is a stream and doubles the window, up to 64 KiB; any other fault
//! starts with one page. No lock, no thread: any number of streams, from any thread, in any space;
//! two that hash to one place make each other start over. One load and one store per fault.
//!
//! Departs from the kernel's VMA readahead, which keeps one window per mapping and learns from hits
//! on single pages: our windows are mapped whole, so a next fault at the end is the hit.

use highwater_platform::{Atomic, Platform};
use highwater_units::{RUN_PAGES_MAX, SpaceId, Vpn};
use std::sync::atomic::Ordering::Relaxed;

/// Expectations kept at a time.
const STREAMS: usize = 1024;

/// Windows are at most 16 pages: 8 bits. Above them the page, then 16 bits of the space.
const WINDOW_BITS: u32 = 8;
const _: () = assert!(RUN_PAGES_MAX < 1 << WINDOW_BITS, "windows fit their bits");
const VPN_BITS: u32 = 40;

/// Expectations of sequential faults.
pub struct Streams<P: Platform>(Vec<P::Atomic<u64>>);

impl<P: Platform> Streams<P> {
    /// No expectations.
    pub fn new() -> Streams<P> {
        Streams((0..STREAMS).map(|_| Atomic::new(0)).collect())
    }

    /// Pages to bring in for a fault at `vpn`: 1, or more if it was expected.
    pub fn window(&self, space: SpaceId, vpn: Vpn) -> usize {
        let expected = self.0[place(space, vpn)].load(Relaxed);
        match expected >> WINDOW_BITS == key(space, vpn) {
            true => (2 * (expected & 0xff) as usize).clamp(1, RUN_PAGES_MAX),
            false => 1,
        }
    }

    /// After a fault brought in `pages` pages: expects the next one at `next`.
    pub fn expect(&self, space: SpaceId, next: Vpn, pages: usize) {
        let expected = key(space, next) << WINDOW_BITS | pages as u64;
        self.0[place(space, next)].store(expected, Relaxed);
    }
}

impl<P: Platform> Default for Streams<P> {
    fn default() -> Streams<P> {
        Streams::new()
    }
}

fn key(space: SpaceId, vpn: Vpn) -> u64 {
    u64::from(space.0) << VPN_BITS | (vpn.0 & ((1 << VPN_BITS) - 1))
}

fn place(space: SpaceId, vpn: Vpn) -> usize {
    (key(space, vpn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STREAMS
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_os::Os;
    use highwater_units::Prng;

    /// Pages brought in per fault over `faults` sequential faults from `first`.
    fn sequential(streams: &Streams<Os>, space: SpaceId, first: u64, faults: usize) -> Vec<usize> {
        let mut at = Vpn(first);
        let mut step = |_| {
            let window = streams.window(space, at);
            at = at.offset(window as u64);
            streams.expect(space, at, window);
            window
        };
        (0..faults).map(&mut step).collect()
    }

    #[test]
    fn a_stream_doubles_its_window() {
        let streams: Streams<Os> = Streams::new();
        assert_eq!(sequential(&streams, SpaceId(3), 500, 7), [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn streams_in_two_spaces_are_apart() {
        let streams: Streams<Os> = Streams::new();
        sequential(&streams, SpaceId(1), 0, 5);
        assert_eq!(streams.window(SpaceId(2), Vpn(31)), 1);
        assert_eq!(streams.window(SpaceId(1), Vpn(31)), 16);
    }

    #[test]
    fn random_faults_hardly_read_ahead() {
        let streams: Streams<Os> = Streams::new();
        let mut random = Prng::new(9);
        let mut pages = 0;
        for _ in 0..10_000 {
            let vpn = Vpn(random.below(1 << 18));
            let window = streams.window(SpaceId(0), vpn);
            streams.expect(SpaceId(0), vpn.offset(window as u64), window);
            pages += window;
        }
        assert!(pages < 10_200, "{pages} pages for 10000 faults");
    }
}
