//! Readahead windows of files: detection of sequential readers, and how much to read.
//!
//! ```text
//! fault --> Seen: what the page is to a stream --> window(): what to read     pure
//! FileStreams   by page: start, marker and end of windows
//! lasting()     the largest window that is used before it is evicted          pure
//! ```
//! The rules follow Linux 6.1 (`ondemand_readahead` in mm/readahead.c): a first window of 4 pages,
//! then 4 times, then twice as many, up to a setting. One page of a window is marked. A fault on it
//! requests the next window, which is read while this one is used.
//! The kernel keeps a window for each open file; here expectations are by page, as in
//! [`super::Streams`]. So one file can have any number of streams of any threads. If another stream
//! displaced an expectation, the marks of pages replace it. To keep random readers from being taken
//! for streams, three pages in a row start a stream, where the kernel takes two; at the start of a
//! file one page does.
//!
//! If readers together read ahead more than memory holds, pages are evicted unused. So an
//! expectation records the age of memory, which counts pages allocated. The reader compares ages to
//! learn how many pages were allocated while it used a window, and requests a window small enough
//! to last. The kernel has no such limit: each stream shrinks when its pages are missing.

use crate::config::FILE_WINDOW_MAX;
use highwater_platform::{Atomic, Platform};
use highwater_units::{SpaceId, Vpn};
use std::sync::atomic::Ordering::Relaxed;

/// What is expected at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It was requested, in a window of `size` pages, together with those after it: `left` in all.
    Asked {
        /// Pages of the window.
        size: u32,
        /// Pages from this one on.
        left: u32,
    },
    /// It follows a window of `size` pages.
    End {
        /// Pages of the window.
        size: u32,
    },
}

/// How a fault on a page of a file fits the streams of its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Absent: the file's first page.
    Start,
    /// Absent: the page after a window of `size` pages.
    End {
        /// Pages of the window.
        size: u32,
    },
    /// Absent, although a window of `size` pages was requested: there was no memory for it, it was
    /// evicted already, or readahead is slower than the reader.
    Missed {
        /// Pages of the window.
        size: u32,
    },
    /// Absent: the page after `pages` that are in memory.
    Trace {
        /// At least one.
        pages: u32,
    },
    /// Absent, with no sign of a stream.
    Stray,
    /// In memory, and marked: `left` pages of its window of `size` pages, from it on, are in memory
    /// or in flight.
    Marker {
        /// Pages of the window.
        size: u32,
        /// Pages from this one on.
        left: u32,
    },
}

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The page alone.
    Page,
    /// `pages` pages from this one on, with a mark at index `marker`.
    From {
        /// At least two.
        pages: u32,
        /// At least one, below `pages`.
        marker: u32,
    },
    /// Readahead of `pages` pages that begin `after` pages after this one. The first is marked.
    Next {
        /// At least one.
        after: u32,
        /// At least one.
        pages: u32,
    },
    /// Nothing: enough is read ahead.
    Enough,
}

/// The first window of a stream.
const FIRST: u32 = 4;

/// After this many adjacent pages that were each read alone, the next page is a stream.
pub const ALONE: u32 = 2;

/// An absent page after this many pages in memory is a stream. The kernel takes two; but then a
/// random reader of a file of which a quarter is in memory reads one page in sixteen in vain.
pub const TRACE_MIN: u32 = 8;

/// Decides what to read for a fault, with windows of up to `most` pages.
pub fn window(seen: Seen, most: u32) -> Window {
    let from = |pages: u32, marker: u32| match pages.min(most) {
        0 | 1 => Window::Page,
        pages => Window::From { pages, marker: marker.clamp(1, pages - 1) },
    };
    match seen {
        Seen::Stray => Window::Page,
        Seen::Trace { pages } if pages < TRACE_MIN => Window::Page,
        Seen::Trace { pages } => from(pages + 1, pages),
        Seen::End { size } if size < ALONE => Window::Page,
        // Pages were read one by one: from here on a stream.
        Seen::Start | Seen::End { size: ALONE } => from(FIRST, 1),
        // The window, and the one that its marker would request, if both fit.
        Seen::End { size } => {
            let size = next(size, most);
            let both = size + next(size, most);
            if both <= most { from(both, size) } else { from(most, most / 2) }
        }
        Seen::Missed { size } => {
            let size = (size / 2).max(FIRST);
            from(size, size / 2)
        }
        Seen::Marker { .. } if most < 2 => Window::Enough,
        Seen::Marker { left, .. } if left > most => Window::Enough,
        Seen::Marker { size, left } => Window::Next { after: left, pages: next(size, most) },
    }
}

/// The window after one of `size` pages (get_next_ra_size).
fn next(size: u32, most: u32) -> u32 {
    match size {
        size if size < most / 16 => 4 * size,
        size if size <= most / 2 => 2 * size,
        _ => most,
    }
}

/// While a window is used, at most this part of the usable memory may be allocated. A page waits
/// while two windows are used, the one before and its own, and readers differ in speed.
const PARTS: u64 = 8;

/// The largest window that is used before it is evicted. `taken` pages were allocated while a
/// window of `size` pages was used; `usable` pages can be evicted or are free.
pub fn lasting(size: u32, taken: u64, usable: u32) -> u32 {
    let lasting = u64::from(size) * u64::from(usable) / PARTS;
    match lasting.checked_div(taken) {
        Some(pages) => pages.clamp(FIRST.into(), u32::MAX.into()) as u32,
        None => u32::MAX,
    }
}

/// The number of expectations.
const STREAMS: usize = 1024;

/// A word: 1 | vpn | space | size | left. Page numbers of files have 32 bits.
const PRESENT: u64 = 1 << 63;
const COUNT_BITS: u32 = 9;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const SPACE_BITS: u32 = 12;
const _: () = assert!(FILE_WINDOW_MAX as u64 <= COUNT, "windows fit their bits");
const _: () = assert!(32 + SPACE_BITS + 2 * COUNT_BITS < 64, "the word is large enough");

/// Expectations of sequential readers of files. No lock; two that hash to one place displace each
/// other.
pub struct FileStreams<P: Platform>(Vec<Place<P>>);

/// An expectation. Its parts are not stored atomically: all are hints.
struct Place<P: Platform> {
    word: P::Atomic<u64>,
    /// The age of memory at which it was stored.
    age: P::Atomic<u64>,
}

impl<P: Platform> FileStreams<P> {
    /// No expectations.
    pub(super) fn new() -> FileStreams<P> {
        let place = |_| Place { word: Atomic::new(0), age: Atomic::new(0) };
        FileStreams((0..STREAMS).map(place).collect())
    }

    /// Removes what is expected at a page; also returns the age at which that was stored.
    pub fn take(&self, space: SpaceId, vpn: Vpn) -> Option<(Expected, u64)> {
        let key = key(space, vpn);
        let place = &self.0[place(key)];
        let word = place.word.load(Relaxed);
        if word >> (2 * COUNT_BITS) != key {
            return None;
        }
        place.word.store(0, Relaxed);
        let (size, left) = ((word >> COUNT_BITS & COUNT) as u32, (word & COUNT) as u32);
        let expected = match left {
            0 => Expected::End { size },
            left => Expected::Asked { size, left },
        };
        Some((expected, place.age.load(Relaxed)))
    }

    /// Expects a fault at a page; `age` is the present age of memory.
    pub fn expect(&self, space: SpaceId, vpn: Vpn, expected: Expected, age: u64) {
        let (size, left) = match expected {
            Expected::Asked { size, left } => (size, left),
            Expected::End { size } => (size, 0),
        };
        debug_assert!(u64::from(size.max(left)) <= COUNT, "{expected:?}");
        let key = key(space, vpn);
        let counts = u64::from(size) << COUNT_BITS | u64::from(left);
        let place = &self.0[place(key)];
        place.age.store(age, Relaxed);
        place.word.store(key << (2 * COUNT_BITS) | counts, Relaxed);
    }
}

fn key(space: SpaceId, vpn: Vpn) -> u64 {
    let space = u64::from(space.0) & ((1 << SPACE_BITS) - 1);
    PRESENT >> (2 * COUNT_BITS) | (vpn.0 & u64::from(u32::MAX)) << SPACE_BITS | space
}

fn place(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STREAMS
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::Prng;
    use std::collections::BTreeMap;

    #[track_caller]
    fn assert_windows(most: u32, table: &[(Seen, Window)]) {
        for (seen, expected) in table {
            assert_eq!(window(*seen, most), *expected, "{seen:?}, at most {most}");
        }
    }

    #[test]
    fn windows_are_the_kernels() {
        let from = |pages, marker| Window::From { pages, marker };
        let at = |size, left| Seen::Marker { size, left };
        let then = |after, pages| Window::Next { after, pages };
        assert_windows(
            256,
            &[
                (Seen::Start, from(4, 1)),
                (at(4, 3), then(3, 16)),
                (at(16, 16), then(16, 32)),
                (at(32, 32), then(32, 64)),
                (at(128, 128), then(128, 256)),
                (at(256, 256), then(256, 256)),
                (at(256, 128), then(128, 256)),
                (Seen::End { size: 4 }, from(48, 16)),
                (Seen::End { size: 64 }, from(256, 128)),
                (Seen::End { size: 256 }, from(256, 128)),
            ],
        );
    }

    #[test]
    fn random_faults_get_one_page() {
        let trace = |pages| Seen::Trace { pages };
        assert_windows(
            256,
            &[
                (Seen::Stray, Window::Page),
                (trace(TRACE_MIN - 1), Window::Page),
                (trace(TRACE_MIN), Window::From { pages: TRACE_MIN + 1, marker: TRACE_MIN }),
                (trace(256), Window::From { pages: 256, marker: 255 }),
                (Seen::End { size: 1 }, Window::Page),
                (Seen::End { size: 2 }, Window::From { pages: 4, marker: 1 }),
            ],
        );
    }

    #[test]
    fn missed_windows_are_halved() {
        let missed = |size| Seen::Missed { size };
        assert_windows(
            256,
            &[
                (missed(256), Window::From { pages: 128, marker: 64 }),
                (missed(16), Window::From { pages: 8, marker: 4 }),
                (missed(1), Window::From { pages: 4, marker: 2 }),
            ],
        );
    }

    #[test]
    fn small_limits_give_small_windows() {
        let (marker, far) = (Seen::Marker { size: 4, left: 3 }, Seen::Marker { size: 64, left: 9 });
        assert_windows(0, &[(Seen::Start, Window::Page), (marker, Window::Enough)]);
        assert_windows(1, &[(Seen::End { size: 9 }, Window::Page), (marker, Window::Enough)]);
        assert_windows(
            8,
            &[
                (marker, Window::Next { after: 3, pages: 8 }),
                (far, Window::Enough),
                (Seen::End { size: 256 }, Window::From { pages: 8, marker: 4 }),
            ],
        );
    }

    /// No window exceeds its limit, and its marker is inside.
    #[test]
    fn windows_keep_their_bounds() {
        let mut random = Prng::new(3);
        for _ in 0..20_000 {
            let most = random.below(257) as u32;
            let (size, left) = (1 + random.below(256) as u32, 1 + random.below(300) as u32);
            let seen = match random.below(6) {
                0 => Seen::Start,
                1 => Seen::End { size },
                2 => Seen::Missed { size },
                3 => Seen::Trace { pages: left },
                4 => Seen::Stray,
                _ => Seen::Marker { size, left },
            };
            match window(seen, most) {
                Window::Page | Window::Enough => {}
                Window::From { pages, marker } => {
                    assert!((2..=most).contains(&pages), "{seen:?} {most}: {pages}");
                    assert!((1..pages).contains(&marker), "{seen:?} {most}: {marker} of {pages}");
                }
                Window::Next { after, pages } => {
                    assert_eq!(after, left, "{seen:?} {most}");
                    assert!((1..=most).contains(&pages), "{seen:?} {most}: {pages}");
                }
            }
        }
    }

    /// Reads page by page, with windows as decided; returns the pages read and the reads that the
    /// reader waited for. Every page is read once.
    fn read_through(pages: u32, most: u32) -> (u32, u32) {
        let (mut read, mut waits, mut windows) = (0, 0, BTreeMap::new());
        for page in 0..pages {
            let seen = match windows.remove(&page) {
                _ if page == read => Seen::Start,
                Some((size, left)) => Seen::Marker { size, left },
                None => continue,
            };
            match window(seen, most.min(pages - page)) {
                Window::From { pages, marker } => {
                    windows.insert(page + marker, (pages, pages - marker));
                    (read, waits) = (page + pages, waits + 1);
                }
                Window::Next { after, pages: next } => {
                    assert_eq!(page + after, read, "windows adjoin");
                    let next = next.min(pages - read);
                    if next > 0 {
                        windows.insert(read, (next, next));
                    }
                    read += next;
                }
                Window::Page => (read, waits) = (page + 1, waits + 1),
                Window::Enough => {}
            }
        }
        (read, waits)
    }

    #[test]
    fn a_sequential_reader_waits_once() {
        for pages in [5, 100, 1000, 4096] {
            assert_eq!(read_through(pages, 256), (pages, 1), "{pages} pages");
        }
    }

    #[test]
    fn windows_shrink_under_pressure() {
        for (size, taken, usable, expected) in [
            (256, 0, 16_384, u32::MAX),
            (256, 256, 16_384, 2048),
            // 64 readers, in turn.
            (256, 64 * 256, 16_384, 32),
            (64, 64 * 64, 16_384, 32),
            (16, 64 * 16, 16_384, 32),
            (256, 1 << 40, 16_384, FIRST),
            (256, 256, 0, FIRST),
        ] {
            assert_eq!(lasting(size, taken, usable), expected, "{size} {taken} {usable}");
        }
    }

    /// Random expectations against a map: an expectation that is found is the last one stored, and
    /// is found once.
    #[test]
    fn expectations_are_kept_or_forgotten_never_wrong() {
        let streams: FileStreams<TestPlatform> = FileStreams::new();
        let (mut random, mut model) = (Prng::new(11), BTreeMap::new());
        let (mut kept, mut asked) = (0, 0);
        for _ in 0..50_000 {
            let space = SpaceId(random.below(3) as u16);
            let vpn = Vpn(u64::from(u32::MAX) - random.below(400));
            match random.below(2) {
                0 => {
                    let size = 1 + random.below(256) as u32;
                    let expected = match random.below(2) {
                        0 => Expected::End { size },
                        _ => Expected::Asked { size, left: 1 + random.below(256) as u32 },
                    };
                    let age = random.below(1 << 40);
                    streams.expect(space, vpn, expected, age);
                    model.insert((space, vpn), (expected, age));
                }
                _ => {
                    let known = model.remove(&(space, vpn));
                    asked += usize::from(known.is_some());
                    if let Some(found) = streams.take(space, vpn) {
                        assert_eq!(Some(found), known, "{space:?} {vpn:?}");
                        kept += 1;
                    }
                }
            }
        }
        assert!(kept * 2 > asked && kept < asked, "{kept} of {asked} are kept");
        assert_eq!(FileStreams::<TestPlatform>::new().take(SpaceId(0), Vpn(0)), None);
    }
}
