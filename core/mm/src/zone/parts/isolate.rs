//! Taking the free frames of a pageblock away, for compaction to move pages to.
//!
//! Which frames are free is looked at without the part's lock, and again with it. How long the lock
//! is held is what the documents of 2012 are about: over a whole pageblock, or from the first free
//! block on.

use super::{Parts, Standing};
use crate::zone::map::Map;
use highwater_platform::{Atomic, Guard, Lock, Platform};
use highwater_units::{Order, Pfn};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// From where on a scanner holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// From the first frame of what it scans.
    Early,
    /// From the first frame that it wants.
    Late,
}

/// What a scanner does about a lock that others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// It gives up.
    Aborts,
    /// It waits.
    Waits,
}

/// What came of scanning a pageblock for free frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeScan {
    /// Frames that were looked at; of a free block only the first.
    pub scanned: u32,
    /// Frames that were taken.
    pub isolated: u32,
    /// Whether a lock was given up for: the rest was not looked at.
    pub contended: bool,
}

impl<P: Platform> Parts<P> {
    /// Pageblocks of all parts.
    pub(in crate::zone) fn pageblocks(&self) -> u32 {
        self.parts.iter().map(|part| part.map.pageblocks()).sum()
    }

    /// The map that a pageblock is in, its number there, and the first frame of that part.
    fn at(&self, pageblock: u32) -> (usize, u32) {
        let each = self.parts[0].map.pageblocks();
        ((pageblock / each) as usize, pageblock % each)
    }

    fn first_of(&self, part: usize) -> Pfn {
        self.range.first.offset(part as u32 * self.each)
    }

    /// The pageblock of a frame.
    pub(in crate::zone) fn pageblock_of(&self, pfn: Pfn) -> u32 {
        let part = self.part_of(pfn);
        let within = (pfn.0 - self.first_of(part).0) / crate::zone::PAGEBLOCK;
        part as u32 * self.parts[0].map.pageblocks() + within
    }

    /// The frames of a pageblock.
    pub(in crate::zone) fn frames_of(&self, pageblock: u32) -> Range<u32> {
        let (part, own) = self.at(pageblock);
        let (first, frames) = (self.first_of(part).0, self.parts[part].map.frames_of(own));
        first + frames.start..first + frames.end
    }

    /// What is known of a pageblock, without a lock.
    pub(in crate::zone) fn map_of(&self, pageblock: u32) -> (&Map, u32) {
        let (part, own) = self.at(pageblock);
        (&self.parts[part].map, own)
    }

    /// Compaction leaves no pageblock out.
    pub(in crate::zone) fn clear_skips(&self) {
        self.parts.iter().for_each(|part| part.map.clear_skips());
    }

    /// The order of the free block that starts with a frame, without a lock: a moment ago.
    pub(in crate::zone) fn free_at(&self, pfn: Pfn) -> Option<Order> {
        let part = self.part_of(pfn);
        self.parts[part].map.head(pfn.0 - self.first_of(part).0)
    }

    /// Takes the free blocks among `frames`, which lie in one pageblock, while `mark` frames stay
    /// free in the zone; calls `taken` with each.
    pub(in crate::zone) fn isolate(
        &self,
        platform: &P,
        frames: Range<u32>,
        (hold, contention): (Hold, Contention),
        mark: u32,
        mut taken: impl FnMut(Pfn, Order),
    ) -> FreeScan {
        let index = self.part_of(Pfn(frames.start));
        let (part, first) = (&self.parts[index], self.first_of(index).0);
        let enter = || match contention {
            Contention::Aborts => part.buddy.try_lock(),
            Contention::Waits => Some(part.buddy.lock()),
        };
        let (mut scan, mut held, mut charged) = (FreeScan::default(), None, 0);
        let mut at = frames.start;
        while at < frames.end && !scan.contended {
            let free = part.map.head(at - first);
            if held.is_none() && (hold == Hold::Early || free.is_some()) {
                platform.scans((scan.scanned - charged) as usize);
                charged = scan.scanned;
                held = enter();
                scan.contended = held.is_none();
                continue;
            }
            scan.scanned += 1;
            let Some((order, buddy)) = free.zip(held.as_mut()) else {
                at += 1;
                continue;
            };
            let count = order.frames();
            if self.reserve(mark, |spare| if spare < count { 0 } else { count }) > 0 {
                buddy.take(Pfn(at), order);
                buddy.visits(1);
                scan.isolated += count;
                taken(Pfn(at), order);
            }
            at += count;
        }
        platform.scans((scan.scanned - charged) as usize);
        if let Some(buddy) = &held {
            part.standing.store(Standing::of(buddy).0, Relaxed);
        }
        scan
    }
}
