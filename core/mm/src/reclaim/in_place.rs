//! Files' pages at the end of the inactive list: dropped, or written to their places first.
//!
//! ```text
//! sort_file: decide each ---> unchanged: entry = Absent with a shadow, frame free
//!                         \-> Write: the run stays held
//! write_in_place:             ... device write ...
//!                             the same; or resident and clean, if it is awaited
//!                             failed: resident and dirty, as it was
//! ```
//! The entries of what is written are held meanwhile: a fault on them waits, and nobody changes the
//! page. Reclaim waits for nothing else while it holds them.

use super::evict::Sorted;
use super::scan::Fate;
use crate::frame::Shadow;
use crate::machine::{Machine, Node};
use crate::run::{Run, Unmapped};
use crate::space::Entry;
use crate::stats::Counter;
use highwater_platform::{Io, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameList, Pfn};

/// Transfers to make, and the runs that they are of; never more than pages in a batch.
pub(super) struct InPlace<'a, P: Platform> {
    runs: [Option<Run<'a, P>>; BATCH_PAGES_MAX],
    ios: [Io; BATCH_PAGES_MAX],
    /// Of each transfer.
    origins: [Origin; BATCH_PAGES_MAX],
    len: usize,
}

/// What a transfer writes.
#[derive(Clone, Copy)]
struct Origin {
    device: u8,
    /// Among `runs`.
    run: usize,
    /// Its first page in the run.
    at: usize,
}

impl<P: Platform> InPlace<'_, P> {
    /// How many pages they write.
    pub(super) fn pages(&self) -> u32 {
        self.ios[..self.len].iter().map(|io| io.frames.len() as u32).sum()
    }

    /// None.
    pub(super) fn new() -> Self {
        InPlace {
            runs: std::array::from_fn(|_| None),
            ios: [Io::new(0, FrameList::default()); BATCH_PAGES_MAX],
            origins: [Origin { device: 0, run: 0, at: 0 }; BATCH_PAGES_MAX],
            len: 0,
        }
    }
}

/// Does what can be done at once with the pages of a file, and notes what is to be written.
pub(super) fn sort_file<'a, P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    mut run: Run<'a, P>,
    device: u8,
    fates: &[Fate],
    unmapped: &[Unmapped],
    sorted: &mut Sorted<'a, P>,
) {
    let goes = |i: &usize, fate| fates[*i] == fate && unmapped[*i] == Unmapped::Yes;
    let dropped = (0..run.frames.len()).filter(|i| goes(i, Fate::Drop)).count();
    let age = node.lru.workingset().age_by(dropped);
    for (index, pfn) in run.frames.iter().enumerate() {
        let was = run.held.entries()[index];
        let (list, entry) = match (fates[index], unmapped[index]) {
            (Fate::Activate, _) => (&mut sorted.piles.activated, was),
            (_, Unmapped::Busy) => (&mut sorted.piles.kept, was),
            (_, Unmapped::Vanished) => {
                run.disown(m, index);
                (&mut sorted.piles.kept, Entry::ABSENT)
            }
            (Fate::Drop, Unmapped::Yes) => {
                m.count(Counter::PgDropClean, 1);
                (&mut sorted.piles.freed, gone(m, node, *pfn, was, age))
            }
            (Fate::Ask, Unmapped::Yes) => (&mut sorted.piles.asked, was.unmapped().referenced()),
            (Fate::Write, Unmapped::Yes) => {
                run.held.change(index, was.unmapped());
                continue;
            }
        };
        list.push(*pfn);
        run.held.change(index, entry);
    }
    note_writes(run, device, |i| goes(i, Fate::Write), &mut sorted.in_place);
}

/// The entry of an evicted page.
fn gone<P: Platform>(m: &Machine<P>, node: &Node<P>, pfn: Pfn, was: Entry, age: u64) -> Entry {
    if was.is_ahead() {
        m.count(Counter::FileRaWasted, 1);
    }
    if !m.config.shadows {
        return Entry::ABSENT;
    }
    let history = m.frames.history(pfn);
    Entry::evicted(Shadow::new(node.zone.range().node, age, history))
}

/// Notes a transfer for every stretch of pages that go.
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
    // As many runs as transfers at most: a run's number is that of its first one.
    if writes.len > number {
        writes.runs[number] = Some(run);
    }
}

/// Makes the transfers, all to one device at a time; the runs are let go.
pub(super) fn write_in_place<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    sorted: &mut Sorted<'_, P>,
) {
    let len = sorted.in_place.len;
    let mut at = 0;
    while at < len {
        let device = sorted.in_place.origins[at].device;
        let same = |i: &usize| sorted.in_place.origins[*i].device == device;
        let end = (at..len).find(|i| !same(i)).unwrap_or(len);
        m.swap.write(&m.platform, &m.stats, device, &mut sorted.in_place.ios[at..end]);
        (at..end).for_each(|transfer| settle(m, node, transfer, sorted));
        at = end;
    }
    sorted.in_place.runs[..len].iter_mut().for_each(|run| drop(run.take()));
}

/// After a transfer: its pages are at their places, or still dirty.
fn settle<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    transfer: usize,
    sorted: &mut Sorted<'_, P>,
) {
    let (io, origin) = (&sorted.in_place.ios[transfer], sorted.in_place.origins[transfer]);
    let age = node.lru.workingset().age_by(io.frames.len());
    let run = sorted.in_place.runs[origin.run].as_mut().expect("held until all is written");
    for (index, pfn) in (origin.at..).zip(io.frames.iter()) {
        match (io.result, run.held.is_awaited(index)) {
            (Err(_), _) => sorted.piles.kept.push(pfn),
            (Ok(()), true) => {
                run.held.change(index, Entry::resident(pfn));
                sorted.piles.activated.push(pfn);
            }
            (Ok(()), false) => {
                let was = run.held.entries()[index];
                run.held.change(index, gone(m, node, pfn, was, age));
                sorted.piles.freed.push(pfn);
            }
        }
    }
}
