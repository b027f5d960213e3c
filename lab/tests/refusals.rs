//! Input that cannot be run gives one line on standard error, with the remedy, and status 2.

use std::process::{Command, Stdio};

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_highwater-lab"))
}

/// Runs a command that must be refused, and returns its line.
fn refused(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("highwater-lab: "), "{line}");
    assert!(output.stdout.is_empty());
    line
}

#[test]
fn wrong_usage() {
    let line = refused(lab().arg("fly"));
    assert!(line.contains("see 'highwater-lab --help'"), "{line}");
    let line = refused(lab().args(["bench", "pmbench", "--threads", "0"]));
    assert!(
        line.contains("give a whole number, 1 to 512; see 'highwater-lab bench pmbench --help'"),
        "{line}"
    );
}

/// Refuses `highwater-lab simulate` with these arguments, and names the remedy.
fn refuses_simulation(args: &[&str], remedy: &str) {
    let refusal = refused(lab().arg("simulate").args(args));
    assert!(refusal.contains(remedy), "{refusal}");
}

/// Refuses these arguments on a machine that exists.
fn refuses_on_a_machine(args: &[&str], remedy: &str) {
    refuses_simulation(&[&["--machine", "xeon-48c-2-ramdisks"], args].concat(), remedy);
}

#[test]
fn a_bare_disk_neither_reads_and_writes_nor_is_in_memory() {
    let refuses_bench = |args: &[&str], remedy: &str| {
        let small = ["bench", "pmbench", "--platform", "os", "--memory", "4M", "--set", "16M"];
        let refusal = refused(lab().args(small).args(["--peer", "io-uring"]).args(args));
        assert!(refusal.contains(remedy), "{refusal}");
    };
    refuses_bench(&["--read", "80"], "reads or writes alone");
    refuses_bench(&["--read", "100", "--dir", "/nonexistent"], "/nonexistent");
    refuses_bench(&["--read", "100", "--dir", "/dev/shm"], "/dev/shm");
}

#[test]
fn simulations_of_nothing_known() {
    let dir = tempfile::tempdir().unwrap();
    refuses_simulation(&[], "--machine");
    refuses_simulation(&["--machine", "cray"], "use xeon-48c-2-ramdisks, ");
    refuses_simulation(&["--machine", "/nonexistent.toml"], "name a file");
    let machine = |text: &str| {
        let path = dir.path().join("machine.toml");
        std::fs::write(&path, text).unwrap();
        refuses_simulation(&["--machine", path.to_str().unwrap()], "docs/simulator.md");
    };
    machine("sockets =");
    machine("name = \"none\"\nsockets = 0\n");
    refuses_on_a_machine(&["--workload", "solitaire"], "pmbench");
}

#[test]
fn simulations_of_numbers_that_cannot_be() {
    for tasks in ["0", "513", "1,,2", "many", "1,0"] {
        refuses_on_a_machine(&["--tasks", tasks], "1 to 512");
    }
    refuses_on_a_machine(&["--tasks", "1,300"], "1 to 256");
    for time in ["0", "-1", "NaN", "3601", "soon"] {
        refuses_on_a_machine(&[&format!("--time={time}")], "0.001 to 3600");
    }
    let remedy = "give a whole number, 0 or more; see 'highwater-lab simulate --help'";
    refuses_on_a_machine(&["--seed", "x"], remedy);
}

#[test]
fn settings_that_do_not_exist_or_fit() {
    for (set, remedy) in [
        ("kswapd=2", "use kswapd_threads, "),
        ("kswapd_threads", "KEY=VALUE"),
        ("kswapd_threads=17", "1 to 16"),
        ("pattern=zigzag", "uniform, normal, sequential or zipf"),
        ("set=9", "--set set="),
        ("devices=sda", "it has pmem0, pmem1"),
        ("scale=0", "auto or 1 to"),
        ("min_free=4000000", "or less"),
    ] {
        refuses_on_a_machine(&["--set", set], remedy);
    }
}

#[test]
fn results_that_have_nowhere_to_go() {
    for (option, tasks) in [("--trace", "2"), ("--plot", "1,2")] {
        refuses_on_a_machine(&["--tasks", tasks, option, "/nonexistent/file"], "name a file");
    }
    refuses_on_a_machine(&["--tasks", "1,2", "--trace", "trace.json"], "one number");
    refuses_on_a_machine(&["--tasks", "2", "--plot", "plot.svg"], "1,2,4");
}

#[test]
fn a_swarm_of_no_seeds() {
    for args in [&["--seeds", "0"][..], &["--minutes", "0"], &["--operations", "0"]] {
        let line = refused(lab().arg("swarm").args(args));
        assert!(line.contains("see 'highwater-lab swarm --help'"), "{line}");
    }
}

#[test]
fn a_result_that_cannot_be_printed_is_no_success() {
    let usemem = ["bench", "usemem", "--platform", "os", "--memory", "4M", "--set", "8M"];
    for args in [&["--help"][..], &usemem] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = lab().args(args).stdout(full).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
    }
}
