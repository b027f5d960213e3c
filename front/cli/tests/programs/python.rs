//! Python: large bytes with threads, forks and subprocesses; NumPy.

use crate::place::{Limits, Place, Swap, program, source};
use crate::run::Program;
use std::path::Path;

/// Where `make test` puts NumPy.
pub(crate) const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python3");

pub(crate) fn python(script: &str, arguments: &[&str]) -> Program {
    assert!(Path::new(PYTHON).exists(), "no .venv with NumPy: 'make venv' makes it");
    let script = source(script).to_string_lossy().into_owned();
    program(PYTHON, &[&[script.as_str()], arguments].concat())
}

fn compare(script: &str, arguments: &[&str]) {
    let place = Place::beside_others();
    place.compare(&format!("{script} {}", arguments.join(" ")), &python(script, arguments));
}

#[test]
fn bytes_with_threads() {
    compare("big_bytes.py", &["threads", "32"]);
}

#[test]
fn bytes_with_multiprocessing() {
    compare("big_bytes.py", &["fork", "32"]);
}

#[test]
fn bytes_with_subprocesses() {
    compare("big_bytes.py", &["subprocess", "32"]);
}

#[test]
fn bytes_with_multiprocessing_compressed() {
    let place = Place::beside_others();
    let program = python("big_bytes.py", &["fork", "32"]);
    let unlimited = place.run(&program).expect_success("big_bytes.py fork");
    for algorithm in ["lz4", "zstd"] {
        let limits = Limits { swap: Swap::Zram(algorithm), ..Limits::quarter(&unlimited) };
        let what = format!("big_bytes.py fork, {algorithm}");
        place.compare_with(&what, &unlimited, &limits, &program);
    }
}

#[test]
fn numpy_sorts() {
    compare("arrays.py", &["sort", "112"]);
}

#[test]
fn numpy_reduces() {
    compare("arrays.py", &["reduce", "112"]);
}

#[test]
fn numpy_multiplies_matrices() {
    compare("arrays.py", &["product", "112"]);
}
