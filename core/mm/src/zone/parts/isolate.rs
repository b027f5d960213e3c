//! Takes free frames away for compaction: as targets for pages, or as part of a block.
//!
//! Which frames are free is read without the part's lock, and again with it.

use super::{Part, Parts, Summary};
use crate::frame::Mobility;
use crate::zone::buddy::Buddy;
use crate::zone::map::Map;
use crate::zone::mobility::PAGEBLOCK;
use highwater_platform::{Atomic, Guard, Lock, Locks, Platform};
use highwater_units::{CpuId, Order, Pfn};
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// How a scanner reacts to a contended lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// It aborts.
    Aborts,
    /// It waits.
    Waits,
}

/// Most candidate regions that a part reports.
const REGIONS_MAX: usize = 16;
/// Pageblock counts in a cache line.
const COUNTS_PER_LINE: usize = 32;
/// Most free blocks that are scanned to find regions.
const PIECES_MAX: usize = 64;
/// Further free blocks that are scanned for each wanted frame.
const LOOKS_PER_FRAME: usize = 2;

/// Whether a caller that takes free blocks wants another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It wants another.
    More,
    /// It has enough.
    NoMore,
}

/// Pageblocks to which the pages of a region that is being emptied move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Pageblocks with frames that cannot move: they will not become free.
    Unmovable,
    /// Pageblocks outside `region` with at most `free` free frames.
    Fuller {
        /// The region that is being emptied.
        region: Range<u32>,
        /// Its free frames.
        free: u32,
    },
}

impl Destination {
    /// Whether the pageblock of a frame suits. The frame is given by its place in the part that
    /// starts at `first`.
    fn suits(&self, map: &Map, first: Pfn, place: u32) -> bool {
        let pageblock = place / PAGEBLOCK;
        match self {
            Destination::Unmovable => map.unmovable(pageblock) > 0,
            Destination::Fuller { region, free } => {
                !region.contains(&(first.0 + place)) && map.free(pageblock) <= *free
            }
        }
    }
}

/// The result of a scan for free frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeScan {
    /// Frames that were scanned: of a free block, only the first.
    pub scanned: u32,
    /// Frames that were taken.
    pub isolated: u32,
    /// Whether the scan ended early at a contended lock.
    pub contended: bool,
}

/// A part's lock, held.
pub(super) type PartGuard<'a, P> = <<P as Locks>::Lock<Buddy> as Lock<Buddy>>::Guard<'a>;

impl<P: Platform> Part<P> {
    /// Takes the lock; `None` if it is contended and the caller does not wait.
    pub(super) fn enter(&self, contention: Contention) -> Option<PartGuard<'_, P>> {
        match contention {
            Contention::Aborts => self.buddy.try_lock(),
            Contention::Waits => Some(self.buddy.lock()),
        }
    }

    /// Regions of whole pageblocks without unmovable frames that are free in part, those with most
    /// free frames first. Reads the counts without the lock.
    fn freest(&self, platform: &P, order: Order) -> Vec<u32> {
        let whole = self.map.frames() >> order.0;
        // Two counts of each pageblock: free and unmovable frames.
        platform.scans(2 * (whole as usize).div_ceil(COUNTS_PER_LINE));
        let mut best: Vec<(Reverse<u32>, u32)> = Vec::with_capacity(REGIONS_MAX + 1);
        for place in (0..whole).map(|region| region << order.0) {
            let mut own = self.map.pageblocks_of(place, order);
            let free: u32 = own.clone().map(|pageblock| self.map.free(pageblock)).sum();
            let suits = |pageblock| {
                !self.map.skips(pageblock)
                    && self.map.mobility(pageblock) == Mobility::Movable
                    && self.map.unmovable(pageblock) == 0
            };
            let candidate = (Reverse(free), place);
            let is_better = best.len() < REGIONS_MAX || best.last() > Some(&candidate);
            let in_part = free > 0 && free < order.frames();
            if in_part && is_better && own.all(suits) {
                let at = best.partition_point(|other| *other < candidate);
                best.insert(at, candidate);
                best.truncate(REGIONS_MAX);
            }
        }
        best.into_iter().map(|(_, place)| place).collect()
    }

    /// The regions around the largest free blocks.
    fn around_pieces(&self, order: Order) -> Vec<u32> {
        let mut regions = Vec::with_capacity(REGIONS_MAX);
        self.with(|buddy| {
            let mut left = PIECES_MAX;
            buddy.each_of((0..order.0).rev(), |piece| {
                let place = piece >> order.0 << order.0;
                let fits = place + order.frames() <= self.map.frames();
                if fits && !regions.contains(&place) {
                    regions.push(place);
                }
                left -= 1;
                left > 0 && regions.len() < REGIONS_MAX
            })
        });
        regions
    }

    /// Small free blocks in pageblocks that suit, the smallest first, until they have `wanted`
    /// frames; and how many blocks were scanned.
    fn pieces(
        &self,
        buddy: &Buddy,
        wanted: usize,
        suits: impl Fn(u32) -> bool,
    ) -> (Vec<u32>, usize) {
        let (mut chosen, mut frames, mut looks) = (Vec::new(), 0, 0);
        let most = PIECES_MAX + LOOKS_PER_FRAME * wanted;
        let count = buddy.each_of(0..Order::LARGE.0, |place| {
            if suits(place) {
                frames += self.map.head(place).map_or(0, Order::frames) as usize;
                chosen.push(place);
            }
            looks += 1;
            frames < wanted && looks < most
        });
        (chosen, count)
    }

    /// The smallest free block of these orders that `fits`, among the first ones on the lists; and
    /// how many blocks were scanned.
    fn piece(&self, orders: Range<u8>, fits: impl Fn(u32) -> bool) -> (Option<u32>, usize) {
        let (mut chosen, mut left) = (None, PIECES_MAX);
        self.with(|buddy| {
            buddy.each_of(orders, |place| {
                chosen = Some(place).filter(|place| fits(*place));
                left -= 1;
                left > 0 && chosen.is_none()
            })
        });
        (chosen, PIECES_MAX - left)
    }
}

impl<P: Platform> Parts<P> {
    /// Pageblocks of all parts.
    pub(in crate::zone) fn pageblocks(&self) -> u32 {
        self.parts.iter().map(|part| part.map.pageblocks()).sum()
    }

    /// The part of a pageblock, and its number there.
    fn at(&self, pageblock: u32) -> (usize, u32) {
        let each = self.parts[0].map.pageblocks();
        ((pageblock / each) as usize, pageblock % each)
    }

    pub(super) fn first_of(&self, part: usize) -> Pfn {
        self.range.first.offset(part as u32 * self.each)
    }

    /// The pageblock of a frame.
    pub(in crate::zone) fn pageblock_of(&self, pfn: Pfn) -> u32 {
        let part = self.part_of(pfn);
        let within = (pfn.0 - self.first_of(part).0) / PAGEBLOCK;
        part as u32 * self.parts[0].map.pageblocks() + within
    }

    /// The frames of a pageblock.
    pub(in crate::zone) fn frames_of(&self, pageblock: u32) -> Range<u32> {
        let (part, own) = self.at(pageblock);
        let (first, frames) = (self.first_of(part).0, self.parts[part].map.frames_of(own));
        first + frames.start..first + frames.end
    }

    /// The map of a pageblock's part, to be read without the lock, and its number there.
    pub(in crate::zone) fn map_of(&self, pageblock: u32) -> (&Map, u32) {
        let (part, own) = self.at(pageblock);
        (&self.parts[part].map, own)
    }

    /// Clears all skip bits.
    pub(in crate::zone) fn clear_skips(&self) {
        self.parts.iter().for_each(|part| part.map.clear_skips());
    }

    /// The order of the free block that starts at a frame. Racy: no lock is held.
    pub(in crate::zone) fn free_at(&self, pfn: Pfn) -> Option<Order> {
        let part = self.part_of(pfn);
        self.parts[part].map.head(pfn.0 - self.first_of(part).0)
    }

    /// Calls `found` with regions of `order` that are free in part, the most promising of each part
    /// first, until it returns `false`. Leaves out pageblocks whose skip bit is set.
    pub(in crate::zone) fn each_region(
        &self,
        platform: &P,
        cpu: CpuId,
        order: Order,
        mut found: impl FnMut(Pfn) -> bool,
    ) {
        for index in self.indices(cpu, 1) {
            let (part, first) = (&self.parts[index], self.first_of(index));
            let regions = match order {
                Order::LARGE | Order::MAX => part.freest(platform, order),
                _ => part.around_pieces(order),
            };
            if !regions.into_iter().all(|place| found(first.offset(place))) {
                break;
            }
        }
    }

    /// The smallest free movable block of these orders that `fits`, and how many blocks were
    /// scanned. Of a long list, only the first blocks are scanned. Racy: the lock is not held
    /// afterwards.
    pub(in crate::zone) fn find_block(
        &self,
        cpu: CpuId,
        orders: Range<u8>,
        fits: impl Fn(Pfn) -> bool,
    ) -> (Option<Pfn>, usize) {
        let mut seen = 0;
        let has = |index: &usize| {
            let filled = self.parts[*index].summary().filled();
            let smallest = filled.smallest(Order(orders.start), Mobility::Movable);
            smallest.is_some_and(|order| order.0 < orders.end)
        };
        let found = self.indices(cpu, 1).filter(has).find_map(|index| {
            let first = self.first_of(index);
            let fits = |place| fits(first.offset(place));
            let (place, looked) = self.parts[index].piece(orders.clone(), fits);
            seen += looked;
            place.map(|place| first.offset(place))
        });
        (found, seen)
    }

    /// Takes small free movable blocks in pageblocks that suit `destination`, until they have
    /// `wanted` frames, while `mark` frames stay free in the zone; calls `taken` with each.
    pub(in crate::zone) fn take_pieces(
        &self,
        cpu: CpuId,
        (wanted, destination): (usize, &Destination),
        (contention, mark): (Contention, u32),
        mut taken: impl FnMut(Pfn, Order),
    ) -> FreeScan {
        let mut scan = FreeScan::default();
        for index in self.indices(cpu, 1) {
            let missing = wanted.saturating_sub(scan.isolated as usize);
            if missing == 0 {
                break;
            }
            let (part, first) = (&self.parts[index], self.first_of(index));
            let Some(mut buddy) = part.enter(contention) else {
                scan.contended = true;
                continue;
            };
            let suits = |place| destination.suits(&part.map, first, place);
            let (places, looked) = part.pieces(&buddy, missing, suits);
            scan.scanned += looked as u32;
            for place in places {
                let order = part.map.head(place).expect("it is free while the lock is held");
                let count = order.frames();
                if self.reserve(mark, |spare| if spare < count { 0 } else { count }) > 0 {
                    buddy.take(first.offset(place), order);
                    scan.isolated += count;
                    taken(first.offset(place), order);
                }
            }
            buddy.visits(looked);
            part.summary.store(Summary::of(&buddy).0, Relaxed);
        }
        scan
    }

    /// Takes the free blocks among `frames`, which lie in one pageblock, while `mark` frames stay
    /// free in the zone; calls `taken` with each, until it returns [`Wanted::NoMore`]. The lock is
    /// taken at the first free block.
    pub(in crate::zone) fn isolate(
        &self,
        platform: &P,
        frames: Range<u32>,
        contention: Contention,
        mark: u32,
        mut taken: impl FnMut(Pfn, Order) -> Wanted,
    ) -> FreeScan {
        let index = self.part_of(Pfn(frames.start));
        let (part, first) = (&self.parts[index], self.first_of(index).0);
        let (mut scan, mut held, mut charged) = (FreeScan::default(), None, 0);
        let mut at = frames.start;
        while at < frames.end && !scan.contended {
            let free = part.map.head(at - first);
            if held.is_none() && free.is_some() {
                platform.scans((scan.scanned - charged) as usize);
                charged = scan.scanned;
                held = part.enter(contention);
                scan.contended = held.is_none();
                // The block may have gone before the lock was taken.
                continue;
            }
            scan.scanned += 1;
            let Some((order, buddy)) = free.zip(held.as_mut()) else {
                at += 1;
                continue;
            };
            if self.take_block(buddy, Pfn(at), order, mark) {
                scan.isolated += order.frames();
                if taken(Pfn(at), order) == Wanted::NoMore {
                    break;
                }
            }
            at += order.frames();
        }
        platform.scans((scan.scanned - charged) as usize);
        if let Some(buddy) = &held {
            part.summary.store(Summary::of(buddy).0, Relaxed);
        }
        scan
    }

    /// Takes a free block, if `mark` frames stay free in the zone; returns whether it did.
    pub(super) fn take_block(
        &self,
        buddy: &mut PartGuard<'_, P>,
        first: Pfn,
        order: Order,
        mark: u32,
    ) -> bool {
        let count = order.frames();
        let reserved = self.reserve(mark, |spare| if spare < count { 0 } else { count });
        if reserved > 0 {
            buddy.take(first, order);
            buddy.visits(1);
        }
        reserved > 0
    }
}
