//! What locks cost: by class, and by what the thread was doing.
//!
//! ```text
//! LockStatistics[class][phase] = { acquisitions, contended, wait, hold }
//! ```
//! The lock tables of published profiles ("7.91% _raw_spin_lock.swapcache_free") are sums of these.

use highwater_units::Nanos;

/// What a lock protects. The manager defines its classes; a platform counts by them, and keeps
/// tables of [`LockClass::MAX`] rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockClass {
    id: u8,
    name: &'static str,
}

impl LockClass {
    /// Every id is below this.
    pub const MAX: usize = 24;

    /// Locks of tests.
    pub const TEST: LockClass = LockClass::new(LockClass::MAX as u8 - 1, "test");

    /// A class. No two classes of a manager have the same id.
    ///
    /// # Panics
    /// If `id` is [`LockClass::MAX`] or more.
    pub const fn new(id: u8, name: &'static str) -> LockClass {
        assert!((id as usize) < LockClass::MAX, "LockClass::MAX is too small");
        LockClass { id, name }
    }

    /// Its row in a table.
    pub const fn id(self) -> u8 {
        self.id
    }

    /// The name in reports and in the files of simulated machines.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// What a thread is doing for the manager; the innermost phase counts. The manager defines its
/// phases; a platform counts by them, and keeps tables of [`Phase::MAX`] columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Phase {
    id: u8,
    name: &'static str,
    kind: PhaseKind,
}

/// What a phase means to a platform: the simulator charges by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PhaseKind {
    /// The thread runs the program.
    Program,
    /// A fault: a thread that comes here from the program has trapped.
    Fault,
    /// Eviction: the TLB entries of pages unmapped one after the other are flushed together, at the
    /// latest when a phase of another kind begins.
    Eviction,
    /// None of these.
    Other,
}

impl Phase {
    /// Every id is below this.
    pub const MAX: usize = 8;

    /// The program's own work: the phase in which every thread begins.
    pub const PROGRAM: &'static Phase = &Phase::new(0, "program", PhaseKind::Program);

    /// A phase. No two phases of a manager have the same id; 0 is [`Phase::PROGRAM`]'s.
    ///
    /// # Panics
    /// If `id` is [`Phase::MAX`] or more.
    pub const fn new(id: u8, name: &'static str, kind: PhaseKind) -> Phase {
        assert!((id as usize) < Phase::MAX, "Phase::MAX is too small");
        Phase { id, name, kind }
    }

    /// Its column in a table.
    pub const fn id(&self) -> u8 {
        self.id
    }

    /// The name in reports.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it means to a platform.
    pub const fn kind(&self) -> PhaseKind {
        self.kind
    }
}

/// What became of one lock, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockRecord {
    /// Times it was taken.
    pub acquisitions: u64,
    /// How many of these had to wait.
    pub contended: u64,
    /// Time they waited.
    pub wait: Nanos,
    /// Time it was held.
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

/// Lock records by class and phase. Exact on the simulator; sampled where counting would cost more
/// than the locks (there, numbers below some dozens a lock say little).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockStatistics([[LockRecord; Phase::MAX]; LockClass::MAX]);

impl LockStatistics {
    /// The record of a class in a phase.
    pub fn get(&self, class: LockClass, phase: &Phase) -> &LockRecord {
        &self.0[usize::from(class.id())][usize::from(phase.id())]
    }

    /// The record of a class in a phase, to add to.
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

    /// What was gained since `earlier`, statistics of the same locks.
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
