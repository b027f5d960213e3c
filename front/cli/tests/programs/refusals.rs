//! Swap devices that run out of room before their slots: the next device takes over.

use crate::common::highwater;
use crate::place::{Place, note, program, source};
use crate::report::Report;
use crate::run::Run;
use std::process::Command;
use std::time::Duration;

/// MiB of incompressible bytes.
const DATA: &str = "150";
/// Time limit, far below the wait for full devices: 10 s for each of many allocations.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn limited(place: &Place, swap: &[&str]) -> Command {
    let mut command = highwater();
    command.args(["run", "--paged", "40M"]);
    command.args(swap.iter().flat_map(|swap| ["--swap", *swap]));
    command.arg("--report").arg(place.path("report.json"));
    let script = source("noise.py");
    command.arg("--").arg("python3").arg(script).arg(DATA);
    command
}

#[test]
fn a_full_compressed_device_is_skipped() {
    let place = Place::new();
    let script = source("noise.py").to_string_lossy().into_owned();
    let unlimited = place.run(&program("python3", &[&script, DATA])).expect_success("noise.py");
    let dir = format!("dir:{}:512M", place.path(".").display());
    let run =
        Run::of(&mut limited(&place, &["zram:24M", &dir]), &place.path("."), "limited", TIME_LIMIT);
    let run = run.expect_success("noise.py, zram before dir");
    assert_eq!(run.text(), unlimited.text());
    let report = Report::read(&place.path("report.json"));
    note(&format!("zram before dir: {:.1} s; {}", run.elapsed.as_secs_f64(), report.figures()));
    report.expect_swapping();
    assert!(report.number("/swap_refused_bytes") > 0, "the first device was never full");
    assert_eq!(report.number("/swap_io_errors"), 0);
    assert!(run.errors.contains("a swap device had no room for"), "{}", run.errors);
}

/// If all devices are full, the program ends at once with a message.
#[test]
fn full_devices_end_the_program_at_once() {
    let place = Place::new();
    let mut command = limited(&place, &["zram:16M", "zram:8M:zstd"]);
    let run = Run::of(&mut command, &place.path("."), "limited", TIME_LIMIT);
    assert!(!run.status.success(), "more than there was room for");
    assert_eq!(run.text(), "");
    let seconds = run.elapsed.as_secs_f64();
    note(&format!("zram alone: {seconds:.1} s, {}", run.errors));
    assert!(run.elapsed < Duration::from_secs(8), "waited for what cannot come: {seconds}");
}
