//! The processes of a run, from /proc: the program and its descendants.
//!
//! ```text
//! highwater (subreaper) -- program -- children --- ...
//!                      |- a child whose parent has ended
//!                      \- helper of the library        not a member: it ends with its program
//!           nested run -- ...                          a member; its descendants are not
//! ```
//! A process that is forked while /proc is read may be missed, as the kernel's kill of a process
//! group may miss a process that joins it. Locking: none.

use highwater_session::HELPER_NAME;
use procfs::process::{Stat, all_processes};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, getpid, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::time::Duration;

/// Name (comm) of this command.
const OWN_NAME: &str = "highwater";
/// Maximum number of members that are named; the others are counted.
const NAMED_MAX: usize = 8;

/// A descendant of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    pid: Pid,
    name: String,
    group: i32,
    /// In ticks since boot; identifies the process together with the pid.
    start: u64,
}

/// The living members.
pub(crate) struct Family(Vec<Member>);

impl Family {
    /// The family of this process.
    pub(crate) fn now() -> Family {
        let root = getpid().as_raw_nonzero().get();
        Family(descendants(&stats(), root))
    }

    /// An empty family.
    pub(crate) fn none() -> Family {
        Family(Vec::new())
    }

    /// The pids of the members that started at least `age` ago.
    pub(crate) fn older_than(&self, age: Duration) -> impl Iterator<Item = i32> {
        let now = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
        let ticks = now.saturating_sub(age).as_secs_f64() * clock_ticks_per_second() as f64;
        let older = self.0.iter().filter(move |member| member.start <= ticks as u64);
        older.map(|member| member.pid.as_raw_nonzero().get())
    }

    /// Whether no member is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Signals the members in this process's group, except one that already got the signal.
    pub(crate) fn signal_group(&self, signal: Signal, but: Pid) {
        let group = getpgrp().as_raw_nonzero().get();
        let others = self.0.iter().filter(|it| it.group == group && it.pid != but);
        others.for_each(|member| member.signal(signal));
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Family(members) = self;
        for (index, member) in members.iter().take(NAMED_MAX).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let name = plain(&member.name);
            write!(f, "{comma}{name} ({})", member.pid.as_raw_nonzero())?;
        }
        match members.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

impl Member {
    fn of(stat: &Stat) -> Option<Member> {
        let pid = Pid::from_raw(stat.pid)?;
        let name = stat.comm.clone();
        Some(Member { pid, name, group: stat.pgrp, start: stat.starttime })
    }

    /// Signals this process, never a later one with the same pid.
    fn signal(&self, signal: Signal) {
        let Ok(process) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        let now = procfs::process::Process::new(self.pid.as_raw_nonzero().get());
        let same = now.and_then(|now| now.stat()).is_ok_and(|now| now.starttime == self.start);
        if same {
            // Fails only if it has ended, or belongs to another user by now.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// The name of a process in one line: a program sets its own name, which may contain anything.
pub(crate) fn plain(name: &str) -> String {
    name.replace(|c: char| c.is_control(), "?")
}

/// All processes that can be read; they may end meanwhile.
fn stats() -> Vec<Stat> {
    let processes = all_processes().into_iter().flatten().flatten();
    processes.filter_map(|process| process.stat().ok()).collect()
}

/// The living descendants of a process, by depth and pid, without helpers and without the
/// descendants of a nested `highwater`.
fn descendants(stats: &[Stat], root: i32) -> Vec<Member> {
    let (mut found, mut at) = (Vec::<&Stat>::new(), 0);
    let children = |of: i32| stats.iter().filter(move |stat| stat.ppid == of && stat.pid != of);
    found.extend(children(root));
    while let Some(stat) = found.get(at).copied() {
        if stat.comm != OWN_NAME {
            found.extend(children(stat.pid));
        }
        at += 1;
    }
    let lives = |stat: &&Stat| !matches!(stat.state, 'Z' | 'X');
    let members = found.into_iter().filter(lives).filter(|stat| !is_helper(stat));
    members.filter_map(Member::of).collect()
}

/// Whether a process is a helper or guardian of the library: of a program, of a nested run of this
/// command, or of this process.
fn is_helper(stat: &Stat) -> bool {
    stat.comm.as_bytes() == HELPER_NAME.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, comm: &str, ppid: i32, state: char) -> Stat {
        let zeros = "0 ".repeat(45);
        let line = format!("{pid} ({comm}) {state} {ppid} 7 7 0 -1 {zeros}");
        procfs::FromRead::from_read(line.as_bytes()).expect("a line of /proc/PID/stat")
    }

    fn named(stats: &[Stat]) -> String {
        Family(descendants(stats, 10)).to_string()
    }

    #[test]
    fn descendants_are_named_and_others_are_not() {
        let helper = HELPER_NAME.to_str().unwrap();
        let stats = [
            stat(1, "init", 0, 'S'),
            stat(10, OWN_NAME, 1, 'S'),
            stat(11, "sh", 10, 'S'),
            stat(14, "b a)\n", 13, 'R'),
            stat(13, "a", 11, 'T'),
            stat(12, "orphan", 10, 'S'),
            stat(15, "gone", 11, 'Z'),
            stat(20, "other", 1, 'S'),
            stat(21, helper, 11, 'S'),
            stat(22, helper, 21, 'S'),
        ];
        assert_eq!(named(&stats), "sh (11), orphan (12), a (13), b a)? (14)");
        assert_eq!(named(&stats[..2]), "");
    }

    #[test]
    fn a_run_in_a_run_has_a_family_of_its_own() {
        let guardian = stat(13, HELPER_NAME.to_str().unwrap(), 10, 'S');
        let stats = [stat(11, OWN_NAME, 10, 'S'), stat(12, "program", 11, 'S'), guardian];
        assert_eq!(named(&stats), "highwater (11)");
    }

    #[test]
    fn a_process_that_has_just_started_is_not_old() {
        let mut child = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let stat = procfs::process::Process::new(child.id().cast_signed()).unwrap().stat().unwrap();
        let family = Family(Member::of(&stat).into_iter().collect());
        assert_eq!(family.older_than(Duration::ZERO).count(), 1);
        assert_eq!(family.older_than(Duration::from_secs(5)).count(), 0);
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    #[test]
    fn many_are_counted() {
        let stats: Vec<Stat> = (11..30).map(|pid| stat(pid, "a", 10, 'S')).collect();
        assert!(named(&stats).ends_with("a (18) and 11 more"), "{}", named(&stats));
    }
}
