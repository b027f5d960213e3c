//! The way of a fault: from an access to a mapped page. The only place that decides it.
//!
//! ```text
//! resolve -- claim the entry --> Mapped: done (or the program dropped the page: start over)
//!                            |-> Busy: wait, start over
//!                            \-> Held: Absent    zero   frames, zeroed, mapped
//!                                                load   of a file: frames, device read, mapped;
//!                                                       what it reads beside it: file.rs
//!                                      Resident  remap  still in memory: map, or allow writing
//!                                      Swapped   cached the swap cache has it: wait for its write
//!                                                fetch  frames, device read, mapped
//! ```
//! Pages of more than one frame are made present in `folio`.
//! What is fetched, and with what beside it, is decided in `swap_in`. What is fetched before it is
//! used comes by a thread of its own, `ahead`; what is made present untouched, by `populate`.
//!
//! A fault holds its page's entry until the page is mapped, and with it those of the pages after it
//! that come along when the fault continues a stream. It waits for devices and for memory while it
//! holds them; it never waits for another entry meanwhile.

pub mod ahead;
mod around;
mod file;
mod folio;
mod large;
mod populate;
mod swap_in;

use crate::alloc::{self, OutOfMemory};
use crate::error::FaultError;
use crate::frame::Writeback;
use crate::large::split;
use crate::lru::{Kind, List};
use crate::machine::Machine;
use crate::phase;
use crate::space::{Access, Backing, Claim, Entry, Held, Page, Pinned, Range, Space};
use crate::stats::Counter;
use crate::swap::Source;
use highwater_platform::{Platform, Protection, Recency, Stop, Ticket};
use highwater_units::{FrameList, Order, Pfn, RUN_PAGES_MAX, Slot, Vpn};
use swap_in::{fetch, keep_or_free_slots};

pub use populate::populate;

/// How a fault was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The page was mapped already: another fault was faster. Or it could not be mapped, because
    /// the program is changing the range: the access must be made again.
    Again,
    /// Without a device: zeroed, or still in memory.
    Minor,
    /// From a device.
    Major,
}

/// An access that faulted.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The page.
    pub vpn: Vpn,
    /// Load or store.
    pub access: Access,
    /// What the page belongs to: others are not brought along.
    pub within: Range,
}

impl Fault {
    /// Pages from the one that faulted to the end of what it belongs to, at least one.
    fn room(&self) -> usize {
        self.within.end.0.saturating_sub(self.vpn.0).max(1) as usize
    }
}

/// Makes a page present for an access.
///
/// # Errors
/// The page stays as it was; see [`FaultError`].
pub fn resolve<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    fault: Fault,
) -> Result<Served, FaultError> {
    let _phase = m.enter(phase::FAULT);
    if let Some(served) = large::resolve(m, space, fault) {
        return Ok(served);
    }
    loop {
        match space.claim(fault.vpn, fault.access) {
            // Behind guards nothing vanishes.
            Claim::Mapped if space.order() > Order(0) => return Ok(Served::Again),
            Claim::Mapped if m.platform.holds(space.id(), fault.vpn) => return Ok(Served::Again),
            Claim::Mapped => forget_vanished(m, space, fault.vpn),
            Claim::Busy(ticket) => wait(m, space, fault.vpn, ticket),
            Claim::Held(held) if space.order() > Order(0) => {
                return folio::present(m, held, fault);
            }
            Claim::Held(held) => return present(m, held, fault),
        }
    }
}

/// Waits until another thread releases a page's entry.
fn wait<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn, ticket: Ticket) {
    #[cfg(feature = "history")]
    if ahead::reader::land(m, space.id(), vpn) == ahead::reader::Landed::Yes {
        return;
    }
    m.count(Counter::FaultWait, 1);
    space.wait(vpn, ticket);
}

fn present<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    fault: Fault,
) -> Result<Served, FaultError> {
    let stream = m.swap.streams.window(held.space().id(), fault.vpn);
    if m.platform.recency() == Recency::Unmapping {
        // No use of a page that is mapped is seen; that the stream goes on is.
        m.count(Counter::SwapRaHit, stream.read_ahead as u64);
    }
    let pages = stream.pages.min(m.config.window_max);
    let window = pages.min(fault.room()).min(most_at_once(m));
    m.count(Counter::PgFault, 1);
    match (held.page(), held.space().backing()) {
        (Page::Absent, Backing::Anonymous) => zero(m, held, window),
        (Page::Absent, Backing::File { device }) => file::load(m, held, device, fault, window),
        (Page::Resident(_), _) if held.entries()[0].is_mapped() => Ok(allow_write(m, held, window)),
        (Page::Resident(_), _) => Ok(remap(m, held, fault, window)),
        (Page::Swapped(slot), _) => match m.swap.claim(m.cpu(), slot) {
            Some(pfn) => Ok(cached(m, held, slot, pfn, fault.access)),
            None => fetch(m, held, slot, fault, window),
        },
    }
}

/// A window must not take more than a small part of a small budget.
fn most_at_once<P: Platform>(m: &Machine<P>) -> usize {
    (m.frames.len() / 64).max(1)
}

/// First touch: zeroed frames.
fn zero<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    window: usize,
) -> Result<Served, FaultError> {
    while held.len() < window && held.extend(Pinned::Refuse, |e| e.page() == Page::Absent) {}
    let frames = alloc::frames(m, held.len())?;
    held.truncate(frames.len());
    m.platform.zero(&frames);
    m.count(Counter::PgZero, frames.len() as u64);
    Ok(install(m, held, &frames, Protection::ReadWrite, Served::Minor))
}

/// In memory, unmapped to see whether it is used: it is.
fn remap<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    fault: Fault,
    window: usize,
) -> Served {
    let window = first_use(m, &held, fault, window);
    let dirty = held.entries()[0].is_dirty();
    let alike = |entry: Entry| {
        let unmapped = matches!(entry.page(), Page::Resident(_)) && !entry.is_mapped();
        unmapped && entry.is_dirty() == dirty
    };
    while held.len() < window && held.extend(Pinned::Refuse, alike) {}
    let frame = |entry: &Entry| match entry.page() {
        Page::Resident(pfn) => pfn,
        Page::Absent | Page::Swapped(_) => unreachable!("only resident pages were held"),
    };
    let frames: FrameList = held.entries().iter().map(frame).collect();
    m.count(Counter::PgRefault, frames.len() as u64);
    let protection = match fault.access {
        Access::Read if !dirty => Protection::ReadOnly,
        _ => Protection::ReadWrite,
    };
    if protection == Protection::ReadWrite {
        frames.iter().for_each(|pfn| m.forget_slot(*pfn));
    }
    map(m, held, &frames, protection, Served::Minor)
}

/// If the page was read ahead: notes that it is used, and reads on. Returns how many pages to map.
fn first_use<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    fault: Fault,
    window: usize,
) -> usize {
    match held.space().backing() {
        _ if !held.entries()[0].is_ahead() => window,
        Backing::Anonymous => {
            m.count(Counter::SwapRaHit, 1);
            m.swap.slot_windows.hit(m.cpu());
            if window == RUN_PAGES_MAX {
                ahead::go_on_from_marker(m, held.space().id(), fault);
            }
            window
        }
        Backing::File { device } => {
            file::at_marker(m, held.space(), fault, device);
            // All that were left unmapped with it, so that none of them is taken for a marker.
            RUN_PAGES_MAX.min(fault.room())
        }
    }
}

/// A write to a page that equals its slot or its place, until now. Who writes a file sequentially
/// gets the pages after it, too: they were mapped to be read.
fn allow_write<P: Platform>(m: &Machine<P>, mut held: Held<'_, P>, window: usize) -> Served {
    let clean = |entry: Entry| {
        let there = matches!(entry.page(), Page::Resident(_)) && entry.is_mapped();
        there && !entry.is_dirty()
    };
    let window = match held.space().backing().kind() {
        Kind::Anon => 1,
        Kind::File => window,
    };
    while held.len() < window && held.extend(Pinned::Refuse, clean) {}
    let space = held.space().id();
    for (index, entry) in held.entries().iter().enumerate() {
        if let Page::Resident(pfn) = entry.page() {
            m.forget_slot(pfn);
        }
        m.platform.allow_write(space, held.first().offset(index as u64));
    }
    if held.space().backing().kind() == Kind::File {
        let next = held.first().offset(held.len() as u64);
        m.swap.streams.expect(space, next, held.len(), Source::Memory);
    }
    held.release(|_, was| was.dirty());
    Served::Minor
}

/// On its way out, and wanted again: the frame still has the contents. Reclaim puts it on the LRU.
fn cached<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    slot: Slot,
    pfn: Pfn,
    access: Access,
) -> Served {
    let written = m.wait_written(pfn);
    m.frames.set_writeback(pfn, Writeback::Idle);
    m.count(Counter::PgRefault, 1);
    let protection = match written {
        Writeback::Failed => Protection::ReadWrite,
        Writeback::Idle | Writeback::Running => keep_or_free_slots(m, &[slot], &[pfn], access),
    };
    if written == Writeback::Failed {
        m.release_slot(slot);
    }
    map(m, held, &FrameList::one(pfn), protection, Served::Minor)
}

/// Gives frames to the held anonymous pages, maps them, and puts them on the LRU.
fn install<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    protection: Protection,
    served: Served,
) -> Served {
    adopt(m, &held, frames);
    // Listed while the entries are held: who drops the page next finds the frame where it belongs.
    m.add_to_lru(frames, List::ActiveAnon);
    if served == Served::Major {
        note_refaults(m, frames);
    }
    map(m, held, frames, protection, served)
}

/// Anonymous pages were read again: that costs their kind.
fn note_refaults<P: Platform>(m: &Machine<P>, frames: &FrameList) {
    if m.config.notes_refaults() {
        m.count(Counter::RefaultAnon, frames.len() as u64);
        m.note_refault(m.node_of(frames[0]), Kind::Anon);
    }
}

/// Gives frames to the held pages.
fn adopt<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, frames: &FrameList) {
    for (index, pfn) in frames.iter().enumerate() {
        m.adopt(*pfn, held.owner(index));
    }
}

/// Maps frames that belong to the held pages; pages that cannot be mapped now stay in memory, and
/// fault again if they are wanted. Says so if the first page is one of these, else `served`.
fn map<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    protection: Protection,
    served: Served,
) -> Served {
    map_first(m, held, frames, frames.len(), protection, served)
}

/// The same, for the first `count` of them. The others are left in memory as read ahead.
fn map_first<P: Platform>(
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
    let source = match (served, kind) {
        (Served::Major, Kind::Anon) => Source::Device,
        _ => Source::Memory,
    };
    m.swap.streams.expect(space, first.offset(count as u64), count, source);
    // Where a use is seen, page by page.
    let marks = m.platform.recency() == Recency::AccessedBit;
    held.release(|index, was| {
        let entry = match protection {
            Protection::ReadWrite if index < count => Entry::resident(frames[index]).dirty(),
            Protection::ReadOnly | Protection::ReadWrite => Entry::resident(frames[index]),
        };
        // One page of a large one is mapped again: it stays part of it.
        let entry = if was.is_large_resident() { entry.large() } else { entry };
        let entry = if was.is_referenced() { entry.referenced() } else { entry };
        let entry = match (index < progress.done, kind) {
            (true, Kind::Anon) => entry.mapped().accessed(),
            // A file's page is accessed by who comes for it, and by nobody if it was read ahead.
            (true, Kind::File) => entry.mapped(),
            (false, _) => entry,
        };
        let unused = index > 0 && marks && (served == Served::Major || was.is_ahead());
        match unused || index >= count {
            true => entry.ahead(),
            false => entry,
        }
    });
    if progress.done == 0 { Served::Again } else { served }
}

/// A mapped page that is not there. The program dropped it by a call the manager did not see: it
/// reads as zeros now, or as its file. Or the platform has it in its frame, and only its word was
/// lost: then that is so from now on, and the fault maps it again instead of asking for ever.
fn forget_vanished<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) {
    if space.entry(vpn).is_large_resident() {
        split(m, space, vpn);
    }
    let held = space.hold(vpn);
    let entry = held.entries()[0];
    let Page::Resident(pfn) = entry.page() else { return };
    if entry.is_large() || !entry.is_mapped() || m.platform.holds(space.id(), vpn) {
        return;
    }
    match m.platform.unmap(space.id(), vpn, &[pfn]).stop {
        Some(Stop::Vanished) => {
            m.abandon(pfn);
            held.release(|_, _| Entry::ABSENT);
        }
        None => held.release(|_, was| was.unmapped()),
        Some(Stop::Busy | Stop::Occupied | Stop::Failed(_)) => {}
    }
}

impl From<OutOfMemory> for FaultError {
    fn from(_: OutOfMemory) -> FaultError {
        FaultError::OutOfMemory
    }
}
