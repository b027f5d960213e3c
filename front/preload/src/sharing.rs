//! Which pages a forked child gets from the kernel, shared until one of the two processes writes
//! to them, and which from swap slots.
//!
//! ```text
//! Way::Share   stretches of pages in memory are frozen, and the kernel's fork copies their page
//!              tables; other pages go to slots
//! Way::Slots   all pages go to slots
//! ```
//! No page of a stretch is swapped out, so a page that is missing there reads as zeros, in the
//! child as in the parent, whether or not the child has registered it yet. The rest of the range is
//! not inherited, and inaccessible in the child until it is registered.
//!
//! A shared page that is written to parts: the kernel copies it, which takes memory. While there is
//! enough memory, these pages are counted after they were copied. Otherwise shared pages are
//! guarded: write-protected in both processes, so that each page is counted before it is copied,
//! and the thread that writes to it frees memory for the copy.

use crate::pins;
use crate::process::{Process, SPACE};
use crate::signals::Blocked;
use highwater_mm::{FaultError, Frozen, Range, Snapshot};
use highwater_session::LargePages;
use highwater_uffd::Offer;
use highwater_units::Vpn;
use std::io;
use std::sync::atomic::Ordering::Release;

/// How a fork passes pages on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Pages in memory are shared.
    Share,
    /// All pages go to slots.
    Slots,
}

/// Decides how. UFFDIO_MOVE refuses shared pages, and the refusal does not tell them from pinned
/// pages. A page of a served file lies within a stretch, but is not one of its pages. The pages of
/// a large page come and go together.
fn way(process: &Process) -> Way {
    let large = process.settings.large_pages == LargePages::On;
    match large || process.files.are_served() || pins::are_expected() {
        true => Way::Slots,
        false => Way::Share,
    }
}

/// In the helper, with changes of regions stopped: prepares the pages that a child gets. Stretches
/// are shared until [`end`]. `parts`: the pages of the range that are the manager's.
pub(crate) fn begin(
    process: &Process,
    parts: &[(Vpn, Vpn)],
) -> Result<(Snapshot, Frozen), FaultError> {
    let manager = &process.manager;
    if way(process) == Way::Slots {
        return Ok((manager.snapshot(SPACE)?, Frozen::default()));
    }
    let range = |(first, end): &(Vpn, Vpn)| Range { first: *first, end: *end };
    let parts: Vec<Range> = parts.iter().map(range).collect();
    let (snapshot, frozen) = manager.share(SPACE, &parts)?;
    process.shares.store(true, Release);
    let unpaged = &process.reporter.unpaged;
    unpaged.note_fork(snapshot.resident().iter().map(|range| range.end.0 - range.first.0).sum());
    if unpaged.needs_guard() {
        // The pages are guarded after the fork: until then the forking thread writes to some.
        unpaged.begin_guard(SPACE, &[]);
    }
    if offer(process, &frozen, Offer::Made).is_ok() {
        return Ok((snapshot, frozen));
    }
    // There are too many mappings.
    end(process, frozen);
    manager.release_snapshot(&snapshot);
    Ok((manager.snapshot(SPACE)?, Frozen::default()))
}

/// In the parent, after the fork.
pub(crate) fn end(process: &Process, frozen: Frozen) {
    // A refusal leaves pages to be inherited by a child that is made past the C library.
    let _ = offer(process, &frozen, Offer::Withdrawn);
    process.manager.thaw(SPACE, frozen);
}

/// Guards all pages, once enough of them could part uncounted to exceed the limit.
pub(crate) fn guard_if_tight(process: &Process) {
    let unpaged = &process.reporter.unpaged;
    if unpaged.needs_guard() {
        let parts = process.regions(&Blocked::now()).own_parts(Vpn(process.pages));
        unpaged.begin_guard(SPACE, &parts);
        unpaged.look();
    }
}

/// In the parent, after [`end`]: guards the pages, if [`begin`] has begun that.
pub(crate) fn guard(process: &Process, shared: &[(Vpn, Vpn)]) {
    if process.manager.platform().is_guarded() {
        process.in_helper(|| process.reporter.unpaged.begin_guard(SPACE, shared));
    }
}

fn offer(process: &Process, frozen: &Frozen, offer: Offer) -> io::Result<()> {
    let platform = process.manager.platform();
    let mut stretches = frozen.stretches().iter();
    stretches.try_for_each(|stretch| platform.offer(SPACE, stretch.first, stretch.end, offer))
}

/// The stretches as pairs of pages.
pub(crate) fn inherited(frozen: &Frozen) -> Vec<(Vpn, Vpn)> {
    frozen.stretches().iter().map(|stretch| (stretch.first, stretch.end)).collect()
}

/// The parts of a range that are not inherited. Both lists ascend, and each stretch lies in a part.
pub(crate) fn without(parts: &[(Vpn, Vpn)], stretches: &[(Vpn, Vpn)]) -> Vec<(Vpn, Vpn)> {
    let mut rest = Vec::new();
    let mut stretches = stretches.iter().peekable();
    for (first, end) in parts {
        let mut from = *first;
        while let Some((start, after)) = stretches.next_if(|(_, after)| after <= end) {
            rest.push((from, *start));
            from = *after;
        }
        rest.push((from, *end));
    }
    rest.retain(|(first, end)| first < end);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_inherited_lies_around_the_stretches() {
        let pages = |list: &[(u64, u64)]| -> Vec<(Vpn, Vpn)> {
            list.iter().map(|(first, end)| (Vpn(*first), Vpn(*end))).collect()
        };
        for (parts, stretches, expected) in [
            (&[(0, 9)][..], &[][..], &[(0, 9)][..]),
            (&[(0, 9)], &[(0, 9)], &[]),
            (&[(0, 9)], &[(0, 2), (3, 9)], &[(2, 3)]),
            (&[(0, 9), (10, 20)], &[(4, 5), (12, 20)], &[(0, 4), (5, 9), (10, 12)]),
            (&[(0, 9), (10, 20), (30, 40)], &[(31, 33)], &[(0, 9), (10, 20), (30, 31), (33, 40)]),
        ] {
            assert_eq!(without(&pages(parts), &pages(stretches)), pages(expected));
        }
    }
}
