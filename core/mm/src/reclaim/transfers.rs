//! The writes to swap slots that one reclaim batch needs, grouped by device.
//!
//! Pages from anywhere in their spaces get adjacent slots one after another. Up to 16 go to the
//! device in one transfer, because a request costs more than the pages in it.

use highwater_platform::Io;
use highwater_units::{BATCH_PAGES_MAX, FrameList, RUN_PAGES_MAX, Slot};

/// Transfers not yet made: at most one for each page of a batch.
pub(super) struct Transfers {
    ios: [Io; BATCH_PAGES_MAX],
    devices: [u8; BATCH_PAGES_MAX],
    len: usize,
}

impl Transfers {
    /// No transfers.
    pub(super) fn none() -> Transfers {
        let none = Io::new(0, FrameList::default());
        Transfers { ios: [none; BATCH_PAGES_MAX], devices: [0; BATCH_PAGES_MAX], len: 0 }
    }

    /// Adds a write of `frames` to adjacent slots to the last transfer, if the slots follow its own
    /// and it has room for all of them; else as a transfer.
    pub(super) fn join(&mut self, first: Slot, frames: FrameList) {
        match self.last_before(first, frames.len()) {
            Some(last) => {
                let all = last.frames.iter().chain(frames.iter().copied()).collect();
                *last = Io::new(last.slot, all);
            }
            None => self.push(first, frames),
        }
    }

    /// Adds a write of `frames` to adjacent slots as a transfer.
    pub(super) fn push(&mut self, first: Slot, frames: FrameList) {
        self.ios[self.len] = Io::new(first.index, frames);
        self.devices[self.len] = first.device;
        self.len += 1;
    }

    /// The last transfer, if `first` is the slot after it and it has room for `pages` more.
    fn last_before(&mut self, first: Slot, pages: usize) -> Option<&mut Io> {
        let at = self.len.checked_sub(1)?;
        let last = &mut self.ios[at];
        let len = last.frames.len();
        let follows = self.devices[at] == first.device && last.slot + len as u32 == first.index;
        (follows && len + pages <= RUN_PAGES_MAX).then_some(last)
    }

    /// Pages to write.
    pub(super) fn pages(&self) -> u32 {
        self.ios[..self.len].iter().map(|io| io.frames.len() as u32).sum()
    }

    /// Whether there is at least one, and none failed.
    pub(super) fn have_succeeded(&self) -> bool {
        self.len > 0 && self.ios[..self.len].iter().all(|io| io.result.is_ok())
    }

    /// The devices written to, each once.
    pub(super) fn devices(&self) -> impl Iterator<Item = u8> {
        let all = &self.devices[..self.len];
        let new = |index: &usize| !all[..*index].contains(&all[*index]);
        (0..self.len).filter(new).map(|index| all[index])
    }

    /// The transfers to a device.
    pub(super) fn to(&self, device: u8) -> impl Iterator<Item = &Io> {
        let ios = self.ios.iter().zip(&self.devices).take(self.len);
        ios.filter(move |(_, of)| **of == device).map(|(io, _)| io)
    }

    /// The transfers in order, in stretches to one device.
    pub(super) fn by_device(&mut self) -> impl Iterator<Item = (u8, &mut [Io])> {
        let (devices, mut rest) = (&self.devices, &mut self.ios[..self.len]);
        let mut at = 0;
        std::iter::from_fn(move || {
            let device = *devices.get(at).filter(|_| !rest.is_empty())?;
            let same = devices[at..at + rest.len()].iter().take_while(|d| **d == device).count();
            let (group, others) = std::mem::take(&mut rest).split_at_mut(same);
            (rest, at) = (others, at + same);
            Some((device, group))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Pfn;

    /// The slot and the frames of each transfer to a device.
    fn to(transfers: &Transfers, device: u8) -> Vec<(u32, Vec<u32>)> {
        let frames = |io: &Io| io.frames.iter().map(|pfn| pfn.0).collect();
        transfers.to(device).map(|io| (io.slot, frames(io))).collect()
    }

    fn list(frames: std::ops::Range<u32>) -> FrameList {
        frames.map(Pfn).collect()
    }

    #[test]
    fn adjacent_slots_are_one_transfer() {
        let mut transfers = Transfers::none();
        let slot = |device, index| Slot { device, index };
        transfers.join(slot(0, 7), list(50..52));
        transfers.join(slot(0, 9), list(3..4));
        transfers.join(slot(1, 10), list(60..61));
        transfers.join(slot(0, 10), list(61..62));
        transfers.join(slot(0, 12), list(62..63));
        transfers.push(slot(0, 13), list(63..64));
        let expected = [(7, vec![50, 51, 3]), (10, vec![61]), (12, vec![62]), (13, vec![63])];
        assert_eq!(to(&transfers, 0), expected);
        assert_eq!(to(&transfers, 1), [(10, vec![60])]);
        assert_eq!(transfers.pages(), 7);
    }

    #[test]
    fn a_transfer_has_a_run_of_pages_at_most() {
        let mut transfers = Transfers::none();
        let slot = |index| Slot { device: 0, index };
        transfers.join(slot(0), list(0..10));
        transfers.join(slot(10), list(10..17));
        transfers.join(slot(17), list(17..26));
        assert_eq!(to(&transfers, 0).iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [0, 10]);
        assert_eq!(transfers.pages(), 26);
    }
}
