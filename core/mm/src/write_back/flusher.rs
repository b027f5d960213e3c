//! The flusher: a thread that writes files' dirty pages before memory is full of them.
//!
//! ```text
//! before a page is changed -> balance: go on | wake the flusher, wait until pages are written
//! after it was             -> page_dirtied: wake the flusher if needed
//! run: sleep | all pages of files whose pages have expired
//!            | pass: some pages of each file, from where the last pass ended
//!   gather: 32 runs held, unmapped -> write, all in flight together -> clean, unlocked
//! ```
//! The flusher only tries to lock entries, and holds them until their write is over: a fault on
//! such a page waits. Pinned and locked pages are left for a later pass. A page that could not be
//! written stays dirty (`write_completion.rs`) until a later pass writes it, or
//! [`super::write_back`], which reports the error. A waiting writer goes on once the dirty pages
//! are within the limit, or if they have not become fewer after a batch, or after 200 ms.

use super::dirty::{EXPIRE, Flush, Limits, Writer};
use crate::kthread::Kthreads;
use crate::lru::Kind;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, Held, Pinned, Range, Space};
use crate::stats::Counter;
use crate::write_completion::{Outcome, Purpose, complete_held, resident_frame};
use highwater_platform::{Atomic, Event, Io, Platform, Stop};
use highwater_units::{FrameList, Nanos, NodeId, Vpn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// Runs in flight together.
const BATCH: usize = 32;

/// Pages of a file that a pass writes before it goes on to the next file.
const PASS_PAGES: usize = 1024;

/// A pass that writes fewer pages is followed by a pause.
const SMALL_PASS: usize = 32;

/// Longest wait of a writer for one more page to be written (the kernel's MAX_PAUSE).
const PAUSE_MAX: Nanos = Nanos(200_000_000);

/// How long the flusher sleeps after a pass that could write nothing.
const RETRY_DELAY: Nanos = Nanos(20_000_000);

/// Dirty pages of all files.
fn dirty_pages<P: Platform>(m: &Machine<P>) -> u64 {
    m.spaces().map(Space::dirty).sum()
}

fn limits<P: Platform>(m: &Machine<P>) -> Limits {
    let room = m
        .nodes
        .iter()
        .map(|node| u64::from(node.zone.free_frames()) + u64::from(node.lru.len_of(Kind::File)));
    Limits::new(room.sum(), m.config.dirty_background_ratio, m.config.dirty_ratio)
}

/// Notes that this thread has dirtied a file's page: wakes the flusher if it sleeps, or if too many
/// pages are dirty.
pub fn page_dirtied<P: Platform>(m: &Machine<P>) {
    let sleeping = m.flusher.sleeping.load(SeqCst) != 0;
    if sleeping || limits(m).writer(dirty_pages(m)) != Writer::GoOn {
        m.flusher.wait.notify_all();
    }
}

/// Waits for the flusher while too many pages are dirty. Called before this thread, which holds no
/// entries, changes a file's page: once the page is mapped, the flusher might unmap it before it is
/// used.
pub fn balance<P: Platform>(m: &Machine<P>) {
    if limits(m).writer(dirty_pages(m)) == Writer::Wait {
        wait(m);
    }
}

/// Waits until fewer pages are dirty, or none was cleaned for a while.
fn wait<P: Platform>(m: &Machine<P>) {
    m.count(Counter::DirtyThrottle, 1);
    loop {
        let (ticket, before) = (m.flusher.progress.ticket(), dirty_pages(m));
        m.flusher.wait.notify_all();
        if limits(m).writer(before) != Writer::Wait {
            return;
        }
        m.flusher.progress.wait(ticket, Some(PAUSE_MAX));
        if dirty_pages(m) >= before {
            return;
        }
    }
}

/// Starts the thread, if there are devices for files. It writes nothing when it ends.
///
/// # Errors
/// The system refuses a thread.
pub fn start<P: Platform>(machine: &Arc<Machine<P>>) -> io::Result<Option<Kthreads<P>>> {
    if !machine.has_files() {
        return Ok(None);
    }
    let mut thread = Kthreads::new(machine, |m| m.flusher.wait.notify_all());
    thread.run("flush", NodeId(0), run)?;
    Ok(Some(thread))
}

/// The flusher's position in a file.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The next page to scan.
    at: u64,
    /// Since when the file is known to have dirty pages.
    since: Option<Nanos>,
}

/// The body of the thread.
fn run<P: Platform>(m: &Machine<P>, stopped: &P::Atomic<u8>) {
    let _phase = m.enter(phase::RANGE);
    let mut rounds: Vec<Round> = Vec::new();
    let mut small_passes = 0;
    loop {
        let ticket = m.flusher.wait.ticket();
        if stopped.load(Acquire) != 0 {
            return;
        }
        let now = m.platform.now();
        rounds.resize(m.spaces().count(), Round::default());
        let oldest = m.spaces().zip(&mut rounds).map(|(space, round)| age(space, round, now));
        let oldest = oldest.max().unwrap_or(Nanos(0));
        if oldest >= EXPIRE {
            flush_expired(m, &mut rounds, now);
            continue;
        }
        match limits(m).flusher(dirty_pages(m), oldest) {
            Flush::Sleep => {
                m.flusher.sleeping.store(1, SeqCst);
                if dirty_pages(m) == 0 {
                    m.flusher.wait.wait(ticket, None);
                }
                m.flusher.sleeping.store(0, SeqCst);
            }
            Flush::SleepFor(time) => m.flusher.wait.wait(ticket, Some(time)),
            Flush::WriteSome => {
                let pass = |(space, round)| flush_some(m, space, round, PASS_PAGES);
                let written: usize = m.spaces().zip(&mut rounds).map(pass).sum();
                small_passes = if written < SMALL_PASS { small_passes + 1 } else { 0 };
                match written {
                    0 => m.flusher.wait.wait(ticket, Some(RETRY_DELAY)),
                    // These few pages may be about to be used again: a thread that faults on one
                    // must reach it before it is unmapped for the next write.
                    1..SMALL_PASS => m.platform.relax(small_passes),
                    _ => {}
                }
            }
        }
    }
}

/// For how long a file is known to have dirty pages.
fn age<P: Platform>(space: &Space<P>, round: &mut Round, now: Nanos) -> Nanos {
    match space.dirty() {
        0 => round.since = None,
        _ => round.since = round.since.or(Some(now)),
    }
    round.since.map_or(Nanos(0), |since| now.since(since))
}

/// Writes the dirty pages of files whose oldest has expired, each file once from beginning to end.
fn flush_expired<P: Platform>(m: &Machine<P>, rounds: &mut [Round], now: Nanos) {
    for (space, round) in m.spaces().zip(rounds) {
        if age(space, round, now) >= EXPIRE {
            *round = Round { at: 0, since: Some(m.platform.now()) };
            while flush_some(m, space, round, PASS_PAGES) > 0 && round.at > 0 {}
        }
    }
}

/// Writes about `most` dirty pages of a file, from its position up to its end; returns how many.
/// After the end it starts over.
fn flush_some<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    round: &mut Round,
    most: usize,
) -> usize {
    let Backing::File { device } = space.backing() else { return 0 };
    let mut written = 0;
    while written < most && space.dirty() > 0 {
        let (next, batch) = gather(m, space, Vpn(round.at));
        written += write_batch(m, device, batch);
        m.flusher.progress.notify_all();
        match next {
            Some(next) => round.at = next.0,
            None => {
                round.at = 0;
                break;
            }
        }
    }
    written
}

/// Runs to write, held and unmapped.
struct Batch<'a, P: Platform> {
    runs: [Option<Held<'a, P>>; BATCH],
    len: usize,
}

/// Holds dirty pages from `from` on, as many runs as fit. Returns where to go on; `None` at the end
/// of the file.
fn gather<'a, P: Platform>(
    m: &Machine<P>,
    space: &'a Space<P>,
    from: Vpn,
) -> (Option<Vpn>, Batch<'a, P>) {
    let mut batch = Batch { runs: [const { None }; BATCH], len: 0 };
    let end = Range::whole(space).end;
    let mut at = from;
    while let Some(vpn) = space.next_made(at, end) {
        if batch.len == BATCH {
            return (Some(vpn), batch);
        }
        at = vpn.offset(1);
        if let Some(held) = take_run(m, space, vpn) {
            at = vpn.offset(held.len() as u64);
            batch.runs[batch.len] = Some(held);
            batch.len += 1;
        }
    }
    (None, batch)
}

/// Holds and unmaps a run of dirty pages from `vpn` on, unless the first is locked or pinned.
fn take_run<'a, P: Platform>(m: &Machine<P>, space: &'a Space<P>, vpn: Vpn) -> Option<Held<'a, P>> {
    if !space.entry(vpn).is_dirty() {
        return None;
    }
    let mut held = Held::lock(space, vpn, Pinned::Refuse)?;
    let first = held.entries()[0];
    if !first.is_dirty() {
        return None;
    }
    let alike = |entry: Entry| entry.is_dirty() && entry.is_mapped() == first.is_mapped();
    while held.extend(Pinned::Refuse, alike) {}
    if first.is_mapped() {
        let frames: FrameList = resident_frames(&held);
        let progress = m.platform.unmap(space.id(), vpn, &frames);
        if progress.stop == Some(Stop::Vanished) {
            m.abandon(frames[progress.done]);
            held.change(progress.done, Entry::ABSENT);
        }
        (0..progress.done).for_each(|index| held.change(index, held.entries()[index].revoked()));
        held.truncate(progress.done);
    }
    (!held.is_empty()).then_some(held)
}

fn resident_frames<P: Platform>(held: &Held<'_, P>) -> FrameList {
    held.entries().iter().map(|entry| resident_frame(*entry)).collect()
}

/// Writes the runs, all in flight together; returns how many pages were written.
fn write_batch<P: Platform>(m: &Machine<P>, device: u8, batch: Batch<'_, P>) -> usize {
    let mut ios = [Io::new(0, FrameList::default()); BATCH];
    for (io, held) in ios.iter_mut().zip(batch.runs.iter().flatten()) {
        *io = Io::new(held.first().0 as u32, resident_frames(held));
    }
    if batch.len > 0 {
        m.swap.write(&m.platform, &m.stats, device, &mut ios[..batch.len]);
    }
    let mut written = 0;
    for (io, mut held) in ios.iter().zip(batch.runs.into_iter().flatten()) {
        for index in 0..held.len() {
            let completed =
                complete_held(&mut held, index, io.result, Purpose::WriteBack, |was| was);
            written += usize::from(completed == Outcome::Clean);
        }
    }
    m.count(Counter::Flushed, written as u64);
    written
}
