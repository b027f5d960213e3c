//! An access that faulted, and how it was served.

use crate::machine::Machine;
use crate::space::{Access, Entry, Held, Pinned, Range};
use highwater_platform::Platform;
use highwater_units::{Direction, Vpn};

/// How a fault was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The access must be repeated: another fault had mapped the page, or the page could not be
    /// mapped because the program is changing the range.
    Again,
    /// Without a device read: zeroed, or in memory already.
    Minor,
    /// By a device read.
    Major,
}

/// An access that faulted.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The page.
    pub vpn: Vpn,
    /// Load or store.
    pub access: Access,
    /// The region that the page belongs to: readahead stays inside it.
    pub within: Range,
}

impl Fault {
    /// Pages from the faulting one to an end of its region, at least one.
    pub(super) fn room(&self, direction: Direction) -> usize {
        let pages = match direction {
            Direction::Up => self.within.end.0.saturating_sub(self.vpn.0),
            Direction::Down => (self.vpn.0 + 1).saturating_sub(self.within.first.0),
        };
        pages.max(1) as usize
    }
}

/// The pages that a fault may bring in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Their number, with the page that faulted.
    pub(super) pages: usize,
    /// Where the others are.
    pub(super) direction: Direction,
}

impl Window {
    /// The page that faulted.
    pub(super) const ALONE: Window = Window { pages: 1, direction: Direction::Up };

    /// Holds the pages of the window next to those held, as far as `wanted` accepts them.
    pub(super) fn hold<P: Platform>(self, held: &mut Held<'_, P>, wanted: impl Fn(Entry) -> bool) {
        while held.len() < self.pages && held.extend_to(self.direction, Pinned::Refuse, &wanted) {}
    }
}

/// Most pages that a fault brings in: a small part of a small budget.
pub(super) fn window_max<P: Platform>(m: &Machine<P>) -> usize {
    (m.present() / 64).max(1)
}
