//! The free frames of one node: per-CPU lists over a buddy allocator, with watermarks.
//!
//! ```text
//! Zone -- frames of this CPU: Lock<Vec<Pfn>>   batches of `batch`, at most `high` kept
//!      \- Lock<Buddy>                          blocks of order 0 to 10
//!      |- free: frames in the buddy            compared with min, low, high without a lock
//!      \- peak: most frames out of it at once
//! ```
//! Locking: a CPU's list, then the buddy's (`PerCpuFrames -> Zone`). As in the kernel, frames on
//! per-CPU lists do not count as free; [`Zone::drain`] gives them back when memory is short.
//! Conservation: buddy + per-CPU lists + frames handed out = frames of the range.

mod buddy;
#[cfg(test)]
mod buddy_fuzz;
mod watermark;

pub use buddy::Buddy;
pub use watermark::{Level, Watermarks};

use highwater_platform::{Atomic, FrameRange, Guard, Lock, LockClass, Platform};
use highwater_units::{CpuId, FrameList, LARGE_PAGES, Order, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// The free frames of a node.
pub struct Zone<P: Platform> {
    range: FrameRange,
    marks: Watermarks,
    batch: usize,
    high: usize,
    free: P::Atomic<u32>,
    peak: P::Atomic<u32>,
    buddy: P::Lock<Buddy>,
    cpus: Vec<P::Lock<Vec<Pfn>>>,
}

impl<P: Platform> Zone<P> {
    /// A zone whose frames are all free.
    pub fn new(platform: &P, range: FrameRange, marks: Watermarks) -> Zone<P> {
        let batch = batch_of(range.frames);
        let high = (marks.low as usize / platform.cpus()).clamp(batch, 4 * batch);
        let list = |_| platform.new_lock(LockClass::PerCpuFrames, Vec::with_capacity(high + batch));
        Zone {
            range,
            marks,
            batch,
            high,
            free: Atomic::new(range.frames),
            peak: Atomic::new(0),
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
        self.peak.load(Relaxed)
    }

    /// Whether `frames` could be taken and the zone stay at or above `level`.
    pub fn allows(&self, level: Level, frames: u32) -> bool {
        self.free_frames() >= self.marks.at(level) + frames
    }

    /// One frame, if the CPU has one at hand or the zone stays above `level`.
    pub fn alloc(&self, cpu: CpuId, level: Level) -> Option<Pfn> {
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(1);
        // Another CPU may take frames between a look at the count and the next: one look.
        let spare = self.free_frames().saturating_sub(self.marks.at(level)) as usize;
        if mine.is_empty() && spare > 0 {
            let batch = self.batch.min(spare);
            let mut buddy = self.buddy.lock();
            mine.extend((0..batch).map_while(|_| buddy.alloc(Order(0))));
            buddy.visits(mine.len());
            self.count_free(&buddy);
        }
        mine.pop()
    }

    /// Up to `frames` (at most 16) frames, adjacent if the buddy has a block of that size; from
    /// smaller ones where it has not. Only those above `level`.
    pub fn alloc_run(&self, frames: usize, level: Level) -> FrameList {
        let spare = self.free_frames().saturating_sub(self.marks.at(level)) as usize;
        let frames = frames.min(spare);
        if frames == 0 {
            return FrameList::default();
        }
        let mut run = FrameList::default();
        let mut buddy = self.buddy.lock();
        let mut order = Order::covering(frames as u32);
        while run.len() < frames {
            match buddy.alloc(order) {
                Some(first) => (0..order.frames()).for_each(|i| match run.len() < frames {
                    true => run.push(first.offset(i)),
                    false => buddy.free(first.offset(i), Order(0)),
                }),
                None if order.0 > 0 => order.0 -= 1,
                None => break,
            }
        }
        buddy.visits(run.len());
        self.count_free(&buddy);
        run
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

    /// Gives frames back: to the CPU's list, and in batches from there to the buddy allocator.
    pub fn free(&self, cpu: CpuId, frames: &[Pfn]) {
        if frames.len() > 1 {
            return self.free_to_buddy(frames);
        }
        let mut mine = self.cpus[usize::from(cpu.0)].lock();
        mine.visits(1);
        mine.extend(frames);
        if mine.len() > self.high {
            let keep = mine.len() - self.batch;
            self.free_to_buddy(&mine[keep..]);
            mine.truncate(keep);
        }
    }

    /// Gives the frames of all per-CPU lists back to the buddy allocator.
    pub fn drain(&self) {
        for list in &self.cpus {
            let mut list = list.lock();
            list.visits(1);
            if !list.is_empty() {
                self.free_to_buddy(&list);
                list.clear();
            }
        }
    }

    fn free_to_buddy(&self, frames: &[Pfn]) {
        let mut buddy = self.buddy.lock();
        buddy.visits(frames.len());
        frames.iter().for_each(|pfn| buddy.free(*pfn, Order(0)));
        self.count_free(&buddy);
    }

    /// Says what is free by now to who has no lock. The caller has the buddy's.
    fn count_free(&self, buddy: &Buddy) {
        let free = buddy.free_frames();
        self.free.store(free, Relaxed);
        let used = self.range.frames - free;
        if used > self.peak.load(Relaxed) {
            self.peak.store(used, Relaxed);
        }
    }

    /// Calls `found` with every free frame, for [`crate::verify`].
    pub(crate) fn each_free(&self, mut found: impl FnMut(Pfn)) {
        for list in &self.cpus {
            list.lock().iter().for_each(|pfn| found(*pfn));
        }
        let buddy = self.buddy.lock();
        assert_eq!(buddy.free_frames(), self.free_frames(), "the free count matches the buddy");
        buddy.each_block(|first, order| (0..order.frames()).for_each(|i| found(first.offset(i))));
    }
}

/// Frames moved between a CPU's list and the buddy at a time: the kernel's rule (zone_batchsize).
fn batch_of(frames: u32) -> usize {
    let quarter = ((frames >> 10).min(256) / 4).max(1) as usize;
    ((quarter + quarter / 2 + 1).next_power_of_two() / 2).max(2) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_os::Os;
    use highwater_units::{Bytes, NodeId};

    #[test]
    fn batches_follow_the_kernel() {
        // Frames of a zone -> batch: 1 for tiny zones, 63 from 1 GiB on.
        for (frames, batch) in [(64, 1), (4096, 1), (65_536, 15), (1 << 18, 63), (1 << 22, 63)] {
            assert_eq!(batch_of(frames), batch, "{frames} frames");
        }
    }

    #[test]
    fn the_peak_is_what_was_taken_at_once_to_within_a_batch() {
        let platform = Os::new(Bytes::of_pages(1), Vec::new()).expect("an arena");
        let range = FrameRange { node: NodeId(0), first: Pfn(0), frames: 1 << 15 };
        let zone = Zone::new(&platform, range, Watermarks::new(1 << 15, 1 << 15, None, 10));
        let take = |count| -> Vec<Pfn> {
            (0..count).filter_map(|_| zone.alloc(CpuId(0), Level::Nothing)).collect()
        };
        assert_eq!(zone.peak(), 0);
        let first = take(1000);
        first.iter().for_each(|pfn| zone.free(CpuId(0), &[*pfn]));
        let second = take(500);
        let run = zone.alloc_run(16, Level::Nothing);
        assert_eq!((first.len(), second.len(), run.len()), (1000, 500, 16));
        assert!((1000..1000 + zone.batch as u32).contains(&zone.peak()), "{}", zone.peak());
        let all = take(1 << 15);
        assert_eq!((all.len(), zone.peak()), ((1 << 15) - 516, 1 << 15));
    }
}
