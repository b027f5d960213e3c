//! What a compressing device holds.

use highwater_units::Bytes;
use std::iter::Sum;

/// What is held compressed, and what that takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compression {
    /// Pages held, of any kind.
    pub pages: u64,
    /// Those of them that are one word over and over, and take nothing.
    pub same_filled: u64,
    /// Those of them that do not compress, and are stored as they are.
    pub incompressible: u64,
    /// Memory that they take.
    pub used: Bytes,
    /// What that may be at most.
    pub limit: Bytes,
}

impl Sum for Compression {
    fn sum<I: Iterator<Item = Compression>>(devices: I) -> Compression {
        devices.fold(Compression::default(), |sum, device| Compression {
            pages: sum.pages + device.pages,
            same_filled: sum.same_filled + device.same_filled,
            incompressible: sum.incompressible + device.incompressible,
            used: Bytes(sum.used.0 + device.used.0),
            limit: Bytes(sum.limit.0 + device.limit.0),
        })
    }
}
