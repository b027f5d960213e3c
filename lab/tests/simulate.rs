//! `highwater-lab simulate`, as its users see it.

use serde_json::Value;
use std::process::{Command, Output};

/// A machine of four CPUs, small enough for a test.
fn small_machine(dir: &tempfile::TempDir) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/machines/xeon-48c-2-ramdisks.toml");
    let text = std::fs::read_to_string(source).unwrap();
    let small = text
        .replace("cores_per_socket = 24", "cores_per_socket = 2")
        .replace("node_mib = [16384, 16384]", "node_mib = [16, 16]")
        .replace("mib = 49152", "mib = 64");
    let path = dir.path().join("small.toml");
    std::fs::write(&path, small).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a simulation that must succeed; returns its output.
fn simulate(args: &[&str]) -> String {
    lab("simulate", args)
}

/// Runs a subcommand that must succeed, and returns what it printed.
fn lab(subcommand: &str, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    let Output { status, stdout, stderr } = command.arg(subcommand).args(args).output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{status}: {errors}");
    assert_eq!(errors, "");
    String::from_utf8(stdout).unwrap()
}

#[test]
fn one_run_is_a_report_and_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, trace) = (small_machine(&dir), dir.path().join("trace.json"));
    let text = simulate(&[
        "--machine",
        &machine,
        "--tasks",
        "2",
        "--time",
        "0.01",
        "--set",
        "scale=1",
        "--trace",
        trace.to_str().unwrap(),
    ]);
    for part in ["2 tasks on 4 CPUs", "accesses/s", "kswapd0:0", "lock.phase", "pswpin", "hash"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
}

#[test]
fn the_seed_fixes_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let machine = small_machine(&dir);
    let hash = |seed| {
        let args = ["--machine", &machine, "--time", "0.005", "--json", "--seed", seed];
        let run: Value = serde_json::from_str(&simulate(&args)).unwrap();
        run["cost"]["hash"].as_str().unwrap().to_owned()
    };
    assert_eq!(hash("3"), hash("3"));
    assert_ne!(hash("3"), hash("4"));
}

#[test]
fn several_runs_are_a_table_and_a_plot() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, plot) = (small_machine(&dir), dir.path().join("plot.svg"));
    let common = ["--machine", &machine, "--tasks", "1,2", "--time", "0.005"];
    let text = simulate(&[&common[..], &["--plot", plot.to_str().unwrap()]].concat());
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("tasks")).collect();
    assert!(rows[1].starts_with("    1 ") && rows[1].ends_with("1.00x"), "{text}");
    assert!(rows[2].starts_with("    2 "), "{text}");
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("accesses per second"), "{svg}");
    let json: Value =
        serde_json::from_str(&simulate(&[&common[..], &["--json"]].concat())).unwrap();
    let tasks: Vec<_> = json.as_array().unwrap().iter().map(|run| run["tasks"].as_u64()).collect();
    assert_eq!(tasks, [Some(1), Some(2)]);
}

#[test]
fn usemem_writes_all_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let machine = small_machine(&dir);
    let run = |workload| {
        let common = ["--machine", &machine, "--tasks", "2", "--json", "--set", "scale=1"];
        let args = [&common[..], &["--workload", workload]].concat();
        let run: Value = serde_json::from_str(&simulate(&args)).unwrap();
        assert_eq!(run["workload"], workload);
        ["pswpin", "pswpout"].map(|name| run["counters"][name].as_u64().unwrap())
    };
    let [read, written] = run("usemem-seq");
    assert!(read == 0 && written > 8192, "{read} {written}: 32 MiB are 8192 pages");
    let [read, _] = run("swapin");
    assert!(read > 1000, "{read}");
}

#[test]
fn a_swarm_says_what_it_ran() {
    let one = lab("swarm", &["--seed", "5"]);
    assert!(one.starts_with("seed 5: ") && one.contains(", hash "), "{one}");
    let some = lab("swarm", &["--seed", "1", "--seeds", "3"]);
    assert!(some.starts_with("3 seeds, ") && some.trim_end().ends_with("nothing wrong"), "{some}");
    let counted = lab("swarm", &["--operations", "10000"]);
    let operations = counted.split(", ").find_map(|part| part.strip_suffix(" operations on pages"));
    assert!(operations.is_some_and(|count| count.parse::<u64>().unwrap() >= 10_000), "{counted}");
}
