//! After a process was killed at any step, the B-tree of the examples has the contents of its last
//! commit.

use crate::btree::{Step, Tree, key, load};
use crate::common::alone;
use highwater::Memory;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

/// Keys of a commit. Seven commits make a tree of twice the memory, so that pages are written at
/// any time.
const PART: u64 = 45_000;
/// The commit in which the process is killed.
const LAST: u64 = 6;

fn open(dir: &Path) -> Tree {
    let memory = Memory::builder().memory("4M").swap("ram:4M").build().expect("userfaultfd");
    Tree::open(&memory, dir).expect("a file and its log")
}

fn commit(tree: &mut Tree, number: u64) {
    load(tree, number * PART..(number + 1) * PART).expect("committed");
}

#[track_caller]
fn check(tree: &Tree, commits: u64) {
    let mut expected: Vec<_> = (0..commits * PART).map(|index| (key(index), index)).collect();
    expected.sort_unstable();
    assert!(tree.entries() == expected, "{commits} commits");
    let is_found = |index: u64| tree.get(key(index)) == (index < commits * PART).then_some(index);
    assert!((0..(commits + 1) * PART).step_by(997).all(is_found));
}

/// The process kills itself in the last commit.
fn killed(dir: &Path, at: Step) {
    let mut tree = open(dir);
    for number in 0..=LAST {
        if number == LAST {
            tree.on_steps(move |step| {
                if step == at {
                    // SAFETY: ends this process.
                    unsafe { libc::raise(libc::SIGKILL) };
                }
            });
        }
        commit(&mut tree, number);
        // Empties the log, so that it has no older images that would undo what the last commit does
        // to the file.
        if number + 1 == LAST || at == Step::Checkpoint {
            tree.checkpoint().expect("written");
        }
    }
}

#[track_caller]
fn recovers(name: &str, at: Step, commits: u64) {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-{at:?}"));
    let output = alone(name, || {
        // The directory of an earlier run.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        killed(&dir, at);
    });
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{output:?}");
    let mut tree = open(&dir);
    check(&tree, commits);
    commit(&mut tree, commits);
    drop(tree);
    check(&open(&dir), commits + 1);
    fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn a_commit_that_is_half_logged_did_not_happen() {
    recovers("crash::a_commit_that_is_half_logged_did_not_happen", Step::Logging, LAST);
}

#[test]
fn a_commit_that_is_logged_has_happened() {
    recovers("crash::a_commit_that_is_logged_has_happened", Step::Logged, LAST + 1);
}

#[test]
fn a_commit_that_is_half_applied_has_happened() {
    recovers("crash::a_commit_that_is_half_applied_has_happened", Step::Applying, LAST + 1);
}

#[test]
fn a_log_that_was_not_emptied_changes_nothing() {
    recovers("crash::a_log_that_was_not_emptied_changes_nothing", Step::Checkpoint, LAST + 1);
}
