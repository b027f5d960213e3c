//! The contract of a protocol by which a server stores pages.

use crate::arena::Arena;
use crate::remote::freed::Group;
use crate::remote::verdict::Problem;
use crate::remote::window::{PAGES, Piece, Window};
use crate::slot_set::SlotSet;
use highwater_platform::{Direction, Io, IoError};
use highwater_units::PAGE_SIZE;
use std::os::fd::RawFd;
use std::slice;
use std::time::Duration;

/// Transfers of a window, which were admitted.
#[derive(Clone, Copy)]
pub(super) struct Transfers<'a> {
    pub(super) direction: Direction,
    pub(super) arena: Arena,
    pub(super) batch: &'a [Io],
    pub(super) window: &'a Window,
    /// Slots with a page.
    pub(super) stored: &'a SlotSet,
}

/// The outcome of each piece of a window.
pub(super) type Outcomes = [Result<(), Problem>; PAGES];

/// A connection, or one to each of several servers.
pub(super) trait Connection: Send + Sized {
    /// Gives up what is under way. `None`: it is of no more use.
    fn hang_up(self) -> Option<Self>;

    /// Sets how long an answer may take.
    fn set_deadline(&mut self, deadline: Duration) -> Result<(), Problem>;

    /// Waits for `most` for an answer to begin; returns whether it has.
    fn await_readable(&self, most: Duration) -> bool;

    /// Tells the server that nothing follows.
    fn disconnect(&mut self) {}
}

/// Pages on a server. A process that has them from another one, which forked it, reads them by a
/// `Store` of its own; the last of these that ends deletes them.
pub(super) trait Store: Send + Sync + Sized + 'static {
    type Link: Connection;

    /// Between two calls of [`Store::refresh`].
    const REFRESH: Duration;

    /// How long an answer may take, of a server that is waited for as long as `patience`.
    fn deadline(patience: Duration) -> Duration;

    /// A connection, if that is made within the deadline.
    fn connect(&self, deadline: Duration) -> Result<Self::Link, Problem>;

    /// The most connections at once.
    fn links_max(&self) -> usize;

    /// The connections of so many links.
    fn connections(&self, links: u64) -> u64 {
        links
    }

    /// The most pages of a request.
    fn run_max(&self) -> usize;

    /// Finds room for slots that are about to be written, and are in the set of stored ones.
    ///
    /// # Errors
    /// `Full`.
    fn place(&self, _slot: u32, _pages: u32) -> Result<(), IoError> {
        Ok(())
    }

    /// Sends the requests of a window.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    unsafe fn ask(&self, link: &mut Self::Link, transfers: Transfers<'_>) -> Result<(), Problem>;

    /// Receives the answers of a window: all of them, also behind a refusal.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn hear(
        &self,
        link: &mut Self::Link,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, Problem>;

    /// Whether the server of a segment answers, or is waited for as there is no other.
    fn reaches(&self, _segment: u32) -> bool {
        true
    }

    /// Deletes the pages of freed slots of a segment.
    fn delete(&self, link: &mut Self::Link, segment: u32, slots: Group) -> Result<(), Problem>;

    /// Gives up the room of a segment if no slot is stored there, nor to be deleted.
    fn release(&self, _segment: u32, _is_unused: &dyn Fn() -> bool) {}

    /// Whether one of several servers did not answer lately, or may lack pages.
    fn is_impaired(&self) -> bool {
        false
    }

    /// Looks whether it is so still.
    fn look_again(&self, _link: &mut Self::Link) -> Result<(), Problem> {
        Ok(())
    }

    /// Tells the server that the pages are in use.
    fn refresh(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// Deletes all pages. None is in use, here or in another process.
    fn clear(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// Becomes one of those that the pages wait for.
    fn hold(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// Ends. The last deletes all pages.
    fn end(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// In another process than the one that opened it: becomes a store of its own, which is empty.
    fn detach(&self);

    /// A store that reads these pages, in a forked child.
    fn inherit(&self) -> Self;

    /// As [`crate::Device::descriptors`].
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

impl Transfers<'_> {
    /// The memory of a page of a piece.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    pub(super) unsafe fn frame<'a>(self, piece: &Piece, page: usize) -> &'a mut [u8] {
        let pfn = self.batch[piece.io].frames.at(piece.offset + page);
        // SAFETY: an admitted transfer, for whose frames the caller vouches.
        unsafe { slice::from_raw_parts_mut(self.arena.address(pfn), PAGE_SIZE) }
    }
}
