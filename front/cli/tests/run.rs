//! `highwater run` around a program, with a preload library that does nothing.

mod common;

use common::{can_run, highwater, idle_library};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// `highwater run` with `args`; `None` if this machine cannot run it.
fn command(dir: &TempDir, args: &[&str]) -> Option<Command> {
    let library = idle_library(dir.path());
    can_run(&library).then(|| {
        let mut command = highwater();
        command.env("HIGHWATER_PRELOAD", library).arg("run").args(args);
        command
    })
}

fn run(args: &[&str]) -> Option<Output> {
    let dir = tempfile::tempdir().unwrap();
    Some(command(&dir, args)?.output().unwrap())
}

#[test]
fn status_and_output_are_those_of_the_program() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let Some(output) = run(&["--", "sh", "-c", &format!("echo out; {script}")]) else { return };
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(status), &b"out\n"[..]));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("nothing was paged; peak RAM "), "{errors}");
        assert_eq!(errors.lines().count(), 1);
    }
}

#[test]
fn program_arguments_need_no_separator() {
    let Some(output) = run(&["--quiet", "printf", "%s|", "--memory", "-x"]) else { return };
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"--memory|-x|"[..], &b""[..]));
}

#[test]
fn the_program_receives_its_settings_and_no_files_remain() {
    let script = "echo $HIGHWATER_MEMORY $HIGHWATER_SWAP $HIGHWATER_KSWAPD $HIGHWATER_MAPPING; \
        stat -c %a $HIGHWATER_RUN_DIR/..; echo $HIGHWATER_RUN_DIR; echo $LD_PRELOAD; kill -9 $$";
    let args = ["--memory", "64M", "--swap", "ram:128M", "--kswapd", "2", "--mapping", "copy"];
    let Some(output) = run(&[&args[..], &["--", "sh", "-c", script]].concat()) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let settings: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!((settings[0], settings[2], settings[3]), ("67108864", "2", "copy"));
    assert!(settings[1].starts_with("ram:"), "{text}");
    // Processes of other users find a run of root by its name.
    assert_eq!(lines[1], if rustix::process::geteuid().is_root() { "711" } else { "700" });
    assert!(lines[2].contains("/highwater-") && !Path::new(lines[2]).exists(), "{text}");
    assert!(lines[3].ends_with("/libidle.so"), "{text}");
}

#[test]
fn settings_come_from_file_environment_and_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    let text = "memory = '16M'\nswap = ['ram:64M']\nkswapd = 2\nlarge-pages = 'on'\nquiet = true\n";
    std::fs::write(&file, text).unwrap();
    let script = "echo $HIGHWATER_MEMORY $HIGHWATER_SWAP $HIGHWATER_KSWAPD $HIGHWATER_LARGE_PAGES";
    let file = file.to_str().unwrap();
    let Some(mut command) = command(&dir, &["--kswapd", "4", "--config", file]) else { return };
    command.env("HIGHWATER_MEMORY", "32M").env("HIGHWATER_KSWAPD", "3");
    let output = command.args(["--", "sh", "-c", script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((text.as_str(), &output.stderr[..]), ("33554432 ram:64M 4 on\n", &b""[..]));
}

#[test]
fn sigterm_reaches_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let script = "trap : INT; trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let Some(mut command) = command(&dir, &["--quiet", "sh", "-c", script]) else { return };
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    // A SIGINT to the run is passed on, and must not end it.
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("ready\n", Some(9)));
}

/// Regression: the program got SIGPIPE although it was ignored, because Rust's start code ignores
/// it in any case.
#[test]
fn ignored_signals_stay_ignored() {
    let dir = tempfile::tempdir().unwrap();
    for (signal, ignored, expected) in
        [("HUP", "HUP", "alive\n"), ("PIPE", "PIPE", "alive\n"), ("PIPE", "HUP", "")]
    {
        let script = format!("kill -{signal} $$; echo alive");
        let Some(run) = command(&dir, &["--quiet", "sh", "-c", &script]) else { return };
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' {ignored}; exec \"$@\""), "sh"]);
        shell.arg(run.get_program()).args(run.get_args());
        let output = shell.env("HIGHWATER_PRELOAD", dir.path().join("libidle.so")).output();
        assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), expected, "{signal}");
    }
}

/// Regression: the processes of the program could not read the device, and ran unpaged.
#[test]
fn swap_that_the_program_could_not_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in [&b"a;b"[..], b"a\xff"] {
        let unfit = dir.path().join(OsStr::from_bytes(name));
        std::fs::create_dir(&unfit).unwrap();
        for swap in ["dir:.:64M", "file:swap:64M", "tier:ram:4M+dir:.:64M"] {
            let args = ["--memory", "64M", "--swap", swap, "--", "true"];
            let Some(mut command) = command(&dir, &args) else { return };
            let output = command.current_dir(&unfit).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{swap}: {error}");
            assert!(error.contains("its path is not UTF-8, or has a ';'"), "{swap}: {error}");
        }
    }
}

/// A FIFO that no process reads is not waited for. A refused run keeps an earlier report.
#[test]
fn a_report_that_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let report = path.to_str().unwrap();
    let run = |program: &str| {
        let args = ["--memory", "64M", "--report", report, "--", program];
        command(&dir, &args).map(|mut command| command.output().unwrap().status.code())
    };
    std::fs::write(&path, "an earlier report").unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/nonexistent\n").unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let Some(status) = run(script.to_str().unwrap()) else { return };
    assert_eq!(status, Some(2));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "an earlier report");
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(run("true"), Some(Some(2)));
}

#[test]
fn a_report_is_written_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    let args = ["--memory", "64M", "--report", file.to_str().unwrap(), "--", "sh", "-c", "exit 3"];
    let Some(mut command) = command(&dir, &args) else { return };
    assert_eq!(command.output().unwrap().status.code(), Some(3));
    let text = std::fs::read_to_string(&file).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["exit_status"], &report["budget_bytes"]), (&3.into(), &67108864.into()));
    assert_eq!(report["processes"], 0);
    assert!(report["program"]["max_rss_bytes"].as_u64().unwrap() > 0);
}
