//! Which server has which key: one, each of several, or the masters of a cluster.
//!
//! ```text
//! Nodes  |- servers   all that the user or the cluster has named: an index never changes
//!        |- layout    Spread: segments in turn. Cluster: by hash slots
//!        \- doubted   a server did not answer, or another one has the key: ask the cluster anew
//! ```
//! Locks: that of `known`, for moments. A forked child where a thread had it that does not exist
//! there begins with the servers that the user named.

use crate::remote::endpoint::Endpoint;
use crate::remote::login::Login;
use crate::remote::redis::cluster::Master;
use crate::remote::redis::keys::{HASH_SLOTS, Key};
use crate::remote::redis::resp::{Redirection, Tenure};
use crate::remote::verdict::{Problem, Refusal};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How long writes do not wait for replicas that did not have one in time.
const ALONE: Duration = Duration::from_secs(5);
/// How long a server of a cluster may take for an answer.
const CLUSTER_DEADLINE: Duration = Duration::from_secs(1);
/// No server.
const NONE: u16 = u16::MAX;
/// The most servers: a cluster has 1000 at most.
const SERVERS_MAX: usize = 2048;

/// A server that a request is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Its index.
    pub(super) server: usize,
    pub(super) tenure: Tenure,
}

/// Where the keys are.
pub(super) enum Layout {
    /// The first so many servers have the segments in turn.
    Spread(usize),
    Cluster(Owners),
}

/// The masters of a cluster.
pub(super) struct Owners {
    /// The server of each hash slot, or `NONE`.
    of: Vec<u16>,
    /// By server.
    copies: Vec<Copies>,
}

/// Replicas of a server, which fill themselves.
#[derive(Default)]
struct Copies {
    count: usize,
    /// Milliseconds from `Nodes::base`: until then writes do not wait for them.
    alone_until: AtomicU64,
    /// The epoch of the server's slots.
    epoch: u64,
}

/// Servers that know nothing of each other, or those of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Apart,
    Cluster,
}

/// The servers of a device.
pub(super) struct Nodes {
    pub(super) login: Login,
    kind: Kind,
    /// Those of the user.
    named: Arc<[Endpoint]>,
    known: RwLock<Known>,
    doubted: AtomicBool,
    /// The server that described the cluster last.
    described_by: AtomicUsize,
    /// Connections that were made, of all links.
    connections: AtomicU64,
    base: Instant,
}

struct Known {
    servers: Vec<Arc<Endpoint>>,
    layout: Arc<Layout>,
}

impl Owners {
    fn none() -> Owners {
        Owners { of: vec![NONE; HASH_SLOTS], copies: Vec::new() }
    }

    /// The owners as `masters` say, whose servers have these indices. A description may be older
    /// than what is known: by a master that stood still while its replica took over. A slot goes to
    /// another server only with an epoch that is not smaller.
    fn after(&self, masters: &[Master], servers: &[usize]) -> Owners {
        let mut owners = Owners { of: self.of.clone(), copies: Vec::new() };
        let count = servers.iter().map(|server| server + 1).max().unwrap_or(0);
        owners.copies.resize_with(count.max(self.copies.len()), Copies::default);
        for (server, copies) in owners.copies.iter_mut().enumerate() {
            if let Some(old) = self.copies.get(server) {
                copies.alone_until = AtomicU64::new(old.alone_until.load(Relaxed));
                copies.epoch = old.epoch;
            }
        }
        for (master, server) in masters.iter().zip(servers) {
            let known = |owner: u16| self.copies.get(usize::from(owner)).map_or(0, |it| it.epoch);
            for slot in master.slots.iter().cloned().flatten().take(HASH_SLOTS) {
                let owner = self.of[slot];
                if usize::from(owner) == *server || master.epoch >= known(owner) {
                    owners.of[slot] = *server as u16;
                }
            }
            let copies = &mut owners.copies[*server];
            (copies.count, copies.epoch) = (master.replicas, copies.epoch.max(master.epoch));
        }
        owners
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
            Layout::Cluster(owners) => {
                let servers: BTreeSet<u16> = owners.of.iter().copied().collect();
                servers.into_iter().filter(|server| *server != NONE).map(usize::from).collect()
            }
        }
    }

    /// The replicas of a server, if it has some.
    fn copies(&self, server: usize) -> Option<&Copies> {
        match self {
            Layout::Spread(_) => None,
            Layout::Cluster(owners) => owners.copies.get(server).filter(|copies| copies.count > 0),
        }
    }
}

impl Nodes {
    pub(super) fn new(named: Arc<[Endpoint]>, login: Login, kind: Kind) -> Nodes {
        let layout = match kind {
            Kind::Apart => Layout::Spread(named.len()),
            Kind::Cluster => Layout::Cluster(Owners::none()),
        };
        let servers = named.iter().cloned().map(Arc::new).collect();
        let known = RwLock::new(Known { servers, layout: Arc::new(layout) });
        let doubted = AtomicBool::new(true);
        let (described_by, connections) = (AtomicUsize::new(0), AtomicU64::new(0));
        let base = Instant::now();
        Nodes { login, kind, named, known, doubted, described_by, connections, base }
    }

    /// Those of a forked child.
    pub(super) fn inherit(&self) -> Nodes {
        let nodes = Nodes::new(self.named.clone(), self.login.clone(), self.kind);
        if let Ok(known) = self.known.try_read() {
            let (servers, layout) = (known.servers.clone(), known.layout.clone());
            *nodes.write() = Known { servers, layout };
        }
        nodes
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn layout(&self) -> Arc<Layout> {
        self.read().layout.clone()
    }

    pub(super) fn server(&self, index: usize) -> Arc<Endpoint> {
        self.read().servers[index].clone()
    }

    pub(super) fn count(&self) -> usize {
        self.read().servers.len()
    }

    /// The server to ask first for a description.
    pub(super) fn described_by(&self) -> usize {
        self.described_by.load(Relaxed)
    }

    /// One more connection: its memory is kept for the next one.
    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    /// Connections that were made.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// How long an answer may take. A cluster may have another server for it by then.
    pub(super) fn deadline(&self, most: Duration) -> Duration {
        match self.kind {
            Kind::Apart => most,
            Kind::Cluster => most.min(CLUSTER_DEADLINE),
        }
    }

    /// Something speaks against the layout.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, SeqCst);
    }

    /// Whether the layout is to be asked for. The caller does, and doubts again if that fails.
    pub(super) fn take_doubt(&self) -> bool {
        self.kind == Kind::Cluster && self.doubted.swap(false, SeqCst)
    }

    /// Where `from` says that a key is.
    pub(super) fn follow(&self, from: usize, to: Redirection) -> Result<Route, Problem> {
        if to.tenure == Tenure::Whole {
            self.doubt();
        }
        let server = self.index(from, to.host, to.port)?;
        Ok(Route { server, tenure: to.tenure })
    }

    /// Takes over what the server `from` says of its cluster.
    pub(super) fn adopt(&self, from: usize, masters: &[Master]) -> Result<(), Problem> {
        let index = |master: &Master| self.index(from, master.host, master.port);
        let servers = masters.iter().map(index).collect::<Result<Vec<usize>, Problem>>()?;
        let known = &mut *self.write();
        if let Layout::Cluster(owners) = &*known.layout {
            known.layout = Arc::new(Layout::Cluster(owners.after(masters, &servers)));
        }
        self.described_by.store(from, Relaxed);
        Ok(())
    }

    /// The index of a server, which is a new one if it was not known.
    fn index(&self, from: usize, host: Option<IpAddr>, port: u16) -> Result<usize, Problem> {
        let from = self.server(from);
        let host = host.or_else(|| from.server.host()).ok_or(Problem::Malformed)?;
        let servers = &mut self.write().servers;
        if let Some(found) = servers.iter().position(|known| known.server.is_at(host, port)) {
            return Ok(found);
        }
        if servers.len() >= SERVERS_MAX {
            return Err(Problem::Malformed);
        }
        let server = from.server.sibling(host, port);
        servers.push(Arc::new(Endpoint { server, tls: from.tls.clone() }));
        Ok(servers.len() - 1)
    }

    /// Whether there is a layout to go on with.
    pub(super) fn has_owners(&self) -> bool {
        !self.layout().owners().is_empty()
    }

    /// Whether a write waits until a replica has it, too.
    pub(super) fn awaits_copy(&self, layout: &Layout, server: usize) -> bool {
        let copies = layout.copies(server);
        copies.is_some_and(|copies| self.now() >= copies.alone_until.load(Relaxed))
    }

    /// No replica had a write in time: the next ones do not wait for a while.
    pub(super) fn no_copy(&self, layout: &Layout, server: usize) {
        if let Some(copies) = layout.copies(server) {
            copies.alone_until.store(self.now() + ALONE.as_millis() as u64, Relaxed);
        }
        self.doubt();
    }

    fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(epoch: u64, replicas: usize, first: usize) -> Master {
        Master { host: None, port: 1, slots: vec![first..=HASH_SLOTS - 1], replicas, epoch }
    }

    #[test]
    fn a_slot_goes_to_another_server_with_a_later_epoch() {
        let owners = Owners::none().after(&[master(1, 1, 0)], &[0]);
        assert!(owners.of.iter().all(|owner| *owner == 0));
        // Its replica takes over.
        let owners = owners.after(&[master(7, 0, 0)], &[2]);
        assert!(owners.of.iter().all(|owner| *owner == 2));
        // It goes on, and does not know that yet.
        let owners = owners.after(&[master(1, 1, 0)], &[0]);
        assert!(owners.of.iter().all(|owner| *owner == 2));
        // A part moves.
        let owners = owners.after(&[master(7, 0, 0), master(8, 0, 9000)], &[2, 1]);
        assert_eq!((owners.of[8999], owners.of[9000]), (2, 1));
        let same = owners.after(&[master(8, 0, 9000), master(7, 0, 0)], &[1, 2]);
        assert_eq!((same.of[8999], same.of[9000]), (2, 1));
    }

    #[test]
    fn writes_go_on_alone_although_the_cluster_is_described_again() {
        let nodes = Nodes::new(Arc::new([]), Login { user: None, password: None }, Kind::Cluster);
        let set = |owners| nodes.write().layout = Arc::new(Layout::Cluster(owners));
        set(Owners::none().after(&[master(1, 1, 0)], &[0]));
        assert!(nodes.awaits_copy(&nodes.layout(), 0) && !nodes.awaits_copy(&nodes.layout(), 1));
        nodes.no_copy(&nodes.layout(), 0);
        assert!(!nodes.awaits_copy(&nodes.layout(), 0));
        let Layout::Cluster(owners) = &*nodes.layout() else { unreachable!() };
        set(owners.after(&[master(1, 1, 0)], &[0]));
        assert!(!nodes.awaits_copy(&nodes.layout(), 0), "it waits again");
    }
}
