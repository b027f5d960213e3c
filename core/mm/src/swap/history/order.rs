//! The order of devices as kernels of the past had it: without regard to nodes (before Linux 4.14),
//! and with turns that all CPUs count together.
//!
//! Under a lock of all CPUs (swap_avail_lock), the kernel moves a device from which it takes slots
//! behind the others of equal priority: with slot caches once for 64 slots, else each time. Here a
//! shared word counts the turns.

use super::super::order;
use super::slot_cache::BATCH;
use crate::config::history::{DeviceLock, SwapHistory};
use highwater_platform::{Atomic, DeviceInfo, Platform};
use highwater_units::CpuId;
use std::ops::Deref;

/// The order in which devices are asked for slots.
pub(in crate::swap) struct Order<P: Platform> {
    today: order::Order,
    /// Turns of all CPUs, where they share them.
    turns: Option<P::Atomic<u32>>,
}

impl<P: Platform> Deref for Order<P> {
    type Target = order::Order;

    fn deref(&self) -> &order::Order {
        &self.today
    }
}

impl<P: Platform> Order<P> {
    /// The order of `devices` under the settings of the past.
    pub(in crate::swap) fn new(
        platform: &P,
        devices: &[DeviceInfo],
        settings: &SwapHistory,
    ) -> Order<P> {
        let near = |info: &DeviceInfo| info.node.filter(|_| settings.node_aware);
        let infos = devices.iter().map(|info| DeviceInfo { node: near(info), ..info.clone() });
        let infos: Vec<_> = infos.collect();
        let slots = match settings.device_lock {
            _ if settings.slot_cache => BATCH as u32,
            DeviceLock::Whole | DeviceLock::Slots => 1,
            DeviceLock::Cluster => {
                return Order { today: order::Order::new(platform, &infos), turns: None };
            }
        };
        let today = order::Order::with_turns(platform, &infos, slots, |_| 0);
        Order { today, turns: Some(Atomic::new(1)) }
    }

    /// Notes that a CPU took slots.
    pub(in crate::swap) fn took(&self, cpu: CpuId, slots: usize) {
        match &self.turns {
            None => self.today.took(cpu, slots),
            Some(turns) if self.ends_turn(cpu, slots) => {
                self.begin_turn(cpu, turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            }
            Some(_) => {}
        }
    }
}
