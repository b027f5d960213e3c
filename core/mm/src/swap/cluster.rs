//! A cluster: 512 slots (2 MiB), their usage counts and the frames the swap cache has for them.
//!
//! Conservation: `used` = slots with a count or a cached frame.

use super::{Cached, CountLimit};
use highwater_units::Pfn;

/// Slots in a cluster.
pub(super) const CLUSTER_SLOTS: u32 = 512;

#[derive(Clone, Copy, Default)]
struct Record {
    /// Page tables that refer to the slot.
    count: u8,
    cached: Option<Pfn>,
}

/// Records that a search reads with one cache line.
const RECORDS_PER_LINE: usize = 64 / size_of::<Record>();

impl Record {
    fn is_free(&self) -> bool {
        self.count == 0 && self.cached.is_none()
    }
}

/// Counts and cache of one cluster. Made at its first use; its lock is held for every call.
#[derive(Default)]
pub(super) struct ClusterMap {
    records: Vec<Record>,
    used: u16,
}

impl ClusterMap {
    /// Slots in use.
    pub(super) fn used(&self) -> u16 {
        self.used
    }

    /// Takes the first run of free slots at or after `from`, of `len` in the cluster, for as many
    /// of `frames` as fit.
    pub(super) fn take(&mut self, from: u16, len: u16, frames: &[Pfn]) -> Option<(u16, u16)> {
        if self.records.is_empty() {
            self.records = vec![Record::default(); usize::from(len)];
        }
        let free = |at: &u16| self.records[usize::from(*at)].is_free();
        let first = (from..len).find(free)?;
        let taken = (first..len).take_while(free).take(frames.len()).count() as u16;
        for (at, pfn) in (first..first + taken).zip(frames) {
            self.records[usize::from(at)] = Record { count: 1, cached: Some(*pfn) };
        }
        self.used += taken;
        Some((first, taken))
    }

    /// What [`ClusterMap::take`] went over: the cache lines that it searched, the slots it took.
    pub(super) fn visited(from: u16, len: u16, found: Option<(u16, u16)>) -> usize {
        let (first, taken) = found.unwrap_or((len, 0));
        usize::from(first + taken - from).div_ceil(RECORDS_PER_LINE) + usize::from(taken)
    }

    pub(super) fn cached(&self, at: u16) -> Option<Pfn> {
        self.records[usize::from(at)].cached
    }

    pub(super) fn claim(&mut self, at: u16) -> Option<Pfn> {
        self.change(at, |record| record.cached.take())
    }

    pub(super) fn uncache(&mut self, at: u16, pfn: Pfn) -> Cached {
        self.change(at, |record| match record.cached == Some(pfn) {
            true => {
                record.cached = None;
                Cached::Removed
            }
            false => Cached::Claimed,
        })
    }

    pub(super) fn release(&mut self, at: u16) {
        self.change(at, |record| {
            assert!(record.count > 0, "slot {at} of a cluster is released twice");
            record.count -= 1;
        });
    }

    pub(super) fn duplicate(&mut self, at: u16) -> Result<(), CountLimit> {
        self.change(at, |record| {
            debug_assert!(record.count > 0, "slot {at} of a cluster is free");
            record.count = record.count.checked_add(1).ok_or(CountLimit)?;
            Ok(())
        })
    }

    fn change<R>(&mut self, at: u16, act: impl FnOnce(&mut Record) -> R) -> R {
        let record = &mut self.records[usize::from(at)];
        let was_free = record.is_free();
        let result = act(record);
        self.used -= u16::from(!was_free && record.is_free());
        result
    }

    /// Calls `found` with (slot in cluster, count, cached frame) of every slot in use.
    pub(super) fn each_used(&self, mut found: impl FnMut(u16, u8, Option<Pfn>)) {
        let mut used = 0;
        for (at, record) in self.records.iter().enumerate().filter(|(_, r)| !r.is_free()) {
            used += 1;
            found(at as u16, record.count, record.cached);
        }
        assert_eq!(used, self.used, "used slots are counted");
    }
}
