//! A scan position for each CPU: at the end of 64 MiB it moves to another 64 MiB, at random, so
//! that CPUs use different trees of the swap cache ("Reduce lock contention on swap cache from swap
//! slots allocation", 2020).

use super::tree::TRUNK_SHIFT;
use highwater_units::Prng;
use std::sync::Mutex;

struct Scan {
    next: u32,
    random: Prng,
}

/// By CPU, the slot at which it scans next. A CPU's own is used under that CPU's lock only.
pub(in crate::swap) struct ScanPositions {
    cpus: Vec<Mutex<Scan>>,
    slots: u32,
}

impl ScanPositions {
    /// Positions at random, on a device of `slots` slots.
    pub(super) fn new(cpus: usize, slots: u32) -> ScanPositions {
        let scan = |cpu| {
            let mut random = Prng::new(cpu as u64);
            Mutex::new(Scan { next: random.below(u64::from(slots.max(1))) as u32, random })
        };
        ScanPositions { cpus: (0..cpus).map(scan).collect(), slots }
    }

    /// Finds slots by `search`, from a CPU's position on, and moves the position behind them.
    pub(in crate::swap) fn scan(
        &self,
        cpu: usize,
        search: impl FnOnce(u32) -> Option<(u32, usize)>,
    ) -> Option<(u32, usize)> {
        let at = |scan: &Mutex<Scan>| scan.lock().expect("no panic under this lock").next;
        let (slot, taken) = search(at(&self.cpus[cpu]))?;
        let mut scan = self.cpus[cpu].lock().expect("no panic under this lock");
        let next = slot + taken as u32;
        let leaves = slot >> TRUNK_SHIFT != next >> TRUNK_SHIFT || next >= self.slots;
        scan.next = if leaves {
            scan.random.below(u64::from(self.slots)) as u32 >> TRUNK_SHIFT << TRUNK_SHIFT
        } else {
            next
        };
        Some((slot, taken))
    }
}
