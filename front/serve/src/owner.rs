//! The owner of paged memory, and how a fault is served for it.
//!
//! ```text
//! attempt: page --Owner::keep--> Part --Manager::fault--> Outcome
//! answer:  a fault that cannot be served, or a stray access, goes to the owner
//! ```

use highwater_mm::{Access, Fault, FaultError, Manager, Range, Served};
use highwater_uffd::Uffd;
use highwater_units::{SpaceId, Vpn};

/// A faulting page, as the manager identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The space that has the page: the one at the address, or one that lies inside it.
    pub space: SpaceId,
    /// The page's number in that space.
    pub vpn: Vpn,
    /// Readahead stays inside this range.
    pub within: Range,
}

/// The owner of the spaces: it knows which memory is where, and handles faults that cannot be
/// served.
pub trait Owner: Send + Sync + 'static {
    /// The part that a page belongs to. `None` if the program has no memory there: the access is
    /// the program's error.
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part>;

    /// Calls `act` with the part that [`Owner::find`] returns; `false` if there is none. An owner
    /// that removes parts while the program faults must not remove this part before `act` returns.
    fn keep(&self, space: SpaceId, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        self.find(space, vpn).map(act).is_some()
    }

    /// Handles a fault that cannot be served. The faulting thread retries its access afterwards, so
    /// this function ends the process, or arranges that the kernel answers the access, for example
    /// by SIGBUS ([`Manager::poison`]).
    fn failed(&self, part: Part, error: FaultError);

    /// Handles an access to a page that belongs to no part. The faulting thread retries the access
    /// afterwards.
    fn stray(&self, space: SpaceId, vpn: Vpn);

    /// Whether the program has mapped something else over a page: the kernel answers accesses
    /// there, perhaps by a SIGBUS.
    fn is_foreign(&self, _space: SpaceId, _vpn: Vpn) -> bool {
        false
    }
}

/// The outcome of an attempt to serve a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The page is mapped.
    Mapped,
    /// The thread is to retry its access.
    Retry,
    Failed(Part, FaultError),
    Stray,
}

/// A fault: the space at its address, the page there, and the access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) space: SpaceId,
    pub(crate) vpn: Vpn,
    pub(crate) access: Access,
}

/// Serves a fault. `before` is called with the part of the fault before it is served.
pub(crate) fn attempt(
    manager: &Manager<Uffd>,
    owner: &dyn Owner,
    at: At,
    mut before: impl FnMut(Part),
) -> Outcome {
    let mut outcome = Outcome::Retry;
    let found = owner.keep(at.space, at.vpn, &mut |part| {
        before(part);
        outcome = fault(manager, part, at.access);
    });
    if found { outcome } else { Outcome::Stray }
}

/// Serves a fault of a part.
pub(crate) fn fault(manager: &Manager<Uffd>, part: Part, access: Access) -> Outcome {
    let Part { space, vpn, within } = part;
    match manager.fault(space, Fault { vpn, access, within }) {
        Ok(Served::Again) => Outcome::Retry,
        Ok(Served::Minor | Served::Major) => Outcome::Mapped,
        Err(error) => Outcome::Failed(part, error),
    }
}

/// Notifies the owner if the fault could not be served.
pub(crate) fn answer(owner: &dyn Owner, at: At, outcome: Outcome) {
    match outcome {
        Outcome::Mapped | Outcome::Retry => {}
        Outcome::Failed(part, error) => owner.failed(part, error),
        Outcome::Stray => owner.stray(at.space, at.vpn),
    }
}
