//! The files of `--report`: the page in a parser and in a browser, and the JSON against its schema.

use crate::common::highwater;
use crate::inputs::random_lines;
use crate::packages::is_installed;
use crate::place::{Place, source};
use crate::python::PYTHON;
use crate::report::Report;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// A name that ends elements and attributes where it is not escaped.
const INPUT: &str = "'\"><script>alert(1)<&.txt";
/// A directory whose name has no place to break a line, wider than a phone.
const SWAP: &str = "a_directory_with_a_name_wider_than_the_window_of_a_phone_0123456789";
const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.schema.json");

/// Sorts with a part of the memory that the sort needs, and reports into a file.
fn report_of_a_sort(place: &Place, name: &str) -> PathBuf {
    random_lines(&place.path(INPUT), 16 * MIB);
    let report = place.path(name);
    std::fs::create_dir_all(place.path(SWAP)).unwrap();
    let mut run = highwater();
    run.current_dir(place.path(".")).args(["run", "--quiet", "--memory", "24M"]);
    run.args(["--swap", &format!("dir:{}:1G", place.path(SWAP).display()), "--report"]);
    run.arg(&report).args(["--", "sort", "-S", "256M", "--parallel=1", "-o", "sorted"]);
    let status = run.arg(INPUT).status().unwrap();
    assert!(status.success(), "{status}");
    report
}

/// What a script of these tests prints.
fn output(python: &str, script: &str, arguments: &[&Path]) -> String {
    let output = Command::new(python).arg(source(script)).args(arguments).output().unwrap();
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script} {arguments:?}: {text}{errors}");
    text
}

#[test]
fn the_page_is_well_formed_and_works_on_a_phone() {
    let place = Place::new();
    let page = report_of_a_sort(&place, "page.html");
    let headings = output("python3", "page.py", &[&page]);
    for heading in [
        r#"sort -S 256M --parallel=1 -o sorted ''\''"><script>alert(1)<&.txt'"#,
        "Memory",
        "Page faults",
        "Latency of page faults",
        "Processes",
    ] {
        assert!(headings.lines().any(|line| line == heading), "{heading}:\n{headings}");
    }
    if !is_installed("chromium") {
        return;
    }
    for (width, scheme) in [(390, "dark"), (1280, "light")] {
        let text = width.to_string();
        let arguments = [&page, Path::new(&text), Path::new(scheme)];
        let found = output("python3", "browser.py", &arguments);
        let found: Value = serde_json::from_str(&found).unwrap();
        let none = serde_json::json!([]);
        assert_eq!((&found["errors"], &found["loaded"]), (&none, &none), "{found}");
        assert_eq!((&found["client"], &found["scroll"]), (&width.into(), &width.into()), "{found}");
        assert_eq!(found["dark"], scheme == "dark", "{found}");
        assert_eq!(found["focus"], "skip", "the first link leads past the head: {found}");
        // The arrow key shows the cursor in all plots, and Escape removes it.
        assert_eq!(found["cursors"], serde_json::json!([found["plots"], 0]), "{found}");
        assert!(found["plots"].as_u64() >= Some(4), "{found}");
        assert!(found["value"].as_str().is_some_and(|it| it.contains("budget 24 MiB")), "{found}");
    }
}

#[test]
fn the_figures_are_valid_and_the_series_adds_up() {
    let place = Place::new();
    let path = report_of_a_sort(&place, "report.json");
    output(PYTHON, "schema.py", &[Path::new(SCHEMA), &path]);
    let report = Report::read(&path);
    assert_eq!(report.text("/command/0"), "sort");
    for (of_samples, in_all) in [
        ("faults_minor", "/faults_minor"),
        ("faults_major", "/faults_major"),
        ("swapped_in_bytes", "/swap_in/bytes"),
        ("swapped_out_bytes", "/swap_out/bytes"),
    ] {
        let sum: u64 = report.samples(of_samples).iter().sum();
        assert!(sum > 0, "no {of_samples}");
        assert_eq!(sum, report.number(in_all), "{of_samples}");
    }
    let budget = report.number("/budget_bytes");
    let memory = report.samples("resident_bytes").into_iter().max();
    assert!(memory > Some(MIB) && memory <= Some(budget), "{memory:?} of {budget}");
}
