//! Making frames visible to the program, and taking them back.

use highwater_units::{Pfn, SpaceId, Vpn};

/// What a program may do to a mapped page before the manager hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// A write faults first: the page is known to equal its slot until then.
    ReadOnly,
    /// Reads and writes go unseen.
    ReadWrite,
}

/// How a platform learns that a page was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recency {
    /// Every access passes through the entry and sets its accessed bit (guards).
    AccessedBit,
    /// There is no such bit: to ask, unmap the page and see whether it faults.
    Unmapping,
}

/// Why a batch stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The page is pinned for I/O or shared with another process: it stays where it is.
    Busy,
    /// No page is there: the program dropped it behind the manager's back.
    Vanished,
    /// A page is there already.
    Occupied,
    /// The operating system's error number, for anything else.
    Failed(i32),
}

/// How far a batch of pages got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Pages done, from the first.
    pub done: usize,
    /// Why not all; `None` exactly if all were done.
    pub stop: Option<Stop>,
}

impl Progress {
    /// All `pages` were done.
    pub fn all(pages: usize) -> Progress {
        Progress { done: pages, stop: None }
    }

    /// `done` pages were done, the next was not.
    pub fn until(done: usize, stop: Stop) -> Progress {
        Progress { done, stop: Some(stop) }
    }
}

/// Why a space could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachError(
    /// The operating system's error number.
    pub i32,
);

/// The page tables that the hardware or the guards obey.
///
/// While a frame is mapped its contents are reached only through the space; while it is not, only
/// through [`crate::Memory`] and [`crate::Block`]. The pages of one call are consecutive.
pub trait Mmu {
    /// How accesses are noticed. Constant.
    fn recency(&self) -> Recency;

    /// Makes room for a space of `pages` pages, all unmapped.
    ///
    /// # Errors
    /// The operating system's refusal.
    fn attach(&self, space: SpaceId, pages: u64) -> Result<(), AttachError>;

    /// Maps populated `frames` at `first` and the pages after it, and lets threads that wait for
    /// them run on. A page that is `Occupied` was mapped by nobody in the manager: a defect.
    fn map(&self, space: SpaceId, first: Vpn, frames: &[Pfn], protection: Protection) -> Progress;

    /// Takes the pages at `first` and after back into `frames`, which held them before: when this
    /// returns no access is under way and every further one faults. A `Busy` page is left as found.
    /// A `Vanished` page's frame has memory again, with contents undefined.
    fn unmap(&self, space: SpaceId, first: Vpn, frames: &[Pfn]) -> Progress;

    /// Drops a mapped page that is `Busy`: its contents are wanted no more. The frame is as after
    /// an unmap, with contents undefined.
    fn discard(&self, space: SpaceId, vpn: Vpn, pfn: Pfn);

    /// Copies a mapped page that is `Busy`, in frame `from`, into another populated, unmapped
    /// frame.
    fn copy(&self, space: SpaceId, vpn: Vpn, from: Pfn, to: Pfn);

    /// Lets the processor reach the pages of a block of 2 MiB, from `first` on, through one
    /// translation, if it can: they are mapped, to the frames from `head` on. A hint, that changes
    /// nothing else: accesses go on, pages may be unmapped meanwhile, and the caller need not have
    /// the frames.
    fn coalesce(&self, space: SpaceId, first: Vpn, head: Pfn);

    /// Lets a page mapped read-only be written, and lets waiting threads run on.
    fn allow_write(&self, space: SpaceId, vpn: Vpn);

    /// Whether a page is really mapped. Slow: for the case that a program faults on a page that
    /// the manager believes mapped.
    fn holds(&self, space: SpaceId, vpn: Vpn) -> bool;
}
