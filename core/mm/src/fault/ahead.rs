//! Reads pages before they are used, so that as many reads are in flight as the device can take,
//! and not only as many as threads wait.
//!
//! ```text
//! stream at full speed, Manager::prefetch --> swap::Wishes --> run: a thread of this file
//! reader of a file (file.rs), readahead_by=threads ---^        \=reader: reader.rs
//!   gather: entries held, frames taken -> started ... over, or no room -> land: mapped, released
//! flights  [ oldest | ... | newest |   |   ]   ReadBatch ring; landed by landing.rs
//! ```
//! A stream that reads full windows asks for the pages after its window, and is seen again at the
//! first of these, which is left unmapped (the kernel's PG_readahead): then the next stretch is
//! asked for, while the pages in between are there or on their way. Who comes to a page on its way
//! waits for its entry, as for any other fault.
//!
//! A thread has wishes of its own, and what it started it finishes. It holds entries while their
//! pages are read. It only tries to lock them; it waits for devices, and for memory only while it
//! holds one run of swapped pages: of files, what finds no memory is not read. Pages that cannot be
//! read stay where they are: the fault that wants them says why.

mod landing;
#[cfg(feature = "history")]
pub(super) mod reader;

use super::swap_in::extend_swapped;
use super::{Fault, file, most_at_once};
use crate::alloc;
use crate::config::Readahead;
#[cfg(feature = "history")]
use crate::config::history::ReadaheadBy;
use crate::kthread::Kthreads;
use crate::machine::{Machine, ReadBatch, ReadRun};
use crate::space::{Backing, Held, Page, Pinned};
use crate::stats::Counter;
use crate::swap::{Ahead, Wish, Wishes};
use highwater_platform::{Atomic, Latency, Platform, Recency};
use highwater_units::{FrameList, RUN_PAGES_MAX, Slot, SpaceId, Vpn};
use landing::land as land_flight;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Most batches in flight.
const DEPTH_MAX: usize = 16;

/// Most pages that a stream asks for at a time: 1 MiB, and as much is on its way when it asks
/// again. One stream keeps a disk as busy as 64 transfers do; with half of it, three quarters.
const STRETCH_MAX: u64 = 256;

/// Whether anything of swap is read ahead of use.
fn is_on<P: Platform>(m: &Machine<P>) -> bool {
    m.config.prefetch && m.swap.reads_ahead()
}

/// A stream reads full windows, the last one up to `end`: asks for what comes after it.
pub(super) fn go_on<P: Platform>(m: &Machine<P>, space: SpaceId, fault: Fault, end: Vpn) {
    let readahead = matches!(m.config.readahead, Readahead::Virtual | Readahead::Auto);
    let end_of_all = fault.within.end;
    let (first, end) = (end, Vpn((end.0 + stretch(m)).min(end_of_all.0)));
    if readahead && is_on(m) && first < end {
        m.request_readahead(Wish { space, first, end, marker: Some(first) });
    }
}

/// A window of a file is to be read ahead.
pub(super) fn want<P: Platform>(m: &Machine<P>, wish: Wish) {
    #[cfg(feature = "history")]
    if m.config.history.readahead_by == ReadaheadBy::Reader {
        return reader::begin(m, wish);
    }
    m.request_readahead(wish);
}

/// The page at which a stream is seen was used: asks for the stretch after the next.
pub(super) fn go_on_from_marker<P: Platform>(m: &Machine<P>, space: SpaceId, fault: Fault) {
    let stretch = stretch(m);
    if m.platform.recency() == Recency::Unmapping {
        // No use of a page that is mapped is seen; that the stream goes on is.
        m.count(Counter::SwapRaHit, stretch.saturating_sub(1));
    }
    go_on(m, space, fault, fault.vpn.offset(stretch));
}

/// Pages that a stream asks for; none with a budget of which they would be much.
fn stretch<P: Platform>(m: &Machine<P>) -> u64 {
    let pages = (m.frames.len() as u64 / 128).min(STRETCH_MAX);
    if pages < RUN_PAGES_MAX as u64 { 0 } else { pages }
}

/// Starts the threads of all nodes, if there is anything to gain. When they end, what they have not
/// begun to read stays where it is.
///
/// # Errors
/// The system has no thread to give.
pub fn start<P: Platform>(machine: &Arc<Machine<P>>) -> io::Result<Option<Kthreads<P>>> {
    let devices = machine.swap.devices();
    let files = devices.iter().any(|device| file::is_on(machine, Some(device.info())));
    if !is_on(machine) && !files {
        return Ok(None);
    }
    let mut threads = Kthreads::new(machine, |m| {
        m.readahead.iter().flatten().for_each(Wishes::ring);
        #[cfg(feature = "history")]
        m.inflight.close();
    });
    let on = |node: usize| machine.nodes[node].zone.range().node;
    for (node, wishes) in machine.readahead.iter().enumerate() {
        for seat in 0..wishes.len() {
            threads.run("readahead", on(node), move |m, stopped| {
                run(m, &m.readahead[node][seat], stopped);
            })?;
        }
    }
    #[cfg(feature = "history")]
    if files && machine.config.history.readahead_by == ReadaheadBy::Reader {
        machine.inflight.open();
        threads.run("landing", on(0), |m, _| reader::sweep(m))?;
    }
    Ok(Some(threads))
}

/// The body of a thread.
fn run<P: Platform>(m: &Machine<P>, wishes: &Wishes<P>, stopped: &P::Atomic<u8>) {
    let mut reader = Reader::new(m, wishes);
    loop {
        let ticket = wishes.ticket();
        if stopped.load(Acquire) != 0 {
            return reader.land_all();
        }
        match reader.step() {
            Step::Done => {}
            Step::Idle => wishes.wait(ticket),
        }
    }
}

/// What a step of the thread came to.
enum Step {
    /// Something was begun or ended.
    Done,
    /// There is nothing to do.
    Idle,
}

/// What the thread has in flight.
struct Reader<'a, P: Platform> {
    m: &'a Machine<P>,
    wishes: &'a Wishes<P>,
    flights: Box<[ReadBatch<P>]>,
    /// The oldest one.
    first: usize,
    len: usize,
    /// What is left of the wish that is being granted.
    wish: Option<Wish>,
}

impl<'a, P: Platform> Reader<'a, P> {
    fn new(m: &'a Machine<P>, wishes: &'a Wishes<P>) -> Self {
        let depth = (m.frames.len() / 1024).clamp(1, DEPTH_MAX);
        let flights = (0..depth).map(|_| ReadBatch::default()).collect();
        Reader { m, wishes, flights, first: 0, len: 0, wish: None }
    }

    fn step(&mut self) -> Step {
        while self.oldest_is_over() {
            self.land_oldest();
        }
        if self.len < self.flights.len() && self.gather() > 0 {
            self.send();
            return Step::Done;
        }
        match self.len {
            0 => Step::Idle,
            _ => {
                self.land_oldest();
                Step::Done
            }
        }
    }

    fn oldest_is_over(&self) -> bool {
        self.len > 0 && self.flights[self.first].is_over(&self.m.platform)
    }

    /// Takes runs of pages from the wishes until a batch is full; returns how many.
    fn gather(&mut self) -> usize {
        let at = (self.first + self.len) % self.flights.len();
        let mut pages = 0;
        while pages < self.flights[at].pages_max(&self.m.swap, self.m.frames.len())
            && self.flights[at].has_room()
        {
            let Some(run) = self.next_run(self.flights[at].device()) else { break };
            pages += run.frames.len();
            self.flights[at].add(run);
        }
        self.flights[at].runs()
    }

    /// The next pages that are wanted, and are on the device, with frames for them.
    fn next_run(&mut self, device: Option<u8>) -> Option<ReadRun> {
        let m = self.m;
        loop {
            let wish = self.wish.take().or_else(|| self.wishes.next())?;
            let Some((held, slots)) = hold(m, &wish) else {
                self.wish = wish.without(1);
                continue;
            };
            // Another device's: for the next batch.
            if device.is_some_and(|device| device != slots[0].device) {
                self.wish = Some(wish);
                return None;
            }
            let frames = match self.frames_for(&held, device) {
                Got::Frames(frames) => frames,
                Got::Later => {
                    self.wish = Some(wish);
                    return None;
                }
                Got::Never => continue,
            };
            let mut held = held;
            held.truncate(frames.len());
            self.wish = wish.without(frames.len() as u64);
            return Some(ReadRun { left: held.leave(), slots, frames, marker: wish.marker });
        }
    }

    /// Frames for the first held pages. Has patience only when nothing is in flight nor gathered:
    /// who waits for these would wait for that, too. And not for files.
    fn frames_for(&mut self, held: &Held<'a, P>, gathered: Option<u8>) -> Got {
        let (m, backing) = (self.m, held.space().backing());
        loop {
            let at_hand = match backing {
                Backing::Anonymous => alloc::at_hand(m, held.len()),
                Backing::File { .. } => alloc::spare(m, held.len()),
            };
            match (at_hand, self.len, gathered, backing) {
                (Some(frames), ..) => return Got::Frames(frames),
                (None, _, Some(_), _) => return Got::Later,
                (None, 0, None, Backing::File { .. }) => return Got::Never,
                (None, 0, None, Backing::Anonymous) => {
                    return alloc::frames(m, held.len()).map_or(Got::Later, Got::Frames);
                }
                (None, _, None, _) => self.land_oldest(),
            }
        }
    }

    /// Begins to read what was gathered.
    fn send(&mut self) {
        let at = (self.first + self.len) % self.flights.len();
        self.flights[at].start(&self.m.platform, &self.m.swap);
        self.len += 1;
    }

    fn land_all(&mut self) {
        while self.len > 0 {
            self.land_oldest();
        }
    }

    fn land_oldest(&mut self) {
        land_flight(self.m, &mut self.flights[self.first]);
        self.first = (self.first + 1) % self.flights.len();
        self.len -= 1;
    }
}

impl Wish {
    /// What is left of it without its first pages.
    fn without(self, pages: u64) -> Option<Wish> {
        let first = self.first.offset(pages);
        (first < self.end).then_some(Wish { first, ..self })
    }
}

/// What came of asking for frames.
enum Got {
    /// These.
    Frames(FrameList),
    /// None now.
    Later,
    /// None, and it is not worth waiting.
    Never,
}

/// Holds the first pages of a wish, if they are on a device that is slow enough.
fn hold<'a, P: Platform>(
    m: &'a Machine<P>,
    wish: &Wish,
) -> Option<(Held<'a, P>, [Slot; RUN_PAGES_MAX])> {
    let space = m.space(wish.space);
    let mut held = Held::lock(space, wish.first, Pinned::Refuse)?;
    let slot = place(m, &held)?;
    if m.swap.latency(slot) == Latency::Synchronous {
        return None;
    }
    let wanted = match wish.marker {
        Some(marker) if marker > wish.first => marker.min(wish.end),
        Some(_) | None => wish.end,
    };
    let wanted = ((wanted.0 - wish.first.0) as usize).min(RUN_PAGES_MAX);
    let mut slots = [slot; RUN_PAGES_MAX];
    if let Backing::File { .. } = space.backing() {
        while held.len() < wanted && held.extend(Pinned::Refuse, |e| e.page() == Page::Absent) {
            let at = held.len() - 1;
            slots[at].index += at as u32;
        }
        file::within_end(&mut held).ok()?;
        return Some((held, slots));
    }
    let most = match m.swap.ahead(slot) {
        Ahead::Virtual => wanted.min(most_at_once(m)),
        Ahead::Off | Ahead::Slot => 1,
    };
    while held.len() < most
        && let Some(next) = extend_swapped(m, &mut held, slot.device)
    {
        slots[held.len() - 1] = next;
    }
    Some((held, slots))
}

/// Where a held page is on a device, if it is only there.
fn place<P: Platform>(m: &Machine<P>, held: &Held<'_, P>) -> Option<Slot> {
    let entry = held.entries()[0];
    match (entry.page(), held.space().backing()) {
        (Page::Swapped(slot), _) if !entry.is_large() && !m.swap.is_cached(slot) => Some(slot),
        (Page::Absent, Backing::File { device }) => {
            Some(Slot { device, index: held.first().0 as u32 })
        }
        (Page::Absent | Page::Resident(_) | Page::Swapped(_), _) => None,
    }
}
