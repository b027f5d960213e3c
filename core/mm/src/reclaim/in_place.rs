//! Evicts files' pages: drops unchanged ones, and writes the others to their places first.
//!
//! ```text
//! sort_file:      unchanged: entry = Absent with a shadow, frame free
//!                 changed:   the run stays held
//! write_in_place: ... device write ...
//!                 write_completion.rs: as unchanged; or resident, clean or dirty
//! ```
//! The entries of the pages being written are held: a fault on one waits, and nobody changes the
//! page. Reclaim waits for nothing else while it holds them.

use super::destinations::Destinations;
use super::fate::Fate;
use crate::frame::Shadow;
use crate::machine::{Machine, Node};
use crate::run::{Run, Unmapped};
use crate::space::Entry;
use crate::stats::Counter;
use crate::write_completion::{Purpose, complete_held};
use highwater_platform::{Io, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameList, Pfn};

/// Transfers to make, and the runs they belong to: at most one for each page of a batch.
pub(super) struct InPlace<'a, P: Platform> {
    runs: [Option<Run<'a, P>>; BATCH_PAGES_MAX],
    ios: [Io; BATCH_PAGES_MAX],
    /// By transfer.
    origins: [Origin; BATCH_PAGES_MAX],
    len: usize,
}

/// Where the pages of a transfer are.
#[derive(Clone, Copy)]
struct Origin {
    device: u8,
    /// Index in `runs`.
    run: usize,
    /// Index of its first page in the run.
    at: usize,
}

impl<P: Platform> InPlace<'_, P> {
    /// Pages to write.
    pub(super) fn pages(&self) -> u32 {
        self.ios[..self.len].iter().map(|io| io.frames.len() as u32).sum()
    }

    /// No transfers.
    pub(super) fn none() -> Self {
        InPlace {
            runs: std::array::from_fn(|_| None),
            ios: [Io::new(0, FrameList::default()); BATCH_PAGES_MAX],
            origins: [Origin { device: 0, run: 0, at: 0 }; BATCH_PAGES_MAX],
            len: 0,
        }
    }
}

/// Sends the pages of a file that need no write to their destinations, and notes the other writes.
#[expect(clippy::too_many_arguments, reason = "the parts of a sorted batch are borrowed apart")]
pub(super) fn sort_file<'a, P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    mut run: Run<'a, P>,
    device: u8,
    fates: &[Fate],
    unmapped: &[Unmapped],
    to: &mut Destinations,
    writes: &mut InPlace<'a, P>,
) {
    let goes = |i: &usize, fate| fates[*i] == fate && unmapped[*i] == Unmapped::Done;
    let dropped = (0..run.frames.len()).filter(|i| goes(i, Fate::Drop)).count();
    let age = node.lru.workingset().age_by(dropped);
    for (index, pfn) in run.frames.iter().enumerate() {
        let was = run.held.entries()[index];
        let (destination, entry) = match (fates[index], unmapped[index]) {
            (Fate::Activate, _) => (&mut to.activated, was),
            (_, Unmapped::Busy) => (&mut to.kept, was),
            (_, Unmapped::Vanished) => {
                run.disown(m, index);
                (&mut to.kept, Entry::ABSENT)
            }
            (Fate::Drop, Unmapped::Done) => {
                m.count(Counter::PgDropClean, 1);
                (&mut to.freed, evicted(m, node, *pfn, was, age))
            }
            (Fate::Probe, Unmapped::Done) => (&mut to.probed, was.unmapped().referenced()),
            (Fate::Write, Unmapped::Done) => {
                run.held.change(index, was.unmapped());
                continue;
            }
        };
        destination.push(*pfn);
        run.held.change(index, entry);
    }
    note_writes(run, device, |i| goes(i, Fate::Write), writes);
}

/// The entry of an evicted page.
fn evicted<P: Platform>(m: &Machine<P>, node: &Node<P>, pfn: Pfn, was: Entry, age: u64) -> Entry {
    if was.is_ahead() {
        m.count(Counter::FileRaWasted, 1);
    }
    if !m.config.notes_refaults() {
        return Entry::ABSENT;
    }
    let history = m.frames.history(pfn);
    Entry::evicted(Shadow::new(node.zone.range().node, age, history))
}

/// Adds a transfer for each stretch of pages to write.
fn note_writes<'a, P: Platform>(
    run: Run<'a, P>,
    device: u8,
    goes: impl Fn(&usize) -> bool,
    writes: &mut InPlace<'a, P>,
) {
    let (len, number) = (run.frames.len(), writes.len);
    let mut at = 0;
    while let Some(first) = (at..len).find(&goes) {
        at = (first..len).find(|i| !goes(i)).unwrap_or(len);
        let frames = run.frames[first..at].iter().copied().collect();
        writes.ios[writes.len] = Io::new(run.held.owner(first).vpn.0 as u32, frames);
        writes.origins[writes.len] = Origin { device, run: number, at: first };
        writes.len += 1;
    }
    // There are at most as many runs as transfers: a run has the number of its first transfer.
    if writes.len > number {
        writes.runs[number] = Some(run);
    }
}

/// Makes the transfers, those to one device together, completes them and unlocks the runs.
pub(super) fn write_in_place<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    writes: &mut InPlace<'_, P>,
    to: &mut Destinations,
) {
    let len = writes.len;
    let mut at = 0;
    while at < len {
        let device = writes.origins[at].device;
        let same = |i: &usize| writes.origins[*i].device == device;
        let end = (at..len).find(|i| !same(i)).unwrap_or(len);
        m.swap.write(&m.platform, &m.stats, device, &mut writes.ios[at..end]);
        (at..end).for_each(|transfer| complete(m, node, transfer, writes, to));
        at = end;
    }
    writes.runs[..len].iter_mut().for_each(|run| drop(run.take()));
}

/// Completes a transfer.
fn complete<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    transfer: usize,
    writes: &mut InPlace<'_, P>,
    to: &mut Destinations,
) {
    let (io, origin) = (&writes.ios[transfer], writes.origins[transfer]);
    let age = node.lru.workingset().age_by(io.frames.len());
    let run = writes.runs[origin.run].as_mut().expect("held until all is written");
    for (index, pfn) in (origin.at..).zip(io.frames.iter()) {
        let entry = |was| evicted(m, node, pfn, was, age);
        let outcome = complete_held(&mut run.held, index, io.result, Purpose::Evict, entry);
        to.push_written(pfn, outcome);
    }
}
