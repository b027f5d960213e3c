//! A cluster: 512 slots (2 MiB), how often each is used, and what else keeps it.
//!
//! ```text
//! free -- take --> count 1, Cached --> count n --> count 0: free
//!      \- park --> Parked (in a CPU's slot cache) -- unpark --> count 1, Cached
//! ```
//! Conservation: `used` = slots with a count, in the swap cache, or parked. The cluster's lock is
//! held for every call.

use std::collections::BTreeMap;

/// Slots in a cluster.
pub(super) const CLUSTER_SLOTS: u32 = 512;

/// The cluster of a slot, and its place there.
pub(super) fn split(slot: u32) -> (usize, usize) {
    ((slot / CLUSTER_SLOTS) as usize, (slot % CLUSTER_SLOTS) as usize)
}

/// Records that share a cache line of 64 bytes.
const RECORDS_PER_LINE: usize = 32;

/// The count of a slot whose true count is in `ClusterMap::more`.
const OVERFLOW: u8 = u8::MAX;

/// What keeps a slot beside page tables that refer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    Nothing,
    /// The swap cache has its frame.
    Cached,
    /// A CPU keeps it for later.
    Parked,
}

#[derive(Clone, Copy, Default)]
struct Record {
    /// Page tables that refer to the slot.
    count: u8,
    hold: Hold,
}

impl Record {
    fn is_free(&self) -> bool {
        self.count == 0 && self.hold == Hold::Nothing
    }
}

/// What slots are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Pages: one reference each, frames in the swap cache.
    Pages,
    /// A CPU's slot cache.
    Park,
}

/// What becomes of a slot that nobody uses any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unused {
    /// It is free.
    Free,
    /// It is parked.
    Park,
}

/// Counts of one cluster. Made at its first use.
#[derive(Default)]
pub(super) struct ClusterMap {
    records: Vec<Record>,
    /// Counts of 255 and more.
    more: BTreeMap<u16, u32>,
    used: u16,
}

impl ClusterMap {
    /// Slots in use.
    pub(super) fn used(&self) -> u16 {
        self.used
    }

    /// Takes the first run of free slots at or after `from`, of `len` in the cluster, at `most` so
    /// many.
    pub(super) fn take(
        &mut self,
        from: u16,
        len: u16,
        most: usize,
        purpose: Purpose,
    ) -> Option<(u16, u16)> {
        if self.records.is_empty() {
            self.records = vec![Record::default(); usize::from(len)];
        }
        let free = |at: &u16| self.records[usize::from(*at)].is_free();
        let first = (from..len).find(free)?;
        let taken = (first..len).take_while(free).take(most).count() as u16;
        let record = match purpose {
            Purpose::Pages => Record { count: 1, hold: Hold::Cached },
            Purpose::Park => Record { count: 0, hold: Hold::Parked },
        };
        self.records[usize::from(first)..usize::from(first + taken)].fill(record);
        self.used += taken;
        Some((first, taken))
    }

    /// Takes `frames` adjacent free slots, a power of two, from a multiple of it on, of `len` in
    /// the cluster; their place.
    pub(super) fn take_aligned(&mut self, len: u16, frames: u16) -> Option<u16> {
        let free = |at: u16| self.records.get(usize::from(at)).is_none_or(Record::is_free);
        let mut starts = (0..=len.checked_sub(frames)?).step_by(usize::from(frames));
        let first = starts.find(|first| (*first..first + frames).all(free))?;
        self.take(first, len, usize::from(frames), Purpose::Pages).map(|(first, _)| first)
    }

    /// What [`ClusterMap::take`] went over: the cache lines that it searched, the slots it took.
    pub(super) fn visited(from: u16, len: u16, found: Option<(u16, u16)>) -> usize {
        let (first, taken) = found.unwrap_or((len, 0));
        usize::from(first + taken - from).div_ceil(RECORDS_PER_LINE) + usize::from(taken)
    }

    /// A parked slot is used for a page.
    pub(super) fn unpark(&mut self, at: u16) {
        let record = &mut self.records[usize::from(at)];
        assert!(record.hold == Hold::Parked && record.count == 0, "slot {at} is not parked");
        *record = Record { count: 1, hold: Hold::Cached };
    }

    /// A parked slot is free.
    pub(super) fn free_parked(&mut self, at: u16) {
        assert!(self.records[usize::from(at)].hold == Hold::Parked, "slot {at} is not parked");
        self.set_hold(at, Hold::Nothing);
    }

    /// The swap cache gets the frame of a slot in use. False: it still has one, on its way out.
    pub(super) fn cache(&mut self, at: u16) -> bool {
        let record = &mut self.records[usize::from(at)];
        assert!(record.count > 0, "slot {at} is free");
        let empty = record.hold == Hold::Nothing;
        record.hold = Hold::Cached;
        empty
    }

    /// The swap cache has let go of a slot.
    pub(super) fn uncached(&mut self, at: u16) {
        assert!(self.records[usize::from(at)].hold == Hold::Cached, "slot {at} is not cached");
        self.set_hold(at, Hold::Nothing);
    }

    fn set_hold(&mut self, at: u16, hold: Hold) {
        let record = &mut self.records[usize::from(at)];
        let was_free = record.is_free();
        record.hold = hold;
        self.used -= u16::from(!was_free && record.is_free());
    }

    /// Whether a slot has any reference.
    pub(super) fn is_referenced(&self, at: u16) -> bool {
        self.records[usize::from(at)].count > 0
    }

    /// Whether a slot has one reference, and that is all that it is used for.
    pub(super) fn is_last(&self, at: u16) -> bool {
        let record = &self.records[usize::from(at)];
        record.count == 1 && record.hold == Hold::Nothing
    }

    /// One reference less. Says whether the slot was parked for being used no more.
    pub(super) fn release(&mut self, at: u16, unused: Unused) -> bool {
        if self.records[usize::from(at)].count == OVERFLOW {
            self.release_from_many(at);
            return false;
        }
        let record = &mut self.records[usize::from(at)];
        assert!(record.count > 0, "slot {at} of a cluster is released twice");
        record.count -= 1;
        let parks = record.is_free() && unused == Unused::Park;
        match parks {
            true => record.hold = Hold::Parked,
            false => self.used -= u16::from(record.is_free()),
        }
        parks
    }

    fn release_from_many(&mut self, at: u16) {
        let count = self.more.get_mut(&at).expect("an overflown count is kept apart");
        *count -= 1;
        if *count < u32::from(OVERFLOW) {
            self.records[usize::from(at)].count = *count as u8;
            self.more.remove(&at);
        }
    }

    /// One reference more.
    pub(super) fn duplicate(&mut self, at: u16) {
        let record = &mut self.records[usize::from(at)];
        debug_assert!(record.count > 0, "slot {at} of a cluster is free");
        if record.count < OVERFLOW {
            record.count += 1;
        }
        if record.count == OVERFLOW {
            *self.more.entry(at).or_insert(u32::from(OVERFLOW) - 1) += 1;
        }
    }

    /// Calls `found` with (slot in cluster, count) of every slot in use but those parked; returns
    /// how many are.
    pub(super) fn each_used(&self, mut found: impl FnMut(u16, u32)) -> u32 {
        let (mut used, mut parked) = (0, 0);
        for (at, record) in self.records.iter().enumerate().filter(|(_, r)| !r.is_free()) {
            used += 1;
            match record.hold {
                Hold::Parked => parked += 1,
                Hold::Cached | Hold::Nothing => {
                    let at = at as u16;
                    let more = || self.more[&at];
                    let few = u32::from(record.count);
                    found(at, if record.count == OVERFLOW { more() } else { few });
                }
            }
        }
        assert_eq!(used, self.used, "used slots are counted");
        parked
    }
}
