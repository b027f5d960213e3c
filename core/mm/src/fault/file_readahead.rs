//! Readahead of files: what a fault reads itself, and which windows it requests.
//!
//! ```text
//! absent page  plan -- swap::window -- up to 16 pages, read by the fault
//!                                   \- the rest of a longer window: a request
//! marked page  at_marker -- swap::window -- the next window: a request
//! ```
//! The marked page and the pages read after it stay unmapped until one is used, so that the use is
//! seen. Nothing here waits for a device.

use super::access::Fault;
use super::request;
use crate::lru::List;
use crate::machine::Machine;
use crate::space::{Page, Space};
use crate::stats::Counter;
use crate::swap::{
    ALONE, Expected, Landing, ReadaheadRequest, Seen, TRACE_MIN, Window, lasting, window,
};
use highwater_platform::{DeviceInfo, Latency, Platform, Recency};
use highwater_units::{RUN_PAGES_MAX, Vpn};

/// A window is at most this part of memory; a stream has two in memory. With a 16th, where use is
/// detected by unmapping, a working set of 8 MiB lost half of its pages to one stream.
const PARTS_OF_MEMORY: usize = 32;

/// A window is at most this part of the memory that readahead can take.
const PARTS_OF_USABLE: u32 = 4;

/// Whether the file on a device is read ahead.
pub(super) fn is_on<P: Platform>(m: &Machine<P>, device: Option<&DeviceInfo>) -> bool {
    let waits = |info: &DeviceInfo| info.latency == Latency::Asynchronous;
    m.tunables.file_readahead() > 0 && device.is_some_and(|info| info.is_for_files() && waits(info))
}

/// The pages that the faulting thread reads itself.
pub(super) struct OwnRead {
    /// Pages to read.
    pub(super) pages: usize,
    /// Pages to map; the others stay unmapped.
    pub(super) mapped: usize,
}

/// Decides what a fault on an absent page reads, and requests the rest of the window.
pub(super) fn plan<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault) -> OwnRead {
    let (first, lists) = (fault.vpn, Lists::of(m));
    let expect = |at: u32, expected| {
        let at = first.offset(at.into());
        m.swap.file_streams.expect(space.id(), at, expected, lists.age);
    };
    let (seen, lasting) = seen(m, space, first, &lists);
    match window(seen, pages_max(m, &lists, fault).min(lasting)) {
        Window::From { pages, marker } => {
            let own = pages.min(RUN_PAGES_MAX as u32);
            // A fault on an absent page at the start of the request shows that it was not served.
            for at in [own, marker].into_iter().filter(|at| *at < pages) {
                expect(at, Expected::Asked { size: pages, left: pages - at });
            }
            expect(pages, Expected::End { size: pages });
            if own < pages {
                let marker = (marker >= own).then(|| first.offset(marker.into()));
                let landing = Landing::Stream(marker);
                let (first, end) = (first.offset(own.into()), first.offset(pages.into()));
                request::submit(m, ReadaheadRequest { space: space.id(), first, end, landing });
            }
            OwnRead { pages: own as usize, mapped: marker.min(own) as usize }
        }
        Window::Page | Window::Next { .. } | Window::Enough => {
            let alone = match seen {
                Seen::End { size } => (size + 1).min(ALONE),
                _ => 1,
            };
            expect(1, Expected::End { size: alone });
            OwnRead { pages: 1, mapped: 1 }
        }
    }
}

/// Classifies a fault on an absent page; also returns the largest window that is used before it is
/// evicted.
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

/// The number of pages in memory right before a page, up to a limit (count_history_pages).
fn trace<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> u32 {
    let most = (m.tunables.file_readahead() as u64).max(TRACE_MIN.into()).min(vpn.0);
    let there = |back: &u64| matches!(space.entry(Vpn(vpn.0 - back)).page(), Page::Resident(_));
    (1..=most).take_while(there).count() as u32
}

/// A marked page is used: requests the window after its own.
pub(super) fn at_marker<P: Platform>(m: &Machine<P>, space: &Space<P>, fault: Fault, device: u8) {
    if !is_on(m, m.swap.info(device)) {
        return m.count(Counter::FileRaHit, 1);
    }
    let lists = Lists::of(m);
    let most = pages_max(m, &lists, fault);
    let (size, left, lasting) = match m.swap.file_streams.take(space.id(), fault.vpn) {
        Some((Expected::Asked { size, left }, since)) => (size, left, lists.lasting(size, since)),
        Some((Expected::End { .. }, _)) | None => {
            let left = inflight_or_resident(space, fault, most).max(1);
            (left, left, u32::MAX)
        }
    };
    let hits = match m.platform.recency() {
        Recency::AccessedBit => 1,
        // Uses of mapped pages cannot be observed here, but the stream's continuation can.
        Recency::Unmapping => inflight_or_resident(space, fault, left - 1),
    };
    m.count(Counter::FileRaHit, hits.into());
    match window(Seen::Marker { size, left }, most) {
        Window::Next { after, pages } => {
            request_next(m, space, fault, after, pages.min(lasting), &lists);
        }
        Window::Page | Window::From { .. } | Window::Enough => {}
    }
}

/// Requests a window, and records that its reader is expected.
fn request_next<P: Platform>(
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
    let landing = Landing::Stream(Some(first));
    request::submit(m, ReadaheadRequest { space: space.id(), first, end, landing });
}

/// Pages from the faulting one on that are in memory or being read, counted up to `most` + 1.
fn inflight_or_resident<P: Platform>(space: &Space<P>, fault: Fault, most: u32) -> u32 {
    let end = fault.within.end.0.min(fault.vpn.0 + u64::from(most) + 1);
    let there = |vpn: &u64| {
        let entry = space.entry(Vpn(*vpn));
        entry.is_locked() || entry.page() != Page::Absent
    };
    (fault.vpn.0..end).take_while(there).count() as u32
}

/// Most pages of a window: by memory, settings and region.
fn pages_max<P: Platform>(m: &Machine<P>, lists: &Lists, fault: Fault) -> u32 {
    let room = fault.within.end.0.saturating_sub(fault.vpn.0).min(u32::MAX.into()) as u32;
    let of_memory = (m.present() / PARTS_OF_MEMORY).min(m.tunables.file_readahead()) as u32;
    of_memory.min(lists.usable / PARTS_OF_USABLE).min(room)
}

/// The state of all nodes' lists: readers move between nodes.
struct Lists {
    /// Age of memory: pages in use, plus evictions and activations of file pages so far.
    age: u64,
    /// Free pages, and inactive file pages, which can be evicted for readahead.
    usable: u32,
}

impl Lists {
    fn of<P: Platform>(m: &Machine<P>) -> Lists {
        let mut lists = Lists { age: 0, usable: 0 };
        for node in &m.nodes {
            let (free, frames) = (node.zone.free_frames(), node.zone.present());
            // Pages are evicted in batches: adding the pages in use makes the age grow evenly.
            lists.age += node.lru.workingset().age_by(0) + u64::from(frames.saturating_sub(free));
            lists.usable += node.lru.len(List::InactiveFile) + free;
        }
        lists
    }

    /// The largest window that is used before it is evicted, if one of `size` pages was used since
    /// the age `since`.
    fn lasting(&self, size: u32, since: u64) -> u32 {
        lasting(size, self.age.saturating_sub(since), self.usable)
    }
}
