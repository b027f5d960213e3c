//! A source of slabs' pages: page numbers of a range. The pages are mapped elsewhere or simulated.
//!
//! ```text
//! PageRange -- CPU: Lock<Runs>     runs of order 0 to 3, newest last         class PerCpuFrames
//!           \- node: Lock<Buddy>   all other runs                            class Zone
//! ```
//! As in the kernel's page allocator, runs of up to 8 pages come from the CPU's lists, which are
//! filled and emptied in batches of 63 pages. Larger runs come from the node's buddy allocator.
//! Locking: a CPU's lists, then a node's buddy. Conservation: pages of the ranges = free in buddies
//! + on CPUs' lists + allocated.

use super::object::CacheId;
use super::source::{SlabPages, page_count};
use crate::lock_class;
use crate::zone::{Buddy, Mobility, Reach};
use highwater_platform::{FrameRange, Guard, Lock, Platform};
use highwater_units::{CpuId, NodeId, Order, Pfn};
use std::sync::Arc;

/// The largest order on CPUs' lists (PAGE_ALLOC_COSTLY_ORDER).
const KEPT_MAX: usize = 3;
/// Pages moved between a CPU and a node at a time (zone_batchsize).
const BATCH: usize = 63;
/// All CPUs' lists together hold at most this part of the pages.
const SHARE: usize = 8;

/// A source of page numbers.
pub struct PageRange<P: Platform> {
    platform: Arc<P>,
    nodes: Vec<Node<P>>,
    cpus: Vec<P::Lock<Runs>>,
    /// Most pages on a CPU's lists.
    high: usize,
}

struct Node<P: Platform> {
    range: FrameRange,
    buddy: P::Lock<Buddy>,
}

/// The runs that a CPU keeps, by order.
#[derive(Default)]
struct Runs {
    of: [Vec<u32>; KEPT_MAX + 1],
    pages: usize,
}

impl<P: Platform> PageRange<P> {
    /// A source of all pages of `ranges`, which ascend without holes.
    pub fn new(platform: Arc<P>, ranges: &[FrameRange]) -> PageRange<P> {
        assert!(!ranges.is_empty(), "a source has pages");
        let node = |range: &FrameRange| {
            let buddy = Buddy::new(range.first, range.frames);
            Node { range: *range, buddy: platform.new_lock(lock_class::ZONE, buddy) }
        };
        let all: usize = ranges.iter().map(|range| range.frames as usize).sum();
        let high = all / SHARE / platform.cpus();
        PageRange {
            nodes: ranges.iter().map(node).collect(),
            cpus: (0..platform.cpus())
                .map(|_| platform.new_lock(lock_class::PER_CPU_FRAMES, Runs::default()))
                .collect(),
            high: high.min(10 * BATCH),
            platform,
        }
    }

    /// The number of free pages.
    pub fn free_pages(&self) -> u64 {
        let kept: usize = self.cpus.iter().map(|cpu| cpu.lock().pages).sum();
        let free = self.nodes.iter().map(|node| u64::from(node.buddy.lock().free_frames()));
        kept as u64 + free.sum::<u64>()
    }

    /// All nodes, the CPU's own first.
    fn nodes_from(&self, cpu: CpuId) -> impl Iterator<Item = &Node<P>> {
        let own = self.platform.node_of(cpu);
        let first = self.nodes.iter().position(|node| node.range.node == own).unwrap_or(0);
        (0..self.nodes.len()).map(move |step| &self.nodes[(first + step) % self.nodes.len()])
    }

    fn node(&self, page: u64) -> &Node<P> {
        let at = self.nodes.partition_point(|node| u64::from(node.range.first.0) <= page);
        &self.nodes[at - 1]
    }

    /// Allocates up to `count` runs of a node.
    fn take_runs(node: &Node<P>, order: Order, count: usize) -> Vec<u32> {
        let mut buddy = node.buddy.lock();
        let runs: Vec<u32> = (0..count)
            .map_while(|_| buddy.alloc(order, Mobility::Movable, Reach::Any))
            .map(|first| first.0)
            .collect();
        buddy.visits(runs.len().max(1));
        runs
    }

    fn try_take(&self, order: Order) -> Option<u64> {
        let cpu = self.platform.cpu();
        if usize::from(order.0) > KEPT_MAX {
            let mut taken = self.nodes_from(cpu).flat_map(|node| Self::take_runs(node, order, 1));
            return taken.next().map(u64::from);
        }
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(1);
        if mine.of[usize::from(order.0)].is_empty() {
            let room = self.high.saturating_sub(mine.pages) >> order.0;
            let count = batch(order).min(room).max(1);
            let mut runs = self.nodes_from(cpu).map(|node| Self::take_runs(node, order, count));
            let mut runs = runs.find(|runs| !runs.is_empty())?;
            runs.reverse();
            mine.pages += runs.len() << order.0;
            mine.of[usize::from(order.0)] = runs;
        }
        mine.pages -= page_count(order) as usize;
        mine.of[usize::from(order.0)].pop().map(u64::from)
    }

    /// Returns all runs of CPUs' lists to the nodes, where they merge.
    fn drain(&self) {
        for cpu in &self.cpus {
            let mut kept = cpu.lock();
            for order in 0..=KEPT_MAX as u8 {
                self.give_runs(Order(order), &kept.of[usize::from(order)]);
                kept.of[usize::from(order)].clear();
            }
            kept.pages = 0;
        }
    }

    fn give_runs(&self, order: Order, runs: &[u32]) {
        let node_of = |run: u32| std::ptr::from_ref(self.node(run.into()));
        for same in runs.chunk_by(|a, b| node_of(*a) == node_of(*b)) {
            let mut buddy = self.node(same[0].into()).buddy.lock();
            buddy.visits(same.len());
            same.iter().for_each(|run| buddy.free(Pfn(*run), order, Mobility::Movable));
        }
    }
}

/// The number of runs in a batch.
fn batch(order: Order) -> usize {
    (BATCH >> order.0).max(1)
}

impl<P: Platform> SlabPages for PageRange<P> {
    type Platform = P;

    fn platform(&self) -> &P {
        &self.platform
    }

    fn pages(&self) -> u64 {
        let last = self.nodes.last().expect("there is one").range;
        u64::from(last.first.0) + u64::from(last.frames)
    }

    fn take(&self, order: Order, _: CacheId) -> Option<u64> {
        let taken = self.try_take(order);
        if taken.is_some() {
            return taken;
        }
        self.drain();
        self.try_take(order)
    }

    fn give(&self, first: u64, order: Order, _: CacheId) {
        if usize::from(order.0) > KEPT_MAX {
            return self.give_runs(order, &[first as u32]);
        }
        let mut mine = self.cpus[usize::from(self.platform.cpu().0)].lock();
        mine.visits(1);
        mine.pages += page_count(order) as usize;
        mine.of[usize::from(order.0)].push(first as u32);
        if mine.pages > self.high {
            let list = &mut mine.of[usize::from(order.0)];
            let count = batch(order).min(list.len());
            let oldest: Vec<u32> = list.drain(..count).collect();
            mine.pages -= count << order.0;
            self.give_runs(order, &oldest);
        }
    }

    fn node_of(&self, page: u64) -> NodeId {
        self.node(page).range.node
    }
}
