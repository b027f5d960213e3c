//! khugepaged: a thread that makes large pages of hot single ones.
//!
//! ```text
//! spaces, round and round, a block of 512 pages at a time
//!   -> scan       absent, swapped, in use: worth it?              judge: pure
//!   -> collapse   a block of frames, copies, one large page
//! pages_to_scan pages (4096), then scan_sleep (10 s)
//! ```
//! What was touched page by page, or was split and is hot again, is aged, written and read as one
//! from then on, and reached by one translation where the platform can. It takes memory from
//! nobody: without a block above the low mark, or one that compaction makes, the pass is over.
//! Where large pages are off, there is no such thread.
//! Locking: none of its own; see [`collapse`].

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

/// Memory of fewer blocks has none to spare.
const BLOCKS_MIN: usize = 4;

/// Starts the thread, where the settings have it and there is memory for some blocks.
///
/// # Errors
/// The system gives no thread.
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

/// Whether pages of a space can be.
fn is_eligible<P: Platform>(space: &Space<P>) -> bool {
    space.backing() == Backing::Anonymous && space.order() == Order(0)
}

/// What became of blocks that somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// So many are large now, of those that lie in the range whole.
    pub large: usize,
    /// Why the last one that is not is not, if there is one.
    pub failed: Option<CollapseError>,
}

/// Makes large pages of all blocks of a range that have contents, hot or not (MADV_COLLAPSE).
pub fn collapse_range<P: Platform>(m: &Machine<P>, space: &Space<P>, range: Range) -> Asked {
    let mut asked = Asked { large: 0, failed: None };
    if !has_large_pages(m) || !is_eligible(space) {
        return Asked { failed: Some(CollapseError::Unsupported), ..asked };
    }
    let pages = LARGE_PAGES as u64;
    let mut at = block_of(range.first.offset(pages - 1));
    let is_whole = |first: &Vpn| first.0 + pages <= range.end.0;
    while is_whole(&at) {
        // Where no entry was ever made there are no contents.
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

/// Makes a large page of a block, if it is none.
fn collapse_asked<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    first: Vpn,
) -> Result<(), CollapseError> {
    match look(space, first, &Limits::ASKED, m.platform.recency()) {
        Verdict::Large => {}
        Verdict::Collapse | Verdict::Busy => match collapse(m, space, first, &Limits::ASKED) {
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

/// Where it goes on.
struct Scan {
    space: usize,
    at: Vpn,
}

impl Scan {
    /// Looks at as many pages as are due, and collapses what is worth it.
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

/// Looks at a block, and collapses it if that is worth it.
fn visit<P: Platform>(m: &Machine<P>, space: &Space<P>, first: Vpn, limits: &Limits) -> Collapsed {
    match look(space, first, limits, m.platform.recency()) {
        Verdict::Collapse => {
            let outcome = collapse(m, space, first, limits);
            if outcome == Collapsed::Done {
                coalesce(m, space, first);
            }
            return outcome;
        }
        // It came whole, and is in use: nothing of it was cold.
        Verdict::Large => coalesce(m, space, first),
        Verdict::ExceedNone => m.count(Counter::ThpScanExceedNone, 1),
        Verdict::ExceedSwap => m.count(Counter::ThpScanExceedSwap, 1),
        Verdict::Busy | Verdict::Cold => {}
    }
    Collapsed::Changed
}

/// Has a large page reached by one translation, if it still is one. No entry is held: the platform
/// changes nothing of what is mapped, and the kernel takes its time.
fn coalesce<P: Platform>(m: &Machine<P>, space: &Space<P>, first: Vpn) {
    if let Page::Resident(head) = space.entry(first).page() {
        m.platform.coalesce(space.id(), first, head);
    }
}
