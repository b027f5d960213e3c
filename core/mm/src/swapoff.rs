//! Moves all pages off a swap device, so that it can be removed (try_to_unuse).
//!
//! ```text
//! begin: is there room elsewhere?      no: refused      yes: the device accepts no more pages
//! step:  some pages -> unuse, ...      decide: an Outcome, from what the step found
//!   Moving    go on: pages are left
//!   Held      go on later: only snapshots of forks have slots
//!   Removed   no slot is in use
//!   NoRoom, Failed   undone: the device accepts pages again, and keeps those that it has
//! ```
//! A walk covers all spaces. A thread that took slots before it saw that the device is leaving may
//! still write a page behind the walk to one of these slots, so walks are repeated until no slot is
//! in use. An allocation that would otherwise fail takes the device back, which ends the removal:
//! the program has priority.
//!
//! A slot that a snapshot refers to stays until the snapshot is released: the child reads it there.
//!
//! Locking: a step holds entries of up to 16 pages at a time.

use crate::error::FaultError;
use crate::fault::unuse;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Backing, Entry, Page, Range, Space};
use crate::swap::Use;
use highwater_platform::Platform;
use highwater_units::Vpn;

/// Pages that a step moves: 1 MiB, some milliseconds of a disk.
const STEP_PAGES: u64 = 256;

/// Entries that a step scans: a scan of the entries of 1 GiB takes some milliseconds.
const STEP_ENTRIES: u64 = 1 << 18;

/// Room that is left for the program while pages are moved: a share of memory, at most 4 MiB.
const RESERVE_SHARE: u64 = 16;
const RESERVE_MAX: u64 = 1024;

fn reserve<P: Platform>(m: &Machine<P>) -> u64 {
    (m.present() as u64 / RESERVE_SHARE).min(RESERVE_MAX)
}

/// There is no room elsewhere for the pages of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Pages that have no room.
    pub missing: u64,
}

/// A removal under way.
#[derive(Debug)]
pub struct Swapoff {
    device: u8,
    space: usize,
    at: Vpn,
    /// Pages that this walk has moved.
    moved: u64,
}

impl Swapoff {
    fn new(device: u8) -> Swapoff {
        Swapoff { device, space: 0, at: Vpn(0), moved: 0 }
    }

    /// The device.
    pub fn device(&self) -> u8 {
        self.device
    }
}

/// How a removal goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Pages are left to be moved.
    Moving,
    /// Only snapshots refer to slots of the device.
    Held,
    /// The device is removed.
    Removed,
    /// Memory and other devices have no room for the rest. Undone.
    NoRoom {
        /// Pages that are left.
        left: u64,
    },
    /// A page cannot be read. It keeps its slot. Undone.
    Failed {
        /// The reason.
        error: FaultError,
        /// Pages that are left.
        left: u64,
    },
}

/// How far a step got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// It stopped between two pages.
    Stopped,
    /// It reached the end of all spaces, after it moved this many pages.
    Ended(u64),
    /// It could not move a page.
    Failed(FaultError),
}

/// The state after the walk of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    part: Use,
    walk: Walk,
    /// Slots in use.
    left: u64,
    /// Pages that could still be stored in memory and on other devices, without the reserve.
    room: u64,
}

fn decide(found: Found) -> Outcome {
    let Found { part, walk, left, room } = found;
    match (part, walk) {
        (Use::Removed, _) => Outcome::Removed,
        // An allocation took the device back.
        (Use::Used | Use::Vacant, _) => Outcome::NoRoom { left },
        (Use::Leaving, Walk::Failed(FaultError::OutOfMemory)) => Outcome::NoRoom { left },
        (Use::Leaving, Walk::Failed(error)) => Outcome::Failed { error, left },
        (Use::Leaving, Walk::Ended(0)) => Outcome::Held,
        (Use::Leaving, _) if room < left.min(STEP_PAGES) => Outcome::NoRoom { left },
        (Use::Leaving, Walk::Ended(_) | Walk::Stopped) => Outcome::Moving,
    }
}

/// Begins to remove a device.
///
/// # Errors
/// Other devices and memory have no room for its pages.
pub fn begin<P: Platform>(m: &Machine<P>, device: u8) -> Result<Swapoff, NoRoom> {
    let pages = only_copies(m, device);
    m.swap.leave(device);
    match pages.saturating_sub(room(m)) {
        0 => Ok(Swapoff::new(device)),
        missing => {
            m.swap.stay(device);
            Err(NoRoom { missing })
        }
    }
}

/// Pages that could still be stored, without the reserve for the program.
fn room<P: Platform>(m: &Machine<P>) -> u64 {
    m.capacity_left().saturating_sub(reserve(m))
}

/// Pages that are in slots of a device and not in memory.
fn only_copies<P: Platform>(m: &Machine<P>, device: u8) -> u64 {
    let is_there =
        |entry: Entry| matches!(entry.page(), Page::Swapped(slot) if slot.device == device);
    let of_space = |space: &Space<P>| {
        let mut at = Vpn(0);
        let entries = std::iter::from_fn(|| {
            let vpn = space.next_made(at, Range::whole(space).end)?;
            at = vpn.offset(1);
            Some(space.entry(vpn))
        });
        (entries.filter(|entry| is_there(*entry)).count() as u64) << space.order().0
    };
    anonymous(m).map(of_space).sum()
}

fn anonymous<P: Platform>(m: &Machine<P>) -> impl Iterator<Item = &Space<P>> {
    m.spaces().filter(|space| space.backing() == Backing::Anonymous)
}

/// Moves some pages, and decides how to go on.
pub fn step<P: Platform>(m: &Machine<P>, swapoff: &mut Swapoff) -> Outcome {
    let _phase = m.enter(phase::RANGE);
    let device = swapoff.device;
    let walk = match m.swap.use_of(device) {
        Use::Leaving => walk(m, swapoff),
        Use::Used | Use::Removed | Use::Vacant => Walk::Stopped,
    };
    if m.swap.used_on(device) == 0 {
        m.swap.remove(&m.platform, device);
    }
    let (part, left) = (m.swap.use_of(device), m.swap.used_on(device));
    let outcome = decide(Found { part, walk, left, room: room(m) });
    match outcome {
        Outcome::Moving | Outcome::Held | Outcome::Removed => {}
        Outcome::NoRoom { .. } | Outcome::Failed { .. } => m.swap.stay(device),
    }
    outcome
}

/// Moves pages from where the last step ended, up to the limits of a step.
fn walk<P: Platform>(m: &Machine<P>, swapoff: &mut Swapoff) -> Walk {
    let device = swapoff.device;
    let (mut moved, mut looks) = (0, 0);
    while let Some(space) = m.spaces().nth(swapoff.space) {
        let is_anonymous = space.backing() == Backing::Anonymous;
        let end = if is_anonymous { Range::whole(space).end } else { Vpn(0) };
        while let Some(vpn) = space.next_made(swapoff.at, end) {
            if moved >= STEP_PAGES || looks == STEP_ENTRIES {
                return Walk::Stopped;
            }
            looks += 1;
            match take_off(m, space, vpn, |of| of == device) {
                Ok(pages) => (moved, swapoff.moved) = (moved + pages, swapoff.moved + pages),
                Err(error) => return Walk::Failed(error),
            }
            swapoff.at = vpn.offset(1);
        }
        (swapoff.space, swapoff.at) = (swapoff.space + 1, Vpn(0));
    }
    let Swapoff { moved, .. } = std::mem::replace(swapoff, Swapoff::new(device));
    Walk::Ended(moved)
}

/// Takes a page off the devices that `leaves` accepts, if it is on one.
fn take_off<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    vpn: Vpn,
    leaves: impl Fn(u8) -> bool,
) -> Result<u64, FaultError> {
    let seen = space.entry(vpn);
    let is_on = seen.is_locked() || m.slot_of(seen).is_some_and(|slot| leaves(slot.device));
    if is_on { unuse(m, space, vpn, leaves) } else { Ok(0) }
}

/// Takes all pages of a space off the devices that `leaves` accepts.
///
/// # Errors
/// Memory and swap are full, or a page cannot be read.
pub fn leave<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    leaves: impl Fn(u8) -> bool,
) -> Result<(), FaultError> {
    let mut at = Vpn(0);
    while let Some(vpn) = space.next_made(at, Range::whole(space).end) {
        take_off(m, space, vpn, &leaves)?;
        at = vpn.offset(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::IoError;

    #[test]
    fn a_removal_goes_on_until_there_is_a_reason_not_to() {
        let read = FaultError::Read(IoError::Failed(5));
        for (part, walk, left, room, expected) in [
            (Use::Leaving, Walk::Stopped, 100, 100, Outcome::Moving),
            (Use::Leaving, Walk::Ended(1), 100, 100, Outcome::Moving),
            (Use::Leaving, Walk::Ended(0), 100, 0, Outcome::Held),
            (Use::Leaving, Walk::Stopped, 100, 99, Outcome::NoRoom { left: 100 }),
            (Use::Leaving, Walk::Stopped, 9999, STEP_PAGES, Outcome::Moving),
            (Use::Leaving, Walk::Failed(read), 7, 99, Outcome::Failed { error: read, left: 7 }),
            (
                Use::Leaving,
                Walk::Failed(FaultError::OutOfMemory),
                7,
                99,
                Outcome::NoRoom { left: 7 },
            ),
            (Use::Used, Walk::Ended(3), 7, 99, Outcome::NoRoom { left: 7 }),
            (Use::Removed, Walk::Ended(3), 0, 0, Outcome::Removed),
        ] {
            let found = Found { part, walk, left, room };
            assert_eq!(decide(found), expected, "{found:?}");
        }
    }
}
