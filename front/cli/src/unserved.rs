//! Memory of the run's processes that no manager serves: small programs, programs that the library
//! cannot be loaded into, and `highwater run` itself. It counts towards `--memory`, too.
//!
//! ```text
//! Family, without the members of the Budget --- Pss of each ---> Budget: unpaged
//! Budget, Family --- need (need.rs) ---> Need ---> the most, for the verdict
//!                                             \--- for a second: one line on standard error
//! ```
//! Locks: none.

use crate::elf;
use crate::family::{Family, plain};
use crate::need::{Need, Sums, Taken, need};
use highwater_command::say;
use highwater_mm::stats::Counter;
use highwater_session::{Budget, Code, Scope, read_all};
use highwater_units::Bytes;
use procfs::process::{MemoryMap, Process};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause after a measurement, as a multiple of its CPU time: a machine may have many processes.
const REST: u32 = 128;
/// Younger processes are not measured: such a process may be a forked child that is not yet a
/// member of the budget, and the memory that it shares counts for its parent.
const JOINS: Duration = Duration::from_millis(250);
/// How long processes may need more than the budget before a line reports it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The advice to the user, if swap in RAM takes `in_ram` of the `unpaged` bytes.
fn remedy(unpaged: Bytes, in_ram: Bytes) -> &'static str {
    if in_ram > Bytes(unpaged.0 / 2) { "give more, or swap to a disk" } else { "give more" }
}

/// Measures processes that are not served, and watches the budget of all.
pub(crate) struct Unserved {
    budget: Budget,
    run_dir: PathBuf,
    /// The remaining pause after the last measurement: its CPU time, times [`REST`], less the time
    /// that has passed.
    owed: Duration,
    /// The memory of all processes, if it was needed since the last measurement.
    taken: Option<Taken>,
    /// How long the budget has been too small; `None`: a line has reported it.
    exceeded: Option<Duration>,
    /// The most that processes were seen to need beyond the limit.
    most: Option<Need>,
}

impl Unserved {
    /// For the run in a directory; `None`: its budget does not count such memory.
    pub(crate) fn of(run_dir: &Path) -> Option<Unserved> {
        let budget = Budget::open(run_dir).ok()?;
        let counts = budget.scope() == Scope::Everything;
        let run_dir = run_dir.to_owned();
        let (owed, exceeded) = (Duration::ZERO, Some(Duration::ZERO));
        let (taken, most) = (None, None);
        counts.then_some(Unserved { budget, run_dir, owed, taken, exceeded, most })
    }

    /// Measures the processes if that is due. `passed`: the time since the last call. At the end
    /// this process unmaps the pages of its own code, because it is about to sleep.
    pub(crate) fn tick(&mut self, passed: Duration) {
        self.owed = self.owed.saturating_sub(passed);
        let start = clock_gettime(ClockId::ThreadCPUTime);
        if self.owed.is_zero() {
            self.budget.measure_unpaged(|| self.unserved().pages());
            self.taken = None;
        }
        self.watch(passed);
        let took = clock_gettime(ClockId::ThreadCPUTime) - start;
        self.owed += REST * Duration::try_from(took).unwrap_or_default();
        Code::own().unmap();
    }

    /// The most that processes were seen to need beyond the limit.
    pub(crate) fn most(self) -> Option<Need> {
        self.most
    }

    /// The memory of this process and of those that no manager serves.
    fn unserved(&self) -> Bytes {
        let (served, family) = (self.served(), Family::now());
        let others = family.older_than(JOINS);
        // Members are listed by the pid that they see themselves.
        let is_served = |pid: &i32| served.contains(&innermost(*pid));
        let others: u64 = others.filter(|pid| !is_served(pid)).map(counted).sum();
        // Before this process is measured: its code, which runs only now and then, should count
        // only while it runs.
        Code::own().unmap();
        Bytes(others + counted(own()))
    }

    /// The processes that managers serve, by the pid that they see themselves.
    fn served(&self) -> BTreeSet<i32> {
        self.budget.members().iter().map(|it| it.image.pid.cast_signed()).collect()
    }

    /// Notes what processes need beyond the limit, and reports it once if it lasts.
    fn watch(&mut self, passed: Duration) {
        let budget = &self.budget;
        let least: u64 = budget.members().iter().map(|member| member.claim.floor).sum();
        let [limit, unpaged, least] =
            [budget.limit(), budget.unpaged(), least].map(Bytes::of_pages);
        let mut taken = self.taken.take();
        let need = need(Sums { limit, unpaged, least }, || {
            taken.get_or_insert_with(|| self.taken()).clone()
        });
        self.taken = taken;
        match (&need, &mut self.exceeded) {
            (None, Some(exceeded)) => *exceeded = Duration::ZERO,
            (Some(_), Some(exceeded)) if *exceeded < PATIENCE => *exceeded += passed,
            (Some(need), Some(_)) => {
                self.say_needed(limit, need);
                self.exceeded = None;
            }
            (_, None) => {}
        }
        let needed = |need: &Option<Need>| need.as_ref().map(|need| need.needed);
        if needed(&need) > needed(&self.most) {
            self.most = need;
        }
    }

    /// The memory of this process and its family.
    fn taken(&self) -> Taken {
        let mut taken = Taken { swap_in_ram: self.swap_in_ram(), ..Taken::default() };
        let mut largest = (Bytes(0), 0);
        for pid in Family::now().older_than(Duration::ZERO).chain([own()]) {
            let rollup = Rollup::of(pid);
            taken.all.0 += rollup.sum("Pss");
            taken.shared.0 += rollup.sum("Pss_Shmem");
            taken.files.0 += rollup.sum("Pss_File");
            largest = largest.max((Bytes(rollup.sum("Pss")), pid));
        }
        let (_, largest) = largest;
        if !self.served().contains(&innermost(largest)) {
            taken.not_served = why_not_served(largest);
        }
        taken
    }

    fn swap_in_ram(&self) -> Bytes {
        let published = read_all(&self.run_dir);
        Bytes(published.iter().map(|(_, it)| it.get(Counter::RamDeviceBytes)).sum())
    }

    fn say_needed(&self, limit: Bytes, need: &Need) {
        let &Need { needed, unpaged, .. } = need;
        let pages = Bytes(needed.0 - unpaged.0);
        let remedy = remedy(unpaged, self.swap_in_ram());
        say(format_args!(
            "--memory {limit} is too little: {needed} are needed, {unpaged} that cannot be paged \
             and {pages} for pages; {remedy}"
        ));
    }
}

/// The name of a process, and why no manager can serve it; `None`: it could be served.
fn why_not_served(pid: i32) -> Option<(String, &'static str)> {
    let why = elf::why_not_served(&File::open(format!("/proc/{pid}/exe")).ok()?)?;
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.ok().map(|stat| (plain(&stat.comm), why))
}

/// This process.
fn own() -> i32 {
    std::process::id().cast_signed()
}

/// The pid of a process in its own PID namespace; its pid here if /proc does not tell.
fn innermost(pid: i32) -> i32 {
    let status = Process::new(pid).and_then(|process| process.status());
    let numbers = status.ok().and_then(|status| status.nspid);
    numbers.and_then(|numbers| numbers.last().copied()).unwrap_or(pid)
}

/// The memory of a process in bytes, as Pss: a page that is mapped several times counts once, and
/// of a page that several processes map, each has its share. 0 if the process has ended.
fn counted(pid: i32) -> u64 {
    Rollup::of(pid).sum("Pss")
}

/// /proc/PID/smaps_rollup; empty if the process has ended.
struct Rollup(Vec<MemoryMap>);

impl Rollup {
    fn of(pid: i32) -> Rollup {
        let rollup = Process::new(pid).and_then(|process| process.smaps_rollup());
        Rollup(rollup.map(|rollup| rollup.memory_map_rollup.0).unwrap_or_default())
    }

    /// The value of a field, in bytes.
    fn sum(&self, field: &str) -> u64 {
        self.0.iter().filter_map(|map| map.extension.map.get(field)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::skip_or_fail;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn a_disk_helps_where_swap_in_memory_takes_most() {
        assert_eq!(remedy(Bytes(100), Bytes(50)), "give more");
        assert!(remedy(Bytes(100), Bytes(51)).ends_with("swap to a disk"));
    }

    #[test]
    fn a_process_has_another_number_in_a_namespace_of_its_own() {
        let own = std::process::id().cast_signed();
        assert_eq!((innermost(own), innermost(i32::MAX)), (own, i32::MAX));
        let namespace = "--user --map-root-user --pid --fork --kill-child sleep 30".split(' ');
        let mut unshare = Command::new("unshare").args(namespace).spawn().expect("util-linux");
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let child = || std::fs::read_to_string(&children).ok()?.trim().parse().ok();
        let until = Instant::now() + Duration::from_secs(10);
        let child: Option<i32> = std::iter::repeat_with(child)
            .take_while(|_| Instant::now() < until)
            .find_map(|child| child);
        let number = child.map(innermost);
        unshare.kill().and_then(|()| unshare.wait()).expect("it was started");
        match number {
            Some(number) => assert_eq!(number, 1),
            None => skip_or_fail("no user namespaces"),
        }
    }

    #[test]
    fn this_process_has_memory_and_an_ended_one_none() {
        assert!(counted(std::process::id().cast_signed()) > 1 << 20);
        assert_eq!(counted(i32::MAX), 0);
    }
}
