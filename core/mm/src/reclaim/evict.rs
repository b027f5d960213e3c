//! Acts on the fate of inactive pages: 32 isolated pages in, free frames out.
//!
//! ```text
//!            each_run: lock neighbours together
//! batch ---> decide each ---> Activate: unlock
//!                        |--> Drop:  entry = Swapped(slot), frame free
//!                        \--> Write: unmap, take slots, frame in the swap cache,
//!                                    entry = Swapped(slot), unlock
//!                                    ... device write, no lock held: waited for (direct),
//!                                        or left to kswapd's outbox.rs ...
//!                                    out of the swap cache, frame free
//!      of a file:           Drop:  entry = Absent, frame free
//!                           Write: in_place.rs
//! ```
//! A page that is wanted again while it is written is claimed from the swap cache by the fault,
//! which waits for the device to be done with the frame. If a write fails the page becomes resident
//! again.

use super::balance::Reclaimer;
use super::folio;
use super::in_place::{InPlace, sort_file, write_in_place};
use super::large;
use super::scan::{Fate, decide};
use crate::frame::{Place, Writeback};
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::phase;
use crate::run::{Run, Unmapped, each_run};
use crate::space::{Backing, Entry, Held, Page, Pinned};
use crate::stats::Counter;
use crate::swap::Cached;
use highwater_platform::{Io, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, FrameList, Pfn, RUN_PAGES_MAX, Slot};

/// Where the pages of a batch go.
#[derive(Default)]
pub(super) struct Piles {
    /// Their frames are free.
    pub(super) freed: FrameBatch,
    /// Used, or wanted while they were written.
    pub(super) activated: FrameBatch,
    /// Cannot go now.
    pub(super) kept: FrameBatch,
    /// Unmapped, to see whether they are used.
    pub(super) asked: FrameBatch,
}

/// A batch once it is decided: what is done, and what is to be written first.
pub(super) struct Sorted<'a, P: Platform> {
    pub(super) piles: Piles,
    writes: Writes,
    pub(super) in_place: InPlace<'a, P>,
}

/// Transfers to make; never more than pages in a batch.
pub(super) struct Writes {
    ios: [Io; BATCH_PAGES_MAX],
    devices: [u8; BATCH_PAGES_MAX],
    len: usize,
}

impl<P: Platform> Sorted<'_, P> {
    fn new() -> Self {
        Sorted { piles: Piles::default(), writes: Writes::none(), in_place: InPlace::new() }
    }
}

impl Writes {
    fn none() -> Writes {
        let none = Io::new(0, FrameList::default());
        Writes { ios: [none; BATCH_PAGES_MAX], devices: [0; BATCH_PAGES_MAX], len: 0 }
    }

    fn pages(&self) -> u32 {
        self.ios[..self.len].iter().map(|io| io.frames.len() as u32).sum()
    }

    /// Whether there were any, and none failed.
    fn have_succeeded(&self) -> bool {
        self.len > 0 && self.ios[..self.len].iter().all(|io| io.result.is_ok())
    }

    /// The devices they go to.
    pub(super) fn devices(&self) -> impl Iterator<Item = u8> {
        let all = &self.devices[..self.len];
        let new = |index: &usize| !all[..*index].contains(&all[*index]);
        (0..self.len).filter(new).map(|index| all[index])
    }

    /// The transfers to a device.
    pub(super) fn to(&self, device: u8) -> impl Iterator<Item = &Io> {
        let ios = self.ios.iter().zip(&self.devices).take(self.len);
        ios.filter(move |(_, of)| **of == device).map(|(io, _)| io)
    }

    /// The transfers, a stretch of them to one device at a time.
    fn by_device(&mut self) -> impl Iterator<Item = (u8, &mut [Io])> {
        let (devices, mut rest) = (&self.devices, &mut self.ios[..self.len]);
        let mut at = 0;
        std::iter::from_fn(move || {
            let device = *devices.get(at).filter(|_| !rest.is_empty())?;
            let same = devices[at..at + rest.len()].iter().take_while(|d| **d == device).count();
            let (group, others) = std::mem::take(&mut rest).split_at_mut(same);
            (rest, at) = (others, at + same);
            Some((device, group))
        })
    }
}

/// What came of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evicted {
    /// Frames freed.
    pub(super) freed: u32,
    /// Pages that were to be written.
    pub(super) written: u32,
    /// Of these, pages that still are under way: their frames follow.
    pub(super) under_way: u32,
}

/// Evicts what it can of `batch`, isolated from `node`'s inactive list of `kind`. What is written
/// to slots is waited for, or left to the outbox of who reclaims.
pub(super) fn evict<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    batch: FrameBatch,
    who: &mut Reclaimer<'_, P>,
) -> Evicted {
    if let Reclaimer::Kswapd(outbox) = who {
        outbox.make_room(m, node);
    }
    let (batch, folios) = folio::take(m, batch);
    let (batch, heads) = large::take_large(m, batch);
    let freed: u32 = heads.iter().map(|head| large::evict(m, node, *head, who)).sum();
    let mut sorted = Sorted::new();
    let gone = folio::evict(m, &folios, &mut sorted.piles);
    let locked_by_others = each_run(m, batch, |run| sort_out(m, node, run, &mut sorted));
    locked_by_others.iter().for_each(|pfn| sorted.piles.activated.push(*pfn));
    let to_slots = sorted.writes.pages();
    let written = to_slots + sorted.in_place.pages();
    // First: entries are held until these are over.
    write_in_place(m, node, &mut sorted);
    let Sorted { mut piles, mut writes, .. } = sorted;
    let under_way = match who {
        Reclaimer::Kswapd(outbox) if outbox.is_open() => {
            outbox.send(m, node, &writes);
            to_slots
        }
        Reclaimer::Kswapd(outbox) => {
            write_out(m, &mut writes, &mut piles);
            if writes.have_succeeded() {
                outbox.trust();
            }
            0
        }
        Reclaimer::Direct => {
            write_out(m, &mut writes, &mut piles);
            0
        }
    };
    disown(m, &piles.freed);
    match who {
        Reclaimer::Kswapd(_) => m.free_to_zone(&piles.freed),
        Reclaimer::Direct => m.free(&piles.freed),
    }
    put_back(m, node, kind, &piles);
    let freed = freed + gone.freed + piles.freed.len() as u32;
    Evicted { freed, written: written + gone.written, under_way }
}

/// Evicted frames are nobody's, and on no list.
pub(super) fn disown<P: Platform>(m: &Machine<P>, frames: &[Pfn]) {
    for pfn in frames {
        m.frames.set_owner(*pfn, None);
        let off = m.frames.place(*pfn).change(Place::Isolated, Place::Off);
        debug_assert_eq!(off, Ok(()), "{pfn:?} was evicted by the thread that isolated it");
    }
}

/// Puts the pages that stay where they belong.
pub(super) fn put_back<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind, piles: &Piles) {
    m.count(Counter::PgActivate, piles.activated.len() as u64);
    m.count(Counter::PgRotated, (piles.kept.len() + piles.asked.len()) as u64);
    if kind == Kind::File {
        node.lru.workingset().age_by(piles.activated.len());
    }
    for (pages, list) in [
        (&piles.activated, List::active(kind)),
        (&piles.kept, List::active(kind)),
        (&piles.asked, List::inactive(kind)),
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
    let Sorted { piles, writes, .. } = sorted;
    let slots = take_slots(m, &run, fates, unmapped, writes);
    let mut entries = [Entry::ABSENT; RUN_PAGES_MAX];
    for (index, pfn) in run.frames.iter().enumerate() {
        let was = run.held.entries()[index];
        let (list, entry) = match (fates[index], unmapped[index], slots[index]) {
            (Fate::Activate, _, _) => (&mut piles.activated, was),
            (_, Unmapped::Busy, _) => (&mut piles.kept, was),
            (_, Unmapped::Vanished, _) => {
                run.disown(m, index);
                (&mut piles.kept, Entry::ABSENT)
            }
            (Fate::Ask, Unmapped::Yes, _) => (&mut piles.asked, was.unmapped().referenced()),
            (Fate::Drop, Unmapped::Yes, _) => {
                m.count(Counter::PgDropClean, 1);
                let slot = m.frames.take_slot(*pfn).expect("only pages with a slot are dropped");
                (&mut piles.freed, Entry::swapped(slot))
            }
            (Fate::Write, Unmapped::Yes, None) => (&mut piles.kept, was.unmapped()),
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
    let _phase = m.enter(phase::SWAP_OUT);
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
fn write_out<P: Platform>(m: &Machine<P>, writes: &mut Writes, piles: &mut Piles) {
    let _phase = m.enter(phase::SWAP_OUT);
    for (device, batch) in writes.by_device() {
        m.swap.write(&m.platform, &m.stats, device, batch);
        settle(m, device, batch, piles);
    }
    // Only now, with every write of the batch over: who holds the entry of one of its pages may be
    // waiting for another of them.
    for (device, batch) in writes.by_device() {
        take_back(m, device, batch, piles);
    }
}

/// After the write of a batch: says how it went to who waits for its frames. What was written goes
/// to `piles`; what was not is to be taken back.
pub(super) fn settle<P: Platform>(m: &Machine<P>, device: u8, batch: &[Io], piles: &mut Piles) {
    for io in batch {
        match io.result {
            Ok(()) => settle_one(m, device, io, piles),
            Err(_) => m.set_written(io.frames.iter(), Writeback::Failed),
        }
    }
}

fn settle_one<P: Platform>(m: &Machine<P>, device: u8, io: &Io, piles: &mut Piles) {
    // Out of the cache before those who claimed a frame go on: afterwards they may give slot and
    // frame back to each other, and the frame would be taken from them.
    for (at, frames) in io.frames.lists() {
        let first = Slot { device, index: io.slot + at as u32 };
        m.swap.uncache(&m.platform, first, &frames, |index, cached| match cached {
            Cached::Removed => piles.freed.push(frames[index]),
            Cached::Claimed => piles.activated.push(frames[index]),
        });
    }
    m.set_written(io.frames.iter(), Writeback::Idle);
}

/// Pages whose write failed are resident again. The thread has no other write under way.
pub(super) fn take_back<P: Platform>(m: &Machine<P>, device: u8, batch: &[Io], piles: &mut Piles) {
    for io in batch.iter().filter(|io| io.result.is_err()) {
        for (index, pfn) in io.frames.iter().enumerate() {
            let slot = Slot { device, index: io.slot + index as u32 };
            match restore(m, slot, pfn) {
                Unwritten::Dropped => piles.freed.push(pfn),
                Unwritten::Claimed => piles.activated.push(pfn),
                Unwritten::Restored => piles.kept.push(pfn),
            }
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
