//! Memory of the run's processes that no manager serves: small programs, programs that the library
//! cannot be loaded into, and `highwater run` itself. It counts towards `--memory`, too.
//!
//! ```text
//! Family, without the members of the Budget --- Pss of each ---> Budget: unpaged
//! Budget --- need ---> Need::Exceeds, for a second --- one line on standard error
//! ```
//! Locks: none.

use crate::family::Family;
use highwater_command::say;
use highwater_mm::stats::Counter;
use highwater_session::{Budget, Code, Scope, read_all};
use highwater_units::Bytes;
use procfs::process::Process;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause after a measurement, as a multiple of its CPU time: a machine may have many processes.
const REST: u32 = 128;
/// Younger processes are not measured: such a process may be a forked child that is not yet a
/// member of the budget, and the memory that it shares counts for its parent.
const JOINS: Duration = Duration::from_millis(250);
/// How long processes may need more than the budget before a line reports it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the budget can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It can be kept.
    Fits,
    /// It cannot. The bytes needed: memory that cannot be paged, and the least pages of each
    /// process.
    Exceeds(Bytes),
}

/// Whether `limit` suffices. All arguments are in pages; `least` are the pages that processes keep
/// in any case.
fn need(limit: u64, unpaged: u64, least: u64) -> Need {
    let needed = unpaged + least;
    if needed > limit { Need::Exceeds(Bytes::of_pages(needed)) } else { Need::Fits }
}

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
    /// How long the budget has been too small; `None`: a line has reported it.
    exceeded: Option<Duration>,
}

impl Unserved {
    /// For the run in a directory; `None`: its budget does not count such memory.
    pub(crate) fn of(run_dir: &Path) -> Option<Unserved> {
        let budget = Budget::open(run_dir).ok()?;
        let counts = budget.scope() == Scope::Everything;
        let run_dir = run_dir.to_owned();
        let (owed, exceeded) = (Duration::ZERO, Some(Duration::ZERO));
        counts.then_some(Unserved { budget, run_dir, owed, exceeded })
    }

    /// Measures the processes if that is due. `passed`: the time since the last call. At the end
    /// this process unmaps the pages of its own code, because it is about to sleep.
    pub(crate) fn tick(&mut self, passed: Duration) {
        self.owed = self.owed.saturating_sub(passed);
        if self.owed.is_zero() {
            let start = clock_gettime(ClockId::ThreadCPUTime);
            self.budget.measure_unpaged(|| self.unserved().pages());
            let took = clock_gettime(ClockId::ThreadCPUTime) - start;
            self.owed = REST * Duration::try_from(took).unwrap_or_default();
        }
        self.watch(passed);
        Code::own().unmap();
    }

    /// The memory of this process and of those that no manager serves.
    fn unserved(&self) -> Bytes {
        let members = self.budget.members();
        let served: BTreeSet<i32> = members.iter().map(|it| it.image.pid.cast_signed()).collect();
        let own = std::process::id().cast_signed();
        let family = Family::now();
        let others = family.older_than(JOINS);
        // Members are listed by the pid that they see themselves.
        let is_served = |pid: &i32| served.contains(&innermost(*pid));
        let others: u64 = others.filter(|pid| !is_served(pid)).map(counted).sum();
        // Before this process is measured: its code, which runs only now and then, should count
        // only while it runs.
        Code::own().unmap();
        Bytes(others + counted(own))
    }

    /// Reports once if the budget cannot be kept.
    fn watch(&mut self, passed: Duration) {
        let (Some(exceeded), budget) = (&mut self.exceeded, &self.budget) else { return };
        let least = budget.members().iter().map(|member| member.claim.floor).sum();
        match need(budget.limit(), budget.unpaged(), least) {
            Need::Fits => *exceeded = Duration::ZERO,
            Need::Exceeds(_) if *exceeded < PATIENCE => *exceeded += passed,
            Need::Exceeds(needed) => {
                self.say_needed(needed, Bytes::of_pages(least));
                self.exceeded = None;
            }
        }
    }

    fn say_needed(&self, needed: Bytes, pages: Bytes) {
        let [limit, unpaged] = [self.budget.limit(), self.budget.unpaged()].map(Bytes::of_pages);
        let published = read_all(&self.run_dir);
        let in_ram = published.iter().map(|(_, it)| it.get(Counter::RamDeviceBytes)).sum();
        let remedy = remedy(unpaged, Bytes(in_ram));
        say(format_args!(
            "--memory {limit} is too little: {needed} are needed, {unpaged} that cannot be paged \
             and {pages} for pages; {remedy}"
        ));
    }
}

/// The pid of a process in its own PID namespace; its pid here if /proc does not tell.
fn innermost(pid: i32) -> i32 {
    let status = Process::new(pid).and_then(|process| process.status());
    let numbers = status.ok().and_then(|status| status.nspid);
    numbers.and_then(|numbers| numbers.last().copied()).unwrap_or(pid)
}

/// The memory of a process in bytes, as Pss: a page that several processes map counts by a share.
/// 0 if the process has ended.
fn counted(pid: i32) -> u64 {
    let rollup = Process::new(pid).and_then(|process| process.smaps_rollup());
    let maps = rollup.map(|rollup| rollup.memory_map_rollup.0).unwrap_or_default();
    maps.iter().filter_map(|map| map.extension.map.get("Pss")).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::skip_or_fail;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn processes_need_their_least_pages_besides_what_cannot_be_paged() {
        assert_eq!(need(100, 90, 10), Need::Fits);
        let exceeded = Need::Exceeds(Bytes::of_pages(101));
        assert_eq!(need(100, 90, 11), exceeded);
        assert_eq!(need(100, 101, 0), exceeded);
    }

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
