//! The keys of a device on its servers: who holds them, how long they live, how they are deleted.
//!
//! The last holder that ends deletes all keys. Each key has a lifetime, which its holders extend:
//! keys left by a machine that died expire.

use crate::remote::redis::bundle::{Bundle, whole};
use crate::remote::redis::keys::{Session, expire};
use crate::remote::redis::link::Answer;
use crate::remote::redis::nodes::Nodes;
use crate::remote::verdict::Problem;

impl Session {
    /// Adds a holder, a number that only it has.
    pub(super) fn hold(
        self,
        bundle: &mut Bundle,
        nodes: &Nodes,
        holder: u64,
    ) -> Result<(), Problem> {
        let key = self.holders();
        let added = bundle.ask(nodes, &key, &|requests| {
            requests.words(&[b"SADD", key.bytes(), &holder.to_ne_bytes()]);
        });
        whole(added?)?;
        self.extend(bundle, nodes, std::iter::empty())
    }

    /// Extends the lifetime of the keys of the holders and of `segments`.
    pub(super) fn extend(
        self,
        bundle: &mut Bundle,
        nodes: &Nodes,
        segments: impl Iterator<Item = u32>,
    ) -> Result<(), Problem> {
        let segments = segments.map(|segment| self.segment(segment));
        bundle.ask_all(nodes, std::iter::once(self.holders()).chain(segments), &expire)
    }

    /// Removes a holder. The last one deletes the keys of all `segments`.
    pub(super) fn release(
        self,
        bundle: &mut Bundle,
        nodes: &Nodes,
        holder: u64,
        segments: u32,
    ) -> Result<(), Problem> {
        let key = self.holders();
        let removed = bundle.ask(nodes, &key, &|requests| {
            requests.words(&[b"SREM", key.bytes(), &holder.to_ne_bytes()]);
        });
        whole(removed?)?;
        let left = bundle.ask(nodes, &key, &|requests| requests.words(&[b"SCARD", key.bytes()]));
        match left? {
            Answer::Integer(0) => self.delete(bundle, nodes, 0..segments),
            _ => Ok(()),
        }
    }

    /// Deletes the keys of segments.
    pub(super) fn delete(
        self,
        bundle: &mut Bundle,
        nodes: &Nodes,
        segments: impl Iterator<Item = u32>,
    ) -> Result<(), Problem> {
        let keys = segments.map(|segment| self.segment(segment));
        bundle.ask_all(nodes, keys, &|requests, key| requests.words(&[b"UNLINK", key.bytes()]))
    }
}
