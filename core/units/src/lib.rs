//! The units of all layers: page numbers, orders, CPUs, nodes, slots, time.
//!
//! ```text
//! Vpn   page of a space           Pfn  frame of the arena         Order  log2 of a block's frames
//! Slot  page of a swap device     CpuId, NodeId                   Nanos  time
//! ```
//! They are plain `Copy` values. Arithmetic that mixes two units does not compile.
#![forbid(unsafe_code)]

mod lists;
mod page;
mod prng;
mod run;

pub use lists::IndexLists;
pub use page::{Direction, LARGE_PAGES, Order, PAGE_SHIFT, PAGE_SIZE, Pfn, Vpn};
pub use prng::Prng;
pub use run::{
    BATCH_PAGES_MAX, FrameArray, FrameBatch, FrameList, IoFrames, RUN_PAGES_MAX, adjacent,
};

use std::fmt;

/// The number of a CPU of the platform, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u16);

/// The number of a memory node of the platform, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

/// The number of a space, which is one page table, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u16);

/// A page of a swap device. It fits the 40 payload bits of a page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index of the device, in the order in which devices were given.
    pub device: u8,
    /// Page index on the device: 2^32 pages are 16 TiB.
    pub index: u32,
}

impl Slot {
    /// Packed into 40 bits: device above index.
    pub fn to_bits(self) -> u64 {
        u64::from(self.device) << 32 | u64::from(self.index)
    }

    /// The inverse of [`Slot::to_bits`].
    pub fn from_bits(bits: u64) -> Slot {
        Slot { device: (bits >> 32) as u8, index: bits as u32 }
    }
}

/// Nanoseconds, as a point on the platform's clock or a length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to this point; zero if the clock stepped back.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A number of bytes, shown with a binary unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The bytes of a number of pages.
    pub fn of_pages(pages: u64) -> Bytes {
        Bytes(pages << PAGE_SHIFT)
    }

    /// Whole pages in this many bytes.
    pub fn pages(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut value = self.0 as f64;
        while value >= 1024.0 && unit < UNITS.len() - 1 {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = usize::from(value.fract() != 0.0 && value < 100.0);
        write!(f, "{value:.decimals$} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_round_trips_through_forty_bits() {
        let slot = Slot { device: 255, index: u32::MAX };
        assert_eq!(Slot::from_bits(slot.to_bits()), slot);
        assert!(slot.to_bits() < 1 << 40);
    }

    #[test]
    fn bytes_have_binary_units() {
        for (bytes, text) in [(0, "0 B"), (4096, "4 KiB"), (1536, "1.5 KiB"), (1 << 30, "1 GiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
