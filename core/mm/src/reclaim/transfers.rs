//! The writes to swap slots that one reclaim batch needs, grouped by device.

use highwater_platform::Io;
use highwater_units::{BATCH_PAGES_MAX, FrameList, Slot};

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

    /// Adds a write of `frames` to adjacent slots.
    pub(super) fn push(&mut self, first: Slot, frames: FrameList) {
        self.ios[self.len] = Io::new(first.index, frames);
        self.devices[self.len] = first.device;
        self.len += 1;
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
