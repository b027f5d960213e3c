//! Turns of processes that would otherwise take each other's memory all the time.
//!
//! Where all processes need more than their part, all of them wait for swap, and equal parts are
//! the worst division: none of them has the memory it needs to go on. So they take turns. They have
//! an order, which begins with the holder of the turn: memory moves from the last to the first that
//! is short, until that one has enough, then to the next one. At the end of a turn the order
//! begins with the next process, which may have its memory by then; the others keep their floors.
//!
//! ```text
//! no turn --two lose most of their time to stalls--> turn of the first one
//! turn    --over, or its holder sleeps or ends-----> turn of the next one
//!         \- nobody loses most of its time --------> no turn
//! ```
//! The idea is the swap token's ("Token-ordered LRU", S. Jiang and X. Zhang; Linux 2.6.9 to 3.4),
//! which keeps one process's pages from being evicted.
//!
//! Pure: the processes' balancers call it with the same claims, and the first one changes the word.

use crate::arbitration::{Claim, in_order};

/// A process thrashes if it loses this many percent of its time to stalls.
const THRASHES: u64 = 80;
/// How long a turn takes, in milliseconds. Most of it has to be left after the holder's pages are
/// read: a disk reads 64 MiB of single pages in 1.6 s.
const LENGTH: u64 = 4000;

/// Low bits of a turn's word: the holder, counted from 1.
const HOLDER_BITS: u32 = 16;

/// Whose turn it is, and until when, in milliseconds of the monotonic clock. `None`: no process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn(Option<(u16, u64)>);

impl Turn {
    pub(crate) fn to_bits(self) -> u64 {
        self.0.map_or(0, |(holder, until)| (until << HOLDER_BITS) | (u64::from(holder) + 1))
    }

    pub(crate) fn from_bits(bits: u64) -> Turn {
        let holder = (bits as u16).checked_sub(1);
        Turn(holder.map(|holder| (holder, bits >> HOLDER_BITS)))
    }

    /// The turn at a time, in milliseconds. `claims`: of all processes, by increasing index.
    pub(crate) fn at(self, now: u64, claims: &[(u16, Claim)]) -> Turn {
        let active = |index: u16| {
            let found = claims.iter().find(|(at, _)| *at == index);
            found.is_some_and(|(_, claim)| claim.is_active())
        };
        match self.0 {
            Some((holder, until)) if now < until && active(holder) => return self,
            _ => {}
        }
        let thrashing = claims.iter().filter(|(_, claim)| thrashes(claim)).count();
        let fewest = if self.0.is_some() { 1 } else { 2 };
        if thrashing < fewest {
            return Turn(None);
        }
        let from = self.0.map_or(0, |(holder, _)| holder + 1);
        let first = first_of(claims, from);
        let next = in_order(claims.len(), first).find(|at| claims[*at].1.is_active());
        Turn(next.map(|at| (claims[at].0, now + LENGTH)))
    }

    /// The claim that the order begins with.
    pub(crate) fn first(self, claims: &[(u16, Claim)]) -> Option<usize> {
        self.0.map(|(holder, _)| first_of(claims, holder))
    }
}

/// The first claim of an index from this one on, else the first of all.
fn first_of(claims: &[(u16, Claim)], index: u16) -> usize {
    claims.iter().position(|(at, _)| *at >= index).unwrap_or(0)
}

/// Whether a process loses most of its time for lack of memory.
fn thrashes(claim: &Claim) -> bool {
    claim.is_short && claim.stalled >= THRASHES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(stalled: u64, runs: u64) -> Claim {
        Claim { is_short: stalled > 0, stalled, runs, ..Claim::default() }
    }

    const THRASHING: (u64, u64) = (90, 10);
    const RUNNING: (u64, u64) = (0, 100);
    const SLEEPING: (u64, u64) = (0, 0);

    /// The claims of processes with indices 2, 4, 6, ...
    fn claims(of: &[(u64, u64)]) -> Vec<(u16, Claim)> {
        let numbered = (1..).zip(of);
        numbered.map(|(at, (stalled, runs))| (2 * at, claim(*stalled, *runs))).collect()
    }

    #[test]
    fn turns_begin_where_two_thrash_and_end_where_none_does() {
        let none = Turn::default();
        assert_eq!(none.at(5, &claims(&[THRASHING, RUNNING, (79, 20)])), none);
        let turn = none.at(5, &claims(&[RUNNING, THRASHING, THRASHING]));
        assert_eq!(turn, Turn(Some((2, 5 + LENGTH))));
        assert_eq!(turn.at(4 + LENGTH, &claims(&[RUNNING; 3])), turn);
        assert_eq!(turn.at(5 + LENGTH, &claims(&[RUNNING; 3])), none);
        assert_eq!(none.at(5, &[]), none);
        for turn in [none, turn, Turn(Some((u16::MAX - 1, u64::MAX >> HOLDER_BITS)))] {
            assert_eq!(Turn::from_bits(turn.to_bits()), turn);
        }
    }

    #[test]
    fn the_next_process_that_does_not_sleep_follows() {
        let now = 5 + LENGTH;
        let holder = |turn: Turn| turn.0.map(|(holder, _)| holder);
        let all = claims(&[THRASHING, SLEEPING, RUNNING, THRASHING]);
        let mut turn = Turn(Some((2, now)));
        for expected in [6, 8, 2] {
            turn = turn.at(now, &all);
            assert_eq!(
                (holder(turn), turn.first(&all)),
                (Some(expected), Some(expected as usize / 2 - 1))
            );
            turn = Turn(Some((expected, now)));
        }
        // The holder has ended, or sleeps.
        for held in [3, 4] {
            assert_eq!(holder(Turn(Some((held, now + 1))).at(now, &all)), Some(6));
        }
    }
}
