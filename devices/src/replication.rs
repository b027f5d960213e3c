//! Statistics of devices with replicas.

use std::iter::Sum;

/// Counts since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replication {
    /// Replicas that are not used any more.
    pub lost: u64,
    /// Pages that were written to one replica only.
    pub single_writes: u64,
    /// Reads that failed, and were repeated on the other replica.
    pub second_reads: u64,
    /// Reads that took long, and were sent to the other replica, too.
    pub hedged_reads: u64,
}

/// A replica that is not used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostReplica {
    /// Its name.
    pub name: String,
    /// The name of the replica that is left.
    pub left: String,
}

impl Sum for Replication {
    fn sum<I: Iterator<Item = Replication>>(devices: I) -> Replication {
        devices.fold(Replication::default(), |sum, device| Replication {
            lost: sum.lost + device.lost,
            single_writes: sum.single_writes + device.single_writes,
            second_reads: sum.second_reads + device.second_reads,
            hedged_reads: sum.hedged_reads + device.hedged_reads,
        })
    }
}
