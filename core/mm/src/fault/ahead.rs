//! Reads pages before they are used, so that as many reads are in flight as the device can take,
//! and not only as many as threads wait.
//!
//! ```text
//! stream at full speed, Manager::prefetch --> swap::Wishes --> run: the thread of this file
//!   gather: entries held, frames taken -> started ... over, or no room -> land: mapped, released
//! flights  [ oldest | ... | newest |   |   ]   a ring of batches, each to one device
//! ```
//! A stream that reads full windows asks for the pages after its window, and is seen again at the
//! first of these, which is left unmapped (the kernel's PG_readahead): then the next stretch is
//! asked for, while the pages in between are there or on their way. Who comes to a page on its way
//! waits for its entry, as for any other fault.
//!
//! The thread holds entries while their pages are read. It only tries to lock them; it waits for
//! devices, and for memory only while it holds one run. Pages that cannot be read stay where they
//! are: the fault that wants them says why.

use super::swap_in::{extend_swapped, keep_or_free_slots};
use super::{Fault, adopt, most_at_once, note_refaults};
use crate::alloc;
use crate::config::{Readahead, SwapIn, Switch};
use crate::lru::List;
use crate::machine::Machine;
use crate::space::{Access, Entry, Held, Page, Pinned};
use crate::stats::Counter;
use crate::swap::{Ahead, InFlight, Source, Wish};
use highwater_platform::{Atomic, Io, Latency, Phase, Platform, Protection, Recency, Thread};
use highwater_units::{FrameList, NodeId, Pfn, RUN_PAGES_MAX, Slot, SpaceId, Vpn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Transfers of a batch.
const BATCH: usize = 32;

/// Most batches in flight.
const DEPTH_MAX: usize = 16;

/// Most pages that a stream asks for at a time: 1 MiB, and as much is on its way when it asks
/// again. One stream keeps a disk as busy as 64 transfers do; with half of it, three quarters.
const STRETCH_MAX: u64 = 256;

/// Whether anything is read ahead of use.
fn is_on<P: Platform>(m: &Machine<P>) -> bool {
    let direct = m.config.swap.swap_in == SwapIn::Direct;
    m.config.prefetch == Switch::On && direct && m.swap.any_asynchronous()
}

/// A stream reads full windows, the last one up to `end`: asks for what comes after it.
pub(super) fn go_on<P: Platform>(m: &Machine<P>, space: SpaceId, fault: Fault, end: Vpn) {
    let readahead = matches!(m.config.swap.readahead, Readahead::Virtual | Readahead::Auto);
    let end_of_all = fault.within.end;
    let (first, end) = (end, Vpn((end.0 + stretch(m)).min(end_of_all.0)));
    if readahead && is_on(m) && first < end {
        m.swap.wishes.ask(Wish { space, first, end, marker: Some(first) });
    }
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

/// The thread, as long as it is to run.
pub struct ReadAhead<P: Platform> {
    machine: Arc<Machine<P>>,
    stopped: Arc<P::Atomic<u8>>,
    thread: P::Thread,
}

impl<P: Platform> ReadAhead<P> {
    /// Starts it, if there is anything to gain.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(machine: &Arc<Machine<P>>) -> io::Result<Option<ReadAhead<P>>> {
        if !is_on(machine) {
            return Ok(None);
        }
        let stopped: Arc<P::Atomic<u8>> = Arc::new(Atomic::new(0));
        let (m, flag) = (machine.clone(), stopped.clone());
        let body = Box::new(move || run(&m, &flag));
        let thread = machine.platform.spawn("readahead", NodeId(0), body)?;
        Ok(Some(ReadAhead { machine: machine.clone(), stopped, thread }))
    }

    /// Ends it. What it has not begun to read stays where it is.
    pub fn stop(self) {
        self.stopped.store(1, Release);
        self.machine.swap.wishes.ring();
        self.thread.join();
    }
}

/// The body of the thread.
fn run<P: Platform>(m: &Machine<P>, stopped: &P::Atomic<u8>) {
    let mut reader = Reader::new(m);
    loop {
        let ticket = m.swap.wishes.ticket();
        if stopped.load(Acquire) != 0 {
            return reader.land_all();
        }
        match reader.step() {
            Step::Done => {}
            Step::Idle => m.swap.wishes.wait(ticket),
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
    flights: Box<[Flight<'a, P>]>,
    /// The oldest one.
    first: usize,
    len: usize,
    /// What is left of the wish that is being granted.
    wish: Option<Wish>,
}

/// Runs of pages that one device reads. While it is gathered it is the one after the newest.
struct Flight<'a, P: Platform> {
    runs: [Option<Run<'a, P>>; BATCH],
    run_count: usize,
    ios: [Io; BATCH],
    io_count: usize,
    reading: Option<InFlight<P>>,
}

/// Pages one after the other, their entries held, their frames being filled.
struct Run<'a, P: Platform> {
    held: Held<'a, P>,
    slots: [Slot; RUN_PAGES_MAX],
    frames: FrameList,
    marker: Option<Vpn>,
}

impl<'a, P: Platform> Reader<'a, P> {
    fn new(m: &'a Machine<P>) -> Self {
        let ios = [Io::new(0, FrameList::default()); BATCH];
        let flight = |_| Flight {
            runs: [const { None }; BATCH],
            run_count: 0,
            ios,
            io_count: 0,
            reading: None,
        };
        let depth = (m.frames.len() / 1024).clamp(1, DEPTH_MAX);
        Reader { m, flights: (0..depth).map(flight).collect(), first: 0, len: 0, wish: None }
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
        let oldest = &self.flights[self.first].reading;
        self.len > 0 && oldest.as_ref().is_some_and(|reading| reading.is_over(&self.m.platform))
    }

    /// Takes runs of pages from the wishes until a batch is full; returns how many.
    fn gather(&mut self) -> usize {
        let at = (self.first + self.len) % self.flights.len();
        let pages_max = (self.m.frames.len() / 64).clamp(1, BATCH);
        let mut pages = 0;
        while pages < pages_max && self.flights[at].has_room() {
            let Some(run) = self.next_run(self.flights[at].device()) else { break };
            pages += run.frames.len();
            self.flights[at].add(run);
        }
        self.flights[at].run_count
    }

    /// The next pages that are wanted, and are on the device, with frames for them.
    fn next_run(&mut self, device: Option<u8>) -> Option<Run<'a, P>> {
        let m = self.m;
        loop {
            let wish = self.wish.take().or_else(|| m.swap.wishes.next())?;
            let Some((held, slots)) = hold(m, &wish) else {
                self.wish = wish.without(1);
                continue;
            };
            // Another device's: for the next batch.
            if device.is_some_and(|device| device != slots[0].device) {
                self.wish = Some(wish);
                return None;
            }
            let Some(frames) = self.frames_for(&held, device) else {
                self.wish = Some(wish);
                return None;
            };
            let mut held = held;
            held.truncate(frames.len());
            self.wish = wish.without(frames.len() as u64);
            return Some(Run { held, slots, frames, marker: wish.marker });
        }
    }

    /// Frames for the first held pages. Has patience only when nothing is in flight nor gathered:
    /// who waits for these would wait for that, too.
    fn frames_for(&mut self, held: &Held<'a, P>, gathered: Option<u8>) -> Option<FrameList> {
        loop {
            match (alloc::at_hand(self.m, held.len()), self.len, gathered) {
                (Some(frames), _, _) => return Some(frames),
                (None, _, Some(_)) => return None,
                (None, 0, None) => return alloc::frames(self.m, held.len()).ok(),
                (None, _, None) => self.land_oldest(),
            }
        }
    }

    /// Begins to read what was gathered.
    fn send(&mut self) {
        let at = (self.first + self.len) % self.flights.len();
        let _phase = self.m.enter(Phase::SwapIn);
        let device = self.flights[at].device().expect("not sent empty");
        let flight = &mut self.flights[at];
        let batch = &mut flight.ios[..flight.io_count];
        flight.reading = Some(self.m.swap.start_read(&self.m.platform, device, batch));
        self.len += 1;
    }

    fn land_all(&mut self) {
        while self.len > 0 {
            self.land_oldest();
        }
    }

    fn land_oldest(&mut self) {
        self.flights[self.first].land(self.m);
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

/// Holds the first pages of a wish, if they are on a device that is slow enough.
fn hold<'a, P: Platform>(
    m: &'a Machine<P>,
    wish: &Wish,
) -> Option<(Held<'a, P>, [Slot; RUN_PAGES_MAX])> {
    let space = m.space(wish.space);
    let mut held = Held::lock(space, wish.first, Pinned::Refuse)?;
    let entry = held.entries()[0];
    let slot = match entry.page() {
        Page::Swapped(slot) if !entry.is_large() && !m.swap.is_cached(slot) => slot,
        Page::Absent | Page::Resident(_) | Page::Swapped(_) => return None,
    };
    if m.swap.latency(slot) == Latency::Synchronous {
        return None;
    }
    let mut slots = [slot; RUN_PAGES_MAX];
    let wanted = (wish.end.0 - wish.first.0) as usize;
    let most = match m.swap.ahead(slot) {
        Ahead::Virtual => wanted.min(most_at_once(m)),
        Ahead::Off | Ahead::Slot => 1,
    };
    while held.len() < most.min(RUN_PAGES_MAX)
        && let Some(next) = extend_swapped(m, &mut held, slot.device)
    {
        slots[held.len() - 1] = next;
    }
    Some((held, slots))
}

impl<'a, P: Platform> Flight<'a, P> {
    fn device(&self) -> Option<u8> {
        self.runs[..self.run_count].first().and_then(|run| Some(run.as_ref()?.slots[0].device))
    }

    /// Whether a run fits, wherever its slots are.
    fn has_room(&self) -> bool {
        self.io_count + RUN_PAGES_MAX <= BATCH
    }

    fn add(&mut self, run: Run<'a, P>) {
        let slots = &run.slots[..run.frames.len()];
        let mut at = 0;
        for stretch in slots.chunk_by(|a, b| a.index + 1 == b.index) {
            let frames = run.frames[at..at + stretch.len()].iter().copied().collect();
            self.ios[self.io_count] = Io::new(stretch[0].index, frames);
            (self.io_count, at) = (self.io_count + 1, at + stretch.len());
        }
        self.runs[self.run_count] = Some(run);
        self.run_count += 1;
    }

    /// Waits for the batch and makes its pages present.
    fn land(&mut self, m: &Machine<P>) {
        let _phase = m.enter(Phase::SwapIn);
        let reading = self.reading.take().expect("only what was sent lands");
        let batch = &mut self.ios[..self.io_count];
        m.swap.finish_read(&m.platform, &m.stats, reading, batch);
        let mut results = batch.iter().flat_map(|io| io.frames.iter().map(|_| io.result));
        for run in self.runs[..self.run_count].iter_mut().filter_map(Option::take) {
            let of_run = results.by_ref().take(run.frames.len());
            let good = of_run.fold((0, true), |(good, all), result| match all && result.is_ok() {
                true => (good + 1, true),
                false => (good, false),
            });
            present(m, run, good.0);
        }
        (self.run_count, self.io_count) = (0, 0);
    }
}

/// The first `good` pages of a run are in their frames; the others stay on the device.
fn present<P: Platform>(m: &Machine<P>, run: Run<'_, P>, good: usize) {
    let Run { mut held, slots, mut frames, marker } = run;
    m.free(&frames[good..]);
    if good == 0 {
        return;
    }
    frames.truncate(good);
    held.truncate(good);
    m.count(Counter::SwapRa, good as u64);
    let protection = keep_or_free_slots(m, &slots[..good], &frames, Access::Read);
    adopt(m, &held, &frames);
    m.add_to_lru(&frames, List::ActiveAnon);
    note_refaults(m, &frames);
    match marker {
        Some(marker) if marker == held.first() => leave_unmapped(m, held, &frames, protection),
        Some(_) | None => map(m, held, &frames, protection),
    }
}

/// The entry of a page that was read, not mapped.
fn entry_of(pfn: Pfn, protection: Protection) -> Entry {
    match protection {
        Protection::ReadOnly => Entry::resident(pfn),
        Protection::ReadWrite => Entry::resident(pfn).dirty(),
    }
}

/// A stream is expected at these pages, and is to be seen.
fn leave_unmapped<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    protection: Protection,
) {
    m.swap.streams.expect(held.space().id(), held.first(), RUN_PAGES_MAX, Source::Memory);
    held.release(|index, _| entry_of(frames[index], protection).ahead());
}

/// Nobody is to notice that these pages came only now.
fn map<P: Platform>(m: &Machine<P>, held: Held<'_, P>, frames: &FrameList, protection: Protection) {
    let progress = m.platform.map(held.space().id(), held.first(), frames, protection);
    let marks = m.platform.recency() == Recency::AccessedBit;
    held.release(|index, _| {
        let entry = entry_of(frames[index], protection);
        match (index < progress.done, marks) {
            (true, true) => entry.mapped().ahead(),
            (true, false) => entry.mapped().accessed(),
            (false, _) => entry.ahead(),
        }
    });
}
