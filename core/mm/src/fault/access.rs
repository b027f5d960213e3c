//! An access that faulted, and how it was served.

use crate::machine::Machine;
use crate::space::{Access, Range};
use highwater_platform::Platform;
use highwater_units::Vpn;

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
    /// Pages from the faulting one to the end of its region, at least one.
    pub(super) fn room(&self) -> usize {
        self.within.end.0.saturating_sub(self.vpn.0).max(1) as usize
    }
}

/// Most pages that a fault brings in: a small part of a small budget.
pub(super) fn window_max<P: Platform>(m: &Machine<P>) -> usize {
    (m.frames.len() / 64).max(1)
}
