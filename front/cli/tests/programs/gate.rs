//! System calls with pointers into paged memory that is swapped out: results, error numbers and
//! contents as with ordinary memory, whether the kernel faults or the gate makes copies.

use crate::place::{Limits, Place};
use std::fs::{Permissions, copy, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

fn compare(system_calls: &'static str) {
    let place = Place::new();
    let program = place.c_program("gate", &[]);
    let unlimited = place.run(&program).expect_success("gate");
    let system_calls = Some(system_calls);
    let limits = Limits { swap_size: 256 * MIB, system_calls, ..Limits::of(8 * MIB) };
    place.compare_output("gate", &unlimited, &limits, &program).expect_swapping();
}

#[test]
fn system_calls_reach_swapped_out_memory_by_faults() {
    compare("faults");
}

#[test]
fn system_calls_reach_swapped_out_memory_by_copies() {
    compare("copies");
}

/// Programs that exec, fork, map files and read them directly, with the gate.
#[test]
fn programs_keep_contents_with_copies() {
    let place = Place::new();
    let limits = Limits { system_calls: Some("copies"), ..Limits::of(8 * MIB) };
    for (name, arguments) in [
        ("mixed", &["24"][..]),
        ("forks", &["24"]),
        ("structs", &["24"]),
        (
            "buffers",
            &["24", "read", "readv", "preadv", "write", "socketpair", "tcp", "direct_write"],
        ),
    ] {
        let program = place.c_program(name, arguments);
        let unlimited = place.run(&program).expect_success(name);
        place.compare_output(&format!("{name}, copies"), &unlimited, &limits, &program);
    }
}

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// A process without any right of the superuser's.
fn unprivileged(directory: &Path, name: &str) -> Command {
    let mut command = Command::new(directory.join(name));
    command.current_dir(directory);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// `highwater run` with default settings, by a user who may not serve faults of the kernel.
#[test]
fn an_ordinary_user_needs_no_rights() {
    let place = Place::new();
    let [program, ..] = &place.c_program("gate", &[])[..] else { panic!("a program") };
    // Others may not enter the directory of the tests.
    let directory = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| set_permissions(path, Permissions::from_mode(0o777)).expect("a mode");
    open(directory.path());
    let highwater = Path::new(env!("CARGO_BIN_EXE_highwater"));
    let library = highwater.with_file_name("libhighwater_preload.so");
    for file in [highwater, &library, Path::new(program)] {
        let to = directory.path().join(file.file_name().expect("a name"));
        copy(file, &to).expect("a copy");
        open(&to);
    }
    let alone = unprivileged(directory.path(), "gate").output().expect("a run");
    let mut served = unprivileged(directory.path(), "highwater");
    served.args(["run", "--memory", "8M", "--swap", "ram:256M", "--", "./gate"]);
    let served = served.output().expect("a run");
    let summary = String::from_utf8_lossy(&served.stderr);
    assert!(served.status.success(), "{}: {summary}", served.status);
    assert!(alone.status.success() && served.stdout == alone.stdout, "{summary}");
    assert!(summary.contains("swapped in"), "{summary}");
}
