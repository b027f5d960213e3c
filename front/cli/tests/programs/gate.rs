//! System calls with pointers into paged memory that is swapped out: results, error numbers and
//! contents as with ordinary memory, whether the kernel faults or the gate makes copies.

use crate::common::binary;
use crate::place::{Limits, Mode, Place};
use crate::report::Report;
use highwater_platform::testing::skip_or_fail;
use std::fs::{File, Permissions, copy, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Runs a program in each mode, and compares its output with that of a run without Highwater.
pub(crate) fn compare_in_all_modes(name: &str) {
    let place = Place::beside_others();
    let program = place.c_program(name, &[]);
    let unlimited = place.run(&program).expect_success(name);
    for mode in Mode::ALL {
        let limits = Limits { swap_size: 256 * MIB, mode: Some(mode), ..Limits::of(8 * MIB) };
        let what = format!("{name}, {mode:?}");
        place.compare_output(&what, &unlimited, &limits, &program).expect_swapping();
    }
}

#[test]
fn system_calls_reach_swapped_out_memory() {
    compare_in_all_modes("gate");
}

#[test]
fn calls_that_once_went_wrong_are_right() {
    compare_in_all_modes("gate_found");
}

/// Regression: loading a seccomp filter failed if the filter lay in paged memory, as libseccomp's
/// does.
#[test]
fn programs_load_filters_from_swapped_out_memory() {
    compare_in_all_modes("seccomp");
}

/// Regression: no login by sshd succeeded. The start of the manager, and the library at the end of
/// the process, made system calls at which sshd's own filters end the process.
#[test]
fn a_process_that_restricts_itself_early_is_left_alone() {
    let place = Place::beside_others();
    let program = place.compile("sandboxed", "sandboxed", &[]);
    for (way, memory) in [("prctl", "64M"), ("seccomp", "64M"), ("prctl", "8M")] {
        let mut command = Command::new(binary());
        command.args(["run", "--quiet", "--memory", memory, "--swap", "ram:64M", "--"]);
        let output = command.arg(&program).arg(way).output().expect("a run");
        assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, b"ok\n", "{way}");
    }
}

/// Regression: Firefox only asks whether the system supports filters, but none of its processes was
/// paged.
#[test]
fn a_process_that_asks_for_filters_is_paged() {
    let place = Place::beside_others();
    let program = place.c_program("sandboxed", &["asks"]);
    let unlimited = place.run(&program).expect_success("asks");
    let limits = Limits { swap_size: 64 * MIB, mode: Some(Mode::InThread), ..Limits::of(8 * MIB) };
    place.compare_output("asks", &unlimited, &limits, &program).expect_swapping();
}

/// A garbage collector looks for a thread's stack pointer on the thread's own stack. Regression:
/// calls ran on another stack, and programs with libgc, D and Mono ended by SIGSEGV.
#[test]
fn calls_run_on_the_threads_own_stack_and_keep_registers() {
    compare_in_all_modes("own_stack");
}

/// Regression: once a coroutine had been seen, all handlers ran on signal stacks. Programs in D and
/// Crystal with coroutines and a garbage collector that stops threads by signals ended by SIGSEGV.
#[test]
fn handlers_run_on_the_interrupted_stack() {
    compare_in_all_modes("delivered");
}

/// Regression: a thread that needed a new page of its stack held the lock of the regions, and
/// waited for ever.
#[test]
fn a_new_page_of_a_paged_stack_is_served() {
    compare_in_all_modes("new_stack");
}

/// The manager starts on a stack of its own. Regression: on the caller's stack it took 38 KiB,
/// and small stacks overflowed (SIGSEGV), as they did when execl started a program there.
#[test]
fn small_stacks_are_enough() {
    compare_in_all_modes("small_stacks");
}

/// Regression: the kernel does not change a signal stack that is in use, so the gate's handlers
/// stayed on the program's signal stack. Rust programs ended by SIGSEGV once they had unmapped that
/// stack.
#[test]
fn a_signal_stack_may_be_older_than_the_manager() {
    compare_in_all_modes("early_stack");
}

/// Regression: a thread that got its signal stack while it was in a handler lost the stack for ever
/// when the handler returned. The next missing page of a coroutine ended the process by SIGSEGV.
#[test]
fn a_signal_stack_that_a_return_takes_away_is_set_again() {
    compare_in_all_modes("late_stack");
}

/// The program's own SIGBUS, children without descriptors, filters, and blocked signals.
#[test]
fn threads_serve_their_own_faults() {
    compare_in_all_modes("in_thread");
}

/// Programs that exec, fork, map files and read them directly, with the gate.
#[test]
fn programs_keep_contents_with_copies() {
    let place = Place::beside_others();
    let limits = Limits { mode: Some(Mode::Copies), ..Limits::of(8 * MIB) };
    for (name, arguments) in [
        ("mixed", &["16"][..]),
        ("forks", &["16"]),
        ("structs", &["16"]),
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

/// Highwater and a program, in a directory that everybody may enter and write to.
struct Open(TempDir);

impl Open {
    fn new(program: &Path) -> Open {
        // Others may not enter the directory of the tests.
        let open = Open(tempfile::tempdir().expect("a directory"));
        let allow = |path: &Path| set_permissions(path, Permissions::from_mode(0o777));
        allow(open.0.path()).expect("a mode");
        let highwater = binary();
        let library = highwater.with_file_name("libhighwater_preload.so");
        for file in [&highwater, &library, program] {
            let to = open.0.path().join(file.file_name().expect("a name"));
            copy(file, &to).and_then(|_| allow(&to)).expect("a copy");
        }
        open
    }

    /// Runs a command as a user without any rights.
    fn run(&self, command: &[&str]) -> Output {
        let mut process = Command::new(command[0]);
        process.args(&command[1..]).current_dir(self.0.path());
        if rustix::process::geteuid().is_root() {
            process.uid(NOBODY).gid(NOBODY);
        }
        process.output().expect("a run")
    }
}

const RUN: [&str; 7] = ["./highwater", "run", "--paged", "8M", "--swap", "ram:256M", "--"];

/// `highwater run` with default settings, run by a user without the right to serve faults of the
/// kernel, and by root in an unprivileged container.
#[test]
fn an_ordinary_user_needs_no_rights() {
    let place = Place::beside_others();
    let program = place.c_program("gate_found", &[]);
    let open = Open::new(Path::new(&program[0]));
    let alone = open.run(&["./gate_found"]);
    assert!(alone.status.success());
    let container = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"];
    for before in [&[][..], &container] {
        if !before.is_empty() && !open.run(&[before, &["true"]].concat()).status.success() {
            skip_or_fail("this system has no user namespaces for everybody");
            continue;
        }
        let served = open.run(&[before, &RUN, &["./gate_found"]].concat());
        let summary = String::from_utf8_lossy(&served.stderr);
        // The program's own line comes first. A long message is read from its end: repeat it there.
        let said = summary.lines().next().unwrap_or_default();
        assert!(served.status.success(), "{summary}\n{before:?} {}: {said}", served.status);
        assert!(served.stdout == alone.stdout, "{summary}\n{before:?}");
        // The container sees /proc of another PID namespace; the names are the program's even so.
        for part in ["swapped in", "    gate_found ("] {
            assert!(summary.contains(part), "{summary}\n{before:?}: no '{part}'");
        }
    }
}

/// As in Docker's default profile, userfaultfd is refused altogether, and no swap device would
/// help.
#[test]
fn a_container_that_refuses_userfaultfd_is_told_which_flag_helps() {
    let place = Place::beside_others();
    let filter = place.compile("docker", "docker", &[]);
    let open = Open::new(&filter);
    let nowhere = ["./highwater", "run", "--swap", "dir:/nonexistent:1G", "--"];
    for run in [&RUN[..], &nowhere] {
        let refused = open.run(&[&["./docker"], run, &["/bin/true"]].concat());
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        for flag in ["--device /dev/userfaultfd", "--security-opt seccomp=unconfined"] {
            assert!(errors.contains(flag), "{errors}");
        }
    }
}

/// The profile allows the device: threads serve their own faults with userfaultfds made by it.
#[test]
fn a_container_with_the_device_needs_no_other_flag() {
    if File::open("/dev/userfaultfd").is_err() {
        return skip_or_fail("no /dev/userfaultfd that this user may open");
    }
    let place = Place::beside_others();
    let filter = place.compile("docker", "docker", &[]);
    for (name, arguments) in [("gate", &[][..]), ("forks", &["16"])] {
        let program = place.c_program(name, arguments);
        let unlimited = place.run(&program).expect_success(name);
        let report = place.path("report.json");
        let mut served = Command::new(&filter);
        served.arg(binary()).args(&RUN[1..6]).arg("--report").arg(&report);
        served.arg("--").args(&program).current_dir(place.path(""));
        let served = served.output().expect("a run");
        let summary = String::from_utf8_lossy(&served.stderr);
        assert!(served.status.success(), "{name}, {}: {summary}", served.status);
        let expected = std::fs::read(&unlimited.output).expect("output");
        assert!(served.stdout == expected, "{name}: {summary}");
        let report = Report::read(&report);
        report.expect_swapping();
        assert_eq!(report.number("/processes_by_handlers"), 0, "{name}: {summary}");
    }
}
