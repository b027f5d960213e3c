//! The path of a fault, from the access until the page is mapped. Only this file decides how a
//! fault is served.
//!
//! ```text
//! resolve -- large::serve: the whole block of 2 MiB, if large pages are on
//!         \- claim the entry -- Mapped: done; if the page vanished, forget it and retry
//!                            |- Busy: wait for the entry and retry
//!                            \- Held: serve -- decide: an Outcome, by entry and space
//!
//! Outcome      served by              action
//! Folio        folio::serve           a page of several frames: zero, map or read it
//! Zero         zero::serve            allocate frames, zero and map them
//! File         file::load             allocate frames, read and map them; file_readahead
//! AllowWrite   resident::allow_write  make mapped clean pages writable
//! Remap        resident::remap        map pages that are in memory
//! Swapped      swap_cache::serve      in the swap cache: wait for the write, map the frame
//!              swap_in::fetch         elsewhere: allocate frames, read and map them
//! Poisoned     an error               the page could not be read
//! ```
//! A fault goes down this table once. Leaves share `map`, `read`, `refault` and `request`, and
//! none calls back up. `readahead` is a thread that reads pages before a fault wants them, `unuse`
//! takes pages off a swap device.
//!
//! A fault holds its page's entry until the page is mapped, and the entries of the following pages
//! that it brings in for a stream. While it holds entries it waits for devices and for memory, but
//! never for another entry.

mod access;
mod around;
mod batch;
mod file;
mod file_readahead;
mod folio;
mod gather;
#[cfg(feature = "history")]
mod history;
mod large;
mod map;
mod pointers;
mod read;
pub mod readahead;
mod refault;
mod request;
mod resident;
mod swap_cache;
mod swap_in;
mod unuse;
mod zero;

pub use access::{Fault, Served};
pub use unuse::unuse;
pub use zero::populate;

use crate::alloc::OutOfMemory;
use crate::error::FaultError;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Access, Backing, Claim, Entry, Held, Page, Space};
use crate::stats::Counter;
use crate::swap::Trust;
use access::{Window, window_max};
use highwater_platform::{Platform, Recency, Ticket};
use highwater_units::{Order, Slot, Vpn};
use resident::Forgotten;

/// How a fault on a held page is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A page of several frames.
    Folio,
    /// First touch of an anonymous page.
    Zero,
    /// A file's page that is not in memory.
    File {
        /// The file's device.
        device: u8,
    },
    /// A store to a page that is mapped read-only.
    AllowWrite,
    /// In memory, unmapped: to see whether it is used, or because it was read ahead.
    Remap,
    /// In a slot, or in the swap cache until its write has ended.
    Swapped(Slot),
    /// Lost.
    Poisoned,
}

/// Makes a page present for an access.
///
/// # Errors
/// The page stays as it was; see [`FaultError`].
pub fn resolve<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    fault: Fault,
) -> Result<Served, FaultError> {
    let _phase = m.enter(phase::FAULT);
    if let Some(served) = large::serve(m, space, fault) {
        return Ok(served);
    }
    loop {
        match space.claim(fault.vpn, fault.access) {
            Claim::Mapped if is_present(m, space, fault.vpn) => {
                if fault.access == Access::Write {
                    resident::allow_write_again(m, space, fault.vpn);
                }
                return Ok(Served::Again);
            }
            Claim::Mapped => match resident::forget_vanished(m, space, fault.vpn) {
                Forgotten::Yes => {}
                Forgotten::Refused => return Ok(Served::Again),
            },
            Claim::Busy(ticket) => wait(m, space, fault.vpn, ticket),
            Claim::Held(held) => return serve(m, held, fault),
        }
    }
}

/// Whether a page whose entry says mapped is really present. Pages of several frames cannot vanish.
fn is_present<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> bool {
    space.order() > Order(0) || m.platform.holds(space.id(), vpn)
}

/// Waits until another thread releases a page's entry.
fn wait<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn, ticket: Ticket) {
    #[cfg(feature = "history")]
    if history::complete(m, space.id(), vpn) == history::Found::Completed {
        return;
    }
    m.count(Counter::FaultWait, 1);
    space.wait(vpn, ticket);
}

fn serve<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    fault: Fault,
) -> Result<Served, FaultError> {
    let outcome = decide(held.entries()[0], held.space().order(), held.space().backing());
    let window = match outcome {
        Outcome::Folio | Outcome::Poisoned => Window::ALONE,
        _ => stream_window(m, &held, fault, outcome),
    };
    m.count(Counter::PgFault, 1);
    match outcome {
        Outcome::Folio => folio::serve(m, held, fault.access),
        Outcome::Zero => zero::serve(m, held, window),
        Outcome::File { device } => file::load(m, held, device, fault, window),
        Outcome::AllowWrite => Ok(resident::allow_write(m, held, window)),
        Outcome::Remap => Ok(resident::remap(m, held, fault, window)),
        Outcome::Swapped(slot) => match m.swap.claim(m.cpu(), slot) {
            Some(pfn) => Ok(swap_cache::serve(m, held, slot, pfn, fault.access)),
            None => swap_in::fetch(m, held, slot, fault, window),
        },
        Outcome::Poisoned => Err(FaultError::Poisoned),
    }
}

fn decide(entry: Entry, order: Order, backing: Backing) -> Outcome {
    match (entry.page(), backing) {
        _ if order > Order(0) => Outcome::Folio,
        (Page::Absent, Backing::Anonymous) => Outcome::Zero,
        (Page::Absent, Backing::File { device }) => Outcome::File { device },
        (Page::Resident(_), _) if entry.is_mapped() => Outcome::AllowWrite,
        (Page::Resident(_), _) => Outcome::Remap,
        (Page::Swapped(slot), _) => Outcome::Swapped(slot),
        (Page::Poisoned, _) => Outcome::Poisoned,
    }
}

/// Pages that the fault may bring in: more than one if it continues a sequential stream.
fn stream_window<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    fault: Fault,
    outcome: Outcome,
) -> Window {
    let (space, streams) = (held.space().id(), &m.swap.streams);
    let stream = streams.window(space, fault.vpn);
    if m.platform.recency() == Recency::Unmapping {
        // Uses of mapped pages cannot be observed here, but the stream's continuation can.
        m.count(Counter::SwapRaHit, stream.read_ahead as u64);
    }
    let pages = match (stream.pages, outcome) {
        (2, Outcome::Swapped(_)) if streams.trust(space, fault.vpn) == Trust::Full => BEGIN_PAGES,
        (pages, _) => pages,
    };
    let most = m.tunables.window_max().min(fault.room(stream.direction)).min(window_max(m));
    Window { pages: pages.min(most), direction: stream.direction }
}

/// Pages that the second fault of a stream reads in regions where streams nearly always continue.
const BEGIN_PAGES: usize = 8;

impl From<OutOfMemory> for FaultError {
    fn from(_: OutOfMemory) -> FaultError {
        FaultError::OutOfMemory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Pfn;

    #[test]
    fn outcomes_of_entries() {
        let (anonymous, file) = (Backing::Anonymous, Backing::File { device: 3 });
        let slot = Slot { device: 1, index: 9 };
        let resident = Entry::resident(Pfn(7));
        for (entry, order, backing, expected) in [
            (Entry::ABSENT, Order(0), anonymous, Outcome::Zero),
            (Entry::ABSENT, Order(0), file, Outcome::File { device: 3 }),
            (Entry::ABSENT, Order(4), anonymous, Outcome::Folio),
            (resident, Order(0), anonymous, Outcome::Remap),
            (resident, Order(0), file, Outcome::Remap),
            (resident.mapped(), Order(0), anonymous, Outcome::AllowWrite),
            (resident.mapped(), Order(2), anonymous, Outcome::Folio),
            (Entry::swapped(slot), Order(0), anonymous, Outcome::Swapped(slot)),
            (Entry::POISONED, Order(0), anonymous, Outcome::Poisoned),
        ] {
            assert_eq!(decide(entry, order, backing), expected, "{entry:?} {order:?} {backing:?}");
        }
    }
}
