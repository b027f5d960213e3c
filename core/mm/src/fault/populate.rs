//! Makes pages present before anybody touches them, as MAP_POPULATE does, but only while memory is
//! plenty.
//!
//! ```text
//! range ── runs of up to 16 absent pages ── frames above high: zeroed, mapped
//!      \── a page that is anything else, or held: left alone
//! ```
//! A guess that pages will be used must not push out any that are, so it never reclaims, wakes no
//! kswapd and ends where free memory comes down to the high watermark. Nothing is a stream's.

use super::adopt;
use crate::alloc;
use crate::lru::List;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, Held, Page, Pinned, Range, Space};
use crate::stats::Counter;
use crate::zone::Level;
use highwater_platform::{Platform, Protection};
use highwater_units::{Order, RUN_PAGES_MAX, Vpn};

/// Makes the absent pages of a range present, of an anonymous space of single pages, as far as
/// memory is plenty.
pub fn populate<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) {
    let _phase = m.enter(phase::FAULT);
    if space.backing() != Backing::Anonymous || space.order() > Order(0) {
        return;
    }
    let mut at = range.first;
    while at < range.end && is_plenty(m) {
        at = at.offset(hold(space, at, range.end).map_or(1, |held| fill(m, held)));
    }
}

/// Whether a run could be taken and free memory stay above the high watermark.
fn is_plenty<P: Platform>(m: &Machine<P>) -> bool {
    m.nodes.iter().any(|node| node.zone.allows(Level::High, RUN_PAGES_MAX as u32))
}

/// Holds absent pages from `first` on; `None`: that one is not, or somebody has it.
fn hold<P: Platform>(space: &Space<P>, first: Vpn, end: Vpn) -> Option<Held<'_, P>> {
    let absent = |entry: Entry| entry.page() == Page::Absent;
    let mut held = Held::lock(space, first, Pinned::Refuse)?;
    if !absent(held.entries()[0]) {
        return None;
    }
    let wanted = (end.0 - first.0) as usize;
    while held.len() < wanted && held.extend(Pinned::Refuse, absent) {}
    Some(held)
}

/// Gives held pages frames of zeros; returns how many pages are done with, at least one.
fn fill<P: Platform>(m: &Machine<P>, mut held: Held<'_, P>) -> u64 {
    let Some(frames) = alloc::frames_noreclaim(m, held.len()) else { return held.len() as u64 };
    held.truncate(frames.len());
    m.platform.zero(&frames);
    m.count(Counter::PgZero, frames.len() as u64);
    adopt(m, &held, &frames);
    m.add_to_lru(&frames, List::ActiveAnon);
    let (space, first) = (held.space().id(), held.first());
    let mapped = m.platform.map(space, first, &frames, Protection::ReadWrite).done;
    held.release(|index, _| {
        let entry = Entry::resident(frames[index]).dirty();
        if index < mapped { entry.mapped() } else { entry }
    });
    frames.len() as u64
}
