//! Bad input: one line on standard error with the remedy, and exit status 2.

mod common;

use common::{binary, can_run, compile, highwater, idle_library};
use highwater_platform::testing::skip_or_fail;
use rustix::fs::{Gid, Uid, XattrFlags, chown, setxattr};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// User and group ID of nobody.
const NOBODY: u32 = 65_534;

/// Runs a command that must be refused. Returns the line on standard error.
fn refused(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("highwater: "), "{errors}");
    assert!(output.stdout.is_empty());
    errors
}

/// Checks that `highwater run` refuses these arguments and names this remedy.
fn refuses(args: &[&str], remedy: &str) {
    let errors = refused(highwater().arg("run").args(args));
    assert!(errors.contains(remedy), "{errors}");
}

/// Checks that `highwater run` refuses the program at `path` and names this remedy.
fn refuses_program(path: &Path, remedy: &str) {
    refuses(&["--", path.to_str().unwrap()], remedy);
}

/// All arguments of `highwater ctl` are checked before it looks for sessions.
#[test]
fn ctl_refuses_keys_and_values_that_there_are_not() {
    for (argument, remedy) in [
        ("memory=much", "for example 512M"),
        ("kswapd=0", "give for example kswapd=2"),
        ("kswapd=17", "give for example kswapd=2"),
        ("swap=ram:1G", "give it without a value"),
        ("pressure=0", "give it without a value"),
        ("buddyinfo=0", "give it without a value"),
        ("slabinfo=0", "give it without a value"),
        ("locks=0", "give it without a value"),
        ("vmstat=0", "give it without a value"),
        ("readahead=off", "give for example readahead=8"),
        ("swappiness=201", "give for example swappiness=100"),
        ("file-readahead=257", "give for example file-readahead=128"),
        ("compact=all", "give it without one"),
        ("swapoff=ram:1G", "keys are memory,"),
    ] {
        let errors = refused(highwater().args(["ctl", argument]));
        assert!(errors.contains(remedy), "{errors}");
    }
    let errors = refused(highwater().args(["ctl", "demo", "memory", "=", "96M"]));
    assert!(errors.contains("write memory=96M"), "{errors}");
}

/// A directory that other users can enter.
fn open_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

fn executable(dir: &TempDir, name: &str, contents: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, contents).unwrap();
    set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

/// A copy of a program that every user can execute.
fn copy_of(dir: &TempDir, program: impl AsRef<Path>, name: &str) -> PathBuf {
    executable(dir, name, &std::fs::read(program).unwrap())
}

fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip_or_fail(format_args!("only root can {what}"));
    }
    root
}

/// `highwater run` as the user nobody, from a directory that this user can read.
fn run_as_nobody(dir: &TempDir) -> Command {
    let binary = copy_of(dir, binary(), "highwater");
    let mut command = Command::new(binary);
    command.arg("run").uid(NOBODY).gid(NOBODY).current_dir("/");
    command.env_remove("LD_PRELOAD").env("HIGHWATER_PRELOAD", idle_library(dir.path()));
    command
}

#[test]
fn wrong_usage() {
    let errors = refused(highwater().arg("fly"));
    assert!(errors.contains("see 'highwater --help'"), "{errors}");
    let errors = refused(highwater().args(["ctl", "--colour"]));
    assert!(errors.contains("see 'highwater ctl --help'"), "{errors}");
    let errors = refused(highwater().args(["run", "--name", "-5"]));
    assert!(!errors.contains("-- -5"), "{errors}");
    refuses(&[], "<PROGRAM>");
    refuses(&["--memry", "1G", "true"], "--memory");
}

#[test]
fn invalid_budgets() {
    refuses(&["--memory", "much", "--", "true"], "for example 512M");
    refuses(&["--memory", "", "--", "true"], "for example 512M");
    refuses(&["--memory", "99999999999999999999", "--", "true"], "is too large; give less");
    for option in ["--memory", "--paged", "--memory-per-process", "--memory-max"] {
        let negative = format!("{option} '-5M' is not a size");
        refuses(&[option, "-5M", "--", "true"], &negative);
    }
    refuses(&["--memory", "4095K", "--", "true"], "--memory 4M or more");
    refuses(&["--memory", "1000T", "--", "true"], "or less");
    refuses(&["--paged", "4095K", "--", "true"], "--paged 4M or more");
    refuses(&["--memory", "8M", "--memory-max", "4M", "--", "true"], "--memory-max 8M or more");
    refuses(&["--memory", "8M", "--paged", "8M", "--", "true"], "give one of them");
    let max_alone = ["--memory-per-process", "64M", "--memory-max", "128M", "--", "true"];
    refuses(&max_alone, "give --memory too, or leave --memory-max out");
}

/// `highwater ctl memory` would read the budget, not name the session.
#[test]
fn names_of_sessions_that_are_keys_of_ctl() {
    refuses(&["--name", "memory", "--", "true"], "it is a key of 'highwater ctl'");
    refuses(&["--name", "swap-add", "--", "true"], "for example swap-add-1");
}

#[test]
fn kswapd_threads_out_of_range() {
    for threads in ["0", "17", "many"] {
        refuses(&["--kswapd", threads, "--", "true"], "see 'highwater run --help'");
    }
    refuses(&["--kswapd", "17", "--", "true"], "1 to 16 nor auto");
    refuses(&["--kswapd", "-1", "--", "true"], "'-1' is neither 1 to 16 nor auto");
}

#[test]
fn invalid_file_mappings() {
    for value in ["write", "", "on"] {
        refuses(&["--map-files", value, "--", "true"], "see 'highwater run --help'");
    }
    refuses(&["--map-files", "all", "--", "true"], "neither off nor read");
    refuses(&["--large-pages", "huge", "--", "true"], "neither on nor off");
    refuses(&["--seal", "wax", "--", "true"], "neither on nor off");
    refuses(&["--faults", "kernel", "--", "true"], "none of auto, in-thread, handlers");
    let both = ["--faults", "in-thread", "--system-calls", "faults", "--", "true"];
    refuses(&both, "use --faults handlers");
}

#[test]
fn invalid_settings_of_a_file_or_variable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    let path = file.to_str().unwrap();
    refuses(&["--config", path, "--", "true"], "name a text file that you may read");
    for (text, key, remedy) in [
        ("memry = '8M'", "key memry", "there are memory, paged, memory-per-process"),
        ("memory = 'much'", "key memory", "for example 512M"),
        ("malloc = 'none'", "key malloc", "see 'highwater run --help'"),
        ("memory = '64M'\n= 5\n", "line 2", "write lines such as"),
        ("memory-max = '1K'", "key memory-max", "4M or more"),
    ] {
        std::fs::write(&file, text).unwrap();
        let errors = refused(highwater().args(["run", "--config", path, "--", "true"]));
        assert!([path, key, remedy].iter().all(|part| errors.contains(part)), "{errors}");
    }
    refuses(&["--config", "/dev/zero", "--", "true"], "it is larger than 1 MiB; name a text file");
    let errors = refused(highwater().args(["run", "true"]).env("HIGHWATER_MALLOC", "none"));
    assert!(errors.contains("HIGHWATER_MALLOC: invalid value 'none'"), "{errors}");
}

#[test]
fn invalid_malloc_options() {
    for value in ["small", "", "on"] {
        refuses(&["--malloc", value, "--", "true"], "see 'highwater run --help'");
    }
    refuses(&["--malloc", "none", "--", "true"], "neither all nor large");
}

#[test]
fn unusable_swap_devices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let within = |path: &Path| format!("dir:{}:16M", path.display());
    for (spec, remedy) in [
        ("tape:1G".to_owned(), "dir:PATH:SIZE"),
        ("nonsense".to_owned(), "dir:PATH:SIZE"),
        ("ram:much".to_owned(), "for example --swap ram:1G"),
        ("zram:64M:gzip".to_owned(), "for example --swap zram:1G:lz4"),
        ("tier:zram:16M".to_owned(), "for example --swap tier:zram:1G+dir:/var/tmp:8G"),
        ("file:/var/tmp/swap:1000T".to_owned(), "for example --swap file:/var/tmp/swap:8G"),
        ("ram:16M,priority=99999".to_owned(), "for example --swap ram:1G,priority=5"),
        ("ram:16M,priority=high".to_owned(), "is not a number from 0 to 65535"),
        ("ram:16M,prio=1".to_owned(), "there are priority=N, rotational=0|1"),
        ("ram:1K".to_owned(), "under 1 MiB"),
        ("zram".to_owned(), "size missing"),
        ("zram:1K".to_owned(), "under 1 MiB"),
        ("zram:64M:gzip".to_owned(), "there are lz4, zstd"),
        ("tier:zram:64M".to_owned(), "slow level missing (FAST+SLOW)"),
        (
            "tier:zram:64M+ram:64M".to_owned(),
            "the slow level is file:, dir:, redis:, nbd: or replicate:",
        ),
        ("tier:dir:/tmp:64M+ram:64M".to_owned(), "the fast level is ram: or zram:"),
        ("tier:ram:1M+dir:/nonexistent:16M".to_owned(), "create the directory"),
        (within(Path::new("/nonexistent")), "create the directory"),
        (within(Path::new("/proc")), "no file can be created there; name a directory on a disk"),
        (within(&file), "name a directory"),
        (within(&dir.path().join("a;b")), "may not contain"),
        ("file:/nonexistent/swap:16M".to_owned(), "create the directory"),
        (format!("file:{}:16M", file.display()), "name a file that does not exist"),
        (format!("dir:{}:15T", dir.path().display()), "smaller SIZE"),
        (format!("file:{}/new:15T", dir.path().display()), "smaller SIZE"),
    ] {
        refuses(&["--swap", &spec, "--", "true"], remedy);
    }
}

#[test]
fn swap_directory_without_write_permission() {
    if !is_root("run as another user") {
        return;
    }
    let (dir, private) = (open_dir(), tempfile::tempdir().unwrap());
    let spec = format!("dir:{}:16M", private.path().display());
    for mode in [0o700, 0o755] {
        set_permissions(private.path(), Permissions::from_mode(mode)).unwrap();
        let errors = refused(run_as_nobody(&dir).args(["--swap", &spec, "--", "/bin/true"]));
        assert!(errors.contains("name a directory you may write to"), "{errors}");
    }
}

#[test]
fn files_that_are_not_programs() {
    let dir = tempfile::tempdir().unwrap();
    refuses(&["--", "no-such-program"], "install it, or give its path");
    refuses(&["--", "/nonexistent/program"], "check the path");
    refuses(&["--", "no-such-program -l"], "give its path, or leave the quotes out");
    refuses(&["--", "/nonexistent/program -l"], "check the path, or leave the quotes out");
    refuses(&["--", ""], "give its path");
    refuses_program(dir.path(), "name a program");
    refuses_program(&executable(&dir, "text", b"echo hello\n"), "#!/bin/sh");
    refuses_program(
        &executable(&dir, "lost", b"#!/nonexistent/shell\n"),
        "install it, or correct the first line of the script",
    );
    refuses_program(
        &executable(&dir, "windows", b"#!/bin/sh\r\nexit 0\r\n"),
        "the script has the line ends of Windows; run sed -i 's/\\r$//' '/",
    );
    refuses_program(&executable(&dir, "cut", b"\x7fELF"), "rebuild it");
    let plain = executable(&dir, "plain", b"#!/bin/sh\n");
    set_permissions(&plain, Permissions::from_mode(0o644)).unwrap();
    refuses_program(&plain, "chmod +x");
}

#[test]
fn static_program_and_script_with_static_interpreter() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("static");
    compile("int main(void) { return 0; }\n", &program, &["-static"]);
    refuses_program(&program, "link it dynamically");
    let script = executable(&dir, "script", format!("#!{}\n", program.display()).as_bytes());
    refuses_program(&script, "link it dynamically");
}

/// The ELF machine number of this computer.
const HOST_MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
const RISC_V: u16 = 243;

/// A little-endian 64-bit ELF program: the header, one PT_INTERP segment, and its path.
fn elf64(machine: u16, interpreter: &str) -> Vec<u8> {
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    for half in [2, machine] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for long in [0, HEADER, 0] {
        bytes.extend(long.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [HEADER as u16, SEGMENT as u16, 1, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    let len = interpreter.len() as u64 + 1;
    for word in [3u32, 4] {
        bytes.extend(word.to_le_bytes());
    }
    for long in [HEADER + SEGMENT, 0, 0, len, len, 1] {
        bytes.extend(long.to_le_bytes());
    }
    bytes.extend(interpreter.as_bytes());
    bytes.push(0);
    bytes
}

/// The header of a 32-bit ELF program for i386.
fn elf32() -> Vec<u8> {
    let mut bytes = b"\x7fELF\x01\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([2, 0, 3, 0, 1, 0, 0, 0]);
    bytes.resize(52, 0);
    bytes
}

#[test]
fn programs_for_other_machines() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = elf64(RISC_V, "/lib/ld-linux-riscv64-lp64d.so.1");
    let musl = elf64(HOST_MACHINE, "/lib/ld-musl-x86_64.so.1");
    refuses_program(&executable(&dir, "narrow", &elf32()), "64-bit build");
    refuses_program(&executable(&dir, "foreign", &foreign), "build for this machine");
    refuses_program(&executable(&dir, "musl", &musl), "GNU C library");
}

#[test]
fn programs_that_raise_privileges() {
    if !is_root("give programs away") {
        return;
    }
    let dir = open_dir();
    for (name, mode, kind) in [("user", 0o4755, "set-user-ID"), ("group", 0o2755, "set-group-ID")] {
        let path = copy_of(&dir, "/bin/true", name);
        chown(&path, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY))).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        refuses_program(&path, kind);
        refuses_program(&path, "run a copy");
    }
    let path = copy_of(&dir, "/bin/true", "capable");
    // Revision 2, effective: CAP_NET_RAW permitted, nothing inheritable.
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    if let Err(error) = setxattr(&path, "security.capability", &value, XattrFlags::empty()) {
        return skip_or_fail(format_args!("no file capabilities here: {error}"));
    }
    let errors = refused(run_as_nobody(&dir).arg("--").arg(&path));
    assert!(errors.contains("file capabilities") && errors.contains("run a copy"), "{errors}");
}

#[test]
fn faults_of_the_kernel_not_permitted() {
    let sysctl = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if !is_root("become another user") {
        return;
    }
    if sysctl.unwrap_or_default().trim() != "0" {
        return skip_or_fail("every user may use userfaultfd here, or none");
    }
    let dir = open_dir();
    let mut run = run_as_nobody(&dir);
    let errors = refused(run.args(["--system-calls", "faults", "--", "/bin/true"]));
    for remedy in [
        "--system-calls copies",
        "run as root",
        "vm.unprivileged_userfaultfd=1",
        "/dev/userfaultfd",
        "seccomp",
    ] {
        assert!(errors.contains(remedy), "{errors}");
    }
}

#[test]
fn limits_of_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    if !can_run(&idle_library(dir.path())) {
        return;
    }
    for (limit, remedy) in [
        ("-v 8000000", "'ulimit -v unlimited'"),
        ("-d 8000000", "'ulimit -d unlimited'"),
        ("-n 13", "ulimit -n is 13, too few to serve a program; 'ulimit -n 64', or more"),
        ("-n 63", "ulimit -n is 63, too few"),
    ] {
        let script = format!("ulimit {limit}; exec {} run true", binary().display());
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("HIGHWATER_PRELOAD", idle_library(dir.path()));
        let errors = refused(&mut shell);
        assert!(errors.contains(remedy), "{errors}");
    }
}

#[test]
fn missing_preload_library() {
    for library in ["/nonexistent/lib.so", "/tmp"] {
        let errors = refused(highwater().args(["run", "true"]).env("HIGHWATER_PRELOAD", library));
        assert!(errors.contains("correct HIGHWATER_PRELOAD, or unset it"), "{errors}");
    }
    // A copy of the program, beside which there is no library.
    let dir = open_dir();
    let binary = copy_of(&dir, binary(), "highwater");
    let errors = refused(Command::new(binary).args(["run", "true"]).env("HIGHWATER_PRELOAD", ""));
    assert!(errors.contains("(tried /"), "an empty variable counts as unset: {errors}");
    assert!(errors.contains("install it there, or set HIGHWATER_PRELOAD"), "{errors}");
}

/// The program would run without a budget.
#[test]
fn a_preload_library_that_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("libother.so");
    compile("int other;\n", &other, &["-shared", "-fPIC"]);
    let text = dir.path().join("text.so");
    std::fs::write(&text, "text").unwrap();
    for library in [other, text] {
        let errors = refused(highwater().args(["run", "true"]).env("HIGHWATER_PRELOAD", library));
        assert!(errors.contains("is not Highwater's library"), "{errors}");
        assert!(errors.contains("unset HIGHWATER_PRELOAD"), "{errors}");
    }
}

#[test]
fn unwritable_report() {
    let dir = tempfile::tempdir().unwrap();
    let library = idle_library(dir.path());
    if !can_run(&library) {
        return;
    }
    let mut command = highwater();
    command.env("HIGHWATER_PRELOAD", library);
    let errors = refused(command.args(["run", "--report", "/nonexistent/r.json", "--", "true"]));
    assert!(errors.contains("name a file"), "{errors}");
}

/// The options are checked first: nothing else is looked at, and nothing is created.
#[test]
fn reports_and_metrics_that_there_are_not() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["report", "report.txt", "report.html.gz"] {
        let path = dir.path().join(name);
        refuses(&["--report", path.to_str().unwrap(), "--", "true"], "name it report.html");
        assert!(!path.exists());
    }
    for address in ["", "nowhere", "localhost:http", "127.0.0.1", "127.0.0.1:65536"] {
        refuses(&["--metrics", address, "--", "true"], "see 'highwater run --help'");
    }
    refuses(&["--metrics", "nowhere", "--", "true"], "for example 127.0.0.1:9400");
}
