//! The verdict of a run: following its advice has the effect that it predicts.

use crate::common::highwater;
use crate::inputs::{random_lines, words};
use crate::place::{Limits, Place, Swap, note, program, source};
use crate::report::Report;
use crate::run::{Program, Run};

const MIB: u64 = 1 << 20;

/// Runs a program with a part of the memory it needs, and then with the memory that the verdict
/// names: at least half of the reads must be gone.
fn follow(what: &str, place: &Place, unlimited: &Run, program: &Program) -> Report {
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(unlimited) };
    let tight = place.compare_with(what, unlimited, &limits, program);
    assert_eq!(tight.text("/verdict/limited_by"), "swap_reads", "{}", tight.figures());
    let (reads, memory) = (tight.number("/swap_in/bytes"), tight.number("/verdict/budget_bytes"));
    let need = unlimited.peak;
    assert!(memory < need * 5 / 4, "{what}: {memory} of {need} bytes");
    let limits = Limits { memory, ..limits };
    let wide = place.compare_output(what, unlimited, &limits, program);
    let left = wide.number("/swap_in/bytes");
    note(&format!("{what}: {} MiB read, {} in {} MiB", reads / MIB, left / MIB, memory / MIB));
    assert!(left * 2 <= reads, "{what}: {left} of {reads} bytes in {memory}");
    tight
}

/// Runs a program on the compressed memory that the verdict on a run names: it holds the data. The
/// data compress about as estimated, though the estimate samples all pages written, and not only
/// those held.
fn compress(what: &str, place: &Place, unlimited: &Run, tight: &Report, program: &Program) {
    let of = |key: &str| tight.number(&format!("/verdict/zram/{key}"));
    let limits =
        Limits { swap: Swap::Compressed(of("swap_bytes")), ..Limits::of(of("budget_bytes")) };
    let inside = place.compare_output(what, unlimited, &limits, program);
    let [expected, times] =
        ["compresses", "times"].map(|key| tight.real(&format!("/verdict/zram/{key}")));
    let [held, used] =
        ["bytes", "used_bytes"].map(|key| inside.real(&format!("/compression/{key}")));
    let [before, after] = [tight, &inside].map(|report| report.real("/elapsed_seconds"));
    let compressed = held / used;
    let [slow, read] = ["/tiers/slow_read_bytes", "/swap_in/bytes"].map(|key| inside.number(key));
    assert!(slow * 4 <= read, "{what}: {slow} of {read} bytes from the slow level");
    note(&format!("{what}: {before:.1} s, on zram {after:.1}; {times:.1} times were estimated"));
    assert!((0.5..2.0).contains(&(compressed / expected)), "{what}: {compressed} for {expected}");
}

#[test]
fn a_sort_is_helped_by_memory_and_by_zram_as_the_verdict_says() {
    let place = Place::new();
    words(&place.path("text"), 400_000);
    let sort = program("sort", &["-S", "512M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    let tight = follow("sort, verdict", &place, &unlimited, &sort);
    compress("sort, verdict", &place, &unlimited, &tight, &sort);
}

/// Regression: the objects compress so well that `zram:` alone, which has three slots for each page
/// of its size, was full at the size that the verdict named.
#[test]
fn objects_of_python_are_helped_by_zram_as_the_verdict_says() {
    let place = Place::new();
    let objects = program("python3", &[source("objects.py").to_str().expect("a path in UTF-8")]);
    let unlimited = place.run(&objects).expect_success("objects");
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(&unlimited) };
    let tight = place.compare_with("objects, verdict", &unlimited, &limits, &objects);
    compress("objects, verdict", &place, &unlimited, &tight, &objects);
}

#[test]
fn a_program_with_enough_memory_was_not_slowed() {
    let place = Place::new();
    random_lines(&place.path("text"), 4 * MIB);
    let sort = program("sort", &["-S", "64M", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    let report = place.compare_output("sort, ample", &unlimited, &Limits::of(256 * MIB), &sort);
    assert_eq!(report.text("/verdict/limited_by"), "nothing", "{}", report.figures());
}

/// Runs a section of strangers.c within a limit on all memory; returns the lines that
/// `highwater run` prints.
fn within(place: &Place, memory: &str, section: &str) -> Vec<String> {
    let mut command = highwater();
    command.args(["run", "--memory", memory, "--swap", "ram:64M", "--report"]);
    command.arg(place.path("report.json")).arg("--");
    let run = command.args(place.c_program("strangers", &[section])).output().expect("a run");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    errors.lines().map(str::to_owned).collect()
}

/// Regression: a limit that memory which cannot be paged exceeded was no part of the verdict.
#[test]
fn memory_that_cannot_be_paged_has_room_in_the_limit_that_the_verdict_names() {
    let place = Place::beside_others();
    let lines = within(&place, "32M", "kinds");
    let verdict = lines.last().filter(|line| line.starts_with("  verdict "));
    let parts = ["more than --memory: ", "cannot be paged (most of it is shared memory); give"];
    let is_complete = parts.iter().all(|part| verdict.is_some_and(|line| line.contains(part)));
    assert!(is_complete, "{lines:#?}");
    let report = Report::read(&place.path("report.json"));
    let unpaged = report.number("/verdict/shortage/unpaged_bytes");
    assert!((69 * MIB..80 * MIB).contains(&unpaged), "{unpaged} bytes");
    let memory = report.number("/verdict/budget_bytes").to_string();
    let lines = within(&place, &memory, "kinds");
    assert!(lines[0].starts_with("highwater: nothing was paged") && lines.len() == 1, "{lines:#?}");
}

/// Regression: 20 MiB that a process maps twice counted as 40, and the peak was above the limit.
#[test]
fn memory_that_is_mapped_twice_counts_once() {
    let place = Place::beside_others();
    let lines = within(&place, "40M", "twice");
    let report = Report::read(&place.path("report.json"));
    let part = |name: &str| report.number(&format!("/peak_resident/{name}"));
    assert!((28 * MIB..40 * MIB).contains(&part("bytes")), "{lines:#?}");
    let shared = part("elsewhere/shared_bytes");
    assert!((20 * MIB..21 * MIB).contains(&shared), "{lines:#?}");
    // How long threads waited depends on the machine.
    assert_ne!(report.text("/verdict/limited_by"), "unpaged", "{lines:#?}");
}

/// Regression: a file that eight processes map counted 2.7 times, once in full for the first and in
/// half for the second, because no process noticed that others mapped it later. Chromium's pages
/// had 4 MiB in each process, of a limit that was twice what all its processes used.
#[test]
fn a_file_that_many_processes_map_counts_once() {
    let place = Place::beside_others();
    let mut command = highwater();
    command.current_dir(place.path(".")).args(["run", "--quiet", "--memory", "400M", "--report"]);
    command.arg(place.path("report.json")).arg("--");
    let program = place.c_program("file_shares", &["64", "8", "6"]);
    let status = command.args(program).status().expect("a run");
    assert!(status.success(), "{status}");
    let report = Report::read(&place.path("report.json"));
    let counted = report.samples("unpaged_bytes").into_iter().zip(report.samples("processes"));
    let all_run = counted.filter(|(_, processes)| *processes == 9);
    let least = all_run.map(|(bytes, _)| bytes).min().expect("a sample of all processes");
    // The file has 64 MiB, and nine processes have 2 to 3 MiB each.
    assert!((64 * MIB..110 * MIB).contains(&least), "{least} bytes");
}
