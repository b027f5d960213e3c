//! `highwater-lab reproduce`, as its users see it. The experiments take minutes, so none runs here:
//! the lab's unit tests run a tiny one.

use std::process::Command;

/// Exit status and output.
fn reproduce(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater-lab"));
    let output = command.arg("reproduce").args(args).output().unwrap();
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), printed.concat())
}

#[test]
fn experiments_are_listed() {
    let (status, printed) = reproduce(&["--help"]);
    assert_eq!(status, Some(0));
    for name in ["swap-2016", "swap-2020", "compaction-2012"] {
        assert!(printed.contains(&format!("\n  {name} ")), "{printed}");
    }
}

#[test]
fn what_cannot_be_run_says_what_can() {
    for (args, remedy) in [
        (&["swap-1999"][..], "use swap-2016, swap-2020"),
        (&["swap-2020", "--scale", "0"], "give a whole number, 1 or more; see"),
        (&["swap-2020", "--plot", "/nonexistent/plot.svg"], "name a file"),
        (&["all", "--plot", "plot.svg"], "name it instead of 'all'"),
        (&["swap-2020", "--scale", "100000"], "give --scale 32 or less"),
        (&["all", "--scale", "100000"], "give --scale 64 or less"),
        (&["all", "--tasks", "16"], "name it instead of 'all'"),
        (&["kswapd-threads", "--tasks", "16,17"], "use 10, 16, 22, "),
        (&["swap-2020", "--tasks", "16"], "leave --tasks out"),
        (&["all", "--json", "/dev/null/results"], "give --json a new file"),
    ] {
        let (status, printed) = reproduce(args);
        assert_eq!(status, Some(2), "{printed}");
        assert!(printed.contains(remedy) && printed.lines().count() == 1, "{printed}");
    }
}

/// A file with other contents stays as it is.
#[test]
fn results_are_not_written_over_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    std::fs::write(&file, "something else").unwrap();
    let (status, printed) = reproduce(&["compaction-2012", "--json", file.to_str().unwrap()]);
    assert_eq!(status, Some(2), "{printed}");
    assert!(
        printed.contains("give --json a new file") && printed.lines().count() == 1,
        "{printed}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "something else");
}
