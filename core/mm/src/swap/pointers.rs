//! Decides which of the pages that pointers name are read ahead, and keeps the pages whose use
//! continues this (`fault/pointers.rs`).
//!
//! A page of a sequential stream may be full of pointers: an index, an array of objects, the lines
//! of a sort. The pages they name are likely to be used next, in their order, wherever they lie ("A
//! Stateless, Content-Directed Data Prefetching Mechanism", Cooksey, Jourdan and Grunwald, 2002).
//! They may also stay unused: code that moves pointers reads none of the pages they name. So for
//! each region of 16 MiB that pointers name, the used part of the pages read ahead is averaged.
//! Below three quarters, no further page of the region is read ahead. Each refused page raises the
//! average a little, so that a change is noticed.
//!
//! Locking: none. The words are hints; an update that is lost changes an average a little.

use super::readahead::Trust;
use highwater_platform::{Atomic, Platform, WORDS_PER_FRAME};
use highwater_units::{Direction, SpaceId, Vpn};
use std::sync::atomic::Ordering::Relaxed;

/// Pages of a region.
const REGION_PAGES: u64 = 1 << 12;
/// Averages; regions that hash to one place share it.
const REGIONS: usize = 256;
/// Pages that an average remembers: more than are read and not used yet.
const MEMORY: u32 = 4096;
/// The average if all pages are used.
const ALL: u32 = 1 << 24;
/// Under 7/8, trust is limited, and each page is watched. Pages that are not used yet do not count
/// in the average.
const FULL_MIN: u32 = ALL / 8 * 7;
/// Under 3/4, none is read ahead.
const ADMITTED_MIN: u32 = ALL / 4 * 3;
/// Under full trust, one in this many pages of a step is watched, and counts for all of them.
pub const WATCHED_IN: usize = 8;
/// Refusals that restore as much as the use of one page.
const REFUSALS: u32 = 4096;

/// The number of leads; pages that hash to one place displace each other.
const LEADS: usize = 1024;
/// A lead's word: 15 bits of the page's key, 9 bits of word, 1 bit of direction, 39 bits of page.
const TAG_SHIFT: u32 = 49;
const WORD_SHIFT: u32 = 40;
const DOWN: u64 = 1 << 39;
const VPN: u64 = DOWN - 1;
const _: () = assert!(WORDS_PER_FRAME == 1 << (TAG_SHIFT - WORD_SHIFT), "words fit their bits");

/// A place in an array of pointers, and the way it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The page.
    pub vpn: Vpn,
    /// Words of the page that the cursor has passed, in the direction.
    pub word: usize,
    /// The direction.
    pub direction: Direction,
}

impl Cursor {
    /// The number of the word in its page.
    pub fn index(self) -> usize {
        match self.direction {
            Direction::Up => self.word,
            Direction::Down => WORDS_PER_FRAME - 1 - self.word,
        }
    }

    /// The place after this one; `None` at address 0.
    pub fn next(self) -> Option<Cursor> {
        match self.word + 1 {
            WORDS_PER_FRAME => {
                Some(Cursor { vpn: self.vpn.beside(self.direction)?, word: 0, ..self })
            }
            word => Some(Cursor { word, ..self }),
        }
    }
}

/// Leads, and which part of the pages that pointers name is used.
pub struct Pointers<P: Platform> {
    /// The part of the pages of each region that were used.
    used: Vec<P::Atomic<u32>>,
    /// Leads: pages whose use continues the readahead from a cursor.
    leads: Vec<P::Atomic<u64>>,
}

impl<P: Platform> Pointers<P> {
    /// All are trusted.
    pub fn new() -> Pointers<P> {
        Pointers { used: (0..REGIONS).map(|_| Atomic::new(ALL)).collect(), leads: P::zeros(LEADS) }
    }

    /// Makes a page a lead to a cursor.
    pub fn lead(&self, space: SpaceId, vpn: Vpn, cursor: Cursor) {
        let (lead, tag) = self.lead_of(space, vpn);
        let down = if cursor.direction == Direction::Down { DOWN } else { 0 };
        let word = (cursor.word as u64) << WORD_SHIFT;
        lead.store(tag << TAG_SHIFT | word | down | cursor.vpn.0 & VPN, Relaxed);
    }

    /// The cursor that a page leads to; the page is no lead any more.
    pub fn cursor_of(&self, space: SpaceId, vpn: Vpn) -> Option<Cursor> {
        let (lead, tag) = self.lead_of(space, vpn);
        let word = lead.load(Relaxed);
        if word >> TAG_SHIFT != tag {
            return None;
        }
        lead.store(0, Relaxed);
        let direction = if word & DOWN == 0 { Direction::Up } else { Direction::Down };
        let (vpn, word) = (Vpn(word & VPN), (word >> WORD_SHIFT) as usize % WORDS_PER_FRAME);
        Some(Cursor { vpn, word, direction })
    }

    /// The place of a page's lead, and its tag, which is never 0.
    fn lead_of(&self, space: SpaceId, vpn: Vpn) -> (&P::Atomic<u64>, u64) {
        let hash = hash(u64::from(space.0) << 39 | vpn.0);
        (&self.leads[(hash >> 24) as usize % LEADS], hash >> TAG_SHIFT | 1)
    }

    /// Whether a page that a pointer names may be read ahead.
    pub fn admit(&self, space: SpaceId, vpn: Vpn) -> bool {
        let used = self.of(space, vpn);
        let part = used.load(Relaxed);
        if part < ADMITTED_MIN {
            used.store(part + ALL / MEMORY / REFUSALS, Relaxed);
        }
        part >= ADMITTED_MIN
    }

    /// How many of the pages that were read ahead near a page were used.
    pub fn trust(&self, space: SpaceId, vpn: Vpn) -> Trust {
        trust_of(self.of(space, vpn).load(Relaxed))
    }

    /// Notes that a page was read ahead whose use will be seen.
    pub fn expect(&self, space: SpaceId, vpn: Vpn) {
        let used = self.of(space, vpn);
        let part = used.load(Relaxed);
        used.store(part - part / MEMORY * counts_for(part), Relaxed);
    }

    /// Notes that a page that was read ahead is used.
    pub fn used(&self, space: SpaceId, vpn: Vpn) {
        let used = self.of(space, vpn);
        let part = used.load(Relaxed);
        used.store((part + ALL / MEMORY * counts_for(part)).min(ALL), Relaxed);
    }

    fn of(&self, space: SpaceId, vpn: Vpn) -> &P::Atomic<u32> {
        let hash = hash((u64::from(space.0) << 39) | (vpn.0 / REGION_PAGES));
        &self.used[(hash >> 32) as usize % REGIONS]
    }
}

fn trust_of(part: u32) -> Trust {
    if part >= FULL_MIN { Trust::Full } else { Trust::Limited }
}

/// How many pages a watched page stands for, in a region with this average.
fn counts_for(part: u32) -> u32 {
    match trust_of(part) {
        Trust::Full => WATCHED_IN as u32,
        Trust::Limited => 1,
    }
}

fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;

    const SPACE: SpaceId = SpaceId(1);

    /// How many of `pages` pages that pointers name are read ahead if one in `one_in` is used.
    fn read_ahead(pointers: &Pointers<TestPlatform>, pages: u32, one_in: u32) -> u32 {
        let mut read = 0;
        for page in 0..pages {
            if pointers.admit(SPACE, Vpn(5)) {
                read += 1;
                let is_sample = page.is_multiple_of(WATCHED_IN as u32);
                if pointers.trust(SPACE, Vpn(5)) == Trust::Full && !is_sample {
                    continue;
                }
                pointers.expect(SPACE, Vpn(5));
                if (page / WATCHED_IN as u32).is_multiple_of(one_in) {
                    pointers.used(SPACE, Vpn(6));
                }
            }
        }
        read
    }

    #[test]
    fn pages_that_are_used_stay_trusted() {
        let pointers = Pointers::new();
        assert_eq!(read_ahead(&pointers, 100_000, 1), 100_000);
        // A burst of 256 pages in flight does not lose the trust.
        (0..256 / WATCHED_IN).for_each(|_| pointers.expect(SPACE, Vpn(5)));
        assert_eq!(pointers.trust(SPACE, Vpn(7)), Trust::Full);
    }

    #[test]
    fn pages_that_are_not_used_are_refused_but_for_a_few() {
        let pointers = Pointers::new();
        let first = read_ahead(&pointers, 10_000, 10_000);
        assert!((1000..1500).contains(&first), "{first}");
        let later = read_ahead(&pointers, 100_000, 100_000);
        assert!((10..100).contains(&later), "{later}");
        // Another region is judged separately.
        assert!(pointers.admit(SPACE, Vpn(5 + REGION_PAGES)));
    }

    #[test]
    fn trust_returns() {
        let pointers = Pointers::new();
        read_ahead(&pointers, 10_000, 10_000);
        let read = read_ahead(&pointers, 100_000, 1);
        assert!(read > 50_000, "{read}");
    }

    #[test]
    fn a_lead_leads_once_to_its_cursor() {
        let pointers: Pointers<TestPlatform> = Pointers::new();
        let (up, down) = (Direction::Up, Direction::Down);
        let last = WORDS_PER_FRAME - 1;
        let cursors = [(0, 0, up), (7, last, up), (1 << 38, 3, down)];
        for (number, (vpn, word, direction)) in (0..).zip(cursors) {
            let cursor = Cursor { vpn: Vpn(vpn), word, direction };
            pointers.lead(SPACE, Vpn(number), cursor);
            assert_eq!(pointers.cursor_of(SPACE, Vpn(number)), Some(cursor));
            assert_eq!(pointers.cursor_of(SPACE, Vpn(number)), None);
        }
        let first = Cursor { vpn: Vpn(7), word: last, direction: down };
        assert_eq!((first.index(), first.next().map(|next| next.vpn)), (0, Some(Vpn(6))));
        let end = Cursor { vpn: Vpn(0), word: last, direction: down };
        assert_eq!(end.next(), None);
    }
}
