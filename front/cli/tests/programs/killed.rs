//! A `highwater run` that is killed: the processes that go on, and those that start later, keep
//! their common budget, and the last one leaves nothing behind.

use crate::common::highwater;
use crate::place::Place;
use highwater_session::{Budget, Member};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 32 * MIB;
/// The least pages of each process; a new process may exceed the budget by as many for a moment.
const FLOOR: u64 = highwater_session::FLOOR;
/// Far above the time that any wait takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a tree of processes that outlives the shell, which dies with `highwater run`.
const SCRIPT: &str = "exec 3<&0; \"$@\" <&3 & exec 3<&-; echo $HIGHWATER_RUN_DIR; wait";

fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kill(pid: u32) {
    // SAFETY: a plain system call. The process belongs to this test, and its number is not reused
    // so soon.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
}

fn is_there(member: &Member) -> bool {
    Path::new(&format!("/proc/{}", member.image.pid)).exists()
}

/// Whether all members live and stay within the budget.
fn is_whole(budget: &Budget) -> bool {
    budget.members().iter().all(is_there) && budget.granted() <= budget.limit()
}

/// Starts another run, which removes what killed runs have left.
fn another_run() {
    let run = highwater().args(["run", "--quiet", "--memory", "16M", "--", "true"]).status();
    assert!(run.unwrap().success());
}

#[test]
fn processes_of_a_killed_run_keep_their_budget_and_leave_nothing() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let swap = place.path("swap");
    std::fs::create_dir(&swap).unwrap();
    let mut run = highwater();
    run.args(["run", "--quiet", "--memory", &BUDGET.to_string(), "--swap"]);
    run.arg(format!("dir:{}:256M", swap.display())).args(["--", "sh", "-c", SCRIPT, "sh"]);
    run.arg(&program).args(["kill", "3", "16"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap());
    let mut lines = [(); 2].map(|()| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    });
    lines.sort();
    let [run_dir, started] = lines;
    assert_eq!(started, "started");
    let run_dir = PathBuf::from(run_dir);
    let input = run.stdin.take();
    run.kill().unwrap();
    run.wait().unwrap();

    another_run();
    let budget = Budget::open(&run_dir).expect("processes still use it");
    until("the parent and three children are members", || budget.members().len() == 4);
    let parent = budget.members().iter().map(|member| member.image.pid).min();
    for _ in 0..5 {
        let before = budget.members();
        let victim = before.iter().find(|member| Some(member.image.pid) != parent);
        kill(victim.expect("a child").image.pid);
        until("a new process has joined", || {
            let members = budget.members();
            let is_new = |member: &Member| !before.iter().any(|old| old.image == member.image);
            members.len() == 4 && members.iter().any(is_new)
        });
    }
    until("the budget is whole", || is_whole(&budget));
    budget.set_limit(5 * FLOOR);
    until("they follow a change", || is_whole(&budget));

    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "ended\n");
    until("the directory is gone", || !run_dir.exists());
    assert_eq!(std::fs::read_dir(&swap).unwrap().count(), 0, "files in the swap directory");
}

#[test]
fn a_run_and_processes_that_are_killed_at_once_are_removed_by_the_next_run() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let mut run = highwater();
    run.args(["run", "--quiet", "--memory", &BUDGET.to_string(), "--swap", "zram:1G", "--"]);
    run.args(["sh", "-c", SCRIPT, "sh"]).arg(&program).args(["kill", "2", "16"]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut first: Vec<String> = lines.by_ref().take(2).collect();
    first.sort();
    let run_dir = PathBuf::from(&first[0]);
    let budget = Budget::open(&run_dir).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    let mut pids: Vec<u32> = budget.members().iter().map(|member| member.image.pid).collect();
    // Kill the parent first, so that it replaces no child.
    pids.sort_unstable();
    pids.iter().copied().for_each(kill);
    assert_eq!(lines.count(), 0);
    until("all have ended", || {
        another_run();
        !run_dir.exists()
    });
}
