//! A look: the state of a run at one time, that is the memory of the living processes and the
//! events of all processes.
//!
//! Locks: none.

use crate::session::{Process, is_alive, living};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::Published;
use highwater_units::Bytes;

/// The processes of a run at one time.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// Events of all processes, including those that have ended.
    pub(crate) all: Snapshot,
    /// The processes that run, by pid.
    pub(crate) living: Vec<Process>,
    /// The budget of all processes together, or of each.
    pub(crate) budget: Bytes,
    /// Memory that counts towards the budget and cannot be paged.
    pub(crate) unpaged: Bytes,
}

impl Look {
    /// The look at a run whose processes have `published` their figures. `ended`: sums over the
    /// processes whose files were removed.
    pub(crate) fn of(ended: &Snapshot, published: Vec<(u32, Published)>, limit: Limit) -> Look {
        let mut all = ended.clone();
        published.iter().for_each(|(_, process)| all.merge(&process.snapshot));
        let Limit { budget, unpaged } = limit;
        Look { all, living: living(published, is_alive), budget, unpaged }
    }

    fn sum(&self, counter: Counter) -> Bytes {
        Bytes(self.living.iter().map(|process| process.bytes(counter).0).sum())
    }

    /// Pages in memory.
    pub(crate) fn resident(&self) -> Bytes {
        self.sum(Counter::Resident)
    }

    /// Swap slots in use.
    pub(crate) fn swap_used(&self) -> Bytes {
        self.sum(Counter::SlotsUsed)
    }
}

/// The budget now, and the memory counted towards it that cannot be paged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) budget: Bytes,
    pub(crate) unpaged: Bytes,
}

/// Keeps the sums of the look before if the new ones are lower: a process that was killed while it
/// wrote its figures is missing in them. A counter that falls would be taken for one that restarted
/// at 0, and all of its events would count again.
pub(crate) fn keep_from_falling(look: &mut Look, before: &mut Snapshot) {
    if look.all.get(Counter::PgFault) < before.get(Counter::PgFault) {
        look.all.clone_from(before);
    }
    before.clone_from(&look.all);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A look at one process.
    pub(crate) fn look(pid: u32, snapshot: &Snapshot) -> Look {
        let living = vec![crate::session::tests::process(pid, "sort", snapshot.clone())];
        let (budget, unpaged) = (Bytes(16 << 20), Bytes(1 << 20));
        Look { all: snapshot.clone(), living, budget, unpaged }
    }

    fn process(faults: u64, resident: u64) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        snapshot.counters[Counter::PgFault as usize] = faults;
        snapshot.counters[Counter::Resident as usize] = resident;
        snapshot
    }

    #[test]
    fn events_of_all_and_memory_of_the_living_count() {
        let (mine, gone) = (std::process::id(), u32::MAX);
        let mut ended = process(5, 9);
        ended.counters[Counter::ProcessEnded as usize] = 1;
        let published =
            [(mine, process(20, 200)), (mine, process(5, 7)), (1, ended), (gone, process(1, 1))];
        let name = String::new();
        let published = published.map(|(pid, snapshot)| {
            (pid, Published { name: name.clone(), snapshot, parts: None, malloc: None })
        });
        let limit = Limit { budget: Bytes(0), unpaged: Bytes(0) };
        let look = Look::of(&process(4, 50), published.into(), limit);
        assert_eq!((look.all.get(Counter::PgFault), look.resident()), (35, Bytes::of_pages(7)));
        assert_eq!(look.living.iter().map(|it| it.pid).collect::<Vec<_>>(), [mine]);
    }

    #[test]
    fn sums_do_not_fall() {
        let (mut before, faults) = (Snapshot::empty(), [3, 7, 2, 9]);
        let seen = faults.map(|faults| {
            let mut look = look(1, &process(faults, 1));
            keep_from_falling(&mut look, &mut before);
            look.all.get(Counter::PgFault)
        });
        assert_eq!(seen, [3, 7, 7, 9]);
    }
}
