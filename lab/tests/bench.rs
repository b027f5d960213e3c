//! `highwater-lab bench`, as its users see it: small runs on guards.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// Runs a benchmark in 4 MiB that must succeed; returns its output.
fn bench(args: &[&str]) -> String {
    bench_in("4M", args)
}

fn bench_in(memory: &str, args: &[&str]) -> String {
    let small = ["--platform", "os", "--memory", memory, "--set", "16M", "--threads", "2"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    let Output { status, stdout, stderr } =
        command.arg("bench").args(args).args(small).output().unwrap();
    let printed = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{status}: {printed}");
    String::from_utf8(stdout).unwrap()
}

#[test]
fn a_sequential_pass_swaps_out_and_not_in() {
    let run: Value = serde_json::from_str(&bench(&["usemem", "--json"])).unwrap();
    let figure = |name: &str| run["figures"][name].as_f64().unwrap();
    assert_eq!(figure("swap_in_gb_per_s"), 0.0);
    let out = figure("swap_out_gb_per_s") * figure("seconds") * 1e9;
    assert!(out > 11e6, "{out} of the 12 MiB that do not fit");
    let sum = run["figures"]["tasks"]["sum_kib_per_s"].as_f64().unwrap();
    assert!(sum * figure("seconds") >= 16.0 * 1024.0, "{sum} KB/s over the tasks' own times");
}

#[test]
fn contents_are_right_over_a_device_that_fails() {
    let text = bench(&["usemem", "--swap", "flaky:write=100,delay=5,seed=1+ram:32M"]);
    let struck = text.split("in spite of ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(struck.is_some_and(|count| count.parse::<u64>().unwrap() > 0), "{text}");
}

#[test]
fn streams_read_a_file_beside_others() {
    let dir = env!("CARGO_TARGET_TMPDIR");
    let args = ["streams", "--time", "1", "--warm-up", "0", "--dir", dir];
    let peers = ["--peer", "buffered", "--peer", "direct"];
    let text = bench(&[&args[..], &peers].concat());
    for expected in
        ["os: contents checked: ", "buffered: contents checked", "direct: contents checked"]
    {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let run: Value = serde_json::from_str(&bench(&[&args[..], &["--json"]].concat())).unwrap();
    let figure = |name: &str| run["figures"][name].as_f64().unwrap();
    let read = figure("pages_in_per_s") * figure("seconds");
    assert!(read >= 3072.0, "{read} pages were read: the 12 MiB that do not fit at least");
    assert!(figure("checked_reads") >= read * 4.0 * 0.9, "four words of every page are checked");
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (args, expected) in [
        (&["pmbench", "--peer", "buffered"][..], "give it to bench streams"),
        (&["streams", "--peer", "mmap"], "give --platform os, and --peer buffered or direct"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
        command.args(["bench"]).args(args).args(["--platform", "os", "--memory", "4M"]);
        let Output { status, stderr, .. } = command.args(["--set", "8M"]).output().unwrap();
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{text}");
        assert!(text.contains(expected) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_reader_that_is_gone_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    command.args(["bench", "usemem", "--platform", "os", "--memory", "4M", "--set", "16M"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
}

#[test]
fn every_kind_is_a_table() {
    for (args, expected) in [
        (&["usemem"][..], "2 threads, seq, one pass, seed 1"),
        (&["usemem", "--kind", "rand", "--time", "1"], "rand, at most 1 s"),
        (
            &["usemem", "--kind", "swapin", "--pattern", "sequential"],
            "swapin sequential, at most 5 s",
        ),
        (&["pmbench", "--time", "1", "--warm-up", "1"], "80% reads, uniform, 1 s"),
        (&["pmbench", "--time", "1", "--pattern", "zipf"], "80% reads, zipf, 1 s"),
    ] {
        let text = bench(args);
        for part in [expected, "tasks' KB/s, sum", "swap out", "lock.phase", "contents checked"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}

/// A small `bench faults`, without the kernel as a subject: the kernel's swap is this machine's.
fn faults(subject: &str, more: &[&str]) -> (Option<i32>, String) {
    let small = ["--memory", "4M", "--set", "16M", "--time", "1", "--warm-up", "0"];
    run("faults", &[&["--subject", subject][..], &small, more].concat())
}

#[test]
fn a_matrix_has_a_row_for_each_case() {
    let (status, text) = faults("os", &["--pattern", "uniform,zipf", "--threads", "1,2,3"]);
    assert_eq!(status, Some(0), "{text}");
    for (pattern, threads, rows) in [("uniform", "1", 1), ("zipf", "2", 1), ("zipf", "3", 0)] {
        let of_case = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some(pattern) && words.next() == Some(threads)
        };
        assert_eq!(text.lines().filter(of_case).count(), rows, "{pattern} {threads}\n{text}");
    }
    assert!(text.contains("contents checked: 4 runs"), "{text}");
}

#[test]
fn popular_pages_are_missed_less() {
    let (status, text) = faults("os", &["--pattern", "uniform,zipf", "--threads", "1", "--json"]);
    assert_eq!(status, Some(0), "{text}");
    // The progress of the cases goes to standard error.
    let json = &text[..text.rfind('}').expect("an object") + 1];
    let matrix: Value = serde_json::from_str(json).unwrap();
    let missed = |case: usize| {
        let figures = &matrix["cases"][case]["runs"]["os"]["figures"];
        figures["major_faults_per_access"].as_f64().unwrap()
    };
    // A quarter of the set is in memory; weighted by popularity, it gets most of all accesses.
    assert!((0.7..0.9).contains(&missed(0)), "{text}");
    assert!((0.1..0.4).contains(&missed(1)), "{text}");
}

#[test]
fn large_pages_go_out_whole() {
    let args = ["usemem", "--large-pages", "--khugepaged", "0", "--swap", "ram:32M", "--json"];
    let text = bench_in("8M", &args);
    let run: Value = serde_json::from_str(&text).unwrap();
    let figure = |name: &str| run["figures"][name].as_f64().unwrap();
    // One fault for 512 pages, rather than for 16 at most.
    assert!(figure("soft_faults") < 300.0, "{text}");
    assert!(figure("swap_out_gb_per_s") > 0.0, "{text}");
}

#[test]
fn the_bare_disk_moves_the_same_pages() {
    let disk = env!("CARGO_TARGET_TMPDIR");
    let swap = format!("dir:{disk}:64M");
    let common = ["--swap", &swap, "--peer", "io-uring", "--dir", disk, "--json"];
    for (workload, ratio) in [
        (&["pmbench", "--read", "100", "--time", "1"][..], "pages_in_ratio"),
        (&["usemem"], "swap_out_ratio"),
    ] {
        let run: Value = serde_json::from_str(&bench(&[workload, &common].concat())).unwrap();
        let peer = &run["peers"][0];
        assert!(peer[ratio].as_f64().unwrap() > 0.0, "{run:#}");
        assert_eq!(peer["figures"]["swept_words"], 4096 * 512);
        assert_eq!(peer["subject"], "io-uring");
    }
}

/// `bench highalloc` with these arguments: exit status and output.
fn highalloc(args: &[&str]) -> (Option<i32>, String) {
    run("highalloc", args)
}

fn run(workload: &str, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    let output = command.args(["bench", workload]).args(args).output().unwrap();
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), printed.concat())
}

#[test]
fn blocks_come_out_of_an_arena_in_use_beside_one_that_is_not_compacted() {
    let small =
        ["--platform", "os", "--memory", "64M", "--use", "80", "--attempts", "60", "--held", "3"];
    let (status, printed) = highalloc(&[&small[..], &["--json"]].concat());
    assert_eq!(status, Some(0), "{printed}");
    let both: Value = serde_json::from_str(&printed).unwrap();
    let figure = |run: &str, name: &str| both[run][name].as_f64().unwrap();
    for run in ["off", "compacted"] {
        assert_eq!(figure(run, "attempts"), 60.0);
        assert!(figure(run, "checked_words") > 51e6 / 8.0, "every word at least once: {printed}");
        assert!(figure(run, "p50_ns") <= figure(run, "p99_ns"), "{printed}");
    }
    assert_eq!(figure("off", "moved_bytes") + figure("off", "scanned"), 0.0, "{printed}");
    assert!(figure("compacted", "moved_bytes") > 0.0, "{printed}");
    assert!(figure("compacted", "successes") > figure("off", "successes"), "{printed}");
}

#[test]
fn blocks_are_asked_for_on_guards_alone() {
    for (args, remedy) in [
        (&["--platform", "uffd"][..], "give --platform os"),
        (&["--platform", "os", "--use", "96"], "--use"),
        (&["--platform", "os", "--attempts", "0"], "--attempts"),
        (&["--platform", "os", "--compact", "off"], "vanilla"),
        (&["--platform", "os", "--held", "0"], "--held"),
    ] {
        let (status, printed) = highalloc(args);
        assert_eq!(status, Some(2), "{printed}");
        assert!(printed.contains(remedy) && printed.lines().count() == 1, "{printed}");
    }
}

/// `bench malloc` with these arguments: exit status and output.
fn malloc(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    let output = command.args(["bench", "malloc"]).args(args).output().unwrap();
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), printed.concat())
}

const TINY: [&str; 8] = ["--set", "1M", "--threads", "2", "--operations", "6000", "--rounds", "2"];

#[test]
fn every_load_runs_under_the_c_library() {
    let (status, printed) = malloc(&[&TINY[..], &["--allocator", "glibc", "--json"]].concat());
    assert_eq!(status, Some(0), "{printed}");
    let all: Value = serde_json::from_str(&printed).unwrap();
    let runs = all["runs"].as_array().unwrap();
    let loads: Vec<_> = runs.iter().map(|run| run["load"].as_str().unwrap()).collect();
    assert_eq!(loads, ["churn", "producer-consumer", "larson", "mixed"]);
    for run in runs {
        let figure = |name: &str| run[name].as_f64().unwrap();
        assert!(figure("operations") >= 5_000.0, "{run}");
        assert!(figure("checked_words") >= 2.0 * figure("operations"), "{run}");
        let objects = figure("peak_resident_bytes") - figure("base_bytes");
        assert!(objects > 0.5 * f64::from(1 << 20), "a set of 1 MiB was alive: {run}");
        assert_eq!(run["paging"], Value::Null);
    }
}

#[test]
fn a_table_of_one_load() {
    let (status, printed) =
        malloc(&[&TINY[..], &["--allocator", "glibc", "--load", "larson"]].concat());
    assert_eq!(status, Some(0), "{printed}");
    for part in
        ["1 MiB of objects", "2 threads, nobody is short", "larson", "1.00", "contents compared: "]
    {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
}

#[test]
fn allocators_that_cannot_run_are_refused() {
    for (args, remedy) in [
        (&["--allocator", "tcmalloc"][..], "jemalloc"),
        (&["--load", "none"], "producer-consumer"),
        (&["--allocator", "glibc", "--memory", "16M"], "without --memory only"),
        (&["--checked", "101"], "--checked"),
        (&["--set", "1"], "less than a page"),
        (&["--operations", "0"], "--operations"),
        (&["--rounds", "0"], "--rounds"),
    ] {
        let (status, printed) = malloc(args);
        assert_eq!(status, Some(2), "{printed}");
        assert!(printed.contains(remedy) && printed.lines().count() == 1, "{printed}");
    }
}

#[test]
fn a_walk_is_the_same_in_huge_pages_and_small_ones() {
    let small = ["--platform", "os", "--memory", "32M", "--steps", "100000", "--json"];
    let (status, text) = run("walk", &small);
    assert_eq!(status, Some(0), "{text}");
    let both: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(both["off"]["huge_bytes"], 0);
    for run in ["off", "auto"] {
        assert_eq!(both[run]["set_bytes"], 14 << 21, "{text}");
        assert_eq!(both[run]["steps"], 100_000);
        assert!(both[run]["step_ns"].as_f64().unwrap() > 0.0, "{text}");
    }
    for (args, remedy) in [
        (&["--platform", "uffd"][..], "give --platform os"),
        (&["--platform", "os", "--memory", "2M"], "give --memory"),
        (&["--platform", "os", "--steps", "0"], "--steps"),
    ] {
        let (status, text) = run("walk", args);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(remedy) && text.lines().count() == 1, "{text}");
    }
}
