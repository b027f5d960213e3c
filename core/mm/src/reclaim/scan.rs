//! Which pages go: asks whether they are used, and decides.

use super::large::{self, Aged, take_large};
use super::run::{Run, Unmapped, each_run};
use crate::lru::List;
use crate::machine::{Machine, Node};
use crate::space::Entry;
use crate::stats::Counter;
use highwater_platform::{Platform, Recency};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch};

/// What happens to a page at the end of the inactive list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was used since it was asked: back to the active list.
    Activate,
    /// Its slot holds the same bytes: the frame is free at once.
    Drop,
    /// It goes to a slot first.
    Write,
}

/// Decides. `recency` says what a mapped page means: where unmapping is how to ask, it was used.
pub(super) fn decide(entry: Entry, has_slot: bool, recency: Recency) -> Fate {
    let used = match recency {
        Recency::AccessedBit => entry.is_accessed(),
        Recency::Unmapping => entry.is_mapped(),
    };
    match (used, has_slot && !entry.is_dirty()) {
        (true, _) => Fate::Activate,
        (false, true) => Fate::Drop,
        (false, false) => Fate::Write,
    }
}

/// Moves the oldest active pages to the inactive list, asking whether they are still used.
pub(super) fn age<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    let batch = node.lru.isolate(&m.frames, List::Active, BATCH_PAGES_MAX);
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
    m.free(&node.lru.putback(&m.frames, &asked, List::Inactive));
    m.free(&node.lru.putback(&m.frames, &rotated, List::Active));
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
            Unmapped::Yes => was.unmapped(),
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

    #[test]
    fn fates_by_use_and_by_what_the_slot_holds() {
        let idle = Entry::resident(Pfn(1));
        let used = idle.mapped();
        let table = [
            (idle, true, Fate::Drop),
            (idle.dirty(), true, Fate::Write),
            (idle, false, Fate::Write),
            (used, true, Fate::Activate),
            (used.dirty(), false, Fate::Activate),
        ];
        for (entry, has_slot, fate) in table {
            for recency in [Recency::AccessedBit, Recency::Unmapping] {
                assert_eq!(decide(entry, has_slot, recency), fate, "{entry:?} {recency:?}");
            }
        }
    }
}
