//! Too little memory and swap: a clear error, never wrong data.

use crate::common::{binary, highwater};
use crate::place::{Limits, Place, Swap, note};
use crate::run::Run;
use highwater_platform::testing::skip_or_fail;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
const LITTLE: Limits = Limits {
    memory: 4 * MIB,
    swap: Swap::Ram,
    swap_size: 256 * MIB,
    mapping: "auto",
    map_files: "off",
    large_pages: "off",
    malloc: "all",
    mode: None,
};

#[test]
fn four_mebibytes_are_enough() {
    let place = Place::beside_others();
    let program = place.c_program("mixed", &["24"]);
    let unlimited = place.run(&program).expect_success("mixed");
    place.compare_with("mixed in 4 MiB", &unlimited, &LITTLE, &program);
    let program = place.c_program("heap", &["56", "refusals"]);
    let unlimited = place.run(&program).expect_success("heap");
    place.compare_with("heap in 4 MiB", &unlimited, &LITTLE, &program);
}

/// Highwater's message if the program cannot print one.
pub(crate) const FULL: &str = "memory and swap are full";
/// The program's message if an allocation fails.
pub(crate) const REFUSED: &str = "Cannot allocate memory";
const TOO_LITTLE: Limits = Limits {
    memory: 8 * MIB,
    swap: Swap::Ram,
    swap_size: 16 * MIB,
    mapping: "auto",
    map_files: "off",
    large_pages: "off",
    malloc: "all",
    mode: None,
};

/// Checks that a run ended with an error status, but not with a SIGSEGV or SIGBUS.
pub(crate) fn expect_no_bare_signal(what: &str, run: &Run) {
    let errors = run.errors.trim_end();
    note(&format!("{what}: {}, \"{errors}\"", run.status));
    assert!(!run.status.success(), "{what}: ended well");
    // A status over 128 is a signal that was passed on.
    let signal = run.status.signal().or(run.status.code().map(|code| code - 128));
    assert!(![Some(libc::SIGSEGV), Some(libc::SIGBUS)].contains(&signal), "{what}: {errors}");
}

/// Checks that it also ended without a checksum.
fn expect_clear_end(what: &str, run: &Run) {
    expect_no_bare_signal(what, run);
    assert_eq!(run.text(), "", "{what}: a checksum though memory was full");
}

/// Checks that a run ended with one line, which gives one of these reasons.
pub(crate) fn expect_one_line(what: &str, run: &Run, reasons: &[&str]) {
    let errors = run.errors.trim_end();
    let explained = reasons.iter().any(|reason| errors.contains(reason));
    assert!(errors.lines().count() == 1 && explained, "{what}: {errors}");
}

/// The allocation fails, and the program reports it.
#[test]
fn more_than_memory_and_swap_is_refused() {
    let place = Place::new();
    for (name, section) in [("mixed", "maps"), ("heap", "refusals")] {
        let run = place.run_within(&TOO_LITTLE, &place.c_program(name, &["64", section]));
        expect_clear_end(section, &run);
        expect_one_line(section, &run, &[REFUSED]);
    }
}

/// The summary names what the program may not have said.
#[test]
fn the_summary_names_requests_that_were_refused() {
    let place = Place::new();
    let mut command = highwater();
    let swap = format!("dir:{}:16M", place.path(".").display());
    command.args(["run", "--memory", "24M", "--swap", &swap, "--"]);
    command.args(place.c_program("heap", &["64", "refusals"]));
    let output = command.output().expect("a run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    for part in ["refused; give more with --swap or --memory", "memory and swap were full"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}

/// The kernel's OOM killer tells neither the program nor its parent, so the summary must.
#[test]
fn the_summary_names_processes_that_the_kernel_has_ended() {
    let place = Place::new();
    let Some(group) = MemoryGroup::new(48 * MIB) else {
        return skip_or_fail("only root can make a memory cgroup");
    };
    let program = place.compile("limit", "limit", &[]);
    let swap = format!("dir:{}:64M", place.path(".").display());
    let script = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.0.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(binary());
    command.args(["run", "--memory", "32M", "--swap", &swap, "--"]).arg(program);
    // Shared memory cannot be paged.
    command.args(["beside", "8", "96"]).env_remove("LD_PRELOAD");
    let output = command.output().expect("a run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + libc::SIGKILL), "{errors}");
    assert!(errors.contains("the kernel's OOM killer ended 1 process"), "{errors}");
    assert!(errors.contains("verdict           the kernel's OOM killer"), "{errors}");
}

/// A memory cgroup, removed when it is dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A cgroup with a limit, in whichever version is mounted.
    fn new(limit: u64) -> Option<MemoryGroup> {
        let name = format!("highwater-test-{}", std::process::id());
        let files = ["memory/memory.limit_in_bytes", "memory.max"].map(PathBuf::from);
        files.iter().find_map(|file| {
            let hierarchy = Path::new("/sys/fs/cgroup").join(file.parent()?);
            let group = MemoryGroup(hierarchy.join(&name));
            std::fs::create_dir(&group.0).ok()?;
            let set = std::fs::write(group.0.join(file.file_name()?), limit.to_string());
            set.is_ok().then_some(group)
        })
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The program reserved no memory, so only an access fails.
#[test]
fn full_swap_ends_the_program() {
    let place = Place::new();
    let program = place.c_program("mixed", &["64", "sparse"]);
    for (what, swap) in [("full RAM device", Swap::Ram), ("full file", Swap::Dir)] {
        let run = place.run_within(&Limits { swap, ..TOO_LITTLE }, &program);
        expect_clear_end(what, &run);
        expect_one_line(what, &run, &[FULL]);
    }
}

/// One process of 20 MiB fits, two do not: the fork is refused, or one process ends and the other
/// reports that.
#[test]
fn a_fork_beyond_memory_and_swap_fails_clearly() {
    let place = Place::new();
    let run = place.run_within(&TOO_LITTLE, &place.c_program("forks", &["20", "turns"]));
    expect_clear_end("forks", &run);
    let explained = [FULL, REFUSED].iter().any(|reason| run.errors.contains(reason));
    assert!(explained, "forks: {}", run.errors);
}
