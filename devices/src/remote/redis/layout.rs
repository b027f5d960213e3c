//! The servers that have the keys, as known at one time.

use crate::remote::redis::keys::{HASH_SLOTS, Key};
use crate::remote::redis::resp::Tenure;
use crate::remote::verdict::{Problem, Refusal};
use std::ops::RangeInclusive;

/// No server.
const NONE: u16 = u16::MAX;

/// A server that a request is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Its index.
    pub(super) server: usize,
    pub(super) tenure: Tenure,
}

/// Where the keys are.
pub(super) enum Layout {
    /// This many servers, from the first on, have the segments in turn.
    Spread(usize),
    Cluster(Owners),
}

/// The masters of a cluster.
pub(super) struct Owners {
    /// The server of each hash slot, or `NONE`.
    of: Vec<u16>,
    /// Servers that have hash slots.
    servers: Vec<usize>,
    /// The share of each server.
    shares: Vec<Share>,
}

/// The replicas of a master, and the epoch of its hash slots.
#[derive(Clone, Default)]
pub(super) struct Share {
    pub(super) replicas: Vec<usize>,
    /// How many replicas it has, including those considered dead.
    pub(super) all_replicas: usize,
    pub(super) epoch: u64,
}

/// A master as described, with servers given by index.
pub(super) struct Described {
    pub(super) server: usize,
    pub(super) slots: Vec<RangeInclusive<usize>>,
    pub(super) share: Share,
}

impl Owners {
    pub(super) fn none() -> Owners {
        Owners { of: vec![NONE; HASH_SLOTS], servers: Vec::new(), shares: Vec::new() }
    }

    /// The owners as `masters` say. A description may be outdated, if it comes from a master that
    /// was stopped while its replica took over. So a slot goes to another server only if that
    /// server's epoch is not smaller than the known owner's.
    pub(super) fn after(&self, masters: &[Described]) -> Owners {
        let mut of = self.of.clone();
        let mut shares: Vec<Share> = self.shares.iter().map(Share::without_replicas).collect();
        let count = masters.iter().map(|master| master.server + 1).max().unwrap_or(0);
        shares.resize_with(count.max(shares.len()), Share::default);
        for Described { server, slots, share } in masters {
            let known = |owner: u16| self.shares.get(usize::from(owner)).map_or(0, |it| it.epoch);
            for slot in slots.iter().cloned().flatten().take(HASH_SLOTS) {
                let owner = self.of[slot];
                if usize::from(owner) == *server || share.epoch >= known(owner) {
                    of[slot] = *server as u16;
                }
            }
            let epoch = shares[*server].epoch.max(share.epoch);
            shares[*server] = Share { epoch, ..share.clone() };
        }
        let has_slots = |server: &usize| of.contains(&(*server as u16));
        let servers = (0..shares.len()).filter(has_slots).collect();
        Owners { of, servers, shares }
    }

    pub(super) fn share(&self, server: usize) -> Option<&Share> {
        self.shares.get(server)
    }
}

impl Share {
    fn without_replicas(&self) -> Share {
        Share { epoch: self.epoch, ..Share::default() }
    }

    /// Whether this share has a replica that the earlier one had not.
    pub(super) fn has_more_than(&self, earlier: Option<&Share>) -> bool {
        let was = |replica| earlier.is_some_and(|share| share.replicas.contains(replica));
        !self.replicas.iter().all(was)
    }
}

impl Layout {
    /// The server that has a key.
    pub(super) fn owner(&self, key: &Key) -> Result<Route, Problem> {
        let server = match self {
            Layout::Spread(servers) => key.segment as usize % servers,
            Layout::Cluster(owners) => match owners.of[key.hash_slot()] {
                NONE => return Err(Problem::Refused(Refusal::Busy)),
                server => server.into(),
            },
        };
        Ok(Route { server, tenure: Tenure::Whole })
    }

    /// The servers that have keys.
    pub(super) fn owners(&self) -> Vec<usize> {
        match self {
            Layout::Spread(servers) => (0..*servers).collect(),
            Layout::Cluster(owners) => owners.servers.clone(),
        }
    }

    /// The servers that have keys, or copies of them.
    pub(super) fn servers(&self) -> Vec<usize> {
        let mut servers = self.owners();
        let copies = |server: &usize| self.copied_share(*server).map(|share| &share.replicas);
        let copies: Vec<usize> = servers.iter().filter_map(copies).flatten().copied().collect();
        servers.extend(copies);
        servers
    }

    /// The share of a server, if it is a master with replicas.
    pub(super) fn copied_share(&self, server: usize) -> Option<&Share> {
        match self {
            Layout::Spread(_) => None,
            Layout::Cluster(owners) => {
                owners.share(server).filter(|share| !share.replicas.is_empty())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(server: usize, epoch: u64, replicas: &[usize], first: usize) -> Described {
        let share = Share { replicas: replicas.to_vec(), all_replicas: replicas.len(), epoch };
        Described { server, slots: vec![first..=HASH_SLOTS - 1], share }
    }

    #[test]
    fn a_slot_goes_to_another_server_with_a_later_epoch() {
        let owners = Owners::none().after(&[master(0, 1, &[2], 0)]);
        assert!(owners.of.iter().all(|owner| *owner == 0));
        // Its replica takes over.
        let owners = owners.after(&[master(2, 7, &[], 0)]);
        assert!(owners.of.iter().all(|owner| *owner == 2));
        // The old master continues, and does not know of the takeover yet.
        let owners = owners.after(&[master(0, 1, &[2], 0)]);
        assert!(owners.of.iter().all(|owner| *owner == 2));
        // A part of the slots moves.
        let owners = owners.after(&[master(2, 7, &[], 0), master(1, 8, &[], 9000)]);
        assert_eq!((owners.of[8999], owners.of[9000]), (2, 1));
        let same = owners.after(&[master(1, 8, &[], 9000), master(2, 7, &[], 0)]);
        assert_eq!((same.of[8999], same.of[9000]), (2, 1));
        assert_eq!(same.servers, [1, 2]);
    }
}
