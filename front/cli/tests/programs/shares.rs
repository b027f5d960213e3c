//! Processes share the budget of a run and the room of its swap devices: they get both where they
//! need them, and give them back when they end; `highwater ctl` changes the budget meanwhile.

use crate::common::highwater;
use crate::place::{Limits, Place, note};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The least memory of a process. A new one may exceed the budget by this much for a moment.
const FLOOR: u64 = 4 * MIB;
/// Far above the second or so that a change takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program that runs under a budget, and reads commands from the test.
pub(crate) struct Session {
    name: String,
    run: Child,
    input: Option<ChildStdin>,
    /// `None` once another thread reads it.
    output: Option<BufReader<ChildStdout>>,
}

/// What `highwater ctl` says of a process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) pid: i32,
    pub(crate) granted: u64,
}

impl Session {
    pub(crate) fn start(name: &str, memory: u64, program: &[&Path], arguments: &[&str]) -> Session {
        Session::with(name, memory, &[], program, arguments)
    }

    /// With further options of `highwater run`.
    pub(crate) fn with(
        name: &str,
        memory: u64,
        options: &[&str],
        program: &[&Path],
        arguments: &[&str],
    ) -> Session {
        let options = [&["--swap", "zram:1G"], options].concat();
        Session::run(name, memory, &options, program, arguments)
    }

    pub(crate) fn swapping(
        name: &str,
        memory: u64,
        swap: &[&str],
        program: &[&Path],
        arguments: &[&str],
    ) -> Session {
        let options: Vec<&str> = swap.iter().flat_map(|swap| ["--swap", swap]).collect();
        Session::run(name, memory, &options, program, arguments)
    }

    fn run(
        name: &str,
        memory: u64,
        options: &[&str],
        program: &[&Path],
        arguments: &[&str],
    ) -> Session {
        let name = format!("{name}-{}", std::process::id());
        let mut command = highwater();
        command.args(["run", "--quiet", "--name", &name, "--paged", &memory.to_string()]);
        command.args(options);
        command.arg("--").args(program).args(arguments);
        let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = run.stdout.take().map(BufReader::new);
        let input = run.stdin.take();
        Session { name, run, input, output }
    }

    pub(crate) fn expect_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.as_mut().expect("a pipe").read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    pub(crate) fn ctl(&self, request: &str) -> Option<String> {
        let output = highwater().args(["ctl", &self.name, request]).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// The line with which `highwater ctl` refuses a request.
    pub(crate) fn refusal(&self, request: &str) -> String {
        let output = highwater().args(["ctl", &self.name, request]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{request}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Writes a line to the program's standard input.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("a pipe"), "{line}").unwrap();
    }

    /// The run directory, from the environment of a process of the run.
    fn run_dir(&self, pid: i32) -> String {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it lives");
        let environment = String::from_utf8_lossy(&environment);
        let dir = environment.split('\0').find_map(|it| it.strip_prefix("HIGHWATER_RUN_DIR="));
        dir.expect("a process of the run").to_owned()
    }

    /// The processes; none once the session has ended.
    pub(crate) fn members(&self) -> Vec<Member> {
        let text = self.ctl("processes").unwrap_or_default();
        text.lines().map(Member::of).collect()
    }

    /// Waits until the processes are as expected.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&[Member]) -> bool) -> Duration {
        let started = Instant::now();
        loop {
            let members = self.members();
            if is_so(&members) {
                return started.elapsed();
            }
            assert!(started.elapsed() < PATIENCE, "{what}: {members:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The room that all processes use of each swap device; empty once the session has ended.
    pub(crate) fn swap(&self) -> Vec<u64> {
        let text = self.ctl("swap").unwrap_or_default();
        let of_all = text.lines().next().and_then(|line| line.strip_prefix("swap = "));
        let rooms = of_all.unwrap_or_default().split(", ");
        rooms.filter_map(|room| room.split_once(" of ")).map(|(used, _)| bytes(used)).collect()
    }

    /// The slots that all processes use, in bytes, as published by them. A write that is going to
    /// be refused holds some slots for a moment.
    pub(crate) fn slots(&self) -> u64 {
        let text = self.ctl("vmstat").unwrap_or_default();
        let slots = text.lines().find_map(|line| line.strip_prefix("nr_swap_used "));
        slots.map_or(0, |slots| slots.parse::<u64>().expect("a number") << 12)
    }

    /// Closes the program's standard input.
    pub(crate) fn finish(&mut self) {
        drop(self.input.take());
    }

    /// Waits for the program's end.
    pub(crate) fn end(mut self) {
        self.finish();
        let mut rest = String::new();
        self.output.expect("a pipe").read_to_string(&mut rest).unwrap();
        assert!(self.run.wait().unwrap().success());
    }
}

impl Member {
    /// Reads "process 4711 = 12.5 MiB, 0 B free, 17 misses/s".
    fn of(line: &str) -> Member {
        let (process, rest) = line.split_once(" = ").expect("a process and what it has");
        let pid = process.strip_prefix("process ").and_then(|pid| pid.parse().ok());
        let granted = rest.split_once(',').map(|(granted, _)| bytes(granted));
        Member { pid: pid.expect("a pid"), granted: granted.expect("a size") }
    }
}

/// Reads "12.5 MiB".
fn bytes(text: &str) -> u64 {
    let (number, unit) = text.split_once(' ').expect("a number and a unit");
    let number: f64 = number.replace(',', "").parse().expect("a number");
    let unit = ["B", "KiB", "MiB", "GiB"].iter().position(|known| *known == unit);
    (number * 1024f64.powi(unit.expect("a unit") as i32)) as u64
}

/// How many processes are killed: HIGHWATER_TEST_KILLS, or 40.
fn kills() -> u32 {
    std::env::var("HIGHWATER_TEST_KILLS").map_or(40, |count| count.parse().expect("a number"))
}

fn sum(members: &[Member]) -> u64 {
    members.iter().map(|member| member.granted).sum()
}

/// Sizes are printed with three digits.
fn about(size: u64) -> u64 {
    size + size / 100
}

#[test]
fn eight_processes_stay_within_one_budget() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let budget = 48 * MIB;
    let mut session = Session::start("work", budget, &[&program], &["work", "8", "24"]);
    let (mut samples, mut most) = (0, 0);
    while session.run.try_wait().unwrap().is_none() {
        let members = session.members();
        most = most.max(sum(&members));
        samples += usize::from(members.len() > 6);
    }
    note(&format!("8 processes of 24 MiB in 48: at most {} MiB granted", most / MIB));
    assert!(samples > 2, "too few samples with most processes");
    assert!(most <= about(budget + 9 * FLOOR), "{} MiB", most / MIB);
    session.expect_line("worked");
    session.end();
}

#[test]
fn memory_goes_where_it_is_needed() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let budget = 64 * MIB;
    let arguments = ["wake", "5", "10", "96"];
    let mut session = Session::start("wake", budget, &[&program], &arguments);
    session.expect_line("grown");
    // The budget without the floors of the others.
    let rest = budget - 5 * FLOOR;
    let grown = session.until("the parent grows", |members| {
        members.iter().any(|member| member.granted > rest * 9 / 10)
    });
    session.tell("wake");
    session.expect_line("woken");
    let woken = session.until("the children get theirs back", |members| {
        members.iter().filter(|member| member.granted > 2 * FLOOR - MIB).count() >= 5
    });
    note(&format!("grown after {grown:?}, shared again after {woken:?}"));
    session.end();
}

#[test]
fn the_budget_changes_while_the_program_runs() {
    let place = Place::new();
    let input = place.path("numbers");
    let mut random = highwater_units::Prng::new(1);
    let lines: Vec<String> =
        (0..1_200_000).map(|_| format!("{:016x}\n", random.next_u64())).collect();
    std::fs::write(&input, lines.concat()).unwrap();
    let sort = ["sort", "-S", "400M", "--parallel=2"];
    let plain = Command::new(sort[0]).args(&sort[1..]).arg(&input).env("LC_ALL", "C").output();
    let (most, least) = (64 * MIB, 24 * MIB);
    let path = input.to_str().expect("text");
    let mut session =
        Session::start("ctl", most, &[Path::new("sort")], &[&sort[1..], &[path]].concat());
    let output = std::thread::spawn({
        let mut output = session.output.take().expect("a pipe");
        move || {
            let mut all = Vec::new();
            output.read_to_end(&mut all).unwrap();
            all
        }
    });
    session.until("sort has begun", |members| !members.is_empty());
    let mut changes = 0;
    for memory in [least, most].into_iter().cycle() {
        if session.ctl(&format!("memory={memory}")).is_none() {
            break;
        }
        let reached = |members: &[Member]| members.is_empty() || sum(members) <= about(memory);
        session.until("the budget shrinks", reached);
        changes += 1;
    }
    note(&format!("{changes} changes of the budget"));
    assert!(changes >= 2, "{changes} changes of the budget");
    assert!(session.run.wait().unwrap().success());
    assert!(output.join().unwrap() == plain.unwrap().stdout, "the output differs");
}

#[test]
fn killed_processes_give_back_what_they_had() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let budget = 48 * MIB;
    let mut session = Session::start("kill", budget, &[&program], &["kill", "4", "16"]);
    session.expect_line("started");
    let mut random = highwater_units::Prng::new(7);
    let parent = session.members().iter().map(|member| member.pid).min();
    let run_dir = PathBuf::from(session.run_dir(parent.expect("a parent")));
    for _ in 0..kills() {
        std::thread::sleep(Duration::from_millis(random.below(120)));
        let members = session.members();
        let children: Vec<i32> =
            members.iter().map(|member| member.pid).filter(|pid| Some(*pid) != parent).collect();
        if !children.is_empty() {
            let pid = children[random.below(children.len() as u64) as usize];
            // It may have ended, but its number is not given to another so soon.
            // SAFETY: a plain system call.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    session.until("the dead give theirs back", |members| {
        let is_there = |member: &Member| Path::new(&format!("/proc/{}", member.pid)).exists();
        members.iter().all(is_there) && sum(members) <= about(budget)
    });
    drop(session.input.take());
    session.expect_line("ended");
    session.end();
    assert!(!run_dir.exists(), "{} stays", run_dir.display());
}

#[test]
fn each_process_may_have_a_budget_of_its_own() {
    let place = Place::new();
    let program = place.c_program("shares", &["work", "3", "24"]);
    let mut command = highwater();
    command.args(["run", "--memory-per-process", "16M", "--swap", "ram:256M", "--"]);
    let output = command.args(&program).output().unwrap();
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{summary}");
    assert!(summary.contains("16 MiB for each process"), "{summary}");
    let unlimited = place.run(&program);
    place.compare_output("16 MiB shared", &unlimited, &Limits::of(16 * MIB), &program);
}

/// Three children fill a swap device of each kind. A fourth has room as soon as one is killed.
#[test]
fn processes_share_the_room_of_a_swap_device() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let dir = format!("dir:{}:32M", place.path("").display());
    // The contents do not compress.
    for swap in ["ram:32M", "zram:32M", &dir] {
        let arguments = ["kill", "3", "13"];
        let session = Session::swapping("room", 16 * MIB, &[swap], &[&program], &arguments);
        share_room(session, swap);
    }
}

fn share_room(mut session: Session, swap: &str) {
    session.expect_line("started");
    let (most, seen) = (Cell::new(0), RefCell::new(BTreeSet::new()));
    // Of each process all memory but its floor is swapped out; each swaps out over a fifth of this.
    let is_filled = |members: &[Member]| {
        let used = session.swap().iter().sum();
        most.set(u64::max(most.get(), used));
        seen.borrow_mut().extend(members.iter().map(|member| member.pid));
        members.len() == 4 && used > 24 * MIB
    };
    let filled = session.until("three children fill the device", is_filled);
    // The children check their blocks, and swap all the time.
    for _ in 0..30 {
        is_filled(&session.members());
        let slots = session.slots();
        assert!(swap.starts_with("zram") || slots <= 33 * MIB, "{swap}: {slots} in slots");
    }
    let members = session.members();
    let parent = members.iter().map(|member| member.pid).min();
    let killed = members.iter().map(|member| member.pid).find(|pid| Some(*pid) != parent);
    let killed = killed.expect("children");
    // SAFETY: a plain system call.
    unsafe { libc::kill(killed, libc::SIGKILL) };
    let others = |members: &[Member]| members.iter().all(|m| m.pid != killed) && is_filled(members);
    let again = session.until("another child fills it again", others);
    note(&format!("{swap}: filled after {filled:?}, again {again:?} after one was killed"));
    assert!(most.get() <= about(32 * MIB), "{swap}: {} MiB", most.get() / MIB);
    assert_eq!(seen.borrow().len(), 5, "{swap}: a child was ended and replaced: {seen:?}");
    drop(session.input.take());
    session.expect_line("ended");
    session.end();
}

#[test]
fn the_next_device_takes_what_all_processes_have_no_room_for() {
    let place = Place::new();
    let program = place.compile("shares", "shares", &[]);
    let (swap, arguments) = (["ram:64M,priority=1", "ram:8M,priority=2"], ["kill", "3", "13"]);
    let mut session = Session::swapping("next", 16 * MIB, &swap, &[&program], &arguments);
    session.expect_line("started");
    session.until("the first device is full", |_| match session.swap()[..] {
        [low, high] => {
            assert!(high <= about(8 * MIB), "{} MiB", high / MIB);
            high > 7 * MIB && low > 16 * MIB
        }
        _ => false,
    });
    drop(session.input.take());
    session.expect_line("ended");
    session.end();
}

#[test]
fn processes_that_fill_all_swap_end_with_a_clear_line() {
    let place = Place::new();
    let program = place.c_program("shares", &["work", "3", "18"]);
    for swap in ["ram:16M".to_owned(), format!("dir:{}:16M", place.path("").display())] {
        let mut command = highwater();
        command.args(["run", "--memory", "16M", "--swap", &swap, "--"]);
        let output = command.args(&program).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{swap}: {errors}");
        let line = errors.lines().find(|line| line.contains("memory and swap are full"));
        let line = line.unwrap_or_else(|| panic!("{swap}: no reason: {errors}"));
        assert!(line.contains(" of 16 MiB used, all processes "), "{line}");
        assert!(errors.contains("highwater: memory and swap were full"), "{swap}: {errors}");
    }
}
