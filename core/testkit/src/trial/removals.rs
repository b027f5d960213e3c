//! Swap devices are removed and added again while others use their pages.
//!
//! ```text
//! used -- begin --> leaving -- steps --> removed -- some time --> used
//!                      '---- no room, a read error, or given up ----^
//! ```

use super::plan::{Failures, Plan};
use super::program::Program;
use super::world::World;
use highwater_mm::{Manager, SwapPart, Swapoff, SwapoffOutcome};
use highwater_platform::Platform;
use highwater_units::Prng;

/// Steps of a user until a device that was removed is added again.
const ABSENCE_MAX: u64 = 40;

/// Walks of a removal during which snapshots keep slots, until it is given up.
const HELD_MAX: u32 = 20;

/// The removals of a trial, by its first user.
pub(super) struct Removals {
    random: Prng,
    under_way: Option<Swapoff>,
    held: u32,
    /// A device that was removed, and the steps until it is added again.
    removed: Option<(u8, u64)>,
}

impl Removals {
    pub(super) fn new(seed: u64) -> Removals {
        let random = Prng::new(seed ^ 0x5a0f);
        Removals { random, under_way: None, held: 0, removed: None }
    }

    /// Sometimes: begins to remove a device. Continues a removal that was begun.
    pub(super) fn step<P: Platform, G: Program<P>>(&mut self, world: &World<P, G>) {
        let manager = &world.manager;
        match (&mut self.removed, &mut self.under_way) {
            (Some((device, 0)), _) => {
                manager.swapon(*device).expect("it was removed");
                self.removed = None;
            }
            (Some((_, steps)), _) => *steps -= 1,
            (None, Some(_)) => self.go_on(world),
            (None, None) if self.random.below(1000) < world.plan.removals => {
                self.under_way = self.choose(manager, &world.plan).and_then(|device| {
                    self.held = 0;
                    manager.swapoff(device).ok()
                });
            }
            (None, None) => {}
        }
    }

    fn go_on<P: Platform, G: Program<P>>(&mut self, world: &World<P, G>) {
        let Some(swapoff) = &mut self.under_way else { return };
        let (manager, device) = (&world.manager, swapoff.device());
        if self.random.percent(2) || self.held == HELD_MAX {
            manager.cancel_swapoff(device);
            assert_eq!(manager.swap_part(device), SwapPart::Used);
            self.under_way = None;
            return;
        }
        // As many calls of the clock as pages: time limits are for a page.
        match world.call("remove a device", world.plan.pages, |m| m.swapoff_step(swapoff)) {
            SwapoffOutcome::Moving => {}
            SwapoffOutcome::Held => self.held += 1,
            SwapoffOutcome::Removed => {
                assert_eq!(manager.swap_part(device), SwapPart::Removed);
                self.under_way = None;
                self.removed = Some((device, self.random.below(ABSENCE_MAX)));
            }
            SwapoffOutcome::NoRoom { .. } => self.end(manager, device),
            SwapoffOutcome::Failed { error, .. } => {
                let allowed = world.plan.failures == Failures::Allowed;
                assert!(allowed, "nothing is wrong, but to remove a device: {error}");
                self.end(manager, device);
            }
        }
    }

    fn end<P: Platform>(&mut self, manager: &Manager<P>, device: u8) {
        assert_eq!(manager.swap_part(device), SwapPart::Used, "it was undone");
        self.under_way = None;
    }

    /// A device that can be removed; if accesses may not fail, one without which they do not.
    fn choose<P: Platform>(&mut self, manager: &Manager<P>, plan: &Plan) -> Option<u8> {
        let infos = manager.platform().devices();
        let swaps = (0..infos.len()).filter(|device| infos[*device].gives_slots());
        let swaps: Vec<usize> = swaps.collect();
        let pages = |device: &usize| u64::from(infos[*device].pages);
        let chosen = swaps[self.random.below(swaps.len().max(1) as u64) as usize..].first()?;
        let others = swaps.iter().map(pages).sum::<u64>() - pages(chosen);
        // Two thirds of the slots are for copies, and few are made at a time. Folios need runs.
        let suffice = plan.folios.pages == 0 && 3 * others >= 2 * plan.slots();
        (suffice || plan.failures == Failures::Allowed).then_some(*chosen as u8)
    }

    /// Ends a removal that was begun: all devices are in use afterwards.
    pub(super) fn finish<P: Platform>(&mut self, manager: &Manager<P>) {
        if let Some(swapoff) = self.under_way.take() {
            manager.cancel_swapoff(swapoff.device());
        }
        if let Some((device, _)) = self.removed.take() {
            manager.swapon(device).expect("it was removed");
        }
    }
}
