//! Scales a machine's memory down while its behaviour stays that of the full machine.
//!
//! ```text
//!           memory, device sizes      watermarks, in frames    costs, bandwidths, CPUs
//! full      T                         min   gap                unchanged
//! scaled    T/by, not below a floor   kept  kept               unchanged
//! ```
//! Speeds are unchanged, so that figures compare with those of the full machine; only the time to
//! fill memory shrinks. At the same speeds, the reserve between low and min must cover the same
//! wake latency of kswapd as on the full machine: so the watermarks keep their size in frames, not
//! their share of memory. If they would take too much of a small memory, all of them shrink in
//! proportion.

use super::description::Machine;
use highwater_units::Bytes;

/// The least memory of a scaled node for each CPU of the machine, in MiB: 512 frames, so that
/// per-CPU lists (batches of 63) hold at most an eighth of memory.
const MIB_PER_CPU: u64 = 2;

/// The smallest scaled node, in MiB.
const NODE_MIB_MIN: u64 = 16;

/// The smallest scaled device, in MiB: one trunk of the swap cache.
const DEVICE_MIB_MIN: u64 = 64;

/// The high watermark is at most one part in this many of a scaled memory.
const HIGH_SHARE: u64 = 8;

/// The kernel's watermark_scale_factor, in 10000ths of memory.
const SCALE_FACTOR: u64 = 10;

/// The manager settings that give a scaled machine the watermarks of the full one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MarkSettings {
    /// The sum of the min watermarks of all nodes, in frames.
    pub min_free: u32,
    /// Gaps between the watermarks, in 10000ths of a node.
    pub watermark_scale: u32,
    /// The share of the full machine's reserve: 1 unless the cap was reached.
    pub kept: f64,
}

impl Machine {
    /// This machine with memory and device sizes divided by `by`. A node keeps at least 16 MiB and
    /// at least 2 MiB for each CPU of the machine, a device 64 MiB; smaller ones are unchanged.
    ///
    /// # Errors
    /// `by` is 0.
    pub fn scaled(&self, by: u64) -> Result<Machine, String> {
        if by == 0 {
            return Err("scale = 0: 1 is the whole machine, 2 is half of its memory".to_owned());
        }
        let mut scaled = self.clone();
        let node_min = NODE_MIB_MIN.max(MIB_PER_CPU * self.cpus() as u64);
        scaled.node_mib.iter_mut().for_each(|mib| *mib = shrunk(*mib, by, node_min));
        for device in &mut scaled.devices {
            device.mib = shrunk(device.mib, by, DEVICE_MIB_MIN);
        }
        Ok(scaled)
    }

    /// The settings that give `scaled`, a scaled copy of this machine, the kernel's watermarks for
    /// this full machine.
    pub fn watermarks(&self, scaled: &Machine) -> MarkSettings {
        let (full, memory) = (pages(self.memory()), pages(scaled.memory()));
        let min = kernel_min(full);
        let gap = (min / 4).max(full * SCALE_FACTOR / 10_000);
        let (high, cap) = (min + 2 * gap, memory / HIGH_SHARE);
        let keep = |frames: u64| {
            if high > cap {
                (u128::from(frames) * u128::from(cap) / u128::from(high)) as u64
            } else {
                frames
            }
        };
        MarkSettings {
            min_free: keep(min) as u32,
            watermark_scale: (keep(gap) * 10_000).div_ceil(memory) as u32,
            kept: (cap as f64 / high as f64).min(1.0),
        }
    }
}

fn shrunk(mib: u64, by: u64, min: u64) -> u64 {
    (mib / by).max(min.min(mib))
}

fn pages(memory: Bytes) -> u64 {
    memory.0 / highwater_units::PAGE_SIZE as u64
}

/// The kernel's min_free_kbytes in frames, with the manager's limit for small budgets. A platform
/// does not depend on the manager, so a test compares the two.
fn kernel_min(frames: u64) -> u64 {
    let kib_per_frame = highwater_units::PAGE_SIZE as u64 / 1024;
    let min_kib = (frames * kib_per_frame * 16).isqrt().clamp(128, 262_144);
    (min_kib / kib_per_frame).min(frames / 16)
}

#[cfg(test)]
mod tests {
    use super::super::files::{self, SMALL};
    use super::*;
    use highwater_mm::inspect::Watermarks;

    /// The watermarks that the manager computes for all memory of a machine with these settings.
    fn marks(machine: &Machine, min_free: Option<u32>, scale: u64) -> Watermarks {
        let frames = pages(machine.memory()) as u32;
        Watermarks::new(frames, frames, min_free, Some(scale as u32))
    }

    #[test]
    fn a_whole_machine_needs_no_settings() {
        for machine in files::all() {
            let settings = machine.watermarks(&machine.scaled(1).unwrap());
            let formula = marks(&machine, None, SCALE_FACTOR);
            assert_eq!(settings.min_free, formula.min, "{}", machine.name);
            assert_eq!(u64::from(settings.watermark_scale), SCALE_FACTOR, "{}", machine.name);
            assert_eq!(settings.kept, 1.0, "{}", machine.name);
        }
    }

    #[test]
    fn a_scaled_machine_keeps_the_reserve_in_frames() {
        for machine in files::all() {
            let full = marks(&machine, None, SCALE_FACTOR);
            let scaled = machine.scaled(8).unwrap();
            let settings = machine.watermarks(&scaled);
            let kept = marks(&scaled, Some(settings.min_free), u64::from(settings.watermark_scale));
            let rounding = pages(scaled.memory()) as u32 / 10_000 + 1;
            assert_eq!((settings.kept, kept.min), (1.0, full.min), "{}", machine.name);
            let (was, is) = (full.low - full.min, kept.low - kept.min);
            assert!((was..=was + rounding).contains(&is), "{}: {was} {is}", machine.name);
        }
    }

    #[test]
    fn no_reserve_takes_more_than_an_eighth() {
        for machine in files::all() {
            for by in [64, 1000, 1 << 20] {
                let scaled = machine.scaled(by).unwrap();
                let settings = machine.watermarks(&scaled);
                let marks =
                    marks(&scaled, Some(settings.min_free), u64::from(settings.watermark_scale));
                let frames = pages(scaled.memory()) as u32;
                let most = frames / 8 + 2 * (frames / 10_000 + 1);
                assert!(marks.high <= most, "{} / {by}: {marks:?}", machine.name);
                let shares = |low: u32, min: u32| f64::from(low - min) / f64::from(low);
                let full = self::marks(&machine, None, 10);
                let (was, is) = (shares(full.low, full.min), shares(marks.low, marks.min));
                assert!((was - is).abs() < 0.02, "{} / {by}: {was} {is}", machine.name);
            }
        }
    }

    #[test]
    fn sizes_shrink_to_their_floor_and_speeds_stay() {
        let small = Machine::load(SMALL).unwrap();
        assert_eq!(small.scaled(2).unwrap().node_mib, [32, 16]);
        let least = small.scaled(1 << 40).unwrap();
        assert_eq!(least.node_mib, [16, 16], "8 CPUs: 2 MiB each");
        assert_eq!(least.devices[0].mib, 64, "one trunk");
        assert_eq!(least.devices[1].mib, 48, "smaller than a trunk: stays");
        assert_eq!(least.costs, small.costs);
        assert_eq!(least.devices[0].read_mb_per_s, small.devices[0].read_mb_per_s);
        assert!(small.scaled(0).is_err());
    }
}
