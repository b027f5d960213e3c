//! Which pages go: asks whether they are used, and decides.

use super::large::{self, Aged, take_large};
use crate::frame::History;
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::run::{Run, Unmapped, each_run};
use crate::space::Entry;
use crate::stats::Counter;
use highwater_platform::{Platform, Recency};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch};

/// What happens to a page at the end of the inactive list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was used since it was asked: to the active list.
    Activate,
    /// Nobody has asked yet whether it is used: once more round the inactive list.
    Ask,
    /// Its slot holds the same bytes: the frame is free at once.
    Drop,
    /// It goes to a slot first.
    Write,
}

/// Decides. `recency` says what a mapped page means: where unmapping is how to ask, it was used
/// since it was asked. A file's page was not asked before it came to the inactive list; with an
/// accessed bit, it is activated when it was used twice. `has_place`: a clean one need not be
/// written.
pub(super) fn decide(kind: Kind, entry: Entry, has_place: bool, recency: Recency) -> Fate {
    let (used, asked) = match (recency, kind) {
        (Recency::AccessedBit, Kind::Anon) => (entry.is_accessed(), true),
        (Recency::AccessedBit, Kind::File) => (entry.is_referenced(), true),
        (Recency::Unmapping, Kind::Anon) => (entry.is_mapped(), true),
        (Recency::Unmapping, Kind::File) => (entry.is_mapped(), entry.is_referenced()),
    };
    match (used, asked, has_place && !entry.is_dirty()) {
        (true, true, _) => Fate::Activate,
        (true, false, _) => Fate::Ask,
        (false, _, true) => Fate::Drop,
        (false, _, false) => Fate::Write,
    }
}

/// Moves the oldest active pages of a kind to its inactive list, asking whether they are still
/// used.
pub(super) fn age<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) {
    let batch = node.lru.isolate(&m.frames, m.cpu(), List::active(kind), BATCH_PAGES_MAX);
    if kind == Kind::File {
        batch.iter().for_each(|pfn| m.frames.set_history(*pfn, History::Active));
    }
    let (batch, heads) = take_large(m, batch);
    let (mut asked, mut rotated) = match m.platform.recency() {
        Recency::AccessedBit => (by_clearing_the_bit(m, batch), FrameBatch::default()),
        Recency::Unmapping => by_unmapping(m, batch),
    };
    for head in heads.iter() {
        match large::age(m, *head) {
            Aged::Asked => asked.push(*head),
            Aged::Rotated => rotated.push(*head),
        }
    }
    m.count(Counter::PgDeactivate, asked.len() as u64);
    m.count(Counter::PgRotated, rotated.len() as u64);
    m.free(&node.lru.putback(&m.frames, &asked, List::inactive(kind)));
    m.free(&node.lru.putback(&m.frames, &rotated, List::active(kind)));
}

fn by_clearing_the_bit<P: Platform>(m: &Machine<P>, batch: FrameBatch) -> FrameBatch {
    for pfn in batch.iter() {
        if let Some(owner) = m.frames.owner(*pfn) {
            m.space(owner.space).clear_accessed(owner.vpn, *pfn);
        }
    }
    batch
}

/// Unmaps pages: one that is used comes back by a fault, mapped. Returns those asked and those that
/// could not be.
fn by_unmapping<P: Platform>(m: &Machine<P>, batch: FrameBatch) -> (FrameBatch, FrameBatch) {
    let (mut asked, mut busy) = (FrameBatch::default(), FrameBatch::default());
    let locked_by_others = each_run(m, batch, |run: Run<'_, P>| {
        let outcome = run.unmap(m, |_, _| true);
        for (index, pfn) in run.frames.iter().enumerate() {
            match outcome[index] {
                Unmapped::Yes => asked.push(*pfn),
                Unmapped::Busy => busy.push(*pfn),
                Unmapped::Vanished => {
                    run.disown(m, index);
                    busy.push(*pfn);
                }
            }
        }
        run.held.release(|index, was| match outcome[index] {
            Unmapped::Yes => was.unmapped().referenced(),
            Unmapped::Busy => was,
            Unmapped::Vanished => Entry::ABSENT,
        });
    });
    locked_by_others.iter().for_each(|pfn| busy.push(*pfn));
    (asked, busy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Pfn;

    #[track_caller]
    fn assert_fate(kind: Kind, recency: Recency, entry: Entry, has_place: bool, fate: Fate) {
        assert_eq!(decide(kind, entry, has_place, recency), fate, "{kind:?} {entry:?} {recency:?}");
    }

    #[test]
    fn anonymous_pages_go_by_use_and_by_what_the_slot_holds() {
        let idle = Entry::resident(Pfn(1));
        let used = idle.mapped().accessed();
        let table = [
            (idle, true, Fate::Drop),
            (idle.dirty(), true, Fate::Write),
            (idle, false, Fate::Write),
            (used, true, Fate::Activate),
            (used.dirty(), false, Fate::Activate),
        ];
        for (entry, has_slot, fate) in table {
            for recency in [Recency::AccessedBit, Recency::Unmapping] {
                assert_fate(Kind::Anon, recency, entry, has_slot, fate);
            }
        }
    }

    #[test]
    fn files_pages_stay_if_they_are_used_again() {
        use Recency::{AccessedBit, Unmapping};
        let (idle, mapped) = (Entry::resident(Pfn(1)), Entry::resident(Pfn(1)).mapped());
        let table = [
            (AccessedBit, mapped, Fate::Drop),
            (AccessedBit, mapped.accessed(), Fate::Drop),
            (AccessedBit, mapped.accessed().dirty(), Fate::Write),
            (AccessedBit, mapped.accessed().referenced(), Fate::Activate),
            (Unmapping, mapped, Fate::Ask),
            (Unmapping, mapped.dirty(), Fate::Ask),
            (Unmapping, mapped.referenced(), Fate::Activate),
            (Unmapping, idle.referenced(), Fate::Drop),
            (Unmapping, idle.dirty(), Fate::Write),
        ];
        for (recency, entry, fate) in table {
            assert_fate(Kind::File, recency, entry, true, fate);
        }
    }
}
