//! The contents of a space, as a snapshot lists them.

use crate::space::{Held, Page, Range};
use highwater_platform::Platform;
use highwater_units::{Slot, Vpn};

/// Consecutive pages in consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// The first page.
    pub vpn: Vpn,
    /// Its slot.
    pub slot: Slot,
    /// The number of pages.
    pub pages: u32,
}

/// The contents of a space: in slots, in memory that a fork shares, and lost.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    slots: Vec<SlotRun>,
    resident: Vec<Range>,
    poisoned: Vec<Vpn>,
}

impl Snapshot {
    /// Pages and their slots.
    pub fn runs(&self) -> &[SlotRun] {
        &self.slots
    }

    /// Pages in memory that the fork shares, in ascending order.
    pub fn resident(&self) -> &[Range] {
        &self.resident
    }

    /// Poisoned pages.
    pub fn poisoned(&self) -> &[Vpn] {
        &self.poisoned
    }

    /// The slots of a device up to the last one that has a page.
    pub fn slots_of(&self, device: u8) -> u32 {
        let of_device = self.slots.iter().filter(|run| run.slot.device == device);
        of_device.map(|run| run.slot.index + run.pages).max().unwrap_or(0)
    }

    /// The snapshot for a child without the first `devices` devices; `None` if some of its pages
    /// are on these.
    pub fn without_devices(&self, devices: u8) -> Option<Snapshot> {
        let renumbered = |run: &SlotRun| {
            let device = run.slot.device.checked_sub(devices)?;
            Some(SlotRun { slot: Slot { device, ..run.slot }, ..*run })
        };
        let slots = self.slots.iter().map(renumbered).collect::<Option<_>>()?;
        let (resident, poisoned) = (self.resident.clone(), self.poisoned.clone());
        Some(Snapshot { slots, resident, poisoned })
    }

    /// Adds a page in a slot.
    pub(super) fn push(&mut self, vpn: Vpn, slot: Slot) {
        match self.slots.last_mut() {
            Some(last)
                if last.vpn.offset(u64::from(last.pages)) == vpn
                    && last.slot.device == slot.device
                    && last.slot.index + last.pages == slot.index =>
            {
                last.pages += 1;
            }
            _ => self.slots.push(SlotRun { vpn, slot, pages: 1 }),
        }
    }

    /// Adds a poisoned page.
    pub(super) fn push_poisoned(&mut self, vpn: Vpn) {
        self.poisoned.push(vpn);
    }

    /// Adds the pages of a run that are in memory, all mapped.
    pub(super) fn push_resident<P: Platform>(&mut self, held: &Held<'_, P>) {
        for (index, entry) in held.entries().iter().enumerate() {
            if let Page::Resident(_) = entry.page() {
                let vpn = held.owner(index).vpn;
                match self.resident.last_mut() {
                    Some(last) if last.end == vpn => last.end = vpn.offset(1),
                    _ => self.resident.push(Range { first: vpn, end: vpn.offset(1) }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_device_end_with_the_last_run() {
        let mut snapshot = Snapshot::default();
        for (vpn, device, index) in [(9, 1, 40), (10, 1, 41), (30, 0, 7), (31, 1, 3)] {
            snapshot.push(Vpn(vpn), Slot { device, index });
        }
        assert_eq!([0, 1, 2].map(|device| snapshot.slots_of(device)), [8, 42, 0]);
    }
}
