//! The free frames of one node: per-CPU lists over a buddy allocator, with watermarks.
//!
//! ```text
//! Zone -- frames of this CPU: Lock<CpuFrames>   at most `high`, moved in batches      pcp.rs
//!      |- Lock<Buddy>                           blocks of order 0 to 10               buddy.rs
//!      \- free: frames in the buddy             compared with min, low, high without a lock
//! ```
//! Who frees memory for itself, or frees its own, does it into its CPU's list, and takes from there
//! again without the zone's lock; what kswapd frees is for all ([`Zone::free_for_all`]).
//!
//! Locking: a CPU's list, then the buddy's (`PerCpuFrames -> Zone`). As in the kernel, frames on
//! per-CPU lists do not count as free; [`Zone::drain`] gives them back when memory is short.
//! Conservation: buddy + per-CPU lists + frames handed out = frames of the range.

mod buddy;
#[cfg(test)]
mod buddy_fuzz;
mod pcp;
mod watermark;
#[cfg(test)]
mod zone_fuzz;

pub use buddy::Buddy;
pub use watermark::{Level, Watermarks};

use highwater_platform::{Atomic, FrameRange, Guard, Lock, LockClass, Platform};
use highwater_units::{CpuId, FrameList, LARGE_PAGES, Order, Pfn, adjacent};
use pcp::{CpuFrames, Limits, Source};
use std::sync::atomic::Ordering::Relaxed;

/// The free frames of a node.
pub struct Zone<P: Platform> {
    range: FrameRange,
    marks: Watermarks,
    limits: Limits,
    free: P::Atomic<u32>,
    buddy: P::Lock<Buddy>,
    cpus: Vec<P::Lock<CpuFrames>>,
}

impl<P: Platform> Zone<P> {
    /// A zone whose frames are all free.
    pub fn new(platform: &P, range: FrameRange, marks: Watermarks) -> Zone<P> {
        let own = |cpu: &u16| platform.node_of(CpuId(*cpu)) == range.node;
        let local = (0..platform.cpus() as u16).filter(own).count();
        let limits = Limits::new(range.frames, marks.low, local);
        let list = |_| platform.new_lock(LockClass::PerCpuFrames, CpuFrames::new(limits));
        Zone {
            range,
            marks,
            limits,
            free: Atomic::new(range.frames),
            buddy: platform.new_lock(LockClass::Zone, Buddy::new(range.first, range.frames)),
            cpus: (0..platform.cpus()).map(list).collect(),
        }
    }

    /// The frames of the zone, free or not.
    pub fn range(&self) -> FrameRange {
        self.range
    }

    /// The watermarks.
    pub fn marks(&self) -> Watermarks {
        self.marks
    }

    /// Frames in the buddy allocator.
    pub fn free_frames(&self) -> u32 {
        self.free.load(Relaxed)
    }

    /// Most frames that were out of the buddy allocator at once: in use, or on a CPU's list.
    pub fn peak(&self) -> u32 {
        self.range.frames - self.buddy.lock().least_free()
    }

    /// Whether `frames` could be taken and the zone stay at or above `level`.
    pub fn allows(&self, level: Level, frames: u32) -> bool {
        self.free_frames() >= self.marks.at(level) + frames
    }

    /// Up to `wanted` (1 to 16) frames: those the CPU has at hand, or what the zone has above
    /// `level`; adjacent ones if that is above low and has such.
    pub fn alloc(&self, cpu: CpuId, wanted: usize, level: Level) -> FrameList {
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(1);
        // Another CPU may take frames between a look at the count and the next: one look.
        let spare = || self.free_frames().saturating_sub(self.marks.at(level)) as usize;
        match mine.source(&self.limits, wanted, level, spare) {
            Source::List => {}
            Source::Buddy { frames } => {
                let mut buddy = self.buddy.lock();
                // Single frames fill gaps, and leave blocks to who wants adjacent ones.
                let together = if wanted > 1 { frames } else { 1 };
                let blocks = buddy.alloc_many(frames, together, |first, frames| {
                    mine.push((0..frames).map(|i| first.offset(i)));
                });
                buddy.visits(blocks);
                self.count_free(&buddy);
            }
        }
        mine.pop(wanted)
    }

    /// The first frame of a free large block, if the zone stays above `level` without it.
    pub fn alloc_block(&self, level: Level) -> Option<Pfn> {
        if !self.allows(level, LARGE_PAGES as u32) {
            return None;
        }
        let mut buddy = self.buddy.lock();
        buddy.visits(1);
        let block = buddy.alloc(Order::LARGE);
        self.count_free(&buddy);
        block
    }

    /// Gives frames back: to the CPU's list, and half of it to the buddy allocator when it is full.
    pub fn free(&self, cpu: CpuId, frames: &[Pfn]) {
        if frames.len() > self.limits.high {
            return self.free_for_all(frames);
        }
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(frames.len());
        mine.free(&self.limits, frames, |oldest| self.free_for_all(oldest));
    }

    /// Gives frames back to the buddy allocator, for whoever needs them.
    pub fn free_for_all(&self, frames: &[Pfn]) {
        let mut buddy = self.buddy.lock();
        let blocks = adjacent(frames).map(|(_, first, len)| buddy.free_many(first, len as u32));
        let blocks = blocks.sum();
        buddy.visits(blocks);
        self.count_free(&buddy);
    }

    /// Gives the frames of all per-CPU lists back to the buddy allocator.
    pub fn drain(&self) {
        for list in &self.cpus {
            let mut list = list.lock();
            list.visits(1);
            if !list.frames().is_empty() {
                self.free_for_all(list.frames());
                list.clear();
            }
        }
    }

    /// Says what is free by now to who has no lock. The caller has the buddy's.
    fn count_free(&self, buddy: &Buddy) {
        self.free.store(buddy.free_frames(), Relaxed);
    }

    /// Calls `found` with every free frame, for [`crate::verify`].
    pub(crate) fn each_free(&self, mut found: impl FnMut(Pfn)) {
        for list in &self.cpus {
            list.lock().frames().iter().for_each(|pfn| found(*pfn));
        }
        let buddy = self.buddy.lock();
        assert_eq!(buddy.free_frames(), self.free_frames(), "the free count matches the buddy");
        buddy.each_block(|first, order| (0..order.frames()).for_each(|i| found(first.offset(i))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_os::Os;
    use highwater_units::{Bytes, NodeId};

    #[test]
    fn the_peak_is_what_was_taken_at_once_to_within_a_batch() {
        let platform = Os::new(Bytes::of_pages(1), Vec::new()).expect("an arena");
        let range = FrameRange { node: NodeId(0), first: Pfn(0), frames: 1 << 15 };
        let zone = Zone::new(&platform, range, Watermarks::new(1 << 15, 1 << 15, None, Some(10)));
        let take = |count| -> Vec<Pfn> {
            (0..count).flat_map(|_| zone.alloc(CpuId(0), 1, Level::Nothing).to_vec()).collect()
        };
        assert_eq!(zone.peak(), 0);
        let first = take(1000);
        first.iter().for_each(|pfn| zone.free(CpuId(0), &[*pfn]));
        let second = take(500);
        let run = zone.alloc(CpuId(0), 16, Level::Nothing);
        assert_eq!((first.len(), second.len(), run.len()), (1000, 500, 16));
        assert!((1000..1000 + zone.limits.high as u32).contains(&zone.peak()), "{}", zone.peak());
        let all = take(1 << 15);
        assert_eq!((all.len(), zone.peak()), ((1 << 15) - 516, 1 << 15));
    }
}
