//! Reads the slots around the wanted one: on a disk that seeks they cost next to nothing.
//!
//! ```text
//! aligned block of slots -- owners of the slots (hints) -- entries held where the hint is right
//!   -- one batch of reads -- wanted page mapped; others in memory, marked, unmapped
//! ```
//! The other pages are mapped when they fault, so that each use is seen. The number of slots
//! follows from how many were used before ([`crate::swap::SlotWindows`]).

use super::access::{Served, window_max};
use super::map::install;
use super::read::{keep_or_free_slots, read};
use crate::alloc;
use crate::error::FaultError;
use crate::lru::List;
use crate::machine::Machine;
use crate::space::{Access, Entry, Held, Page, Pinned};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{FrameList, Pfn, RUN_PAGES_MAX, Slot};

/// A held page and the slot to read it from.
struct Wanted<'a, P: Platform> {
    held: Held<'a, P>,
    slot: Slot,
}

/// Reads and maps a swapped page, and reads the pages in the slots around it.
pub(super) fn fetch<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    slot: Slot,
    access: Access,
) -> Result<Served, FaultError> {
    let most = m.tunables.window_max().min(window_max(m));
    let window = m.swap.slot_windows.window(m.cpu(), slot, most);
    let mut pages = [const { None }; RUN_PAGES_MAX];
    let mut count = hold_around(m, slot, window, &mut pages);
    let frames = alloc::frames(m, 1 + count)?;
    count = count.min(frames.len() - 1);
    pages[count..].iter_mut().for_each(|page| *page = None);
    read_all(m, &mut pages[..count], slot, frames)?;
    m.count(Counter::PgMajFault, 1);
    let protection = keep_or_free_slots(m, &[slot], &frames[..1], access);
    Ok(install(m, held, &FrameList::one(frames[0]), List::ActiveAnon, protection, Served::Major))
}

/// Holds the pages in the other slots of the window around `slot`; returns how many.
fn hold_around<'a, P: Platform>(
    m: &'a Machine<P>,
    slot: Slot,
    window: u32,
    pages: &mut [Option<Wanted<'a, P>>; RUN_PAGES_MAX],
) -> usize {
    let first = slot.index & !(window - 1);
    let mut count = 0;
    for index in (first..first.saturating_add(window)).filter(|index| *index != slot.index) {
        if let Some(wanted) = hold(m, Slot { index, ..slot }) {
            pages[count] = Some(wanted);
            count += 1;
        }
    }
    count
}

/// Holds the page in a slot, if the hint names it and its entry is free.
fn hold<P: Platform>(m: &Machine<P>, slot: Slot) -> Option<Wanted<'_, P>> {
    let owner = m.swap.owner(slot)?;
    let held = Held::lock(m.space(owner.space), owner.vpn, Pinned::Refuse)?;
    let there = held.page() == Page::Swapped(slot) && !m.swap.is_cached(slot);
    there.then_some(Wanted { held, slot })
}

/// Reads the wanted slot into the first frame and the other pages into the frames after it. Pages
/// that can be read are then in memory.
fn read_all<P: Platform>(
    m: &Machine<P>,
    pages: &mut [Option<Wanted<'_, P>>],
    slot: Slot,
    frames: FrameList,
) -> Result<(), FaultError> {
    // In the order of slots, so that adjacent ones are one transfer.
    let place = pages.iter().flatten().filter(|page| page.slot < slot).count();
    let mut slots = [slot; RUN_PAGES_MAX];
    let mut order = [frames[0]; RUN_PAGES_MAX];
    for (index, page) in pages.iter().flatten().enumerate() {
        let at = index + usize::from(index >= place);
        (slots[at], order[at]) = (page.slot, frames[1 + index]);
    }
    let all = 1 + pages.len();
    let results = read(m, &slots[..all], &order[..all]);
    let mut ahead = 0;
    for (index, page) in pages.iter_mut().enumerate() {
        let (page, pfn) = (page.take().expect("held"), frames[1 + index]);
        match results[index + usize::from(index >= place)] {
            Ok(()) => {
                keep(m, page, pfn);
                ahead += 1;
            }
            Err(_) => m.free(&[pfn]),
        }
    }
    m.count(Counter::SwapRa, ahead);
    // The unreadable page may be a neighbour: retry with this page alone.
    let own = match results[place] {
        Err(_) if all > 1 => read(m, &[slot], &frames[..1])[0],
        result => result,
    };
    own.map_err(|error| {
        m.free(&frames[..1]);
        FaultError::Read(error)
    })
}

/// Makes a page that was read resident, unmapped and marked as read ahead.
fn keep<P: Platform>(m: &Machine<P>, page: Wanted<'_, P>, pfn: Pfn) {
    let Wanted { held, slot } = page;
    let entry = match keep_or_free_slots(m, &[slot], &[pfn], Access::Read) {
        Protection::ReadOnly => Entry::resident(pfn),
        Protection::ReadWrite => Entry::resident(pfn).dirty(),
    };
    m.adopt(pfn, held.owner(0));
    m.add_to_lru(&[pfn], List::ActiveAnon);
    held.release(|_, _| entry.ahead());
}
