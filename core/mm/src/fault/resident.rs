//! Faults on pages that are in memory: unmapped ones, stores to clean ones, and vanished ones.

use super::access::{Fault, Served, Window};
use super::file_readahead;
use super::map::map;
use super::{pointers, request};
use crate::alloc;
use crate::large::split;
use crate::lru::Kind;
use crate::machine::Machine;
use crate::space::{Access, Backing, Entry, Held, Page, Pinned, Space};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection, Recency, Stop};
use highwater_units::{Direction, FrameList, Order, Pfn, RUN_PAGES_MAX, Vpn};

/// Maps a page that was read ahead, or was unmapped to see whether it is used, together with such
/// pages after it.
pub(super) fn remap<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    fault: Fault,
    window: Window,
) -> Served {
    let (space, ahead) = (held.space(), held.entries()[0].is_ahead());
    let window = first_use(m, &held, fault, window);
    if ahead && fault.access == Access::Read {
        pointers::from_stream(m, space, (fault.vpn, frame(&held.entries()[0])), window);
    }
    let dirty = held.entries()[0].is_dirty();
    let alike = |entry: Entry| {
        let unmapped = matches!(entry.page(), Page::Resident(_)) && !entry.is_mapped();
        unmapped && entry.is_dirty() == dirty
    };
    window.hold(&mut held, alike);
    let frames: FrameList = held.entries().iter().map(frame).collect();
    m.count(Counter::PgRefault, frames.len() as u64);
    let protection = match fault.access {
        Access::Read if !dirty => Protection::ReadOnly,
        _ => Protection::ReadWrite,
    };
    if protection == Protection::ReadWrite {
        frames.iter().for_each(|pfn| m.forget_slot(*pfn));
    }
    let served = map(m, held, &frames, protection, Served::Minor);
    if ahead {
        pointers::from_named(m, space, fault.vpn);
    }
    served
}

/// The frame of a resident page.
fn frame(entry: &Entry) -> Pfn {
    match entry.page() {
        Page::Resident(pfn) => pfn,
        _ => unreachable!("only resident pages were held"),
    }
}

/// If the page was read ahead, counts the hit and continues readahead. Returns how many pages to
/// map.
fn first_use<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    fault: Fault,
    window: Window,
) -> Window {
    match held.space().backing() {
        _ if !held.entries()[0].is_ahead() => window,
        Backing::Anonymous => {
            m.count(Counter::SwapRaHit, 1);
            m.swap.slot_windows.hit(m.cpu());
            pointers::note_use(m, held.space(), held.first());
            if window.pages == RUN_PAGES_MAX && window.direction == Direction::Up {
                request::continue_from_marker(m, held.space().id(), fault);
            }
            window
        }
        Backing::File { device } => {
            file_readahead::at_marker(m, held.space(), fault, device);
            // All pages that were left unmapped with it, so that none is taken for a marker.
            let pages = RUN_PAGES_MAX.min(fault.room(Direction::Up));
            Window { pages, direction: Direction::Up }
        }
    }
}

/// Makes a clean page writable: it will differ from its slot or its place in the file. A sequential
/// writer also gets the pages that it will reach next, which were mapped for reading.
pub(super) fn allow_write<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    window: Window,
) -> Served {
    let clean = |entry: Entry| {
        let there = matches!(entry.page(), Page::Resident(_)) && entry.is_mapped();
        there && !entry.is_dirty()
    };
    let window = match (held.space().backing().kind(), m.platform.recency()) {
        // Here the first write costs little, and a page that stays clean needs no write.
        (Kind::Anon, Recency::AccessedBit) => Window::ALONE,
        (Kind::Anon, Recency::Unmapping) | (Kind::File, _) => window,
    };
    window.hold(&mut held, clean);
    for entry in held.entries() {
        if let Page::Resident(pfn) = entry.page() {
            m.forget_slot(pfn);
        }
    }
    let (space, first, pages) = (held.space().id(), held.first(), held.len());
    m.platform.allow_write(space, first, pages);
    let allowed = first..first.offset(pages as u64);
    m.swap.streams.advance(space, held.wanted(), allowed, 0, |_| false);
    let wanted = held.origin();
    held.release(|index, was| {
        let was = was.dirty().expect_writes();
        if index == wanted { was.used() } else { was }
    });
    alloc::pay_debts(m);
    Served::Minor
}

/// Handles a store that faulted on a page whose entry says writable: the page may have been mapped
/// while the block around it was unmapped, and was write-protected with the block. Without this
/// function the store would fault forever. The entry is held, because a page that is being copied
/// out must not become writable. A pinned page is accepted: it is not copied out, and its pin may
/// be that of the thread that stores.
pub(super) fn allow_write_again<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) {
    if m.platform.recency() == Recency::AccessedBit || space.order() > Order(0) {
        return;
    }
    let held = space.hold_as(vpn, Pinned::Accept);
    let entry = held.entries()[0];
    if entry.is_mapped() && entry.is_dirty() {
        m.platform.allow_write(space.id(), vpn, 1);
    }
    drop(held);
    alloc::pay_debts(m);
}

/// Whether the entry of a vanished page is now correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgotten {
    Yes,
    /// The platform cannot tell in this thread, or not now.
    Refused,
}

/// Updates the entry of a page that is missing although its entry says mapped. If the program
/// dropped the page by a call that the manager did not see, the page becomes absent. If the
/// platform still has it in its frame, the page becomes unmapped, and the fault maps it again.
pub(super) fn forget_vanished<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    vpn: Vpn,
) -> Forgotten {
    if space.entry(vpn).is_large_resident() {
        split(m, space, vpn);
    }
    let held = space.hold(vpn);
    let entry = held.entries()[0];
    let Page::Resident(pfn) = entry.page() else { return Forgotten::Yes };
    if entry.is_large() || !entry.is_mapped() || m.platform.holds(space.id(), vpn) {
        return Forgotten::Yes;
    }
    match m.platform.unmap(space.id(), vpn, &[pfn]).stop {
        Some(Stop::Vanished) => {
            m.abandon(pfn);
            held.release(|_, _| Entry::ABSENT);
        }
        None => held.release(|_, was| was.unmapped()),
        Some(Stop::Busy | Stop::Occupied | Stop::Failed(_)) => return Forgotten::Refused,
    }
    Forgotten::Yes
}
