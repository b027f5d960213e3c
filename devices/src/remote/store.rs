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
    /// Gives up the requests in flight. `None`: the connection cannot be used any more.
    fn hang_up(self) -> Option<Self>;

    /// Sets how long an answer may take.
    fn set_deadline(&mut self, deadline: Duration) -> Result<(), Problem>;

    /// Waits up to `most` for an answer to begin; returns whether it has begun.
    fn await_readable(&self, most: Duration) -> bool;

    /// Tells the server that no more requests follow.
    fn disconnect(&mut self) {}
}

/// Pages on a server. A forked child reads its parent's pages through a `Store` of its own; the
/// last of these stores that ends deletes the pages.
pub(super) trait Store: Send + Sync + Sized + 'static {
    type Link: Connection;

    /// The time between two calls of [`Store::refresh`].
    const REFRESH: Duration;

    /// How long an answer may take from a server that is waited for as long as `patience`.
    fn deadline(patience: Duration) -> Duration;

    /// Makes a connection within the deadline.
    fn connect(&self, deadline: Duration) -> Result<Self::Link, Problem>;

    /// The most connections at once.
    fn links_max(&self) -> usize;

    /// How many connections this many links have.
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

    /// Receives the answers of a window: all of them, also after a refusal.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn hear(
        &self,
        link: &mut Self::Link,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, Problem>;

    /// Whether the server of a segment answers, or must be waited for because no other answers.
    fn reaches(&self, _segment: u32) -> bool {
        true
    }

    /// Deletes the pages of freed slots of a segment.
    fn delete(&self, link: &mut Self::Link, segment: u32, slots: Group) -> Result<(), Problem>;

    /// Gives up the room of a segment if none of its slots is stored or waits to be deleted.
    fn release(&self, _segment: u32, _is_unused: &dyn Fn() -> bool) {}

    /// Whether one of several servers did not answer lately, or may lack pages.
    fn is_impaired(&self) -> bool {
        false
    }

    /// Checks whether that is still so.
    fn look_again(&self, _link: &mut Self::Link) -> Result<(), Problem> {
        Ok(())
    }

    /// Tells the server that the pages are in use.
    fn refresh(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// Deletes all pages. None is in use, here or in another process.
    fn clear(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// Registers this process as a holder of the pages.
    fn hold(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// Ends this store. The last holder deletes all pages.
    fn end(&self, link: &mut Self::Link) -> Result<(), Problem>;

    /// In another process than the one that opened the store: makes this an independent store,
    /// which is empty.
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
