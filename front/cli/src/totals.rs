//! Sums the statistics that the processes of a run publish, and keeps the figures of the largest.
//!
//! ```text
//! run_dir/<pid>.<n> -- every 250 ms: of ended processes, then removed -\
//!                   \- after the program's end: the rest ---------------> Totals ---> Report
//! ```
//! A run may have thousands of processes, and /dev/shm little room: only the files of living
//! processes stay, and little more than sums is kept in memory.

use crate::lock_figures::Locks;
use crate::processes::Processes;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::{
    MallocStats, OtherBuild, Published, read_published, take_ended, unpublished,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for a program's last figures, which its helper publishes after its end.
const PUBLISH_MAX: Duration = Duration::from_secs(1);

/// The figures of all processes of a run.
pub(crate) struct Totals {
    /// Sums over all processes.
    pub(crate) all: Snapshot,
    /// The process with the most memory.
    pub(crate) largest: Option<(u32, Snapshot)>,
    /// The image of a process that has read the most pages from swap.
    pub(crate) reader: Option<Snapshot>,
    /// Objects and blocks of the library's malloc; `None` if no process used it.
    pub(crate) malloc: Option<MallocStats>,
    /// Costs of the managers' locks.
    pub(crate) locks: Locks,
    /// The processes that were served. Other processes publish only if they needed more than the
    /// budget.
    pub(crate) served: BTreeSet<u32>,
    /// The figures of each of them.
    pub(crate) processes: Processes,
    /// The processes whose faults were served by handler threads.
    pub(crate) by_handlers: BTreeSet<u32>,
    /// How many processes found no room for their statistics.
    pub(crate) unpublished: usize,
}

impl Totals {
    /// Totals of no process.
    pub(crate) fn new() -> Totals {
        Totals {
            all: Snapshot::empty(),
            largest: None,
            reader: None,
            malloc: None,
            locks: Locks::default(),
            served: BTreeSet::new(),
            processes: Processes::default(),
            by_handlers: BTreeSet::new(),
            unpublished: 0,
        }
    }

    /// Adds an image of a process.
    pub(crate) fn add(&mut self, pid: u32, published: &Published) {
        let Published { snapshot, parts, malloc, .. } = published;
        if snapshot.get(Counter::Processes) > 0 {
            self.processes.add(pid, published);
        }
        self.all.merge(snapshot);
        for (counter, pids) in
            [(Counter::Processes, &mut self.served), (Counter::ByHandlers, &mut self.by_handlers)]
        {
            if snapshot.get(counter) > 0 {
                pids.insert(pid);
            }
        }
        let peak = |process: &Snapshot| process.get(Counter::CountedPeak);
        if self.largest.as_ref().is_none_or(|(_, largest)| peak(snapshot) >= peak(largest)) {
            self.largest = Some((pid, snapshot.clone()));
        }
        if self.reader.as_ref().is_none_or(|reader| reads(snapshot) > reads(reader)) {
            self.reader = Some(snapshot.clone());
        }
        parts.iter().for_each(|parts| self.locks.add(parts));
        if let Some(malloc) = malloc {
            self.malloc.get_or_insert_default().merge(malloc);
        }
    }

    /// Adds the processes that have ended, and removes their files.
    pub(crate) fn take_ended(&mut self, run_dir: &Path) {
        take_ended(run_dir).iter().for_each(|(pid, published)| self.add(*pid, published));
    }

    /// Adds all other processes, once the program `pid` has published for the last time.
    ///
    /// # Errors
    /// A process whose library is of another build.
    pub(crate) fn finish(&mut self, run_dir: &Path, pid: u32) -> Result<(), OtherBuild> {
        let started = Instant::now();
        let rest = loop {
            self.take_ended(run_dir);
            let rest = read_published(run_dir)?;
            let has_ended = rest.iter().all(|(of, _)| *of != pid);
            if has_ended || started.elapsed() > PUBLISH_MAX {
                break rest;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        rest.iter().for_each(|(pid, published)| self.add(*pid, published));
        self.unpublished = unpublished(run_dir);
        Ok(())
    }
}

/// Pages read from swap.
pub(crate) fn reads(process: &Snapshot) -> u64 {
    process.get(Counter::PswpIn)
}
