//! Lock statistics, by lock class and by the phase of the thread.
//!
//! ```text
//! LockStatistics[class][phase] = { acquisitions, contended, wait, hold }
//! ```
//! The lock tables of published profiles ("7.91% _raw_spin_lock.swapcache_free") are sums of these.

use highwater_units::Nanos;

/// The class of a lock: all locks that protect the same kind of data. The manager defines the
/// classes (`core/mm/src/lock_class.rs`); a platform counts by class, in tables of
/// [`LockClass::MAX`] rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockClass {
    id: u8,
    name: &'static str,
}

impl LockClass {
    /// The bound of ids.
    pub const MAX: usize = 24;

    /// The class of locks in tests.
    pub const TEST: LockClass = LockClass::new(LockClass::MAX as u8 - 1, "test");

    /// A class. The classes of a manager have different ids.
    ///
    /// # Panics
    /// If `id` is [`LockClass::MAX`] or more.
    pub const fn new(id: u8, name: &'static str) -> LockClass {
        assert!((id as usize) < LockClass::MAX, "LockClass::MAX is too small");
        LockClass { id, name }
    }

    /// The row of the class in a table.
    pub const fn id(self) -> u8 {
        self.id
    }

    /// The name in reports and in machine files of the simulator.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// The part of the manager that a thread executes; of nested phases, the innermost. The manager
/// defines the phases (`core/mm/src/phase.rs`); a platform counts by phase, in tables of
/// [`Phase::MAX`] columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Phase {
    id: u8,
    name: &'static str,
    kind: PhaseKind,
}

/// The meaning of a phase to a platform: the simulator charges by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseKind {
    /// The program runs.
    Program,
    /// A fault. A thread that enters it from [`PhaseKind::Program`] has trapped.
    Fault,
    /// Eviction. TLB flushes of successive unmaps may be batched until a phase of another kind
    /// begins.
    Eviction,
    /// Other work of the manager.
    Other,
}

impl Phase {
    /// The bound of ids.
    pub const MAX: usize = 8;

    /// The program's own work. Every thread begins in this phase.
    pub const PROGRAM: &'static Phase = &Phase::new(0, "program", PhaseKind::Program);

    /// A phase. The phases of a manager have different ids; 0 is [`Phase::PROGRAM`]'s.
    ///
    /// # Panics
    /// If `id` is [`Phase::MAX`] or more.
    pub const fn new(id: u8, name: &'static str, kind: PhaseKind) -> Phase {
        assert!((id as usize) < Phase::MAX, "Phase::MAX is too small");
        Phase { id, name, kind }
    }

    /// The column of the phase in a table.
    pub const fn id(&self) -> u8 {
        self.id
    }

    /// The name in reports.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The meaning of the phase to a platform.
    pub const fn kind(&self) -> PhaseKind {
        self.kind
    }
}

/// The costs of one lock, or of several, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockRecord {
    /// The number of acquisitions.
    pub acquisitions: u64,
    /// The number of acquisitions that waited.
    pub contended: u64,
    /// Their waiting time, summed.
    pub wait: Nanos,
    /// The time for which the lock was held, summed.
    pub hold: Nanos,
}

impl LockRecord {
    fn combine(self, other: LockRecord, with: impl Fn(u64, u64) -> u64) -> LockRecord {
        LockRecord {
            acquisitions: with(self.acquisitions, other.acquisitions),
            contended: with(self.contended, other.contended),
            wait: Nanos(with(self.wait.0, other.wait.0)),
            hold: Nanos(with(self.hold.0, other.hold.0)),
        }
    }
}

/// Lock records by class and phase. The simulator counts exactly. Other platforms sample, because
/// counting would cost more than the locks: figures below some dozens per lock are not reliable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockStatistics([[LockRecord; Phase::MAX]; LockClass::MAX]);

impl LockStatistics {
    /// The record of a class in a phase.
    pub fn get(&self, class: LockClass, phase: &Phase) -> &LockRecord {
        &self.0[usize::from(class.id())][usize::from(phase.id())]
    }

    /// The record of a class in a phase, for adding to it.
    pub fn get_mut(&mut self, class: LockClass, phase: &Phase) -> &mut LockRecord {
        &mut self.0[usize::from(class.id())][usize::from(phase.id())]
    }

    /// All records, by the ids of their class and phase.
    pub fn table_mut(&mut self) -> &mut [[LockRecord; Phase::MAX]; LockClass::MAX] {
        &mut self.0
    }

    /// The sum over all phases.
    pub fn class(&self, class: LockClass) -> LockRecord {
        let all = self.0[usize::from(class.id())].iter();
        all.fold(LockRecord::default(), |sum, record| sum.combine(*record, |a, b| a + b))
    }

    /// The difference to `earlier` statistics of the same locks.
    pub fn since(&self, earlier: &LockStatistics) -> LockStatistics {
        let mut gained = self.clone();
        for (row, before) in gained.0.iter_mut().zip(&earlier.0) {
            for (record, before) in row.iter_mut().zip(before) {
                *record = record.combine(*before, u64::saturating_sub);
            }
        }
        gained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_sum_over_phases_and_differences_over_time() {
        let mut early = LockStatistics::default();
        early.table_mut()[5][2].acquisitions = 3;
        let mut late = early.clone();
        late.table_mut()[5][2].acquisitions += 4;
        late.table_mut()[5][3].wait = Nanos(7);
        let gained = late.since(&early).class(LockClass::new(5, "five"));
        assert_eq!((gained.acquisitions, gained.wait), (4, Nanos(7)));
    }
}
