//! A cluster: 512 slots (2 MiB) and their reference counts.
//!
//! ```text
//! free -- take --> count 1, cached -- write ends --> count 1 .. n -- release --> count 0: free
//! ```
//! A slot is free when no page table refers to it and the swap cache has no frame for it.
//! Conservation: `used` is the number of slots that are not free. The cluster's lock is held for
//! every call.

use std::collections::BTreeMap;

/// Slots in a cluster.
pub(super) const CLUSTER_SLOTS: u32 = 512;

/// The cluster of a slot, and its place there.
pub(super) fn split(slot: u32) -> (usize, usize) {
    ((slot / CLUSTER_SLOTS) as usize, (slot % CLUSTER_SLOTS) as usize)
}

/// Records that share a cache line of 64 bytes.
const RECORDS_PER_LINE: usize = 32;

/// The count of a slot whose real count is in `Counts::more`.
const OVERFLOW: u8 = u8::MAX;

#[derive(Clone, Copy, Default)]
struct Record {
    /// Page tables that refer to the slot.
    count: u8,
    /// The swap cache has a frame for it.
    cached: bool,
}

impl Record {
    fn is_free(&self) -> bool {
        self.count == 0 && !self.cached
    }
}

/// The counts of a cluster.
#[derive(Default)]
pub(super) struct ClusterMap {
    /// Made at first use: most clusters of a large device are never used.
    counts: Option<Box<Counts>>,
    used: u16,
}

struct Counts {
    records: Box<[Record]>,
    /// Counts of 255 and more.
    more: BTreeMap<u16, u32>,
}

impl Counts {
    fn new(slots: u16) -> Box<Counts> {
        let records = vec![Record::default(); usize::from(slots)].into();
        Box::new(Counts { records, more: BTreeMap::new() })
    }
}

impl ClusterMap {
    /// Slots in use.
    pub(super) fn used(&self) -> u16 {
        self.used
    }

    /// Takes the first run of free slots at or after `from`, at most `most`, of the `len` slots of
    /// the cluster: count 1, cached. Returns the first slot and the length of the run.
    pub(super) fn take(&mut self, from: u16, len: u16, most: usize) -> Option<(u16, u16)> {
        let records = &mut self.counts.get_or_insert_with(|| Counts::new(len)).records;
        let free = |at: &u16| records[usize::from(*at)].is_free();
        let first = (from..len).find(free)?;
        let taken = (first..len).take_while(free).take(most).count() as u16;
        let record = Record { count: 1, cached: true };
        records[usize::from(first)..usize::from(first + taken)].fill(record);
        self.used += taken;
        Some((first, taken))
    }

    /// Takes `frames` adjacent free slots, a power of two, at a multiple of `frames`. Returns the
    /// first slot.
    pub(super) fn take_aligned(&mut self, len: u16, frames: u16) -> Option<u16> {
        let counts = self.counts.as_ref();
        let free = |at: u16| counts.is_none_or(|it| it.records[usize::from(at)].is_free());
        let mut starts = (0..=len.checked_sub(frames)?).step_by(usize::from(frames));
        let first = starts.find(|first| (*first..first + frames).all(free))?;
        self.take(first, len, usize::from(frames)).map(|(first, _)| first)
    }

    /// The cost of [`ClusterMap::take`]: cache lines searched plus slots taken.
    pub(super) fn visited(from: u16, len: u16, found: Option<(u16, u16)>) -> usize {
        let (first, taken) = found.unwrap_or((len, 0));
        usize::from(first + taken - from).div_ceil(RECORDS_PER_LINE) + usize::from(taken)
    }

    /// Marks a slot in use as cached. Returns false if it was cached already: its last frame is
    /// still on its way out.
    #[cfg(feature = "history")]
    pub(super) fn cache(&mut self, at: u16) -> bool {
        let record = self.record(at);
        assert!(record.count > 0, "slot {at} is free");
        !std::mem::replace(&mut record.cached, true)
    }

    /// Notes that the swap cache has no frame for the slot any more.
    pub(super) fn uncache(&mut self, at: u16) {
        let record = self.record(at);
        assert!(record.cached, "slot {at} is not cached");
        record.cached = false;
        self.used -= u16::from(record.is_free());
    }

    /// Whether a page table refers to the slot.
    pub(super) fn is_referenced(&self, at: u16) -> bool {
        self.peek(at).count > 0
    }

    /// Whether releasing the slot once frees it.
    pub(super) fn is_last(&self, at: u16) -> bool {
        let record = self.peek(at);
        record.count == 1 && !record.cached
    }

    /// Drops a reference.
    pub(super) fn release(&mut self, at: u16) {
        let record = self.record(at);
        if record.count == OVERFLOW {
            return self.release_from_many(at);
        }
        assert!(record.count > 0, "slot {at} of a cluster is released twice");
        record.count -= 1;
        self.used -= u16::from(record.is_free());
    }

    fn release_from_many(&mut self, at: u16) {
        let Counts { records, more } = self.counts();
        let count = more.get_mut(&at).expect("a count of 255 and more has an entry");
        *count -= 1;
        if *count < u32::from(OVERFLOW) {
            records[usize::from(at)].count = *count as u8;
            more.remove(&at);
        }
    }

    /// Adds a reference.
    pub(super) fn duplicate(&mut self, at: u16) {
        let Counts { records, more } = self.counts();
        let record = &mut records[usize::from(at)];
        debug_assert!(record.count > 0, "slot {at} of a cluster is free");
        if record.count < OVERFLOW {
            record.count += 1;
        }
        if record.count == OVERFLOW {
            *more.entry(at).or_insert(u32::from(OVERFLOW) - 1) += 1;
        }
    }

    /// Calls `found` with the place and the count of every slot in use.
    pub(super) fn each_used(&self, mut found: impl FnMut(u16, u32)) {
        let mut used = 0;
        if let Some(Counts { records, more }) = self.counts.as_deref() {
            for (at, record) in (0..).zip(records).filter(|(_, record)| !record.is_free()) {
                used += 1;
                let many = record.count == OVERFLOW;
                found(at, if many { more[&at] } else { u32::from(record.count) });
            }
        }
        assert_eq!(used, self.used, "used slots are counted");
    }

    /// The counts of a cluster with slots in use.
    fn counts(&mut self) -> &mut Counts {
        self.counts.as_deref_mut().expect("a slot is in use")
    }

    fn record(&mut self, at: u16) -> &mut Record {
        &mut self.counts().records[usize::from(at)]
    }

    fn peek(&self, at: u16) -> Record {
        self.counts.as_ref().map_or(Record::default(), |it| it.records[usize::from(at)])
    }
}
