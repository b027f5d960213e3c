//! Pages that return after eviction, and what that says about the LRU (mm/workingset.c).

use crate::frame::History;
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::space::{Entry, Held};
use crate::stats::Counter;
use highwater_platform::{Platform, Recency};
use highwater_units::{FrameList, Pfn, Slot};

/// Notes that anonymous pages were read from swap: a cost of evicting anonymous pages.
pub(super) fn note_anon<P: Platform>(m: &Machine<P>, frames: &FrameList) {
    if m.config.notes_refaults() {
        m.count(Counter::RefaultAnon, frames.len() as u64);
        m.note_refault(m.node_of(frames[0]), Kind::Anon);
    }
}

/// The list of an anonymous page that a fault has read from a slot. With accessed bits, every page
/// becomes active, as in Linux up to 5.8. Otherwise nearly every page of a loop that is longer than
/// memory stays inactive, until it is used once more (`swap/loops.rs`). Other pages become active
/// where swap is in memory, because the second probe of a page on the inactive list costs more than
/// the reads that it avoids. Where swap is on a device, a page becomes active if the number of
/// pages evicted since its own eviction is at most half of the anonymous pages in memory, as from
/// Linux 5.9 on, whose active list is that half. Any other page has to be used once more first, so
/// that pages that are used once do not displace pages in use.
pub(super) fn list_of_anon<P: Platform>(m: &Machine<P>, slot: Slot) -> List {
    let half = || m.nodes.iter().map(|node| node.lru.len_of(Kind::Anon)).sum::<u32>() / 2;
    if m.platform.recency() == Recency::AccessedBit {
        return List::ActiveAnon;
    }
    if m.swap.loops.keep_active() && !m.swap.loops.is_exception() {
        m.count(Counter::KeepAnon, 1);
        return List::InactiveAnon;
    }
    if m.swap.is_in_memory() {
        return List::ActiveAnon;
    }
    match m.swap.distance(slot) {
        Some(distance) if distance <= half() => {
            m.count(Counter::ActivateAnon, 1);
            List::ActiveAnon
        }
        _ => List::InactiveAnon,
    }
}

/// Adds a file's pages that were just read to the LRU: to the active list if they are part of the
/// working set.
pub(super) fn list_file<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, frames: &FrameList) {
    let (mut new, mut missed) = (FrameList::default(), FrameList::default());
    for (pfn, entry) in frames.iter().zip(held.entries()) {
        match refault(m, *pfn, *entry) {
            Refault::New => new.push(*pfn),
            Refault::Workingset => missed.push(*pfn),
        }
    }
    m.add_to_lru(&new, List::InactiveFile);
    m.add_to_lru(&missed, List::ActiveFile);
}

/// The history of a file page that was just read.
enum Refault {
    /// It was never in memory, or was evicted long ago.
    New,
    /// It is part of the working set and should not have been evicted.
    Workingset,
}

/// Compares the refault distance with the pages that could have been evicted instead: all but the
/// inactive file pages.
fn refault<P: Platform>(m: &Machine<P>, pfn: Pfn, entry: Entry) -> Refault {
    m.frames.set_history(pfn, History::New);
    let Some(shadow) = entry.shadow() else { return Refault::New };
    m.count(Counter::RefaultFile, 1);
    let at = |node: &&Node<P>| node.zone.range().node == shadow.node();
    let Some(node) = m.nodes.iter().find(at) else { return Refault::New };
    let anon = if m.swap.is_full() { 0 } else { node.lru.len_of(Kind::Anon) };
    let competing = node.lru.len(List::ActiveFile) + anon;
    if node.lru.workingset().distance(shadow) > u64::from(competing) {
        return Refault::New;
    }
    m.count(Counter::ActivateFile, 1);
    node.lru.workingset().refault();
    if shadow.history() == History::Active {
        m.count(Counter::RestoreFile, 1);
        m.frames.set_history(pfn, History::Active);
        m.note_refault(node, Kind::File);
    }
    Refault::Workingset
}
