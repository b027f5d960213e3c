//! A snapshot of a space for a forked child: every page in a slot that the child can read, or in
//! memory that the kernel's fork shares with it (`snapshot/shared.rs`).
//!
//! ```text
//! share   stretches of pages in memory are frozen until the fork is over; the rest as in take
//! take    every page in a slot: dirty pages are written, and stay in memory, clean
//! ```
//! The child shares the parent's swap devices, not its frames. Every slot of the snapshot gets one
//! more reference, which the parent drops when the child and its descendants have ended. Until then
//! the slot is not reused, and the child reads it from the inherited device.
//!
//! The snapshot is taken page by page, as the kernel's fork copies page tables: if another thread
//! stores to two pages meanwhile, the child may see only one of the stores.

mod contents;
mod save;
mod shared;

pub use contents::Snapshot;
pub use shared::{Frozen, Unadopted, adopt, thaw, unshare};

use crate::error::FaultError;
use crate::machine::Machine;
use crate::phase;
use crate::range::{Large, drop_pages, each_present};
use crate::space::{Backing, Entry, Range, Space};
use crate::stats::Counter;
use highwater_platform::Platform;
use highwater_units::{Order, Slot, Vpn};
use save::save;
use shared::Refusal;

/// Takes a snapshot of a space.
///
/// # Errors
/// Swap is full or cannot be written. No slot stays referenced, and the space keeps its contents.
pub fn take<P: Platform>(m: &Machine<P>, space: &Space<P>) -> Result<Snapshot, FaultError> {
    take_ranges(m, space, [Range::whole(space)])
}

/// Attempts to freeze stretches; if all fail, all pages are written to slots.
const FREEZES: usize = 3;

/// Takes a snapshot for a fork that shares those pages of `parts` (in ascending order) that are in
/// memory. The kernel's fork copies the stretches of the result, which stay frozen until [`thaw`].
///
/// # Errors
/// As of [`take`].
pub fn share<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    parts: &[Range],
) -> Result<(Snapshot, Frozen), FaultError> {
    let _phase = m.enter(phase::RANGE);
    for _ in 0..FREEZES {
        let stretches = shared::plan(space, parts);
        let mut snapshot = take_ranges(m, space, between(space, &stretches))?;
        match shared::freeze(m, space, &stretches, &mut snapshot) {
            Ok(frozen) => return Ok((snapshot, frozen)),
            Err(refusal) => {
                release(m, &snapshot);
                if let Refusal::Failed(error) = refusal {
                    return Err(error);
                }
            }
        }
    }
    Ok((take(m, space)?, Frozen::default()))
}

/// The ranges of a space between stretches.
fn between<P: Platform>(space: &Space<P>, stretches: &[Range]) -> impl Iterator<Item = Range> {
    let end = Range::whole(space).end;
    let firsts = stretches.iter().map(|stretch| stretch.first).chain([end]);
    let ends = std::iter::once(Vpn(0)).chain(stretches.iter().map(|stretch| stretch.end));
    ends.zip(firsts).map(|(first, end)| Range { first, end })
}

fn take_ranges<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    ranges: impl IntoIterator<Item = Range>,
) -> Result<Snapshot, FaultError> {
    let _phase = m.enter(phase::RANGE);
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages have no slots");
    assert_eq!(space.order(), Order(0), "pages of several frames have no snapshot");
    let mut snapshot = Snapshot::default();
    let mut failed = None;
    for range in ranges {
        each_present(space, range, Large::Split(m), |held| {
            if failed.is_none() {
                failed = save(m, held, &mut snapshot).err();
            }
        });
    }
    match failed {
        None => Ok(snapshot),
        Some(error) => {
            release(m, &snapshot);
            Err(error)
        }
    }
}

/// Drops a snapshot's references: its readers have ended.
pub fn release<P: Platform>(m: &Machine<P>, snapshot: &Snapshot) {
    let _phase = m.enter(phase::RANGE);
    for run in snapshot.runs() {
        let slots = (0..run.pages).map(|i| Slot { index: run.slot.index + i, ..run.slot });
        slots.for_each(|slot| m.release_slot(slot));
    }
}

/// Fills an empty space with a snapshot, in the child. The caller passes the result to [`adopt`].
pub fn restore<P: Platform>(m: &Machine<P>, space: &Space<P>, snapshot: &Snapshot) -> Unadopted {
    let _phase = m.enter(phase::RANGE);
    for run in snapshot.runs() {
        m.count(Counter::PgInherited, u64::from(run.pages));
        for index in 0..run.pages {
            let slot = Slot { index: run.slot.index + index, ..run.slot };
            let held = Large::Split(m).hold(space, run.vpn.offset(u64::from(index)));
            // khugepaged may have filled this absent page.
            drop_pages(m, &held);
            held.release(|_, _| Entry::swapped(slot));
        }
    }
    for vpn in snapshot.poisoned() {
        let held = Large::Split(m).hold(space, *vpn);
        drop_pages(m, &held);
        held.release(|_, _| Entry::POISONED);
    }
    shared::reserve(space, snapshot.resident())
}
