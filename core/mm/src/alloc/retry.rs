//! When an allocation repeats direct reclaim, and when it fails (should_reclaim_retry).
//!
//! ```text
//! up to 16 rounds       retry
//! then fail if          no slot is left that a page can go to,
//!                       or 10 s have passed,
//!                       or pages find no run of slots, or writes fail, and for 2 s no thread has
//!                          freed or read a page,
//!                       or writes failed an earlier allocation, too, and none has succeeded since
//! before failing        devices that refuse pages although they have slots are tried for 16 more
//!                       rounds, and until 2 s have passed if one of them is not memory; if an
//!                       earlier allocation tried them in vain, they were tried from the first
//!                       round on, and get no further ones
//! ```

use crate::lru::Kind;
use crate::machine::{Machine, Node};
use crate::stats::{Counter, Shortage};
use highwater_platform::{Atomic, Latency, Platform};
use highwater_units::Nanos;
use std::sync::atomic::Ordering::Relaxed;

/// Rounds that every allocation gets.
pub(super) const RETRIES: u32 = 16;

/// How long an allocation retries while slots are left: frames may be in flight to a slow device.
const RETRY_TIME: Nanos = Nanos(10_000_000_000);

/// If pages find no run of slots, or writes fail, an allocation fails after no page was freed or
/// read for this long. Observed pauses of devices are shorter.
const STILL_TIME: Nanos = Nanos(2_000_000_000);

/// No frame can be allocated: memory is in use and nothing can be swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// Counts and records an allocation that fails.
pub(super) fn fail<P: Platform>(m: &Machine<P>, shortage: Shortage) -> OutOfMemory {
    m.count(Counter::AllocOom, 1);
    m.stats.note_shortage(shortage);
    OutOfMemory
}

/// The rounds of an allocation, and what has happened since the first one.
pub(super) struct Retry {
    rounds: u32,
    start: Nanos,
    /// Pages freed or read by all threads, when that number last changed.
    moved: u64,
    /// When it last changed.
    moved_at: Nanos,
    /// Pages that had found no run of slots at the start.
    runless: u64,
    /// Writes that had failed at the start.
    write_errors: u64,
    refusing: Refusing,
}

/// Whether devices that refuse pages although they have slots are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusing {
    /// Not yet.
    Untried,
    /// They are tried until this round.
    TriedUntil(u32),
    /// They were tried from the first round, because an earlier allocation had tried them and
    /// failed.
    TriedAtOnce,
}

/// The state of one allocation, from which [`decide`] decides.
#[derive(Clone, Copy, Debug)]
struct Progress {
    rounds: u32,
    /// Slots that pages can go to: none of a device without room.
    slots_left: u64,
    waited: Nanos,
    /// How long no thread has freed or read a page.
    still: Nanos,
    /// Pages that found no run of slots since the start.
    runless: u64,
    writes: Writes,
}

/// The state of writes to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// None has failed since the start.
    Work,
    /// Some have failed since the start.
    Fail,
    /// They failed an earlier allocation, too, and none has succeeded since.
    KeepFailing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Retry,
    Fail,
}

/// Decides after a round. Slots that are left may not help if pages need runs of slots and find
/// none, or if writes fail: the allocation fails once no page was freed or read for [`STILL_TIME`].
/// If writes failed an earlier allocation and still fail, it gets only [`RETRIES`] rounds.
fn decide(p: &Progress) -> Decision {
    let exhausted = p.slots_left == 0 || p.waited > RETRY_TIME;
    let stuck = p.still > STILL_TIME && (p.runless > 0 || p.writes == Writes::Fail);
    if p.rounds >= RETRIES && (exhausted || stuck || p.writes == Writes::KeepFailing) {
        Decision::Fail
    } else {
        Decision::Retry
    }
}

impl Retry {
    pub(super) fn new<P: Platform>(m: &Machine<P>) -> Retry {
        let now = m.platform.now();
        let runless = m.stats.get(Counter::FolioSwpOutFallback);
        let write_errors = m.stats.get(Counter::SwapWriteErrors);
        Retry {
            rounds: 0,
            start: now,
            moved: moved(m),
            moved_at: now,
            runless,
            write_errors,
            refusing: Refusing::Untried,
        }
    }

    /// Ends a round: lets other threads run before the next one, or reports why there is none.
    pub(super) fn next_round<P: Platform>(&mut self, m: &Machine<P>) -> Result<(), Shortage> {
        if self.after_round(m) == Decision::Fail && self.try_refusing(m) == Decision::Fail {
            return Err(self.shortage(m));
        }
        m.platform.relax(self.rounds);
        Ok(())
    }

    fn after_round<P: Platform>(&mut self, m: &Machine<P>) -> Decision {
        self.rounds += 1;
        if self.rounds == 1 && m.stats.writes_failed(written(m)) {
            m.swap.try_refusing();
            self.refusing = Refusing::TriedAtOnce;
        }
        if self.rounds < RETRIES {
            return Decision::Retry;
        }
        let (now, moved) = (m.platform.now(), moved(m));
        if moved != self.moved {
            (self.moved, self.moved_at) = (moved, now);
        }
        decide(&Progress {
            rounds: self.rounds,
            slots_left: m.swap.room(),
            waited: now.since(self.start),
            still: now.since(self.moved_at),
            runless: m.stats.get(Counter::FolioSwpOutFallback).saturating_sub(self.runless),
            writes: self.writes(m),
        })
    }

    /// Tries devices again that refuse pages although they have slots: other pages may compress
    /// better, and on a file system other programs may free space.
    fn try_refusing<P: Platform>(&mut self, m: &Machine<P>) -> Decision {
        match self.refusing {
            Refusing::TriedUntil(round) if self.rounds < round => return Decision::Retry,
            Refusing::TriedAtOnce => return Decision::Fail,
            Refusing::Untried | Refusing::TriedUntil(_) => (),
        }
        let is_first = self.refusing == Refusing::Untried;
        let has_time = m.platform.now().since(self.start) < STILL_TIME;
        match m.swap.try_refusing() {
            Some(latency) if is_first || (has_time && latency == Latency::Asynchronous) => {
                self.refusing = Refusing::TriedUntil(self.rounds + RETRIES);
                Decision::Retry
            }
            Some(_) | None => Decision::Fail,
        }
    }

    fn failed_writes<P: Platform>(&self, m: &Machine<P>) -> u64 {
        m.stats.get(Counter::SwapWriteErrors).saturating_sub(self.write_errors)
    }

    fn writes<P: Platform>(&self, m: &Machine<P>) -> Writes {
        match self.failed_writes(m) {
            0 => Writes::Work,
            _ if m.stats.writes_failed(written(m)) => Writes::KeepFailing,
            _ => Writes::Fail,
        }
    }

    fn shortage<P: Platform>(&self, m: &Machine<P>) -> Shortage {
        let write_errors = self.failed_writes(m);
        let waited = m.platform.now().since(self.start);
        let sum = |of: &dyn Fn(&Node<P>) -> u32| m.nodes.iter().map(of).sum();
        let listed = |kind| sum(&|node| node.lru.len_of(kind));
        let (slots_used, slots) = m.swap.usage();
        Shortage {
            rounds: self.rounds,
            waited,
            frames: m.present() as u32,
            free: sum(&|node| node.zone.free_frames()),
            anon: listed(Kind::Anon),
            file: listed(Kind::File),
            isolated: sum(&|node| node.isolated.iter().map(|kind| kind.load(Relaxed)).sum()),
            kswapd_failing: sum(&|node| node.kswapd_failing.load(Relaxed).into()),
            nodes: m.nodes.len() as u32,
            slots_used,
            slots,
            room: m.swap.room(),
            write_errors,
            written: written(m),
        }
    }
}

/// Pages that all threads have freed or read.
fn moved<P: Platform>(m: &Machine<P>) -> u64 {
    let freed = [Counter::PgStealKswapd, Counter::PgStealDirect, Counter::PgDiscard];
    let counted = freed.into_iter().chain([Counter::PswpIn, Counter::PgFileIn]);
    counted.map(|counter| m.stats.get(counter)).sum()
}

/// Pages that have been written.
fn written<P: Platform>(m: &Machine<P>) -> u64 {
    m.stats.get(Counter::PswpOut) + m.stats.get(Counter::PgFileOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_where_no_page_can_be_freed() {
        use Decision::{Fail, Retry};
        let slow = Progress {
            rounds: 99,
            slots_left: 5,
            waited: Nanos(3_000_000_000),
            still: Nanos(3_000_000_000),
            runless: 0,
            writes: Writes::Work,
        };
        let table = [
            (slow, Retry),
            (Progress { slots_left: 0, ..slow }, Fail),
            (Progress { waited: Nanos(10_000_000_001), ..slow }, Fail),
            (Progress { runless: 1, ..slow }, Fail),
            (Progress { runless: 1, still: STILL_TIME, ..slow }, Retry),
            (Progress { slots_left: 0, rounds: 15, ..slow }, Retry),
            (Progress { writes: Writes::Fail, ..slow }, Fail),
            (Progress { writes: Writes::Fail, still: STILL_TIME, ..slow }, Retry),
            (Progress { writes: Writes::KeepFailing, still: Nanos(0), ..slow }, Fail),
            (Progress { writes: Writes::KeepFailing, rounds: 15, ..slow }, Retry),
        ];
        for (progress, expected) in table {
            assert_eq!(decide(&progress), expected, "{progress:?}");
        }
    }
}
