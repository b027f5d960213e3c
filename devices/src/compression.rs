//! Statistics of a compressing device.

use highwater_units::Bytes;
use std::iter::Sum;

/// The pages that a device holds, and the memory that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compression {
    /// Pages held, of any kind.
    pub pages: u64,
    /// Pages filled with one word, which take no memory.
    pub same_filled: u64,
    /// Pages that do not compress, and are stored uncompressed.
    pub incompressible: u64,
    /// Memory that the pages take.
    pub used: Bytes,
    /// The limit of that memory.
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
