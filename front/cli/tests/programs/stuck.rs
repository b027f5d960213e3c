//! Describes the state of all threads of a process group and of its helpers when a run exceeds its
//! time limit.
//!
//! ```text
//! Look --- a second ---> Look     a line per thread, its kernel stack; what --report would count
//! ```
//! Two snapshots (`Look`) distinguish a livelock, in which CPU times and context switches grow,
//! from a deadlock, in which they do not. State that cannot be read (an ended thread, no
//! permission) is omitted. Locks: none.

use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::{RUN_DIR, read_all};
use procfs::process::{Process, all_processes};
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between the two snapshots.
const PAUSE: Duration = Duration::from_secs(1);

/// Files that show whether the machine itself was stalled.
const MACHINE: [&str; 4] = ["loadavg", "pressure/cpu", "pressure/memory", "pressure/io"];

/// The state of a thread.
struct Thread {
    pid: i32,
    tid: i32,
    name: String,
    state: char,
    cpu: i32,
    /// Counters that grow only while the thread runs: ticks in user and kernel mode, page faults,
    /// switches.
    moves: [u64; 5],
}

/// The state of all threads, and the statistics of all managers.
struct Look {
    threads: Vec<Thread>,
    statistics: Vec<(u32, Snapshot)>,
}

impl Look {
    fn at(group: Pid) -> Look {
        let processes = of_group(group);
        let run_dir = processes.iter().find_map(run_dir);
        Look {
            threads: processes.iter().flat_map(threads).collect(),
            statistics: run_dir.map_or_else(Vec::new, |dir| read_all(&dir)),
        }
    }
}

/// Describes why a process group has not ended. Takes a second.
pub(crate) fn describe(group: Pid) -> String {
    let before = Look::at(group);
    std::thread::sleep(PAUSE);
    let now = Look::at(group);
    let mut text = String::from("ticks user, kernel; faults; switches waiting, preempted\n");
    for thread in &now.threads {
        let alike = |other: &&Thread| (other.pid, other.tid) == (thread.pid, thread.tid);
        write_thread(&mut text, before.threads.iter().find(alike), thread);
    }
    for (pid, statistics) in &now.statistics {
        let earlier = before.statistics.iter().find(|(other, _)| other == pid);
        write_statistics(&mut text, *pid, earlier.map(|(_, before)| before), statistics);
    }
    for name in MACHINE {
        write_file(&mut text, &Path::new("/proc").join(name), name);
    }
    text
}

/// The members of a group and their descendants: helpers have groups of their own.
fn of_group(group: Pid) -> Vec<Process> {
    let group = group.as_raw_nonzero().get();
    let all = all_processes().into_iter().flatten().flatten();
    let all = all.filter_map(|process| process.stat().ok().map(|stat| (process, stat)));
    let (mut found, mut others): (Vec<_>, Vec<_>) = all.partition(|(_, stat)| stat.pgrp == group);
    let mut at = 0;
    while at < found.len() {
        let parent = found[at].1.pid;
        found.extend(others.extract_if(.., |(_, stat)| stat.ppid == parent));
        at += 1;
    }
    found.into_iter().map(|(process, _)| process).collect()
}

fn run_dir(process: &Process) -> Option<PathBuf> {
    process.environ().ok()?.get(OsStr::new(RUN_DIR)).map(PathBuf::from)
}

fn threads(process: &Process) -> Vec<Thread> {
    let tasks = process.tasks().into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let (stat, status) = (task.stat().ok()?, task.status().ok()?);
            let waits = status.voluntary_ctxt_switches.unwrap_or(0);
            let preempted = status.nonvoluntary_ctxt_switches.unwrap_or(0);
            Some(Thread {
                pid: task.pid,
                tid: task.tid,
                name: stat.comm,
                state: stat.state,
                cpu: stat.processor.unwrap_or(-1),
                moves: [stat.utime, stat.stime, stat.minflt + stat.majflt, waits, preempted],
            })
        })
        .collect()
}

/// Writes a line, then the kernel stack, which only root can see.
fn write_thread(text: &mut String, before: Option<&Thread>, now: &Thread) {
    let dir = PathBuf::from(format!("/proc/{}/task/{}", now.pid, now.tid));
    let file = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let Thread { pid, tid, name, state, cpu, moves } = now;
    let moved = match before {
        Some(before) if before.moves == *moves => "stands still".to_owned(),
        Some(before) => format!("from {:?}", before.moves),
        None => "new".to_owned(),
    };
    let (wchan, call) = (file("wchan"), file("syscall"));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{pid}/{tid} {name}: {state} on CPU {cpu}, {moves:?}, {moved}");
    let _ = writeln!(text, "    in {wchan}, call {}", call.trim_end());
    write_lines(text, &file("stack"));
}

/// The counters of a process that are not 0.
fn write_statistics(text: &mut String, pid: u32, before: Option<&Snapshot>, now: &Snapshot) {
    let _ = write!(text, "statistics of {pid}:");
    for counter in Counter::ALL.into_iter().filter(|counter| now.get(*counter) > 0) {
        let _ = write!(text, " {} {}", counter.name(), now.get(counter));
        let gained = now.get(counter).wrapping_sub(before.map_or(0, |b| b.get(counter))) as i64;
        if gained != 0 {
            let _ = write!(text, " ({gained:+})");
        }
    }
    text.push('\n');
}

fn write_file(text: &mut String, path: &Path, name: &str) {
    if let Ok(contents) = std::fs::read_to_string(path) {
        let _ = writeln!(text, "{name}:");
        write_lines(text, &contents);
    }
}

fn write_lines(text: &mut String, lines: &str) {
    lines.lines().for_each(|line| text.extend(["    ", line, "\n"]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{Limits, Place, program};
    use crate::run::Run;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::Command;

    const MIB: u64 = 1 << 20;

    /// The panic message of a run that exceeds its time limit.
    fn timeout_message(run: impl FnOnce() -> Run) -> String {
        let ended = catch_unwind(AssertUnwindSafe(|| drop(run())));
        *ended.expect_err("the run exceeds its time limit").downcast().expect("a text")
    }

    fn line<'a>(text: &'a str, part: &str) -> &'a str {
        text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}? {text}"))
    }

    #[test]
    fn sleeping_and_spinning_threads_are_distinguished() {
        let place = Place::beside_others();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 300 & while :; do :; done"]);
        let time_limit = Duration::from_millis(500);
        let text = timeout_message(|| Run::of(&mut shell, &place.path(""), "stuck", time_limit));
        assert!(text.starts_with("still running after 500ms"), "{text}");
        let (sleeps, turns) = (line(&text, " sleep: "), line(&text, " sh: "));
        assert!(sleeps.contains(": S on CPU") && sleeps.ends_with("stands still"), "{text}");
        assert!(turns.contains("], from ["), "{text}");
    }

    #[test]
    fn a_stuck_run_shows_the_managers_statistics() {
        let place = Place::beside_others();
        let script = "import time; x = bytearray(1 << 20); time.sleep(300)";
        let program = program("python3", &["-c", script]);
        let time_limit = Duration::from_secs(5);
        let text = timeout_message(|| {
            place.run_with_time_limit(&Limits::of(16 * MIB), &program, time_limit)
        });
        for part in [" highwater: ", " python3: S", " fault0: S", " kswapd0:0: S"] {
            line(&text, part);
        }
        assert!(line(&text, "statistics of ").contains(" pgzero "), "{text}");
    }
}
