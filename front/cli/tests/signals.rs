//! Signals to a run, and its end: by SIGTERM, by SIGKILL, with processes that keep running, on a
//! terminal, and with standard error full. Uses real shells and a preload library that does
//! nothing.

mod common;

use common::{can_run, highwater, idle_library};
use procfs::process::{Process, Stat, all_processes};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
/// Time limit for events that should happen at once.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// `highwater run` with `args`; `None` if this machine cannot run it.
fn command(dir: &TempDir, args: &[&str]) -> Option<Command> {
    let library = idle_library(dir.path());
    can_run(&library).then(|| {
        let mut command = highwater();
        command.env("HIGHWATER_PRELOAD", library).args(["run", "--memory", "16M"]);
        command.args(["--swap", "ram:16M"]).args(args);
        command
    })
}

fn counts() -> String {
    format!("python3 {SOURCES}/counts.py")
}

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).expect("a process has a number")
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIME_LIMIT, "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stat(of: i32) -> Option<Stat> {
    Process::new(of).and_then(|process| process.stat()).ok()
}

fn has_ended(of: i32) -> bool {
    stat(of).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

/// A run whose program is controlled by pipes.
struct Talk {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Talk {
    fn start(mut command: Command) -> Talk {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Talk { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads a line with this word and a number. Returns the number.
    fn number(&mut self, word: &str) -> i32 {
        let line = self.line();
        line.strip_prefix(word).unwrap_or_else(|| panic!("{line}")).trim().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn send(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn end(mut self) -> Output {
        drop(self.child.stdin.take());
        self.child.wait_with_output().unwrap()
    }
}

#[test]
fn sigterm_reaches_each_process_of_the_group_once() {
    let dir = tempfile::tempdir().unwrap();
    // The shell runs its trap after its child has ended.
    let script = format!("trap 'echo shell' TERM; {}; exit 4", counts());
    let Some(command) = command(&dir, &["--quiet", "sh", "-c", &script]) else { return };
    let mut talk = Talk::start(command);
    talk.number("ready");
    for count in 1..=3 {
        talk.signal(Signal::TERM);
        assert_eq!(talk.line(), format!("TERM {count}"));
    }
    // The child ends first, then the shell's trap runs.
    talk.send("end");
    assert_eq!(talk.line(), "done TERM 3");
    assert_eq!(talk.line(), "shell");
    assert_eq!(talk.end().status.code(), Some(4));
}

/// The signals come as from a supervisor, or for PID 1 of a container with STOPSIGNAL SIGINT.
#[test]
fn keyboard_signals_that_a_process_sends_reach_the_program_once() {
    let dir = tempfile::tempdir().unwrap();
    let script = "import signal, sys; \
        tell = lambda number, _: print(signal.Signals(number).name, flush=True); \
        signal.signal(signal.SIGINT, tell); signal.signal(signal.SIGQUIT, tell); \
        print('ready', 0, flush=True); print(*sys.stdin, sep=''); sys.exit(4)";
    let Some(run) = command(&dir, &["--quiet", "python3", "-c", script]) else { return };
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,QUIT"]).arg(run.get_program()).args(run.get_args());
    command.env("HIGHWATER_PRELOAD", dir.path().join("libidle.so"));
    let mut talk = Talk::start(command);
    talk.number("ready");
    for (signal, name) in
        [(Signal::INT, "SIGINT"), (Signal::QUIT, "SIGQUIT"), (Signal::INT, "SIGINT")]
    {
        talk.signal(signal);
        assert_eq!(talk.line(), name);
    }
    talk.send("end");
    drop(talk.child.stdin.take());
    assert_eq!(talk.line(), "end", "each signal came once");
    assert_eq!(talk.end().status.code(), Some(4));
}

#[test]
fn other_groups_and_signals_are_left_to_the_program() {
    let dir = tempfile::tempdir().unwrap();
    // In its own session, the child receives no signals of a terminal. It reads the shell's stdin.
    let script = format!(
        "trap 'echo hup' HUP; trap 'echo term' TERM; exec 3<&0; \
        setsid -w {} <&3 & while ! wait $!; do :; done; exit 6",
        counts()
    );
    let Some(run) = command(&dir, &["--quiet", "sh", "-c", &script]) else { return };
    // A shell cannot trap a signal that is ignored when it starts, as under nohup.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(run.get_program()).args(run.get_args());
    command.env("HIGHWATER_PRELOAD", dir.path().join("libidle.so"));
    let mut talk = Talk::start(command);
    talk.number("ready");
    talk.signal(Signal::HUP);
    assert_eq!(talk.line(), "hup");
    talk.signal(Signal::TERM);
    assert_eq!(talk.line(), "term");
    talk.send("end");
    assert_eq!(talk.line(), "done");
    assert_eq!(talk.end().status.code(), Some(6));
}

/// Some daemons start their children with SIGCHLD ignored, so that they need not wait for them.
#[test]
fn a_caller_that_ignores_sigchld_has_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let ignores = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
        os.execv(sys.argv[1], sys.argv[1:])";
    let shows = "import signal, sys; print(signal.getsignal(signal.SIGCHLD).name); sys.exit(3)";
    let args = ["--quiet", "python3", "-c", shows];
    let Some(run) = command(&dir, &args) else { return };
    let mut python = Command::new("python3");
    python.args(["-c", ignores]).arg(run.get_program()).args(run.get_args());
    let output = python.env("HIGHWATER_PRELOAD", dir.path().join("libidle.so")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("SIG_IGN"), "the program's own");
}

/// The children of a shell end with it.
#[test]
fn a_terminated_script_leaves_no_processes() {
    let dir = tempfile::tempdir().unwrap();
    let script = "sh -c 'echo ready $$; exec sleep 1000 <&- >&- 2>&-'; echo after";
    let Some(command) = command(&dir, &["sh", "-c", script]) else { return };
    let mut talk = Talk::start(command);
    let inner = talk.number("ready");
    talk.signal(Signal::TERM);
    let output = talk.end();
    assert_eq!(output.status.code(), Some(143));
    wait_until("the shell's child has ended", || has_ended(inner));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!errors.contains("still running"), "{errors}");
}

#[test]
fn processes_still_running_at_the_end_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    for quiet in [false, true] {
        let script = "sleep 1000 <&- >&- 2>&- & echo ready $!; exit 5";
        let args: &[&str] = if quiet { &["--quiet", "sh", "-c"] } else { &["sh", "-c"] };
        let Some(command) = command(&dir, &[args, &[script]].concat()) else { return };
        let mut talk = Talk::start(command);
        let sleeper = talk.number("ready");
        let output = talk.end();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!has_ended(sleeper), "it lives on");
        kill_process(pid(sleeper), Signal::KILL).unwrap();
        assert_eq!(output.status.code(), Some(5));
        let expected = format!("highwater: still running: sleep ({sleeper})");
        assert_eq!(errors.lines().any(|line| line == expected), !quiet, "{errors}");
    }
}

#[test]
fn orphans_are_reaped_and_not_counted_as_the_programs_usage() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let script = "for i in 1 2 3 4 5 6 7 8; do (true &); done; \
        (sh -c 'while read line; do :; done; exec sleep 0.01' <&- &); echo ready $$; read line";
    let args = ["--quiet", "--report", report.to_str().unwrap(), "sh", "-c", script];
    let Some(command) = command(&dir, &args) else { return };
    let mut talk = Talk::start(command);
    let (program, run) = (talk.number("ready"), talk.child.id() as i32);
    wait_until("nobody but the program is left", || {
        let children = all_processes().unwrap().flatten().filter_map(|it| it.stat().ok());
        children.filter(|it| it.ppid == run).all(|it| it.pid == program)
    });
    talk.send("end");
    assert_eq!(talk.end().status.code(), Some(0));
    let text = std::fs::read_to_string(&report).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let resident = report["program"]["max_rss_bytes"].as_u64().unwrap();
    assert!((1 << 18..64 << 20).contains(&resident), "{resident}");
}

/// SIGKILL of the run also kills the program; the next run removes its directory.
#[test]
fn killing_the_run_kills_the_program_and_its_directory_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo ready $$; echo $HIGHWATER_RUN_DIR; exec sleep 1000";
    let Some(killed) = command(&dir, &["sh", "-c", script]) else { return };
    let mut talk = Talk::start(killed);
    let (program, run_dir) = (talk.number("ready"), PathBuf::from(talk.line()));
    talk.signal(Signal::KILL);
    talk.end();
    wait_until("the program has ended", || has_ended(program));
    // Fails if another test's run has removed the directory.
    std::fs::write(run_dir.join("1.0"), "").ok();
    let mut talk = Talk::start(command(&dir, &["--quiet", "cat"]).unwrap());
    talk.send("hello");
    assert_eq!(talk.line(), "hello");
    wait_until("the directory is removed", || !run_dir.exists());
    assert_eq!(talk.end().status.code(), Some(0));
}

#[test]
fn the_program_has_the_keyboard_and_job_control() {
    let dir = tempfile::tempdir().unwrap();
    let Some(run) = command(&dir, &["--quiet", "python3"]) else { return };
    let mut command = Command::new("python3");
    command.arg(format!("{SOURCES}/terminal.py")).arg(run.get_program()).args(run.get_args());
    command.arg(format!("{SOURCES}/counts.py")).stdin(Stdio::null());
    command.env("HIGHWATER_PRELOAD", dir.path().join("libidle.so")).env("TERM", "dumb");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(&output.stdout[..], b"all as on any terminal\n", "{errors}");
}

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn a_full_standard_error_has_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("full.json");
    std::os::unix::fs::symlink("/dev/full", &report).unwrap();
    let report = report.to_str().unwrap();
    let table: [(&[&str], i32); 4] = [
        (&["--progress", "sh", "-c", "exit 7"], 7),
        (&["--progress", "sh", "-c", "sleep 2.6; exit 8"], 8),
        (&["--report", report, "sh", "-c", "exit 9"], 9),
        (&["/nonexistent"], 2),
    ];
    for (args, status) in table {
        let Some(mut command) = command(&dir, args) else { return };
        let ended = command.stderr(full()).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{args:?}: {ended}");
    }
}

#[test]
fn failing_to_print_the_result_is_an_error() {
    for args in [&["doctor"][..], &["--help"], &["--version"]] {
        let output = highwater().args(args).stdout(full()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!([Some(1), Some(2)].contains(&output.status.code()), "{args:?}: {}", output.status);
        assert_eq!(errors.lines().count(), 1, "{args:?}: {errors}");
        assert!(errors.starts_with("highwater: "), "{args:?}: {errors}");
    }
}

/// `highwater doctor | head -1`: the reader closes the pipe early.
#[test]
fn a_closed_pipe_is_no_error() {
    let mut command = highwater();
    command.arg("--help").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
}
