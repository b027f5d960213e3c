//! `highwater top` in a terminal, beside a session of two processes, and their figures when it
//! ends.

use crate::common::highwater;
use crate::place::Place;
use crate::terminal::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A running session.
struct Session {
    run: Child,
    name: String,
}

impl Session {
    /// Starts two processes that need more than the budget of each.
    fn start(place: &Place, memory: &str) -> Session {
        let name = format!("watched-{}", std::process::id());
        let mut run = highwater();
        run.args(["run", memory, "16M", "--swap", "ram:512M", "--name", &name, "--report"]);
        run.arg(place.path("report.json")).arg("--").args(place.c_program("watched", &["64"]));
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Session { run, name }
    }

    fn top(&self) -> Terminal {
        Terminal::start(highwater().args(["top", &self.name]).env("NO_COLOR", "1"))
    }

    /// Ends the processes, and returns the summary.
    fn end(self) -> String {
        kill_process(Pid::from_child(&self.run), Signal::TERM).unwrap();
        let output = self.run.wait_with_output().unwrap();
        let summary = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{summary}");
        summary
    }
}

/// The rows of the table: fields by blanks.
fn rows(screen: &str) -> Vec<Vec<&str>> {
    let lines = screen.lines().filter(|line| line.starts_with("watched"));
    // The first line of the screen has the session's name.
    lines.skip(1).map(|line| line.split_whitespace().collect()).collect()
}

/// Whether both processes have figures and swap in pages.
fn is_swapping(screen: &str) -> bool {
    let rows = rows(screen);
    let swaps = |row: &Vec<&str>| !["-", "0", "0.00"].contains(&row[6]) && row[7] != "0";
    rows.len() == 2 && rows.iter().all(|row| row.len() == 9 && swaps(row))
}

#[test]
fn top_shows_a_session_and_the_summary_tells_its_processes_apart() {
    let place = Place::new();
    let session = Session::start(&place, "--paged");
    let mut top = session.top();
    let screen = top.expect("two processes swap", is_swapping);
    for part in
        ["(", "budget   [#", "free     [", "swap     [", "latency  + minor p50 ", "in 16 MiB;"]
    {
        assert!(screen.contains(part), "{part}:\n{screen}");
    }
    assert!(top.is_plain(), "{screen}");
    let detail_of = |screen: &str, row: usize| {
        let pid = rows(screen).get(row).map(|row| format!("({}) ---", row[1]));
        pid.is_some_and(|pid| screen.contains(&pid))
    };
    // Sorted by pid, the order cannot change.
    top.press("sssssss");
    top.expect("sorted by pid", |screen| screen.contains("sort: PID") && detail_of(screen, 0));
    top.press("\x1b[B");
    top.expect("the second is selected", |screen| detail_of(screen, 1));
    top.press("k ");
    top.expect("the first is selected", |screen| screen.contains("FROZEN") && detail_of(screen, 0));
    top.press(" d");
    top.expect("its swap device", |screen| screen.contains(", priority -"));
    top.press("d");
    top.expect("its locks", |screen| screen.contains(" contended, "));
    top.press("q");
    assert!(top.end().0.success());

    let mut top = session.top();
    top.expect("two processes swap", is_swapping);
    top.hang_up();

    let mut top = session.top();
    top.expect("two processes swap", is_swapping);
    let summary = session.end();
    let (status, screen) = top.end();
    assert!(status.success() && screen.contains("has ended"), "{screen}");
    expect_two(&summary, &place);
}

#[test]
fn top_changes_the_budget_within_its_limits() {
    let place = Place::new();
    let session = Session::start(&place, "--paged");
    let mut top = session.top();
    top.expect("two processes swap", is_swapping);
    for (key, said, heading) in [
        ("-", "budget set to 14 MiB", "in 14 MiB;"),
        ("+", "budget set to 15.8 MiB", "in 15.8 MiB;"),
        ("++++++++", "budget kept: 32 MiB is the most", "in 32 MiB;"),
        ("-------------", "budget kept: 8 MiB is 4 MiB for each process", "in 8 MiB;"),
    ] {
        top.press(key);
        top.expect(said, |screen| screen.contains(said) && screen.contains(heading));
    }
    top.press("s");
    top.expect("the keys again", |screen| screen.contains("+/- budget"));
    top.press("q");
    assert!(top.end().0.success());
    session.end();
}

#[test]
fn top_says_that_a_budget_is_fixed() {
    let place = Place::new();
    let session = Session::start(&place, "--memory-per-process");
    let mut top = session.top();
    top.expect("the last line says so", |screen| screen.contains("budget fixed"));
    for key in ["+", "-"] {
        top.press(key);
        let said = "budget fixed: the processes share no memory (run --memory)";
        top.expect("and why", |screen| screen.contains(said) && screen.contains("of 16 MiB;"));
        top.press("s");
        top.expect("the keys again", |screen| screen.contains("q quit"));
    }
    top.press("q");
    assert!(top.end().0.success());
    session.end();
}

/// Checks the table of the summary, and the report.
fn expect_two(summary: &str, place: &Place) {
    let report = std::fs::read_to_string(place.path("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let by_process = &report["by_process"];
    let listed = by_process["listed"].as_array().expect("a list");
    assert_eq!((listed.len(), &by_process["not_listed"]), (2, &0.into()), "{report}");
    for key in ["faults_minor", "faults_major", "swapped_in_bytes", "swapped_out_bytes"] {
        let of = |process: &Value| process[key].as_u64().unwrap();
        assert!(listed.iter().all(|process| of(process) > 0), "{key}: {report}");
        assert_eq!(of(&by_process["sum"]), listed.iter().map(of).sum::<u64>(), "{key}: {report}");
    }
    assert_eq!(by_process["sum"]["faults_major"], report["faults_major"], "{report}");
    for process in listed {
        let line = format!("    {} ({})  ", process["name"].as_str().unwrap(), process["pid"]);
        assert!(process["peak_paged_bytes"].as_u64() <= Some(16 << 20), "{report}");
        assert!(summary.contains(&line), "{line}:\n{summary}");
    }
    assert!(summary.contains("    sum of all  "), "{summary}");
}
