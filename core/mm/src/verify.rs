//! Checks the consistency of a machine at rest: every frame is in exactly one place, and the usage
//! count of every slot is the number of its references.
//!
//! Reads everything by the walks of the structures, in time proportional to frames, slots and
//! pages. Panics at the first inconsistency. For tests, the simulator and debugging.

use crate::folio::Folio;
use crate::frame::{Owner, Place};
use crate::lru::List;
use crate::machine::Machine;
use crate::range::{Large, each_present};
use crate::snapshot::Snapshot;
use crate::space::{Backing, Entry, Page, Range, block_of};
use highwater_platform::{Atomic, Platform};
use highwater_units::{LARGE_PAGES, Order, Pfn, Slot};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Acquire;

/// Checks a machine on which no thread runs. `snapshots` are all that were not released.
pub fn verify<P: Platform>(m: &Machine<P>, snapshots: &[Snapshot]) {
    let mut places = vec![None; m.frames.len()];
    for node in &m.nodes {
        let isolated = node.isolated.each_ref().map(|kind| kind.load(Acquire));
        assert_eq!(isolated, [0; 2], "no page is isolated");
        node.zone.each_free(|pfn| set_place(&mut places, pfn, Place::Off));
        node.lru.each(|pfn, place| {
            set_place(&mut places, pfn, check_place(m, pfn, place));
        });
    }
    set_runs(m, &mut places);
    let mut references = snapshot_references(snapshots);
    for space in m.spaces() {
        let mut dirty = 0;
        each_present(space, Range::whole(space), Large::Leave, |held| {
            for (index, entry) in held.entries().iter().enumerate() {
                match entry.page() {
                    Page::Absent => {}
                    Page::Poisoned => {
                        assert_eq!(space.backing(), Backing::Anonymous, "files are read again");
                        assert_eq!(*entry, Entry::POISONED, "a lost page has no state");
                    }
                    Page::Swapped(slot) => {
                        assert_eq!(space.backing(), Backing::Anonymous, "files have no slots");
                        refer(&mut references, slot, space.order());
                    }
                    Page::Resident(pfn) => {
                        dirty += u64::from(entry.is_dirty());
                        check_resident(m, &places, held.owner(index), *entry, pfn, &mut references);
                        places[pfn.index()] = Some(Place::Off);
                        set_tails(m, &mut places, &Folio::new(pfn, space.order()));
                    }
                }
            }
        });
        if let Backing::File { .. } = space.backing() {
            assert_eq!(space.dirty(), dirty, "changed pages of {:?} are counted", space.id());
        }
    }
    let accounted =
        |place: &Option<Place>| matches!(place, None | Some(Place::Off | Place::Orphan));
    assert!(places.iter().all(accounted), "every page on a list belongs to an entry");
    check_free(m, &places);
    check_slots(m, references);
}

/// Checks the place of a frame that a walk found in `found`, and returns it: `found`, or an orphan
/// in a CPU's batch.
fn check_place<P: Platform>(m: &Machine<P>, pfn: Pfn, found: Place) -> Place {
    let place = m.frames.place(pfn).get();
    if found == Place::Batch && place == Place::Orphan {
        let (owner, slot) = (m.frames.owner(pfn), m.frames.slot(pfn));
        assert_eq!((owner, slot), (None, None), "{pfn:?} has no owner");
        return Place::Orphan;
    }
    assert_eq!(place, found, "{pfn:?} is where its record says");
    place
}

/// Sets the places of frames that callers allocated as runs.
fn set_runs<P: Platform>(m: &Machine<P>, places: &mut [Option<Place>]) {
    for first in (0..m.frames.len() as u32).map(Pfn) {
        let Some((order, _)) = m.frames.run(first) else { continue };
        for pfn in (0..order.frames()).map(|index| first.offset(index)) {
            let place = m.frames.place(pfn).get();
            assert_eq!(place == Place::Run, pfn == first, "{pfn:?} of the run of {first:?}");
            assert_eq!(m.frames.owner(pfn), None, "{pfn:?} of a run has no owner");
            set_place(places, pfn, Place::Off);
        }
    }
}

fn set_place(places: &mut [Option<Place>], pfn: Pfn, place: Place) {
    let before = places[pfn.index()].replace(place);
    assert_eq!(before, None, "{pfn:?} is in two places");
}

fn check_resident<P: Platform>(
    m: &Machine<P>,
    places: &[Option<Place>],
    owner: Owner,
    entry: Entry,
    pfn: Pfn,
    references: &mut BTreeMap<Slot, u32>,
) {
    assert_eq!(m.frames.owner(pfn), Some(owner), "{pfn:?} knows its page");
    let kind = m.space(owner.space).backing().kind();
    let lists = [List::active(kind), List::inactive(kind)].map(List::place);
    let listed = [lists[0], lists[1], Place::Batch].map(Some);
    match m.frames.place(pfn).get() {
        Place::Tail => {
            assert!(entry.is_large(), "{pfn:?} of {owner:?} is part of a large page");
            assert_eq!(places[pfn.index()], None, "{pfn:?} is on no list of its own");
            let head = Pfn(pfn.0 - (owner.vpn.0 % LARGE_PAGES as u64) as u32);
            assert_eq!(m.frames.owner(head).map(|o| o.vpn), Some(block_of(owner.vpn)));
        }
        _ => assert!(listed.contains(&places[pfn.index()]), "{pfn:?} of {owner:?} is on a list"),
    }
    if let Some(slot) = m.frames.slot(pfn) {
        assert!(!entry.is_dirty(), "a dirty page of {owner:?} has no slot");
        let backing = m.space(owner.space).backing();
        assert_eq!(backing, Backing::Anonymous, "a file's page of {owner:?} has no slot");
        refer(references, slot, m.space(owner.space).order());
    }
}

/// Adds one reference to each slot of a page of 2^order frames.
fn refer(references: &mut BTreeMap<Slot, u32>, first: Slot, order: Order) {
    for index in 0..order.frames() {
        let slot = Slot { index: first.index + index, ..first };
        *references.entry(slot).or_insert(0) += 1;
    }
}

/// Sets the places of the tail frames of a page: they have no owner, and are on no list.
fn set_tails<P: Platform>(m: &Machine<P>, places: &mut [Option<Place>], folio: &Folio) {
    for pfn in folio.tails() {
        let head = folio.head();
        assert_eq!(m.frames.place(*pfn).get(), Place::Tail, "{pfn:?} of the page in {head:?}");
        let (owner, slot) = (m.frames.owner(*pfn), m.frames.slot(*pfn));
        assert_eq!((owner, slot), (None, None), "{pfn:?} is known by {head:?}");
        set_place(places, *pfn, Place::Off);
    }
}

fn check_free<P: Platform>(m: &Machine<P>, places: &[Option<Place>]) {
    assert!(places.iter().all(Option::is_some), "every frame is somewhere");
    let mut free = 0;
    m.nodes.iter().for_each(|node| node.zone.each_free(|_| free += 1));
    assert_eq!(m.frames.len() as u32 - free, m.resident(), "frames in use are counted");
}

fn snapshot_references(snapshots: &[Snapshot]) -> BTreeMap<Slot, u32> {
    let mut references = BTreeMap::new();
    for run in snapshots.iter().flat_map(Snapshot::runs) {
        for index in 0..run.pages {
            let slot = Slot { index: run.slot.index + index, ..run.slot };
            *references.entry(slot).or_insert(0) += 1;
        }
    }
    references
}

/// Checks that the count of every slot is the number of entries, frames and snapshots that refer to
/// it.
fn check_slots<P: Platform>(m: &Machine<P>, mut references: BTreeMap<Slot, u32>) {
    let device = |slot: &Slot| m.swap.at(slot.device.into());
    references.retain(|slot, _| device(slot).info().gives_slots());
    for device in m.swap.devices().filter(|device| device.info().gives_slots()) {
        device.each_used(|slot, count, cached| {
            let expected = references.remove(&slot).unwrap_or(0);
            assert_eq!(count, expected, "the usage count of {slot:?}");
            assert!(!cached, "nothing is being written to {slot:?}");
        });
    }
    assert!(references.is_empty(), "slots are used but free: {references:?}");
}
