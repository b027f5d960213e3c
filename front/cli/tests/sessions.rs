//! Sessions, seen from another process: names, `highwater ls`, and the refusals of `highwater top`.
//! The preload library does nothing here. Other runs of the machine are listed too: tests look for
//! names of their own.

mod common;

use common::{binary, can_run, highwater, idle_library};
use highwater_platform::testing::skip_or_fail;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// User and group ID of nobody.
const NOBODY: u32 = 65_534;

/// A session that waits until its standard input is closed.
struct Waiting {
    child: Child,
    name: String,
    dir: TempDir,
}

impl Waiting {
    /// Starts a session whose name begins with `name`, once its program runs; `None` if this
    /// machine cannot run it.
    fn start(name: &str) -> Option<Waiting> {
        let dir = tempfile::tempdir().unwrap();
        let library = idle_library(dir.path());
        let name = format!("{name}-{}", std::process::id());
        can_run(&library).then(|| {
            let mut run = highwater();
            run.args(["run", "--quiet", "--memory", "16M", "--swap", "ram:32M", "--name", &name]);
            run.args(["--", "sh", "-c", "echo ready; read end"]);
            run.env("HIGHWATER_PRELOAD", library).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = run.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            Waiting { child, name, dir }
        })
    }

    /// Its entry in `highwater ls --json`.
    fn listed(&self, ls: &mut Command) -> Option<Value> {
        let output = ls.args(["ls", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        all.into_iter().find(|session| session["name"] == self.name.as_str())
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
        assert_eq!(self.listed(&mut highwater()), None);
    }
}

/// Runs a command that must be refused with one line that contains `part`.
fn refused(command: &mut Command, part: &str) {
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
    assert!(errors.starts_with("highwater: ") && errors.contains(part), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_running_session_is_listed() {
    let Some(mut session) = Waiting::start("listed") else { return };
    let listed = session.listed(&mut highwater()).expect("the session is listed");
    assert_eq!(listed["pid"], session.child.id());
    assert_eq!((&listed["budget_bytes"], &listed["processes"]), (&(16 << 20).into(), &0.into()));
    assert_eq!((&listed["command"][0], &listed["swap"][0]), (&"sh".into(), &"ram:32M".into()));
    let text = String::from_utf8(highwater().arg("ls").output().unwrap().stdout).unwrap();
    assert!(text.lines().next().is_some_and(|line| line.starts_with("NAME ")), "{text}");
    let line = text.lines().find(|line| line.starts_with(&session.name)).expect("its line");
    assert!(line.ends_with("  sh -c echo ready; read end"), "{line}");
    session.end();
}

#[test]
fn a_name_belongs_to_one_session_at_a_time() {
    let Some(mut session) = Waiting::start("one") else { return };
    let library = session.dir.path().join("libidle.so");
    let again = |name: &str| {
        let mut run = highwater();
        run.args(["run", "--name", name, "--", "true"]);
        run.env("HIGHWATER_PRELOAD", &library);
        run
    };
    refused(&mut again(&session.name), &format!("pid {} already has the name", session.child.id()));
    refused(&mut again("7up"), "a name is a letter and up to 31 letters");
    let other = again(&format!("{}-other", session.name)).output().unwrap();
    assert!(other.status.success());
    session.end();
    assert!(again(&session.name).output().unwrap().status.success());
}

#[test]
fn a_killed_session_is_not_listed() {
    let Some(mut session) = Waiting::start("killed") else { return };
    session.child.kill().unwrap();
    session.child.wait().unwrap();
    assert_eq!(session.listed(&mut highwater()), None);
}

#[test]
fn top_needs_a_terminal() {
    refused(highwater().arg("top"), "needs a terminal for input and output; use highwater ls");
}

#[test]
fn sessions_of_other_users_are_not_listed() {
    if !rustix::process::geteuid().is_root() {
        return skip_or_fail("only root can become another user");
    }
    let Some(mut session) = Waiting::start("mine") else { return };
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let program = dir.path().join("highwater");
    // A separate process makes the copy: a child that another test forks meanwhile would have the
    // copy open for writing, and it could not be executed.
    let copied = Command::new("cp").arg(binary()).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut ls = Command::new(program);
    ls.uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("LD_PRELOAD");
    assert_eq!(session.listed(&mut ls), None);
    session.end();
}
