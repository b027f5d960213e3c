//! Devices that come and go while the manager runs (swapon, swapoff).
//!
//! ```text
//! vacant -- add --> in use -- leave --> leaving -- remove --> removed
//!                     ^  ^----- stay ------'                     |
//!                     '------------------ add -------------------'
//! ```
//! A device that was removed keeps its number, its tables and its place in the order: it can only
//! be added again as it was. `core/mm/src/swapoff.rs` moves the pages.
//!
//! Locking: none. Of two threads that add devices, the later one makes an order with both.

use super::{Device, Order, Swap};
use crate::config::Config;
use highwater_platform::{DeviceInfo, Platform};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The state of a swap device in swapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It was never added.
    Vacant,
    /// It accepts pages, or would if it had room.
    Used,
    /// Its pages are being moved away.
    Leaving,
    /// It has no pages.
    Removed,
}

/// The device cannot be added: it is in use, or has no pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

impl<P: Platform> Swap<P> {
    /// Makes the order of the devices that are there.
    pub(super) fn set_order(&self, platform: &P, config: &Config) {
        for index in self.order.load(Acquire)..self.orders.len() {
            // Read anew for each attempt: another thread may have added a device.
            let infos = platform.devices().into_iter().zip(&self.devices);
            // A device without pages stands for a vacant place, so that the others keep their
            // numbers.
            let known = infos.map(|(info, device)| match device.get() {
                Some(_) => info,
                None => DeviceInfo { pages: 0, ..info },
            });
            let known: Vec<_> = known.collect();
            if self.orders[index].set(make_order(platform, &known, config)).is_ok() {
                self.order.fetch_max(index, Release);
                return;
            }
        }
    }

    /// Adds a device that was vacant and has pages on the platform now, or that was removed.
    ///
    /// # Errors
    /// The device is there already, or has no pages.
    pub fn add(&self, platform: &P, config: &Config, device: u8) -> Result<(), Taken> {
        let place = self.devices.get(usize::from(device)).ok_or(Taken)?;
        let Some(known) = place.get() else {
            let infos = platform.devices();
            let info = &infos[usize::from(device)];
            if !info.gives_slots() {
                return Err(Taken);
            }
            let added = place.set(Device::new(platform, device, info.clone(), config));
            added.map_err(|_| Taken)?;
            self.set_order(platform, config);
            return Ok(());
        };
        let is_back = known.standing.is_removed() && known.standing.reopen();
        if is_back { Ok(()) } else { Err(Taken) }
    }

    /// The state of a device in swapping.
    pub fn use_of(&self, device: u8) -> Use {
        match self.devices.get(usize::from(device)).and_then(OnceLock::get) {
            None => Use::Vacant,
            Some(device) if device.standing.is_removed() => Use::Removed,
            Some(device) if device.standing.is_leaving() => Use::Leaving,
            Some(_) => Use::Used,
        }
    }

    /// From now on no slots of a device are taken.
    pub fn leave(&self, device: u8) {
        self.at(device.into()).standing.leave();
    }

    /// A device that is leaving accepts pages again.
    pub fn stay(&self, device: u8) {
        let own = self.at(device.into());
        if own.standing.is_leaving() {
            own.standing.reopen();
        }
    }

    /// Slots of a device that are in use.
    pub fn used_on(&self, device: u8) -> u64 {
        self.at(device.into()).in_use().into()
    }

    /// Removes a device that is leaving, if no slot of it is in use. The platform then drops the
    /// stored contents. Returns whether the device was removed.
    pub fn remove(&self, platform: &P, device: u8) -> bool {
        let own = self.at(device.into());
        let removed = own.is_empty() && own.standing.remove();
        if removed {
            platform.vacate(device);
        }
        removed
    }
}

#[cfg(not(feature = "history"))]
fn make_order<P: Platform>(platform: &P, infos: &[DeviceInfo], _: &Config) -> Order {
    Order::new(platform, infos)
}

#[cfg(feature = "history")]
fn make_order<P: Platform>(platform: &P, infos: &[DeviceInfo], config: &Config) -> Order<P> {
    Order::new(platform, infos, &config.history.swap)
}
