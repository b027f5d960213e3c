//! khugepaged: a thread that collapses blocks of hot small pages into large pages.
//!
//! ```text
//! all spaces in turn, a block of 512 pages at a time
//!   -> scan       counts absent, swapped and used pages; judge: pure
//!   -> collapse   a block of frames, copies, one large page
//! pages_to_scan pages (4096), then scan_sleep (10 s)
//! ```
//! A collapsed block is aged, written and read as one page, and mapped by one translation where the
//! platform can. khugepaged does not reclaim: the pass ends when there is no free block above the
//! low watermark and compaction makes none. With large pages off there is no thread.
//! Locking: see [`collapse`].

mod collapse;
mod scan;

use crate::error::CollapseError;
use crate::kthread::Kthreads;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Page, Range, Space, block_of};
use crate::stats::Counter;
use collapse::{Collapsed, collapse};
use highwater_platform::{Atomic, Event, Platform};
use highwater_units::{LARGE_PAGES, NodeId, Order, Vpn};
use scan::{Limits, Verdict, look};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Blocks of memory below which no page is large.
const BLOCKS_MIN: usize = 4;

/// Starts the thread, if it is configured and memory has enough blocks.
///
/// # Errors
/// The system refuses a thread.
pub fn start<P: Platform>(machine: &Arc<Machine<P>>) -> io::Result<Option<Kthreads<P>>> {
    if machine.config.khugepaged.pages_to_scan == 0 || !has_large_pages(machine) {
        return Ok(None);
    }
    let mut thread = Kthreads::new(machine, |m| m.khugepaged_wait.notify_all());
    thread.run("khugepaged", NodeId(0), run)?;
    Ok(Some(thread))
}

/// Whether pages can be large at all.
fn has_large_pages<P: Platform>(m: &Machine<P>) -> bool {
    m.config.large_pages && m.frames.len() >= BLOCKS_MIN * LARGE_PAGES
}

/// Whether pages of a space can be large.
fn is_eligible<P: Platform>(space: &Space<P>) -> bool {
    space.backing() == Backing::Anonymous && space.order() == Order(0)
}

/// The result of [`collapse_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Large pages now, of the whole blocks in the range.
    pub large: usize,
    /// The reason for the last block that is not large.
    pub failed: Option<CollapseError>,
}

/// Collapses all blocks of a range that have contents, hot or not (MADV_COLLAPSE).
pub fn collapse_range<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) -> Asked {
    let mut asked = Asked { large: 0, failed: None };
    if !has_large_pages(m) || !is_eligible(space) {
        return Asked { failed: Some(CollapseError::Unsupported), ..asked };
    }
    let pages = LARGE_PAGES as u64;
    let mut at = block_of(range.first.offset(pages - 1));
    let is_whole = |first: &Vpn| first.0 + pages <= range.end.0;
    while is_whole(&at) {
        // Blocks without page-table entries have no contents.
        let first = space.next_made(at, range.end).map(block_of).filter(is_whole);
        if first != Some(at) {
            asked.failed = Some(CollapseError::Nothing);
        }
        let Some(first) = first else { break };
        at = first.offset(pages);
        match collapse_asked(m, space, first) {
            Ok(()) => asked.large += 1,
            Err(error) => asked.failed = Some(error),
        }
    }
    asked
}

/// Collapses a block, unless it is large.
fn collapse_asked<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    first: Vpn,
) -> Result<(), CollapseError> {
    match look(space, first, &Limits::REQUESTED, m.platform.recency()) {
        Verdict::Large => {}
        Verdict::Collapse | Verdict::Busy => match collapse(m, space, first, &Limits::REQUESTED) {
            Collapsed::Done => {}
            Collapsed::NoBlock => return Err(CollapseError::NoMemory),
            Collapsed::Changed => return Err(CollapseError::Busy),
        },
        Verdict::ExceedNone | Verdict::ExceedSwap | Verdict::Cold => {
            return Err(CollapseError::Nothing);
        }
    }
    coalesce(m, space, first);
    Ok(())
}

/// The body of the thread.
fn run<P: Platform>(m: &Machine<P>, stopped: &P::Atomic<u8>) {
    let _phase = m.enter(phase::COMPACT);
    let mut scan = Scan { space: 0, at: Vpn(0) };
    loop {
        let ticket = m.khugepaged_wait.ticket();
        if stopped.load(Acquire) != 0 {
            return;
        }
        scan.pass(m, stopped);
        m.khugepaged_wait.wait(ticket, Some(m.config.khugepaged.scan_sleep));
    }
}

/// The position of the scan.
struct Scan {
    space: usize,
    at: Vpn,
}

impl Scan {
    /// Scans `pages_to_scan` pages, and collapses suitable blocks.
    fn pass<P: Platform>(&mut self, m: &Machine<P>, stopped: &P::Atomic<u8>) {
        let limits = Limits::of(&m.config.khugepaged, m.platform.recency());
        let mut left = m.config.khugepaged.pages_to_scan.div_ceil(LARGE_PAGES as u32);
        while left > 0 && stopped.load(Acquire) == 0 {
            let Some((space, first)) = self.next(m) else {
                *self = Scan { space: 0, at: Vpn(0) };
                m.count(Counter::KhugepagedFullScans, 1);
                return;
            };
            left -= 1;
            if visit(m, space, first, &limits) == Collapsed::NoBlock {
                return;
            }
        }
    }

    /// The next block that may have contents; `None` after the last.
    fn next<'a, P: Platform>(&mut self, m: &'a Machine<P>) -> Option<(&'a Space<P>, Vpn)> {
        loop {
            let space = m.spaces().nth(self.space)?;
            let end = Vpn(space.pages() / LARGE_PAGES as u64 * LARGE_PAGES as u64);
            match space.next_made(self.at, end).filter(|_| is_eligible(space)) {
                Some(first) => {
                    self.at = first.offset(LARGE_PAGES as u64);
                    return Some((space, first));
                }
                None => *self = Scan { space: self.space + 1, at: Vpn(0) },
            }
        }
    }
}

/// Scans a block, and collapses it if it is suitable.
fn visit<P: Platform>(m: &Machine<P>, space: &Space<P>, first: Vpn, limits: &Limits) -> Collapsed {
    match look(space, first, limits, m.platform.recency()) {
        Verdict::Collapse => {
            let outcome = collapse(m, space, first, limits);
            if outcome == Collapsed::Done {
                coalesce(m, space, first);
            }
            return outcome;
        }
        // Large since its first touch or its swap-in, and in use.
        Verdict::Large => coalesce(m, space, first),
        Verdict::ExceedNone => m.count(Counter::ThpScanExceedNone, 1),
        Verdict::ExceedSwap => m.count(Counter::ThpScanExceedSwap, 1),
        Verdict::Busy | Verdict::Cold => {}
    }
    Collapsed::Changed
}

/// Lets the platform map a large page by one translation. No entry is held: this is slow, and
/// changes nothing that is visible.
fn coalesce<P: Platform>(m: &Machine<P>, space: &Space<P>, first: Vpn) {
    if let Page::Resident(head) = space.entry(first).page() {
        m.platform.coalesce(space.id(), first, head);
    }
}
