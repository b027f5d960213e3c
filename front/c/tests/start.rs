//! The commands of docs/start-c.md, with its program, as a newcomer runs them.

use crate::common::{ROOT, built, ended, run, without_variables_of_make};
use highwater_platform::testing::skip_or_fail;
use std::path::Path;
use std::process::Command;

/// The blocks of a page as a script, in their order: commands, and the program as a file.
fn script(page: &str) -> String {
    let blocks = page.split("\n```").collect::<Vec<_>>();
    let block = |text: &&str| match text.split_once('\n') {
        Some(("sh", commands)) => Some(commands.to_owned()),
        Some(("c", program)) => Some(format!("cat > sum.c <<'END'\n{program}\nEND")),
        _ => None,
    };
    blocks.iter().filter_map(block).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_program_of_the_first_page_runs() {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return skip_or_fail("no pkg-config");
    }
    let root = Path::new(ROOT).join("../..");
    let page = std::fs::read_to_string(root.join("docs/start-c.md")).expect("a page");
    let home = tempfile::tempdir().expect("a directory");
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script(&page)]).current_dir(root);
    without_variables_of_make(&mut bash);
    // The files that are installed are those of the build under test; cargo has nothing to do.
    bash.env("C_LIBRARIES", built()).env("CARGO", "true");
    let said = ended(&run(bash.env("HOME", home.path()).env("TMPDIR", home.path())));
    assert!(said.contains("sum 8796090925056; "), "{said}");
}
