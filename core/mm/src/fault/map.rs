//! Mapping held pages, the last step of a fault.
//!
//! ```text
//! install      frames that were just allocated: owners, LRU, map
//! map          frames that belong to the pages already
//! map_first    some of them; the others stay in memory, marked as read ahead
//! ```

use super::access::Served;
use super::refault::note_anon;
use crate::lru::{Kind, List};
use crate::machine::Machine;
use crate::space::{Entry, Held};
use crate::stats::Counter;
use crate::swap::Trust;
use highwater_platform::{Platform, Protection, Recency, Stop};
use highwater_units::FrameList;

/// Gives frames to held anonymous pages, adds them to the LRU, the wanted one to `list`, and maps
/// them.
pub(super) fn install<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    list: List,
    protection: Protection,
    served: Served,
) -> Served {
    adopt(m, &held, frames);
    // On the LRU before the entries are released: a thread that then drops a page finds its frame.
    match served {
        Served::Major => {
            list_read(m, &held, frames, list);
            note_anon(m, frames);
        }
        Served::Minor | Served::Again => m.add_to_lru(frames, list),
    }
    map(m, held, frames, protection, served)
}

/// Adds anonymous pages that were read to the LRU: the wanted one to `list`.
fn list_read<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, frames: &FrameList, list: List) {
    if frames.len() == 1 {
        return m.add_to_lru(frames, list);
    }
    let trust = m.swap.streams.trust(held.space().id(), held.first());
    let ahead = list_of_ahead(m, trust);
    if ahead == list {
        return m.add_to_lru(frames, list);
    }
    let wanted = held.origin();
    m.add_to_lru(&frames[wanted..=wanted], list);
    m.add_to_lru(&frames[..wanted], ahead);
    m.add_to_lru(&frames[wanted + 1..], ahead);
}

/// The list of anonymous pages that are read before a fault wants them. Where uses of mapped pages
/// cannot be observed and `trust` is limited, many of these pages are never used. They go to the
/// inactive list, so that they do not displace pages in use.
pub(super) fn list_of_ahead<P: Platform>(m: &Machine<P>, trust: Trust) -> List {
    ahead(m.platform.recency(), trust, m.swap.loops.keep_active())
}

fn ahead(recency: Recency, trust: Trust, keeps_active: bool) -> List {
    match (recency, trust) {
        (Recency::Unmapping, Trust::Limited) => List::InactiveAnon,
        (Recency::Unmapping, Trust::Full) if keeps_active => List::InactiveAnon,
        (Recency::Unmapping, Trust::Full) | (Recency::AccessedBit, _) => List::ActiveAnon,
    }
}

/// Sets the owners of frames: the held pages.
pub(super) fn adopt<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, frames: &FrameList) {
    for (index, pfn) in frames.iter().enumerate() {
        m.adopt(*pfn, held.owner(index));
    }
}

/// Maps the frames of held pages. A page that cannot be mapped now stays in memory, and its next
/// access faults again. Returns `served`, or [`Served::Again`] if the wanted page is not mapped.
pub(super) fn map<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    protection: Protection,
    served: Served,
) -> Served {
    map_first(m, held, frames, frames.len(), protection, served)
}

/// [`map`] for the first `count` frames; marks the other pages as read ahead.
pub(super) fn map_first<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    count: usize,
    protection: Protection,
    served: Served,
) -> Served {
    let (space, first, count) = (held.space().id(), held.first(), count.min(frames.len()));
    let progress = m.platform.map(space, first, &frames[..count], protection);
    if let Some(stop) = progress.stop {
        debug_assert!(stop == Stop::Vanished, "page {first:?} cannot be mapped: {stop:?}");
        m.count(Counter::MapRefused, 1);
    }
    let kind = held.space().backing().kind();
    let ahead = match (served, kind) {
        (Served::Major, Kind::Anon) => count - 1,
        _ => 0,
    };
    let brought = first..first.offset(count as u64);
    let is_mapped = |vpn| held.space().is_mapped(vpn);
    m.swap.streams.advance(space, held.wanted(), brought, ahead, is_mapped);
    // With accessed bits the first use of each page is seen, and the mark shows that the use is a
    // readahead hit.
    let marks = m.platform.recency() == Recency::AccessedBit || kind == Kind::Anon;
    let wanted = held.origin();
    held.release(|index, was| {
        let entry = match protection {
            Protection::ReadWrite if index < count => Entry::resident(frames[index]).dirty(),
            Protection::ReadOnly | Protection::ReadWrite => Entry::resident(frames[index]),
        };
        // One page of a large page stays part of it.
        let entry = if was.is_large_resident() { entry.large() } else { entry };
        let entry = if was.is_referenced() { entry.referenced() } else { entry };
        let entry = if was.is_probed() { entry.probed() } else { entry };
        let entry = entry.with_writes_of(was);
        let entry = match (index < progress.done, kind) {
            (true, Kind::Anon) => entry.mapped().accessed(),
            // A file's page is accessed when its reader uses it, not when it is read ahead.
            (true, Kind::File) => entry.mapped(),
            (false, _) => entry,
        };
        let unused = index != wanted && marks && (served == Served::Major || was.is_ahead());
        if unused || index >= count { entry.ahead() } else { entry }
    });
    if progress.done <= wanted { Served::Again } else { served }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_may_not_be_used_displace_no_active_page() {
        for (recency, trust, keeps_active, list) in [
            (Recency::Unmapping, Trust::Limited, false, List::InactiveAnon),
            (Recency::Unmapping, Trust::Full, false, List::ActiveAnon),
            (Recency::Unmapping, Trust::Full, true, List::InactiveAnon),
            (Recency::AccessedBit, Trust::Limited, false, List::ActiveAnon),
            (Recency::AccessedBit, Trust::Full, true, List::ActiveAnon),
        ] {
            assert_eq!(ahead(recency, trust, keeps_active), list, "{recency:?}, {trust:?}");
        }
    }
}
