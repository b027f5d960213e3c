//! Zeroed pages: at the first touch, and populated before it.
//!
//! [`populate`] works as MAP_POPULATE does, but only while memory is plentiful: pages that may
//! never be used must not displace pages in use. It ends when no zone has 16 free frames above its
//! high watermark, does not reclaim, and skips pages that are not absent or that are locked.

use super::access::{Served, Window};
use super::map::{adopt, install};
use crate::alloc;
use crate::error::FaultError;
use crate::lru::List;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, Held, Page, Pinned, Range, Space};
use crate::stats::Counter;
use crate::zone::Level;
use highwater_platform::{Platform, Protection};
use highwater_units::{FrameList, Order, RUN_PAGES_MAX, Vpn};

/// Maps zeroed frames for an absent page, and for absent pages of its window.
pub(super) fn serve<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    window: Window,
) -> Result<Served, FaultError> {
    window.hold(&mut held, is_absent);
    let frames = alloc::frames(m, held.len())?;
    held.keep_nearest(frames.len());
    zero(m, &frames);
    Ok(install(m, held, &frames, List::ActiveAnon, Protection::ReadWrite, Served::Minor))
}

/// Makes the absent pages of a range present while free memory is above the high watermark. Only
/// for anonymous spaces of single frames.
pub fn populate<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) {
    let _phase = m.enter(phase::FAULT);
    if space.backing() != Backing::Anonymous || space.order() > Order(0) {
        return;
    }
    let mut at = range.first;
    while at < range.end && is_plentiful(m) {
        at = at.offset(hold(space, at, range.end).map_or(1, |held| fill(m, held)));
    }
}

/// Whether a zone stays at or above the high watermark after a run is taken.
fn is_plentiful<P: Platform>(m: &Machine<P>) -> bool {
    m.nodes.iter().any(|node| node.zone.allows(Level::High, RUN_PAGES_MAX as u32))
}

/// Holds absent pages from `first` on; `None` if that page is not absent or is locked.
fn hold<P: Platform>(space: &Space<P>, first: Vpn, end: Vpn) -> Option<Held<'_, P>> {
    let mut held = Held::lock(space, first, Pinned::Refuse)?;
    if !is_absent(held.entries()[0]) {
        return None;
    }
    let wanted = (end.0 - first.0) as usize;
    while held.len() < wanted && held.extend(Pinned::Refuse, is_absent) {}
    Some(held)
}

/// Maps zeroed frames for held pages; returns how many pages to advance, at least one.
fn fill<P: Platform>(m: &Machine<P>, mut held: Held<'_, P>) -> u64 {
    let Some(frames) = alloc::frames_noreclaim(m, held.len()) else { return held.len() as u64 };
    held.truncate(frames.len());
    zero(m, &frames);
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

fn zero<P: Platform>(m: &Machine<P>, frames: &FrameList) {
    m.platform.zero(frames);
    m.count(Counter::PgZero, frames.len() as u64);
}

fn is_absent(entry: Entry) -> bool {
    entry.page() == Page::Absent
}
