//! Programs of Debian packages that use many small objects or stress the fault handlers.
//!
//! `.ci/tools` installs them if possible; the test of a missing program is skipped.

use crate::place::{Limits, Place, program, source};
use crate::python::PYTHON;
use crate::run::Program;
use highwater_platform::testing::skip_or_fail;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

/// Whether a program is installed; skips the test otherwise.
pub(crate) fn is_installed(name: &str) -> bool {
    let mut search = Command::new("sh");
    search.args(["-c", "command -v \"$0\"", name]).stdout(Stdio::null());
    let found = search.status().expect("a shell").success();
    if !found {
        skip_or_fail(format_args!("{name} is not installed"));
    }
    found
}

fn script(name: &str) -> String {
    source(name).to_string_lossy().into_owned()
}

fn shell(line: &str) -> Program {
    program("sh", &["-c", line])
}

#[test]
fn node_keeps_objects() {
    if is_installed("node") {
        Place::beside_others().compare("node", &program("node", &[&script("objects.js")]));
    }
}

/// Every object of Python is a block of malloc.
#[test]
fn python_keeps_objects_of_malloc() {
    let line = ["PYTHONMALLOC=malloc", PYTHON, &script("objects.py")];
    Place::beside_others().compare("PYTHONMALLOC=malloc", &program("env", &line));
}

#[test]
fn compiling_templates() {
    if is_installed("g++") {
        let line = ["-O0", "-S", "-o", "/dev/stdout", &script("templates.cc")];
        Place::beside_others().compare("g++", &program("g++", &line));
    }
}

/// stress-ng verifies its blocks itself.
#[test]
fn stress_ng_verifies_blocks_of_malloc() {
    if is_installed("stress-ng") {
        let place = Place::beside_others();
        let program = shell(
            "stress-ng --malloc 1 --malloc-ops 40000 --malloc-bytes 64K \
                             --verify --seed 1 --quiet && echo verified",
        );
        let unlimited = place.run(&program).expect_success("stress-ng");
        place.compare_with("stress-ng", &unlimited, &Limits::of(24 * MIB), &program);
    }
}

/// 320 processes that send each other messages and need little memory: they are not served.
#[test]
fn hackbench_is_not_served() {
    if is_installed("hackbench") {
        let place = Place::beside_others();
        let program = shell("hackbench --groups 8 --loops 100 | grep -v Time:");
        let unlimited = place.run(&program).expect_success("hackbench");
        let report = place.compare_output("hackbench", &unlimited, &Limits::of(16 * MIB), &program);
        let served = report.number("/processes");
        assert!(served < 8, "{served} processes have managers");
    }
}
