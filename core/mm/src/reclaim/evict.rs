//! Acts on the fate of inactive pages: 32 isolated pages in, free frames out.
//!
//! ```text
//!            each_run: lock neighbours together
//! batch ---> decide each ---> Activate: unlock
//!                        |--> Drop:  entry = Swapped(slot), frame free
//!                        \--> Write: unmap, take slots, frame in the swap cache,
//!                                    entry = Swapped(slot), unlock
//!                                    ... device write, no lock held ...
//!                                    out of the swap cache, frame free
//!      of a file:           Drop:  entry = Absent, frame free
//!                           Write: in_place.rs
//! ```
//! A page that is wanted again while it is written is claimed from the swap cache by the fault,
//! which waits for the device to be done with the frame. If a write fails the page becomes resident
//! again.

use super::balance::Reclaimer;
use super::in_place::{InPlace, sort_file, write_in_place};
use super::large;
use super::run::{Run, Unmapped, each_run};
use super::scan::{Fate, decide};
use crate::frame::{Place, Writeback};
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::space::{Backing, Entry, Held, Page, Pinned};
use crate::stats::Counter;
use crate::swap::Cached;
use highwater_platform::{Io, Phase, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, FrameList, Pfn, RUN_PAGES_MAX, Slot};

/// Where the pages of a batch go.
pub(super) struct Sorted<'a, P: Platform> {
    /// Their frames are free.
    pub(super) freed: FrameBatch,
    /// Used, or wanted while they were written.
    pub(super) activated: FrameBatch,
    /// Cannot go now.
    pub(super) kept: FrameBatch,
    /// Unmapped, to see whether they are used.
    pub(super) asked: FrameBatch,
    writes: Writes,
    pub(super) in_place: InPlace<'a, P>,
}

/// Transfers to make; never more than pages in a batch.
struct Writes {
    ios: [Io; BATCH_PAGES_MAX],
    devices: [u8; BATCH_PAGES_MAX],
    len: usize,
}

impl<P: Platform> Sorted<'_, P> {
    fn new() -> Self {
        let [freed, activated, kept, asked] = [FrameBatch::default(); 4];
        let (writes, in_place) = (Writes::none(), InPlace::new());
        Sorted { freed, activated, kept, asked, writes, in_place }
    }
}

impl Writes {
    fn none() -> Writes {
        let none = Io::new(0, FrameList::default());
        Writes { ios: [none; BATCH_PAGES_MAX], devices: [0; BATCH_PAGES_MAX], len: 0 }
    }
}

/// What came of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evicted {
    /// Frames freed.
    pub(super) freed: u32,
    /// Pages that were to be written.
    pub(super) written: u32,
}

/// Evicts what it can of `batch`, isolated from `node`'s inactive list of `kind`.
pub(super) fn evict<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    batch: FrameBatch,
    who: Reclaimer,
) -> Evicted {
    let (batch, heads) = large::take_large(m, batch);
    let freed: u32 = heads.iter().map(|head| large::evict(m, node, *head)).sum();
    let mut sorted = Sorted::new();
    let locked_by_others = each_run(m, batch, |run| sort_out(m, node, run, &mut sorted));
    locked_by_others.iter().for_each(|pfn| sorted.activated.push(*pfn));
    let ios = sorted.writes.ios[..sorted.writes.len].iter();
    let written = ios.map(|io| io.frames.len() as u32).sum::<u32>() + sorted.in_place.pages();
    // First: entries are held until these are over.
    write_in_place(m, node, &mut sorted);
    write_out(m, &mut sorted);
    free(m, &sorted.freed, who);
    put_back(m, node, kind, &sorted);
    Evicted { freed: freed + sorted.freed.len() as u32, written }
}

/// Frees frames, for who needs them.
fn free<P: Platform>(m: &Machine<P>, frames: &[Pfn], who: Reclaimer) {
    for pfn in frames {
        m.frames.set_owner(*pfn, None);
        let off = m.frames.place(*pfn).change(Place::Isolated, Place::Off);
        debug_assert_eq!(off, Ok(()), "{pfn:?} was evicted by the thread that isolated it");
    }
    match who {
        Reclaimer::Kswapd => m.free_for_all(frames),
        Reclaimer::Direct => m.free(frames),
    }
}

/// Puts the pages that stay where they belong.
fn put_back<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind, sorted: &Sorted<'_, P>) {
    m.count(Counter::PgActivate, sorted.activated.len() as u64);
    m.count(Counter::PgRotated, (sorted.kept.len() + sorted.asked.len()) as u64);
    if kind == Kind::File {
        node.lru.workingset().age_by(sorted.activated.len());
    }
    for (pages, list) in [
        (&sorted.activated, List::active(kind)),
        (&sorted.kept, List::active(kind)),
        (&sorted.asked, List::inactive(kind)),
    ] {
        m.free(&node.lru.putback(&m.frames, pages, list));
    }
}

/// Decides a run's pages and does all that needs its entries.
fn sort_out<'a, P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    run: Run<'a, P>,
    sorted: &mut Sorted<'a, P>,
) {
    let (recency, backing) = (m.platform.recency(), run.held.space().backing());
    let mut fates = [Fate::Activate; RUN_PAGES_MAX];
    for (index, entry) in run.held.entries().iter().enumerate() {
        let has_place = match backing {
            Backing::Anonymous => m.frames.slot(run.frames[index]).is_some(),
            Backing::File { .. } => true,
        };
        fates[index] = decide(backing.kind(), *entry, has_place, recency);
    }
    let unmapped = run.unmap(m, |index, _| fates[index] != Fate::Activate);
    match backing {
        Backing::Anonymous => swap_out(m, run, &fates, &unmapped, sorted),
        Backing::File { device } => sort_file(m, node, run, device, &fates, &unmapped, sorted),
    }
}

/// Anonymous pages: to slots.
fn swap_out<P: Platform>(
    m: &Machine<P>,
    run: Run<'_, P>,
    fates: &[Fate],
    unmapped: &[Unmapped],
    sorted: &mut Sorted<'_, P>,
) {
    let slots = take_slots(m, &run, fates, unmapped, &mut sorted.writes);
    let mut entries = [Entry::ABSENT; RUN_PAGES_MAX];
    for (index, pfn) in run.frames.iter().enumerate() {
        let was = run.held.entries()[index];
        let (list, entry) = match (fates[index], unmapped[index], slots[index]) {
            (Fate::Activate, _, _) => (&mut sorted.activated, was),
            (_, Unmapped::Busy, _) => (&mut sorted.kept, was),
            (_, Unmapped::Vanished, _) => {
                run.disown(m, index);
                (&mut sorted.kept, Entry::ABSENT)
            }
            (Fate::Ask, Unmapped::Yes, _) => (&mut sorted.asked, was.unmapped().referenced()),
            (Fate::Drop, Unmapped::Yes, _) => {
                m.count(Counter::PgDropClean, 1);
                let slot = m.frames.take_slot(*pfn).expect("only pages with a slot are dropped");
                (&mut sorted.freed, Entry::swapped(slot))
            }
            (Fate::Write, Unmapped::Yes, None) => (&mut sorted.kept, was.unmapped()),
            (Fate::Write, Unmapped::Yes, Some(slot)) => {
                entries[index] = Entry::swapped(slot);
                continue;
            }
        };
        list.push(*pfn);
        entries[index] = entry;
    }
    let was = run.held.entries().iter().zip(&entries);
    let wasted = was.filter(|(was, now)| was.is_ahead() && matches!(now.page(), Page::Swapped(_)));
    m.count(Counter::SwapRaWasted, wasted.count() as u64);
    run.held.release(|index, _| entries[index]);
}

/// Takes slots for every stretch of pages to write, and notes the transfers. A page gets none if
/// the devices are full.
fn take_slots<P: Platform>(
    m: &Machine<P>,
    run: &Run<'_, P>,
    fates: &[Fate],
    unmapped: &[Unmapped],
    writes: &mut Writes,
) -> [Option<Slot>; RUN_PAGES_MAX] {
    let _phase = m.enter(Phase::SwapOut);
    let mut slots = [None; RUN_PAGES_MAX];
    let len = run.frames.len();
    let goes = |i: &usize| fates[*i] == Fate::Write && unmapped[*i] == Unmapped::Yes;
    let mut at = 0;
    while let Some(first) = (at..len).find(goes) {
        let stretch = (first..len).take_while(goes).count();
        let frames = &run.frames[first..first + stretch];
        let Some((slot, taken)) = m.swap.alloc(m.cpu(), frames) else { break };
        for index in 0..taken {
            let index_slot = Slot { index: slot.index + index as u32, ..slot };
            slots[first + index] = Some(index_slot);
            m.frames.set_writeback(frames[index], Writeback::Running);
        }
        m.swap.note_owners(slot, taken, run.held.owner(first));
        writes.ios[writes.len] = Io::new(slot.index, frames[..taken].iter().copied().collect());
        writes.devices[writes.len] = slot.device;
        writes.len += 1;
        at = first + taken;
    }
    slots
}

/// Makes the transfers, all to one device at a time, and frees the frames nobody wanted meanwhile.
fn write_out<P: Platform>(m: &Machine<P>, sorted: &mut Sorted<'_, P>) {
    let _phase = m.enter(Phase::SwapOut);
    let Writes { mut ios, devices, len } = std::mem::replace(&mut sorted.writes, Writes::none());
    let mut at = 0;
    while at < len {
        let device = devices[at];
        let same = devices[at..len].iter().take_while(|d| **d == device).count();
        m.swap.write(&m.platform, &m.stats, device, &mut ios[at..at + same]);
        for io in &ios[at..at + same] {
            match io.result {
                Ok(()) => settle(m, device, io, sorted),
                Err(_) => m.set_written(io.frames.iter(), Writeback::Failed),
            }
        }
        at += same;
    }
    // Only now, with every write of the batch over: who holds the entry of one of its pages may be
    // waiting for another of them.
    for (io, device) in ios[..len].iter().zip(devices).filter(|(io, _)| io.result.is_err()) {
        take_back(m, device, io, sorted);
    }
}

fn settle<P: Platform>(m: &Machine<P>, device: u8, io: &Io, sorted: &mut Sorted<'_, P>) {
    // Out of the cache before those who claimed a frame go on: afterwards they may give slot and
    // frame back to each other, and the frame would be taken from them.
    for (at, frames) in io.frames.lists() {
        let first = Slot { device, index: io.slot + at as u32 };
        m.swap.uncache(&m.platform, first, &frames, |index, cached| match cached {
            Cached::Removed => sorted.freed.push(frames[index]),
            Cached::Claimed => sorted.activated.push(frames[index]),
        });
    }
    m.set_written(io.frames.iter(), Writeback::Idle);
}

fn take_back<P: Platform>(m: &Machine<P>, device: u8, io: &Io, sorted: &mut Sorted<'_, P>) {
    for (index, pfn) in io.frames.iter().enumerate() {
        let slot = Slot { device, index: io.slot + index as u32 };
        match restore(m, slot, pfn) {
            Unwritten::Dropped => sorted.freed.push(pfn),
            Unwritten::Claimed => sorted.activated.push(pfn),
            Unwritten::Restored => sorted.kept.push(pfn),
        }
    }
}

/// What became of a page that could not be written.
pub(super) enum Unwritten {
    /// The program wants it no more.
    Dropped,
    /// A fault had it first.
    Claimed,
    /// It is resident again.
    Restored,
}

/// After a failed write: the page is resident again, unless a fault has it or it was dropped.
pub(super) fn restore<P: Platform>(m: &Machine<P>, slot: Slot, pfn: Pfn) -> Unwritten {
    let mut attempt = 0;
    let held = loop {
        // Only who claimed the frame gives it to another page, or to nobody.
        let Some(owner) = m.frames.owner(pfn) else { return Unwritten::Claimed };
        match Held::lock(m.space(owner.space), owner.vpn, Pinned::Accept) {
            Some(held) => break held,
            // A fault that found the frame in the cache has the entry, and lets go of it soon.
            None => m.platform.relax(attempt),
        }
        attempt += 1;
    };
    // Who claims the frame notes that before it lets go of the entry. The cache cannot tell: the
    // slot may be free by now, and in use anew for the same frame.
    if m.frames.writeback(pfn) != Writeback::Failed {
        return Unwritten::Claimed;
    }
    m.frames.set_writeback(pfn, Writeback::Idle);
    m.swap.uncache(&m.platform, slot, &[pfn], |_, cached| {
        debug_assert_eq!(cached, Cached::Removed, "{pfn:?} was claimed by nobody");
    });
    if held.page() != Page::Swapped(slot) {
        return Unwritten::Dropped;
    }
    m.release_slot(slot);
    held.release(|_, _| Entry::resident(pfn).dirty());
    Unwritten::Restored
}
