//! Statistics of devices with replicas.

use std::collections::BTreeMap;

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

impl Replication {
    /// The sum over devices with their names. Of devices with one name, a lost replica counts once:
    /// a forked child has the device of its parent, and one of its own.
    pub fn sum(devices: impl Iterator<Item = (String, Replication)>) -> Replication {
        let (mut sum, mut lost) = (Replication::default(), BTreeMap::new());
        for (name, device) in devices {
            let most = lost.entry(name).or_insert(0);
            *most = device.lost.max(*most);
            sum.single_writes += device.single_writes;
            sum.second_reads += device.second_reads;
            sum.hedged_reads += device.hedged_reads;
        }
        Replication { lost: lost.values().sum(), ..sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_replica_counts_once_by_name() {
        let device = |name: &str, lost| {
            (name.to_owned(), Replication { lost, single_writes: 2, ..Replication::default() })
        };
        let own_and_inherited = [device("a", 1), device("b", 0), device("a", 1), device("c", 1)];
        let sum = Replication::sum(own_and_inherited.into_iter());
        assert_eq!(sum, Replication { lost: 2, single_writes: 8, ..Replication::default() });
    }
}
