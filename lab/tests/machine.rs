//! `highwater-lab machine new`: the file of this computer loads, is plausible, and is simulated.

use highwater_sim::Machine;
use highwater_testkit::skip_or_fail;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the program in a directory.
fn lab(dir: &Path, args: &[&str]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    lab.args(args).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

/// The output of a command that must succeed.
#[track_caller]
fn printed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A machine file of this computer, in a directory.
#[track_caller]
fn made(dir: &Path, args: &[&str]) -> (Machine, String) {
    let args = [&["machine", "new", "here", "--time", "0.2"], args].concat();
    let line = printed(&lab(dir, &args));
    assert!(line.starts_with("here.toml: ") && line.lines().count() == 1, "{line}");
    let text = std::fs::read_to_string(dir.join("here.toml")).unwrap();
    (Machine::load(&text).unwrap(), text)
}

/// Simulates a little swapping.
#[track_caller]
fn simulate(dir: &Path) {
    let machine = ["simulate", "--machine", "here.toml", "--set", "scale=512", "--json"];
    let json = printed(&lab(dir, &[&machine[..], &["--workload", "usemem-seq"]].concat()));
    let run: Value = serde_json::from_str(&json).unwrap();
    assert!(run["counters"]["pswpout"].as_u64().unwrap() > 100, "{json}");
}

#[track_caller]
fn assert_comments(text: &str) {
    let sources = [", measured: ", ", from the system: ", ", given: ", ", taken from desktop-2012"];
    for line in text.lines().filter(|line| line.contains(" = ")) {
        let comment = line.split_once(" # ").expect(line).1;
        assert!(sources.iter().any(|source| comment.contains(source)), "{line}");
    }
}

/// The bounds admit a debug build on a busy computer, but no wrong unit.
#[track_caller]
fn assert_plausible(machine: &Machine) {
    let costs = &machine.costs;
    for (key, cost, least, most) in [
        ("atomic", costs.atomic, 1, 1000),
        ("line_near", costs.line_near, 1, 10_000),
        ("line_far", costs.line_far, 10, 20_000),
        ("lock", costs.lock, 1, 2000),
        ("handover_near", costs.handover_near, 1, 50_000),
        ("memory", costs.memory, 10, 5000),
        ("scan", costs.scan, 1, 500),
        ("zero_page", costs.zero_page, 20, 20_000),
        ("copy_page", costs.copy_page, 40, 40_000),
        ("fault", costs.fault, 0, 100_000),
        ("map_page", costs.map_page, 0, 100_000),
        ("unmap_page", costs.unmap_page, 10, 100_000),
        ("shootdown", costs.shootdown, 0, 1_000_000),
        ("shootdown_interrupt", costs.shootdown_interrupt, 0, 1_000_000),
        ("context_switch", costs.context_switch, 100, 1_000_000),
        ("wake", costs.wake, 50, 1_000_000),
        ("wake_latency", costs.wake_latency, 0, 100_000_000),
        ("slice", costs.slice, 100_000, 100_000_000),
    ] {
        assert!((least..=most).contains(&cost), "{key}: {cost} ns is not in {least}..={most}");
    }
    assert!((1.0..=5.0).contains(&costs.remote_factor), "{costs:?}");
    assert!(machine.memory().0 >= 1 << 28, "{:?}", machine.node_mib);
}

#[test]
fn this_computer_can_be_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, text) = made(dir.path(), &[]);
    assert_comments(&text);
    assert_plausible(&machine);
    let cpus = std::thread::available_parallelism().unwrap().get();
    // A quota of a cgroup is no affinity, and cores of sockets may differ.
    assert!(machine.cpus() >= cpus, "{} {cpus}", machine.cpus());
    let ram = &machine.devices[0];
    assert!((100..10_000_000).contains(&ram.read_mb_per_s), "{ram:?}");
    assert_eq!((ram.mib, machine.devices.len()), (machine.memory().0 >> 20, 1));
    simulate(dir.path());
}

#[test]
fn a_directory_is_measured() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let swap = format!("dir:{}:2G", disk.path().display());
    let probe = ["machine", "new", "probe", "--time", "0.01", "--swap", &swap];
    let output = lab(disk.path(), &probe);
    if output.status.code() == Some(2) {
        return skip_or_fail(String::from_utf8_lossy(&output.stderr).trim());
    }
    let (machine, text) = made(disk.path(), &["--swap", &swap]);
    assert_comments(&text);
    let device = &machine.devices[0];
    assert_eq!((device.mib, machine.devices.len()), (2048, 1));
    assert!((1..100_000_000).contains(&device.read_latency), "{device:?}");
    assert!((1..1_000_000).contains(&device.read_mb_per_s), "{device:?}");
    assert!((1..=64).contains(&device.channels), "{device:?}");
    simulate(disk.path());
}

/// Runs a command that must be refused, and returns its line.
#[track_caller]
fn refused(dir: &Path, args: &[&str]) -> String {
    let output = lab(dir, &[&["machine", "new"], args].concat());
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), line.lines().count()), (Some(2), 1), "{line}");
    line
}

#[test]
fn a_file_that_exists_is_replaced_by_force_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("here.toml");
    std::fs::write(&path, "mine").unwrap();
    for name in ["here", "here.toml", path.to_str().unwrap()] {
        let line = refused(dir.path(), &[name]);
        assert!(line.contains("here.toml' exists") && line.contains("--force"), "{line}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    made(dir.path(), &["--force"]);
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "nothing beside the file");
}

#[test]
fn impossible_requests_are_refused_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    for (args, remedy) in [
        (&["My_Box"][..], "lower case letters"),
        (&["/nonexistent/box.toml"], "a directory that exists"),
        (&["box", "--swap", "zram:1G"], "dir:PATH"),
        (&["box", "--swap", "dir:/nonexistent"], "is no directory"),
        (&["box", "--like", "cray"], "use xeon-48c-2-ramdisks, "),
        (&["box", "--time", "0"], "0.01 to 10"),
        (&["box", "--time", "0.01", "--swap", "dir:/proc"], "/proc"),
    ] {
        let line = refused(dir.path(), args);
        assert!(line.contains(remedy), "{args:?}: {line}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
