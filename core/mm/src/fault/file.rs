//! Pages of files: read by the fault, and ahead of it.
//!
//! ```text
//! absent:  seen -> swap::window -> what the fault reads: 16 pages at most, marked in the middle
//!                              \-> the rest of a longer window: a wish, read meanwhile: ahead.rs
//! marked:  at_marker -> swap::window -> a wish: the next window
//! ```
//! The marked page, and those after it that were read with it, stay unmapped until one is used.
//! Nothing here waits for a device but the read of the page itself. What is read ahead may cost its
//! reader one round of direct reclaim (`ahead/reader.rs`).

use super::swap_in::read_run;
use super::{Fault, Served, adopt, ahead, map_first};
use crate::alloc;
use crate::error::FaultError;
use crate::frame::History;
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::space::{Access, Entry, Held, Page, Pinned, Space};
use crate::stats::Counter;
use crate::swap::{ALONE, Expected, ReadaheadRequest, Seen, TRACE_MIN, Window, lasting, window};
use highwater_platform::{DeviceInfo, Latency, Platform, Protection, Recency};
use highwater_units::{FrameList, Pfn, RUN_PAGES_MAX, Slot, Vpn};

/// Parts of memory of which a window is one at most: two of a stream are in memory. With a 16th,
/// 8 MiB that were used again and again lost half of their pages to one stream beside them, where
/// unmapping asks.
const PARTS_OF_MEMORY: usize = 32;

/// Parts of the memory that gives way to what is read, of which a window is one at most.
const PARTS_OF_USABLE: u32 = 4;

/// Whether anything is read ahead of those who read a device's file.
pub(super) fn is_on<P: Platform>(m: &Machine<P>, device: Option<&DeviceInfo>) -> bool {
    let waits = |info: &DeviceInfo| info.latency == Latency::Asynchronous;
    m.config.file_readahead > 0 && device.is_some_and(|info| info.is_for_files() && waits(info))
}

/// What a fault reads itself.
struct Own {
    pages: usize,
    /// Those after the first ones stay unmapped.
    mapped: usize,
}

/// A file's page, from its place, with pages after it.
pub(super) fn load<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    device: u8,
    fault: Fault,
    window: usize,
) -> Result<Served, FaultError> {
    let own = match is_on(m, m.swap.info(device)) {
        true => plan(m, held.space(), fault),
        false => Own { pages: window, mapped: window },
    };
    while held.len() < own.pages && held.extend(Pinned::Refuse, |e| e.page() == Page::Absent) {}
    within_end(&mut held)?;
    let frames = alloc::frames(m, held.len())?;
    let first = held.first().0 as u32;
    let places =
        std::array::from_fn(|index| Slot { device, index: first.wrapping_add(index as u32) });
    let frames = read_run(m, &mut held, &places, frames)?;
    m.count(Counter::PgMajFault, 1);
    m.count(Counter::FileRa, frames.len() as u64 - 1);
    let protection = match fault.access {
        Access::Read => Protection::ReadOnly,
        Access::Write => Protection::ReadWrite,
    };
    adopt(m, &held, &frames);
    list(m, &held, &frames);
    Ok(map_first(m, held, &frames, own.mapped, protection, Served::Major))
}

/// Lets go of held pages that the file no longer has.
///
/// # Errors
/// The first of them is one; all are still held.
pub(super) fn within_end<P: Platform>(held: &mut Held<'_, P>) -> Result<(), FaultError> {
    match held.space().end().0.saturating_sub(held.first().0) {
        0 => Err(FaultError::BeyondEnd),
        left => {
            held.truncate(left.min(RUN_PAGES_MAX as u64) as usize);
            Ok(())
        }
    }
}

/// Puts pages that were just read on the LRU.
pub(super) fn list<P: Platform>(m: &Machine<P>, held: &Held<'_, P>, frames: &FrameList) {
    let (mut new, mut missed) = (FrameList::default(), FrameList::default());
    for (pfn, entry) in frames.iter().zip(held.entries()) {
        match refault(m, *pfn, *entry) {
            Refault::New => new.push(*pfn),
            Refault::Missed => missed.push(*pfn),
        }
    }
    m.add_to_lru(&new, List::InactiveFile);
    m.add_to_lru(&missed, List::ActiveFile);
}

/// Decides what a fault on an absent page reads, and asks for what is read beside it.
fn plan<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault) -> Own {
    let (first, lists) = (fault.vpn, Lists::of(m));
    let expect = |at: u32, expected| {
        let at = first.offset(at.into());
        m.swap.file_streams.expect(space.id(), at, expected, lists.age);
    };
    let (seen, lasting) = seen(m, space, first, &lists);
    match window(seen, most(m, &lists, fault).min(lasting)) {
        Window::From { pages, marker } => {
            let own = pages.min(RUN_PAGES_MAX as u32);
            // Whoever finds nothing where the wish begins knows that it was not granted.
            for at in [own, marker].into_iter().filter(|at| *at < pages) {
                expect(at, Expected::Asked { size: pages, left: pages - at });
            }
            expect(pages, Expected::End { size: pages });
            if own < pages {
                let marker = (marker >= own).then(|| first.offset(marker.into()));
                let (first, end) = (first.offset(own.into()), first.offset(pages.into()));
                ahead::want(m, ReadaheadRequest { space: space.id(), first, end, marker });
            }
            Own { pages: own as usize, mapped: marker.min(own) as usize }
        }
        Window::Page | Window::Next { .. } | Window::Enough => {
            let alone = match seen {
                Seen::End { size } => (size + 1).min(ALONE),
                _ => 1,
            };
            expect(1, Expected::End { size: alone });
            Own { pages: 1, mapped: 1 }
        }
    }
}

/// What an absent page is to readers, and the most pages of a window that lasts.
fn seen<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn, lists: &Lists) -> (Seen, u32) {
    match m.swap.file_streams.take(space.id(), vpn) {
        Some((Expected::End { size }, since)) => (Seen::End { size }, lists.lasting(size, since)),
        Some((Expected::Asked { size, .. }, since)) => {
            (Seen::Missed { size }, lists.lasting(size, since))
        }
        None if vpn == Vpn(0) => (Seen::Start, u32::MAX),
        None => match trace(m, space, vpn) {
            0 => (Seen::Stray, u32::MAX),
            pages => (Seen::Trace { pages }, u32::MAX),
        },
    }
}

/// Pages in memory before one, as far as that matters (count_history_pages).
fn trace<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> u32 {
    let most = (m.config.file_readahead as u64).max(TRACE_MIN.into()).min(vpn.0);
    let there = |back: &u64| matches!(space.entry(Vpn(vpn.0 - back)).page(), Page::Resident(_));
    (1..=most).take_while(there).count() as u32
}

/// A marked page is used: asks for the window after the one that it is in.
pub(super) fn at_marker<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault, device: u8) {
    if !is_on(m, m.swap.info(device)) {
        return m.count(Counter::FileRaHit, 1);
    }
    let lists = Lists::of(m);
    let most = most(m, &lists, fault);
    let (size, left, lasting) = match m.swap.file_streams.take(space.id(), fault.vpn) {
        Some((Expected::Asked { size, left }, since)) => (size, left, lists.lasting(size, since)),
        Some((Expected::End { .. }, _)) | None => {
            let left = on_the_way(space, fault, most).max(1);
            (left, left, u32::MAX)
        }
    };
    let hits = match m.platform.recency() {
        Recency::AccessedBit => 1,
        // No use of a page that is mapped is seen; that the stream goes on is.
        Recency::Unmapping => on_the_way(space, fault, left - 1),
    };
    m.count(Counter::FileRaHit, hits.into());
    match window(Seen::Marker { size, left }, most) {
        Window::Next { after, pages } => ask(m, space, fault, after, pages.min(lasting), &lists),
        Window::Page | Window::From { .. } | Window::Enough => {}
    }
}

/// Asks for a window ahead of use, and expects its reader.
fn ask<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    fault: Fault,
    after: u32,
    pages: u32,
    lists: &Lists,
) {
    let first = fault.vpn.offset(after.into());
    let end = Vpn((first.0 + u64::from(pages)).min(fault.within.end.0));
    if first >= end {
        return;
    }
    let size = (end.0 - first.0) as u32;
    let streams = &m.swap.file_streams;
    streams.expect(space.id(), first, Expected::Asked { size, left: size }, lists.age);
    streams.expect(space.id(), end, Expected::End { size }, lists.age);
    ahead::want(m, ReadaheadRequest { space: space.id(), first, end, marker: Some(first) });
}

/// Pages from one on that are in memory, or being read: up to more than `most`.
fn on_the_way<P: Platform>(space: &Space<P>, fault: Fault, most: u32) -> u32 {
    let end = fault.within.end.0.min(fault.vpn.0 + u64::from(most) + 1);
    let there = |vpn: &u64| {
        let entry = space.entry(Vpn(*vpn));
        entry.is_locked() || entry.page() != Page::Absent
    };
    (fault.vpn.0..end).take_while(there).count() as u32
}

/// Most pages of a window now, of what the fault may bring.
fn most<P: Platform>(m: &Machine<P>, lists: &Lists, fault: Fault) -> u32 {
    let room = fault.within.end.0.saturating_sub(fault.vpn.0).min(u32::MAX.into()) as u32;
    let of_memory = (m.frames.len() / PARTS_OF_MEMORY).min(m.config.file_readahead) as u32;
    of_memory.min(lists.usable / PARTS_OF_USABLE).min(room)
}

/// The memory of all nodes, for readers that go from one to another.
struct Lists {
    /// Pages that were taken: those in use, and evictions and activations of files' pages.
    age: u64,
    /// Pages that give way to what is read, or are free.
    usable: u32,
}

impl Lists {
    fn of<P: Platform>(m: &Machine<P>) -> Lists {
        let mut lists = Lists { age: 0, usable: 0 };
        for node in &m.nodes {
            let (free, frames) = (node.zone.free_frames(), node.zone.range().frames);
            // kswapd evicts many at a time; together with what is free that is a smooth measure.
            lists.age += node.lru.workingset().age_by(0) + u64::from(frames.saturating_sub(free));
            lists.usable += node.lru.len(List::InactiveFile) + free;
        }
        lists
    }

    /// Most pages of a window that lasts, after one of `size` pages was used since some age.
    fn lasting(&self, size: u32, since: u64) -> u32 {
        lasting(size, self.age.saturating_sub(since), self.usable)
    }
}

/// What a page of a file is that was just read.
enum Refault {
    /// It never was in memory, or has been away for long.
    New,
    /// It should not have gone: it is part of the working set.
    Missed,
}

/// Decides: a page should have stayed if fewer pages have come into use since it went than there
/// are beside the inactive files' pages, among which it was. They could have gone instead.
fn refault<P: Platform>(m: &Machine<P>, pfn: Pfn, entry: Entry) -> Refault {
    m.frames.set_history(pfn, History::New);
    let Some(shadow) = entry.shadow() else { return Refault::New };
    m.count(Counter::RefaultFile, 1);
    let at = |node: &&Node<P>| node.zone.range().node == shadow.node();
    let Some(node) = m.nodes.iter().find(at) else { return Refault::New };
    let anon = match m.swap.is_full() {
        true => 0,
        false => node.lru.len_of(Kind::Anon),
    };
    let competing = node.lru.len(List::ActiveFile) + anon;
    if node.lru.workingset().distance(shadow) > u64::from(competing) {
        return Refault::New;
    }
    m.count(Counter::ActivateFile, 1);
    node.lru.workingset().refault();
    if shadow.history() == History::Active {
        m.count(Counter::RestoreFile, 1);
        m.frames.set_history(pfn, History::Active);
        m.note_refault(node, Kind::File);
    }
    Refault::Missed
}
