//! Which server has which key: one, each of several, or the masters of a cluster.
//!
//! ```text
//! Nodes  |- nodes     all servers that the user or the cluster has named: an index never changes
//!        |- layout    Spread: segments in turn. Cluster: by hash slots
//!        \- doubted   a server did not answer, or another one has the key: ask the cluster again
//! read  --> the owner of the key, or one of its replicas if it does not answer
//! write --> the owner; turned away while it does not answer and others do
//! ```
//! Locks: `known`, held briefly. If another thread held it at a fork, the child begins with the
//! servers that the user named.

use crate::remote::endpoint::Endpoint;
use crate::remote::login::Login;
use crate::remote::redis::cluster::{Address, Master};
use crate::remote::redis::keys::Key;
use crate::remote::redis::layout::{Described, Layout, Owners, Route, Share};
use crate::remote::redis::node::{Copied, Copying, Node};
use crate::remote::redis::resp::{Redirection, Tenure};
use crate::remote::verdict::{Problem, Refusal};
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How long writes wait only for as many replicas as had the last write in time.
const FEW_TIME: Duration = Duration::from_secs(5);
/// How long a server of a cluster may take for an answer; and a server with replicas whose last
/// request was answered.
const CLUSTER_DEADLINE: Duration = Duration::from_secs(1);
const COPIED_DEADLINE: Duration = Duration::from_millis(500);
/// After this many writes in a row were turned away, one waits for its server: the servers that
/// answer have no free slots.
const TURNED_AWAY_MAX: u32 = 64;
/// The most servers: a cluster has at most 1000.
const SERVERS_MAX: usize = 2048;

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
    /// The servers that the user named.
    named: Arc<[Endpoint]>,
    known: RwLock<Known>,
    doubted: AtomicBool,
    /// The server that described the cluster last.
    described_by: AtomicUsize,
    /// Connections that were made, of all links.
    connections: AtomicU64,
    /// Writes in a row that were turned away.
    turned_away: AtomicU32,
    /// The last stamp.
    clock: AtomicU64,
    base: Instant,
}

struct Known {
    nodes: Vec<Arc<Node>>,
    layout: Arc<Layout>,
}

impl Nodes {
    pub(super) fn new(named: Arc<[Endpoint]>, login: Login, kind: Kind) -> Nodes {
        let layout = match kind {
            Kind::Apart => Layout::Spread(named.len()),
            Kind::Cluster => Layout::Cluster(Owners::none()),
        };
        let nodes = named.iter().cloned().map(Node::new).map(Arc::new).collect();
        Nodes {
            login,
            kind,
            named,
            known: RwLock::new(Known { nodes, layout: Arc::new(layout) }),
            doubted: AtomicBool::new(true),
            described_by: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            turned_away: AtomicU32::new(0),
            clock: AtomicU64::new(0),
            base: Instant::now(),
        }
    }

    /// The servers in a forked child.
    pub(super) fn inherit(&self) -> Nodes {
        let nodes = Nodes::new(self.named.clone(), self.login.clone(), self.kind);
        if let Ok(known) = self.known.try_read() {
            let all = known.nodes.iter().map(|node| Arc::new(node.inherit()));
            *nodes.write() = Known { nodes: all.collect(), layout: known.layout.clone() };
            nodes.clock.store(self.clock.load(SeqCst), SeqCst);
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

    pub(super) fn node(&self, server: usize) -> Arc<Node> {
        self.read().nodes[server].clone()
    }

    pub(super) fn count(&self) -> usize {
        self.read().nodes.len()
    }

    /// Draws a stamp, later than all earlier ones.
    pub(super) fn stamp(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst) + 1
    }

    /// The servers with keys that did not answer the last request; none if there is only one
    /// server.
    pub(super) fn failing(&self, layout: &Layout) -> Vec<usize> {
        let servers = layout.servers();
        if servers.len() < 2 {
            return Vec::new();
        }
        servers.into_iter().filter(|server| !self.node(*server).answers()).collect()
    }

    /// The masters that answer and whose replicas may lack pages.
    pub(super) fn lacking(&self, layout: &Layout) -> Vec<usize> {
        let lacks = |server: &usize| {
            let node = self.node(*server);
            node.answers() && !node.is_copied() && layout.copied_share(*server).is_some()
        };
        layout.owners().into_iter().filter(lacks).collect()
    }

    /// Records whether a connection was made.
    pub(super) fn note_connection<T>(&self, server: usize, made: &Result<T, Problem>) {
        match made {
            Ok(_) => self.node(server).note_answer(),
            Err(problem) if problem.ends_link() => self.fails(server),
            Err(_) => {}
        }
    }

    /// Records an answer, or that none came in time. A lost connection does not count as a failure
    /// of the server: a new one may be made at once.
    pub(super) fn note_answer<T>(&self, server: usize, answer: &Result<T, Problem>) {
        match answer {
            Ok(_) => self.node(server).note_answer(),
            Err(problem) => self.note_problem(server, *problem),
        }
    }

    /// Records a request that failed.
    pub(super) fn note_problem(&self, server: usize, problem: Problem) {
        if problem.is_silence() {
            self.fails(server);
        }
    }

    /// Records that a request to a server failed. Its replicas are read only after the cluster was
    /// asked again: they may have changed.
    pub(super) fn fails(&self, server: usize) {
        self.doubt();
        self.node(server).note_failure(self.stamp());
    }

    /// The server to ask first for a description.
    pub(super) fn described_by(&self) -> usize {
        self.described_by.load(Relaxed)
    }

    /// Counts a connection, whose memory is kept for the next one.
    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    /// Connections that were made.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// How long an answer of a server may take. In a cluster, another server may have taken over by
    /// then.
    pub(super) fn deadline(&self, layout: &Layout, server: usize, most: Duration) -> Duration {
        let others_have_it =
            || layout.copied_share(server).is_some() && self.node(server).answers();
        match self.kind {
            Kind::Apart => most,
            Kind::Cluster if others_have_it() => most.min(COPIED_DEADLINE),
            Kind::Cluster => most.min(CLUSTER_DEADLINE),
        }
    }

    /// The server to read a key from: its owner. If the owner does not answer, and its replicas
    /// have all its pages: the one of them all that failed the longest time ago, or not at all.
    pub(super) fn source(&self, layout: &Layout, key: &Key) -> Result<Route, Problem> {
        let owner = layout.owner(key)?;
        let node = self.node(owner.server);
        let Some(share) = layout.copied_share(owner.server) else { return Ok(owner) };
        if node.answers() || !node.is_copied() {
            return Ok(owner);
        }
        let failed = |server: &usize| self.node(*server).failed();
        let best = share.replicas.iter().copied().min_by_key(failed);
        let best = best.filter(|server| failed(server) < node.failed());
        Ok(best.map_or(owner, |server| Route { server, tenure: Tenure::Copy }))
    }

    /// The server to write a key to; `None`: it does not answer, and other servers can take the
    /// page at another slot.
    pub(super) fn destination(&self, layout: &Layout, key: &Key) -> Result<Option<Route>, Problem> {
        let owner = layout.owner(key)?;
        if !self.turns_away(layout, owner) {
            return Ok(Some(owner));
        }
        let before = self.turned_away.fetch_add(1, Relaxed);
        Ok(Some(owner).filter(|_| before >= TURNED_AWAY_MAX))
    }

    /// Whether a server does not answer, and others do.
    pub(super) fn turns_away(&self, layout: &Layout, owner: Route) -> bool {
        let answers = |server: &usize| self.node(*server).answers();
        !answers(&owner.server) && layout.owners().iter().any(answers)
    }

    /// A page was written.
    pub(super) fn note_written(&self) {
        if self.turned_away.load(Relaxed) != 0 {
            self.turned_away.store(0, Relaxed);
        }
    }

    /// Marks the layout as doubtful.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, SeqCst);
    }

    /// Whether the cluster must be asked for its layout. The caller asks, and calls
    /// [`Nodes::doubt`] if that fails.
    pub(super) fn take_doubt(&self) -> bool {
        self.kind == Kind::Cluster && self.doubted.swap(false, SeqCst)
    }

    /// The server to which `from` redirects a request.
    pub(super) fn follow(&self, from: usize, to: Redirection) -> Result<Route, Problem> {
        if to.tenure == Tenure::Whole {
            self.doubt();
        }
        // Replicas of `from` may still have keys that it has given away.
        self.note_lack(from);
        let server = self.index(from, Address { host: to.host, port: to.port })?;
        Ok(Route { server, tenure: to.tenure })
    }

    /// Adopts the description of the cluster that the server `from` gave.
    pub(super) fn adopt(&self, from: usize, masters: Vec<Master>) -> Result<(), Problem> {
        let described = masters.into_iter().map(|master| self.described(from, master));
        let described = described.collect::<Result<Vec<Described>, Problem>>()?;
        let known = &mut *self.write();
        if let Layout::Cluster(owners) = &*known.layout {
            for Described { server, share, .. } in &described {
                // The new replica has yet to copy the existing pages.
                if share.has_more_than(owners.share(*server)) {
                    known.nodes[*server].note_lack(self.stamp());
                }
            }
            known.layout = Arc::new(Layout::Cluster(owners.after(&described)));
        }
        self.described_by.store(from, Relaxed);
        Ok(())
    }

    fn described(&self, from: usize, master: Master) -> Result<Described, Problem> {
        let Master { address, slots, replicas, all_replicas, epoch } = master;
        let server = self.index(from, address)?;
        let replicas = replicas.into_iter().map(|address| self.index(from, address));
        let replicas = replicas.collect::<Result<Vec<usize>, Problem>>()?;
        Ok(Described { server, slots, share: Share { replicas, all_replicas, epoch } })
    }

    /// The index of a server, which is added if it was not known.
    fn index(&self, from: usize, address: Address) -> Result<usize, Problem> {
        let Endpoint { server: from, tls } = &self.node(from).endpoint;
        let host = address.host.or_else(|| from.host()).ok_or(Problem::Malformed)?;
        let nodes = &mut self.write().nodes;
        let is_there = |node: &Arc<Node>| node.endpoint.server.is_at(host, address.port);
        if let Some(found) = nodes.iter().position(is_there) {
            return Ok(found);
        }
        if nodes.len() >= SERVERS_MAX {
            return Err(Problem::Malformed);
        }
        let server = from.sibling(host, address.port);
        nodes.push(Arc::new(Node::new(Endpoint { server, tls: tls.clone() })));
        Ok(nodes.len() - 1)
    }

    /// Records that replicas of this server may lack changes, or that it did not carry out a write,
    /// so that WAIT there proves nothing.
    pub(super) fn note_lack(&self, server: usize) {
        self.node(server).note_lack(self.stamp());
    }

    /// Whether a layout is known.
    pub(super) fn has_owners(&self) -> bool {
        !self.layout().owners().is_empty()
    }

    /// The replicas that should have writes to a server; `None`: the server is in no cluster. The
    /// stamp `since` was drawn before the layout was read: replicas that have these writes have all
    /// writes that were answered before the stamp.
    pub(super) fn copying(&self, layout: &Layout, server: usize, since: u64) -> Option<Copying> {
        if self.kind == Kind::Apart {
            return None;
        }
        let Some(share) = layout.copied_share(server) else {
            // A replica that is added meanwhile may lack the writes.
            return Some(Copying { live: 0, all: usize::MAX, enough: 0, since });
        };
        let live = share.replicas.len();
        let enough = self.node(server).enough(live, self.now());
        Some(Copying { live, all: share.all_replicas, enough, since })
    }

    /// Records how many replicas had the writes in time. If none had, the writes are repeated
    /// without waiting for replicas, once it is known that the server still owns their keys.
    pub(super) fn note_copies(
        &self,
        server: usize,
        copying: Copying,
        copies: usize,
    ) -> Result<(), Problem> {
        let node = self.node(server);
        match copying.copied(copies) {
            Copied::Whole => node.note_copied(copying.since),
            Copied::Enough => self.note_lack(server),
            Copied::More => {
                self.note_lack(server);
                self.doubt();
            }
            Copied::Fewer => {
                self.note_lack(server);
                node.wait_for_few(copies, self.now() + FEW_TIME.as_millis() as u64);
                self.doubt();
                if copies == 0 {
                    return Err(Problem::Refused(Refusal::Busy));
                }
            }
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.base.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::redis::keys::{HASH_SLOTS, Session};
    use crate::remote::server::Server;

    const LOGIN: Login = Login { user: None, password: None };

    /// A cluster of two masters, the first of which has two replicas; the key belongs to the first.
    fn cluster() -> (Nodes, Key) {
        let nodes = Nodes::new(Arc::new([]), LOGIN, Kind::Cluster);
        let server = |port| Server::Tcp { host: "::1".to_owned(), port };
        for port in 1..=4 {
            let endpoint = Endpoint { server: server(port), tls: None };
            nodes.write().nodes.push(Arc::new(Node::new(endpoint)));
        }
        describe(&nodes, &[2, 3], &[0, 1]);
        let keys = (0..100).map(|segment| Session(1).segment(segment));
        let of_first = |key: &Key| nodes.layout().owner(key).unwrap().server == 0;
        let key = { keys }.find(of_first).expect("a key of the first");
        (nodes, key)
    }

    fn describe(nodes: &Nodes, replicas: &[usize], order: &[usize]) {
        let address = |server: usize| Address { host: "::1".parse().ok(), port: server as u16 + 1 };
        let replicas: Vec<Address> = replicas.iter().copied().map(address).collect();
        let masters = order.iter().map(|server| {
            let (slots, replicas) = match server {
                0 => (vec![0..=9000], replicas.clone()),
                _ => (vec![9001..=HASH_SLOTS - 1], Vec::new()),
            };
            let all_replicas = replicas.len();
            Master { address: address(*server), slots, replicas, all_replicas, epoch: 1 }
        });
        nodes.adopt(1, masters.collect()).unwrap();
    }

    fn copy(nodes: &Nodes, copies: usize) -> Result<(), Problem> {
        let since = nodes.stamp();
        let copying = nodes.copying(&nodes.layout(), 0, since).unwrap();
        nodes.note_copies(0, copying, copies)
    }

    #[test]
    fn a_server_that_fails_is_read_from_replicas_that_have_all_its_pages() {
        let (nodes, key) = cluster();
        let source = || {
            let Route { server, tenure } = nodes.source(&nodes.layout(), &key).unwrap();
            assert_eq!(tenure == Tenure::Copy, server != 0);
            server
        };
        nodes.fails(0);
        assert_eq!(source(), 0, "replicas have yet to copy what there is");
        assert_eq!(copy(&nodes, 1), Ok(()));
        assert_eq!(source(), 0, "one of them may lack a page");
        assert_eq!(copy(&nodes, 3), Ok(()));
        assert_eq!(source(), 0, "one of three may be these two's");
        assert_eq!(copy(&nodes, 2), Ok(()));
        // The servers fail in turn.
        for server in [2, 3, 0, 2] {
            assert_eq!(source(), server);
            nodes.fails(server);
        }
        nodes.node(0).note_answer();
        assert_eq!(source(), 0);
        nodes.fails(0);
        assert_eq!(source(), 3);
        // By now, another server may have that address.
        describe(&nodes, &[2], &[1, 0]);
        assert_eq!(source(), 2);
        describe(&nodes, &[2, 3], &[1, 0]);
        assert_eq!(source(), 0);
    }

    #[test]
    fn writes_go_on_alone_although_the_cluster_is_described_again() {
        let (nodes, _) = cluster();
        let enough_of =
            |server| nodes.copying(&nodes.layout(), server, 0).map(|copying| copying.enough);
        let enough = || enough_of(0);
        assert_eq!((enough(), enough_of(1)), (Some(2), Some(0)));
        assert_eq!(copy(&nodes, 1), Ok(()));
        assert_eq!(enough(), Some(1));
        assert_eq!(copy(&nodes, 0), Err(Problem::Refused(Refusal::Busy)));
        describe(&nodes, &[2, 3], &[0, 1]);
        assert_eq!(enough(), Some(0));
        assert_eq!(copy(&nodes, 0), Ok(()));
    }

    #[test]
    fn pages_of_a_server_that_fails_go_to_other_slots_while_others_answer() {
        let (nodes, key) = cluster();
        let destination = || {
            let route = nodes.destination(&nodes.layout(), &key).unwrap();
            route.map(|route| route.server)
        };
        assert_eq!(destination(), Some(0));
        nodes.fails(0);
        (0..TURNED_AWAY_MAX).for_each(|_| assert_eq!(destination(), None));
        assert_eq!(destination(), Some(0), "others have no free slots");
        nodes.note_written();
        assert_eq!(destination(), None);
        nodes.fails(1);
        assert_eq!(destination(), Some(0), "no server takes pages");
    }
}
