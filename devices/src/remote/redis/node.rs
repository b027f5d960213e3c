//! A server and its recent state: whether it answers, and whether its replicas have its pages.
//!
//! ```text
//! write --> server, WAIT for its replicas --> all have it: every earlier write, too
//!                                         \-> fewer: a replica may lack pages, until a later write
//!                                             is in all of them
//! server that fails --> reads go to a replica, if none may lack pages; writes to other servers
//! ```
//! A server carries writes out in one order, and its replicas take them over in that order. So once
//! all replicas have a write, they also have all writes that were answered before it was sent.
//!
//! Times are stamps of the clock of [`super::nodes::Nodes`]; 0 is none. Locks: `given_up`, held
//! briefly.

use crate::remote::endpoint::Endpoint;
use crate::remote::redis::link::{Identity, Link};
use crate::remote::verdict::Problem;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A server of a device.
pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    /// When the last request failed; 0 once a request was answered.
    failed: AtomicU64,
    /// The last write that a replica may lack.
    lacking: AtomicU64,
    /// Until `few_until` (in milliseconds of the device), only this many replicas must have a
    /// write.
    few: AtomicUsize,
    few_until: AtomicU64,
    /// Connections that were given up, with requests that may be carried out until the server drops
    /// the connections. It must do that before anything else is sent to it.
    given_up: Mutex<Vec<Identity>>,
}

/// Writes that were sent, and the replicas that should have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copying {
    /// How many replicas are alive.
    pub(super) live: usize,
    /// How many there are, including those considered dead.
    pub(super) all: usize,
    /// How many must have the writes.
    pub(super) enough: usize,
    /// A stamp from before the writes were sent; 0: they may have changed nothing, and prove
    /// nothing about earlier writes.
    pub(super) since: u64,
}

/// How many of the replicas have a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// All replicas have it.
    Whole,
    /// More replicas than are known have it.
    More,
    /// As many replicas as must have it, have it.
    Enough,
    /// Fewer replicas have it. The next writes wait only for this number.
    Fewer,
}

impl Copying {
    pub(super) fn copied(self, copies: usize) -> Copied {
        match copies {
            copies if copies == self.all => Copied::Whole,
            copies if copies > self.all => Copied::More,
            copies if copies >= self.enough => Copied::Enough,
            _ => Copied::Fewer,
        }
    }
}

impl Node {
    pub(super) fn new(endpoint: Endpoint) -> Node {
        let zero = || AtomicU64::new(0);
        let (failed, lacking, few_until) = (zero(), zero(), zero());
        let (few, given_up) = (AtomicUsize::new(0), Mutex::default());
        Node { endpoint, failed, lacking, few, few_until, given_up }
    }

    /// The node in a forked child, which has no connections.
    pub(super) fn inherit(&self) -> Node {
        let node = Node::new(self.endpoint.clone());
        node.lacking.store(self.lacking.load(SeqCst), SeqCst);
        node
    }

    fn lock_given_up(&self) -> MutexGuard<'_, Vec<Identity>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_up(&self, connection: Identity) {
        self.lock_given_up().push(connection);
    }

    /// Makes the server drop the connections that were given up. Until the server has dropped a
    /// connection, all bundles still see it as given up.
    pub(super) fn bury(&self, link: &mut Link) -> Result<(), Problem> {
        let connections = self.lock_given_up().clone();
        for connection in connections {
            link.bury(connection)?;
            self.lock_given_up().retain(|other| *other != connection);
        }
        Ok(())
    }

    /// Whether the last request was answered.
    pub(super) fn answers(&self) -> bool {
        self.failed() == 0
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    pub(super) fn note_answer(&self) {
        if !self.answers() {
            self.failed.store(0, Relaxed);
        }
    }

    pub(super) fn note_failure(&self, stamp: u64) {
        self.failed.store(stamp, Relaxed);
    }

    /// Whether its replicas have all its pages.
    pub(super) fn is_copied(&self) -> bool {
        self.lacking.load(SeqCst) == 0
    }

    /// Records that a replica may lack writes that were answered before this stamp was drawn.
    pub(super) fn note_lack(&self, stamp: u64) {
        self.lacking.fetch_max(stamp, SeqCst);
    }

    /// Records that its replicas have all writes that were answered before this stamp was drawn.
    pub(super) fn note_copied(&self, since: u64) {
        if since == 0 {
            return;
        }
        self.few_until.store(0, Relaxed);
        let older = |lacking| (lacking != 0 && lacking < since).then_some(0);
        // An error: a later write may be lacking.
        let _ = self.lacking.fetch_update(SeqCst, SeqCst, older);
    }

    /// How many of its `live` replicas must have a write.
    pub(super) fn enough(&self, live: usize, now: u64) -> usize {
        match now < self.few_until.load(Relaxed) {
            true => live.min(self.few.load(Relaxed)),
            false => live,
        }
    }

    pub(super) fn wait_for_few(&self, few: usize, until: u64) {
        self.few.store(few, Relaxed);
        self.few_until.store(until, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::server::Server;

    fn node() -> Node {
        let server = Server::Tcp { host: "127.0.0.1".to_owned(), port: 1 };
        Node::new(Endpoint { server, tls: None })
    }

    #[test]
    fn a_write_in_all_replicas_vouches_for_those_that_were_answered_before_it_was_sent() {
        let node = node();
        assert!(node.is_copied());
        node.note_lack(5);
        for (since, copied) in [(4, false), (5, false), (6, true)] {
            node.note_copied(since);
            assert_eq!(node.is_copied(), copied, "{since}");
        }
        // Answers arrive in another order.
        node.note_lack(9);
        node.note_lack(8);
        node.note_copied(9);
        assert!(!node.is_copied());
    }

    #[test]
    fn writes_wait_for_fewer_replicas_for_a_while() {
        let node = node();
        assert_eq!(node.enough(2, 0), 2);
        node.wait_for_few(1, 10);
        assert_eq!([node.enough(2, 9), node.enough(0, 9), node.enough(2, 10)], [1, 0, 2]);
        let copying = Copying { live: 2, all: 2, enough: 1, since: 0 };
        let copied = [3, 2, 1, 0].map(|copies| copying.copied(copies));
        assert_eq!(copied, [Copied::More, Copied::Whole, Copied::Enough, Copied::Fewer]);
        let alone = Copying { enough: 0, ..copying };
        assert_eq!(alone.copied(0), Copied::Enough);
        node.note_copied(1);
        assert_eq!(node.enough(2, 9), 2, "all had one again");
    }
}
