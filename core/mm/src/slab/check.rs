//! The walk that checks all slabs while no thread uses them.

use super::Slabs;
use super::record::Slab;
use super::source::{SlabPages, page_count};
use highwater_platform::{Atomic, Lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

/// The owner of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A CPU allocates from it, and has this many objects on its free list.
    Cpu(u16),
    /// It is on a CPU's partial list.
    CpuPartial,
    /// It is on a node's list.
    Node(usize),
}

impl<S: SlabPages> Slabs<S> {
    /// Slabs with pages, and their ids. Other threads may allocate and free slabs meanwhile.
    pub(super) fn live_slabs(&self) -> impl Iterator<Item = (u32, &Slab<S::Platform>)> {
        let all = self.table.ids().filter_map(|id| Some((id, self.table.find(id)?)));
        all.filter(|(id, slab)| self.map.get(slab.pages().first) == Some(*id))
    }

    /// The pages of all slabs.
    pub fn pages(&self) -> u64 {
        self.live_slabs().map(|(_, slab)| page_count(slab.pages().order)).sum()
    }

    /// Checks every slab, while no thread uses them.
    ///
    /// # Panics
    /// If the state is inconsistent.
    pub fn verify(&self) {
        self.verify_with_reserved(&[]);
    }

    /// [`Slabs::verify`] while callers have reserved objects: slab and index.
    pub(super) fn verify_with_reserved(&self, reserved: &[(u32, u16)]) {
        let owners = self.owners();
        let mut waiting: BTreeMap<u32, BTreeSet<u16>> = BTreeMap::new();
        let mut wait = |id, index| {
            assert!(waiting.entry(id).or_default().insert(index), "an object is free twice");
        };
        self.deferred.each(&mut wait);
        reserved.iter().for_each(|(id, index)| wait(*id, *index));
        let sheaves = self.caches().filter_map(|cache| cache.sheaves.as_ref());
        sheaves.for_each(|sheaves| sheaves.each(&mut wait));
        let mut slabs = BTreeMap::new();
        for (id, slab) in self.live_slabs() {
            let none = BTreeSet::new();
            self.verify_slab(slab, owners.get(&id).copied(), waiting.get(&id).unwrap_or(&none));
            *slabs.entry((slab.cache, slab.node())).or_insert(0) += 1;
            let pages = slab.pages();
            let all = pages.first..pages.first + page_count(pages.order);
            assert!(
                all.clone().all(|page| self.map.get(page) == Some(id)),
                "the pages of a slab map to it"
            );
        }
        for cache in self.caches() {
            for (index, node) in cache.nodes.iter().enumerate() {
                let found = slabs.get(&(cache.id, index)).copied().unwrap_or(0);
                assert_eq!(node.slabs.load(Relaxed), found, "slabs of {}", cache.spec.name);
            }
        }
    }

    /// The owners of all slabs that have one.
    fn owners(&self) -> BTreeMap<u32, Owner> {
        let mut owners = BTreeMap::new();
        let mut add = |id, owner| {
            let before = owners.insert(id, owner);
            assert_eq!(before, None, "slab {id} is also {owner:?}");
        };
        for cache in self.caches() {
            for cpu in &cache.cpus {
                let mine = cpu.lock();
                if let Some(id) = mine.slab {
                    let slab = self.table.get(id);
                    let own = std::iter::successors(mine.head, |index| slab.next(*index)).count();
                    add(id, Owner::Cpu(own as u16));
                } else {
                    assert_eq!(mine.head, None, "a CPU without a slab has no free list");
                }
                mine.partial.iter().for_each(|id| add(*id, Owner::CpuPartial));
            }
            for (index, node) in cache.nodes.iter().enumerate() {
                let list = node.list.lock();
                let ids: Vec<u32> = list.iter(&self.table).collect();
                assert_eq!(ids.len(), list.len() as usize);
                assert_eq!(node.partial(), list.len());
                ids.iter().for_each(|id| add(*id, Owner::Node(index)));
            }
        }
        owners
    }

    fn verify_slab(&self, slab: &Slab<S::Platform>, owner: Option<Owner>, waiting: &BTreeSet<u16>) {
        let state = slab.state();
        let mut seen = waiting.clone();
        waiting.iter().for_each(|index| assert!(!slab.is_used(*index), "free and allocated"));
        let mut free = 0;
        for index in std::iter::successors(state.head, |index| slab.next(*index)) {
            assert!(seen.insert(index) && !slab.is_used(index), "object {index} is free twice");
            free += 1;
        }
        slab.each_used(|index| {
            assert!(seen.insert(index), "object {index} is free and allocated");
        });
        let own = match owner {
            Some(Owner::Cpu(own)) => own,
            _ => 0,
        };
        assert_eq!(free + state.out, slab.objects(), "objects out and free: {state:?}");
        assert_eq!(seen.len() + usize::from(own), usize::from(slab.objects()), "{state:?}");
        let frozen = matches!(owner, Some(Owner::Cpu(_) | Owner::CpuPartial));
        assert_eq!(state.frozen, frozen, "{owner:?}");
        match owner {
            Some(Owner::Node(node)) => {
                assert_eq!(slab.node() % self.nodes, node);
                assert!(state.head.is_some(), "a slab on a node's list has free objects");
            }
            Some(Owner::CpuPartial) => assert!(state.head.is_some()),
            Some(Owner::Cpu(_)) => {}
            None => assert_eq!(state.head, None, "a slab without an owner is full"),
        }
    }
}
