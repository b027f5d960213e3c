//! Parses the state of a cluster as one of its servers describes it (`CLUSTER NODES`).
//!
//! ```text
//! ID HOST:PORT@BUS[,NAME] FLAGS MASTER PING PONG EPOCH LINK [SLOT | FIRST-LAST | [MOVING]]...
//! ```
//! Nothing here talks to a server.

use crate::remote::redis::keys::HASH_SLOTS;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Where a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// `None`: the host that was asked.
    pub(super) host: Option<IpAddr>,
    pub(super) port: u16,
}

/// A server that has hash slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    pub(super) address: Address,
    /// Hash slots.
    pub(super) slots: Vec<RangeInclusive<usize>>,
    /// Its replicas, except those that the server considers dead.
    pub(super) replicas: Vec<Address>,
    /// How many replicas it has, including dead ones.
    pub(super) all_replicas: usize,
    /// The number of the election or move that gave it the slots.
    pub(super) epoch: u64,
}

/// The longest description that is read: a cluster has at most 1000 servers.
const TEXT_MAX: usize = 1 << 20;
/// The most lines.
const LINES_MAX: usize = 4096;

/// A line.
struct Line<'a> {
    id: &'a str,
    address: &'a str,
    flags: &'a str,
    master: &'a str,
    epoch: u64,
    slots: Vec<&'a str>,
}

impl Line<'_> {
    fn read(text: &str) -> Option<Line<'_>> {
        let mut words = text.split_ascii_whitespace();
        let [id, address, flags, master] =
            [words.next()?, words.next()?, words.next()?, words.next()?];
        // The epoch follows two times.
        let epoch = words.nth(2)?.parse().ok()?;
        // The slots follow the state of the servers' connection.
        let slots = words.skip(1).collect();
        Some(Line { id, address, flags, master, epoch, slots })
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|given| given == flag)
    }

    fn is_replica_of(&self, master: &str) -> bool {
        self.has("slave") && self.master == master
    }

    fn is_dead(&self) -> bool {
        ["fail", "fail?", "noaddr", "handshake"].iter().any(|flag| self.has(flag))
    }

    /// `None`: clients cannot reach it.
    fn address(&self) -> Option<Address> {
        let (host, port) = self.address.split(['@', ',']).next()?.rsplit_once(':')?;
        let host = if host.is_empty() { None } else { Some(host.parse().ok()?) };
        let port = port.parse().ok().filter(|port| *port != 0)?;
        Some(Address { host, port })
    }

    /// The server, if clients can reach it.
    fn master(&self, lines: &[Line<'_>]) -> Option<Master> {
        let address = self.address()?;
        let of_this = lines.iter().filter(|line| line.is_replica_of(self.id));
        let replicas = of_this.clone().filter(|line| !line.is_dead());
        let replicas = replicas.filter_map(Line::address).collect();
        let slots = self.slots.iter().filter_map(|text| range(text)).collect();
        Some(Master { address, slots, replicas, all_replicas: of_this.count(), epoch: self.epoch })
    }
}

/// SLOT or FIRST-LAST; `None`: a slot that is being moved, or malformed text.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (last < HASH_SLOTS).then_some(first..=last)
}

/// The masters of a description that have hash slots.
pub(super) fn masters(text: &str) -> Vec<Master> {
    if text.len() > TEXT_MAX {
        return Vec::new();
    }
    let lines: Vec<Line<'_>> = text.lines().take(LINES_MAX).filter_map(Line::read).collect();
    let masters = lines.iter().filter(|line| line.has("master"));
    let masters = masters.filter_map(|line| line.master(&lines));
    masters.filter(|master| !master.slots.is_empty()).collect()
}

#[cfg(test)]
#[path = "cluster_fuzz.rs"]
mod fuzz;
