//! Evicts a batch: up to 32 isolated inactive pages in, free frames out.
//!
//! ```text
//!            each_run: lock neighbours together
//! batch ---> fate::decide each ---> Activate, Probe: unlock
//!                        |--> Drop:  entry = Swapped(slot), frame free
//!                        \--> Write: unmap, take slots, frame in the swap cache,
//!                                    entry = Swapped(slot), unlock
//!                                    ... device write, no lock held: the thread waits for it, or
//!                                        kswapd leaves it in its WriteQueue ...
//!                                    write_completion.rs: out of the swap cache, frame free
//!      of a file:           Drop:  entry = Absent, frame free
//!                           Write: in_place.rs
//! ```
//! A fault on a page during its write claims the frame from the swap cache, and waits until the
//! device is done with it. If the write fails the page is resident again.

use super::destinations::{Destinations, detach, put_back};
use super::fate::{Fate, decide};
use super::folio;
use super::in_place::{InPlace, sort_file, write_in_place};
use super::large;
use super::reclaimer::Reclaimer;
use super::region;
use super::transfers::Transfers;
use crate::frame::{Probes, Writeback};
use crate::lru::Kind;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::run::{Run, Unmapped, each_run};
use crate::space::{Backing, Entry, Page};
use crate::stats::Counter;
use crate::write_completion::{complete_cached, restore_cached};
use highwater_platform::{Platform, Recency};
use highwater_units::{FrameBatch, Pfn, RUN_PAGES_MAX, Slot};

/// A batch whose pages have their fates: where they go, and the writes to make first.
struct Sorted<'a, P: Platform> {
    to: Destinations,
    transfers: Transfers,
    in_place: InPlace<'a, P>,
}

/// The result of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evicted {
    /// Frames freed.
    pub(super) freed: u32,
    /// Pages written, or whose write failed.
    pub(super) written: u32,
    /// Pages among `written` that are still in flight, whose frames will be freed.
    pub(super) in_flight: u32,
    /// Pages that were only unmapped, to see whether they are used.
    pub(super) probed: u32,
}

/// Evicts as many pages of `batch` as it can, isolated from `node`'s inactive list of `kind`.
/// Writes to slots are waited for, or left in the reclaimer's queue.
pub(super) fn evict<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    batch: FrameBatch,
    reclaimer: &mut Reclaimer<'_, P>,
) -> Evicted {
    if let Reclaimer::Kswapd(queue) = reclaimer {
        queue.make_room(m, node);
    }
    let scanned = batch.len();
    let (batch, folios) = folio::split_batch(m, batch);
    let (batch, heads) = large::split_batch(m, batch);
    let freed: u32 = heads.iter().map(|head| large::evict(m, node, *head, reclaimer)).sum();
    let mut sorted = Sorted {
        to: Destinations::default(),
        transfers: Transfers::none(),
        in_place: InPlace::none(),
    };
    let of_folios = folio::evict(m, &folios, &mut sorted.to);
    let locked_by_others = each_run(m, batch, |run| sort_run(m, node, run, &mut sorted));
    locked_by_others.iter().for_each(|pfn| sorted.to.activated.push(*pfn));
    let Sorted { to, transfers, in_place } = &mut sorted;
    let to_slots = transfers.pages();
    let written = to_slots + in_place.pages();
    // First, because it holds entries until the transfers are over.
    write_in_place(m, node, in_place, to);
    let in_flight = write_to_slots(m, node, transfers, to, reclaimer);
    detach(m, &to.freed);
    match reclaimer {
        Reclaimer::Kswapd(_) => m.free_to_zone(&to.freed),
        Reclaimer::Direct => m.free(&to.freed),
    }
    put_back(m, node, kind, to);
    if !to.unprobed.is_empty() {
        region::probe_inactive(m, node, &to.unprobed, scanned);
    }
    let freed = freed + of_folios.freed + to.freed.len() as u32;
    let probed = (to.probed.len() + to.unprobed.len()) as u32;
    Evicted { freed, written: written + of_folios.written, in_flight, probed }
}

/// Makes the transfers, or starts them; returns how many pages are left in flight.
fn write_to_slots<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    transfers: &mut Transfers,
    to: &mut Destinations,
    reclaimer: &mut Reclaimer<'_, P>,
) -> u32 {
    match reclaimer {
        Reclaimer::Kswapd(queue) if queue.is_open() => {
            queue.send(m, node, transfers);
            transfers.pages()
        }
        Reclaimer::Kswapd(queue) => {
            write_and_wait(m, transfers, to);
            if transfers.have_succeeded() {
                queue.write_succeeded();
            }
            0
        }
        Reclaimer::Direct => {
            write_and_wait(m, transfers, to);
            0
        }
    }
}

/// Makes the transfers, those to one device together, and completes them.
fn write_and_wait<P: Platform>(m: &Machine<P>, transfers: &mut Transfers, to: &mut Destinations) {
    let _phase = m.enter(phase::SWAP_OUT);
    for (device, batch) in transfers.by_device() {
        m.swap.write(&m.platform, &m.stats, device, batch);
        complete_cached(m, device, batch, |pfn, outcome| to.push_written(pfn, outcome));
    }
    // Only when no write of the batch is in flight: see `restore_cached`.
    for (device, batch) in transfers.by_device() {
        restore_cached(m, device, batch, |pfn, outcome| to.push_written(pfn, outcome));
    }
}

/// Decides the fates of a run's pages and does everything that needs their entries.
fn sort_run<'a, P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    run: Run<'a, P>,
    sorted: &mut Sorted<'a, P>,
) {
    let (recency, backing) = (m.platform.recency(), run.held.space().backing());
    let mut fates = [Fate::Activate; RUN_PAGES_MAX];
    for (index, entry) in run.held.entries().iter().enumerate() {
        let has_copy = match backing {
            Backing::Anonymous => m.frames.slot(run.frames[index]).is_some(),
            Backing::File { .. } => true,
        };
        fates[index] = decide(backing.kind(), *entry, has_copy, recency);
    }
    let unmapped = run.unmap(m, |index, _| match (fates[index], backing) {
        (Fate::Activate, _) | (Fate::Probe, Backing::Anonymous) => false,
        (Fate::Probe | Fate::Drop | Fate::Write, _) => true,
    });
    match backing {
        Backing::Anonymous => {
            run.frames.iter().zip(fates).for_each(|(pfn, fate)| note_probe(m, *pfn, fate));
            swap_out(m, run, &fates, &unmapped, sorted);
        }
        Backing::File { device } => {
            let Sorted { to, in_place, .. } = sorted;
            sort_file(m, node, run, device, &fates, &unmapped, to, in_place);
        }
    }
}

/// Notes what a probe by unmapping has found of an anonymous page.
fn note_probe<P: Platform>(m: &Machine<P>, pfn: Pfn, fate: Fate) {
    if m.platform.recency() == Recency::AccessedBit {
        return;
    }
    match fate {
        Fate::Activate => m.frames.set_probes(pfn, m.frames.probes(pfn).found_used()),
        Fate::Drop | Fate::Write => m.frames.set_probes(pfn, Probes::default()),
        Fate::Probe => {}
    }
}

/// Sends a run's anonymous pages to their destinations, those to write to slots.
fn swap_out<P: Platform>(
    m: &Machine<P>,
    run: Run<'_, P>,
    fates: &[Fate],
    unmapped: &[Unmapped],
    sorted: &mut Sorted<'_, P>,
) {
    let Sorted { to, transfers, .. } = sorted;
    let slots = take_slots(m, &run, fates, unmapped, transfers);
    let mut entries = [Entry::ABSENT; RUN_PAGES_MAX];
    for (index, pfn) in run.frames.iter().enumerate() {
        let was = run.held.entries()[index];
        let (destination, entry) = match (fates[index], unmapped[index], slots[index]) {
            (Fate::Activate, _, _) => (&mut to.activated, was),
            (_, Unmapped::Busy, _) => (&mut to.kept, was),
            (_, Unmapped::Vanished, _) => {
                run.disown(m, index);
                (&mut to.kept, Entry::ABSENT)
            }
            (Fate::Probe, Unmapped::Done, _) => (&mut to.unprobed, was),
            (Fate::Drop, Unmapped::Done, _) => {
                m.count(Counter::PgDropClean, 1);
                let slot = m.frames.take_slot(*pfn).expect("only pages with a slot are dropped");
                m.swap.note_evicted(slot, 1);
                (&mut to.freed, Entry::swapped(slot).with_writes_of(was))
            }
            (Fate::Write, Unmapped::Done, None) => (&mut to.kept, was.unmapped()),
            (Fate::Write, Unmapped::Done, Some(slot)) => {
                entries[index] = Entry::swapped(slot).with_writes_of(was);
                continue;
            }
        };
        destination.push(*pfn);
        entries[index] = entry;
    }
    let was = run.held.entries().iter().zip(&entries);
    let wasted = was.filter(|(was, now)| was.is_ahead() && matches!(now.page(), Page::Swapped(_)));
    m.count(Counter::SwapRaWasted, wasted.count() as u64);
    run.held.release(|index, _| entries[index]);
}

/// Takes slots for each stretch of pages to write, and adds the transfers. A page gets none if all
/// devices are full.
fn take_slots<P: Platform>(
    m: &Machine<P>,
    run: &Run<'_, P>,
    fates: &[Fate],
    unmapped: &[Unmapped],
    transfers: &mut Transfers,
) -> [Option<Slot>; RUN_PAGES_MAX] {
    let _phase = m.enter(phase::SWAP_OUT);
    let mut slots = [None; RUN_PAGES_MAX];
    let len = run.frames.len();
    let goes = |i: &usize| fates[*i] == Fate::Write && unmapped[*i] == Unmapped::Done;
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
        let pages = frames[..taken].iter().copied().collect();
        if m.swap.accepts_runs(slot.device) {
            transfers.join(slot, pages);
        } else {
            // Not joined with other pages: the device may refuse a longer run than was allowed.
            transfers.push(slot, pages);
        }
        at = first + taken;
    }
    slots
}
