//! How a thread locks an entry, and waits for one that another thread holds.

use super::entry::{Entry, LOCKED, PINS, WAITERS};
use super::held::{Held, Pinned};
use super::page_table::{Access, Space};
use highwater_platform::{Atomic, Event, Platform, Ticket};
use highwater_units::{Nanos, Vpn};
use std::sync::atomic::Ordering::SeqCst;

/// The outcome of [`Space::claim`].
pub enum Claim<'a, P: Platform> {
    /// The page is mapped and allows the access.
    Mapped,
    /// Another thread holds the entry: wait with this ticket, then claim again.
    Busy(Ticket),
    /// The caller holds the entry and makes the page present.
    Held(Held<'a, P>),
}

impl<P: Platform> Space<P> {
    /// Locks the entry of a page that does not allow an access.
    pub fn claim(&self, vpn: Vpn, access: Access) -> Claim<'_, P> {
        let allows =
            |entry: Entry| entry.is_mapped() && (access == Access::Read || entry.is_dirty());
        loop {
            let seen = self.entry(vpn);
            if seen.is_locked() {
                return Claim::Busy(self.announce(vpn));
            }
            if allows(seen) {
                return Claim::Mapped;
            }
            // Another thread may have mapped the page meanwhile: the value that is locked counts.
            if let Some(held) = Held::lock_if(self, vpn, Pinned::Accept, |now| !allows(now)) {
                return Claim::Held(held);
            }
        }
    }

    /// Locks an entry. Waits while another thread holds it or the page is pinned.
    pub fn hold(&self, vpn: Vpn) -> Held<'_, P> {
        self.hold_as(vpn, Pinned::Refuse)
    }

    /// Locks an entry. Waits while another thread holds it and, if `pinned` refuses, while the page
    /// is pinned.
    pub fn hold_as(&self, vpn: Vpn, pinned: Pinned) -> Held<'_, P> {
        loop {
            if let Some(held) = Held::lock(self, vpn, pinned) {
                return held;
            }
            let ticket = self.announce(vpn);
            let seen = self.entry(vpn);
            if seen.is_locked() || (pinned == Pinned::Refuse && seen.pins() > 0) {
                self.wait(vpn, ticket);
            }
        }
    }

    /// Locks an entry, or returns `None` at `deadline`. The bound lets a thread that holds entries
    /// wait for one more.
    pub fn hold_until(&self, clock: &P, vpn: Vpn, deadline: Nanos) -> Option<Held<'_, P>> {
        loop {
            let held = Held::lock(self, vpn, Pinned::Refuse);
            let left = deadline.since(clock.now());
            if held.is_some() || left == Nanos(0) {
                return held;
            }
            let ticket = self.announce(vpn);
            let seen = self.entry(vpn);
            if seen.is_locked() || seen.pins() > 0 {
                self.event(vpn).wait(ticket, Some(left));
            }
        }
    }

    /// Waits until the entry is unlocked after `ticket`.
    pub fn wait(&self, vpn: Vpn, ticket: Ticket) {
        let seen = Entry(self.table.entry(vpn).load(SeqCst));
        if seen.0 & WAITERS != 0 && seen.0 & (LOCKED | PINS) != 0 {
            self.event(vpn).wait(ticket, None);
        }
    }

    /// Marks the entry for a thread that is going to wait.
    fn announce(&self, vpn: Vpn) -> Ticket {
        let ticket = self.event(vpn).ticket();
        let cell = self.table.entry(vpn);
        let busy = |now: u64| (now & (LOCKED | PINS) != 0).then_some(now | WAITERS);
        // A free entry is not marked: `wait` returns at once.
        let _ = cell.fetch_update(SeqCst, SeqCst, busy);
        ticket
    }
}
