//! The commands of docs/start-run.md, as a newcomer runs them.

use crate::common::binary;
use crate::place::Place;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The repository, where the commands begin.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// All blocks of a page that are marked as commands.
fn commands(page: &str) -> String {
    let blocks = page.split("\n```sh\n").skip(1);
    blocks.filter_map(|text| text.split("\n```").next()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_commands_of_the_first_page_run() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/start-run.md")).expect("a page");
    let commands = commands(&page);
    let runs = commands.matches("highwater run").count();
    assert!(runs > 0 && commands.contains("make install"), "{commands}");
    let place = Place::new();
    let mut bash = Command::new("timeout");
    bash.args(["600", "bash", "-euo", "pipefail", "-c", &commands]).current_dir(ROOT);
    bash.env("HOME", place.path("")).env("TMPDIR", place.path("")).stdin(Stdio::null());
    // What is installed is the build under test; cargo has nothing to do.
    bash.env("HIGHWATER", binary()).env("CARGO", "true");
    for name in ["DESTDIR", "LD_PRELOAD", "MAKEFLAGS", "MAKELEVEL"] {
        bash.env_remove(name);
    }
    let output = bash.output().expect("bash");
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{said}\n{errors}", output.status);
    let quiet = 1;
    assert_eq!(errors.matches("\n  verdict ").count(), runs - quiet, "{errors}");
    assert!(place.path(".local/share/man/man1/highwater-run.1").exists());
}
