//! One run: starts `highwater run` with the programs of a plan, disturbs it, and waits for its end.
//!
//! A shell in the session starts the programs, each with files for its output, errors and status.
//! The run is a process group of its own, so a run that does not end is found and killed whole.

use super::draw::{Act, Plan};
use super::programs::Inputs;
use super::server::Running;
use crate::tool::{Trouble, await_that};
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far above what the slowest run takes.
const TIME_LIMIT: Duration = Duration::from_secs(400);
/// A process is stopped for so long.
const STOPPED: Duration = Duration::from_millis(300);
/// A server is stopped for so long, far below what Highwater waits for it.
const SERVER_STOPPED: Duration = Duration::from_secs(2);
/// Directories for swap files, which must be empty at the end.
const SWAP_DIRS: [&str; 3] = ["swap", "other", "more"];
/// A session has started, and what it leaves is gone, after this.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the session.
pub(super) struct Ended {
    /// Disturbances that took place.
    pub(super) done: Vec<Act>,
    pub(super) seconds: f64,
    /// What was left behind, or why it did not end.
    pub(super) faults: Vec<String>,
}

/// A session under way.
struct Session<'a> {
    plan: &'a Plan,
    highwater: &'a Path,
    dir: &'a Path,
    name: String,
    child: Child,
    servers: Vec<Running>,
    run_was_killed: bool,
    random: Rng,
    started: Instant,
    faults: Vec<String>,
}

/// Runs the plan's programs in `dir`.
pub(super) fn run(
    plan: &Plan,
    inputs: &Inputs,
    highwater: &Path,
    dir: &Path,
) -> Result<Ended, Trouble> {
    for name in SWAP_DIRS {
        fs::create_dir_all(dir.join(name))?;
    }
    fs::write(dir.join("run.sh"), script(plan, inputs, dir))?;
    let name = format!("soak-{}", plan.seed);
    let socket = |number: usize| dir.join(format!("server{number}"));
    let servers = plan.swap.servers.iter().enumerate();
    let servers: Result<Vec<Running>, Trouble> =
        servers.map(|(number, kind)| Running::start(*kind, socket(number))).collect();
    let mut session = Session {
        plan,
        highwater,
        dir,
        child: command(plan, inputs, highwater, dir, &name).spawn()?,
        name,
        servers: servers?,
        run_was_killed: false,
        random: Rng::with_seed(plan.seed ^ 1),
        started: Instant::now(),
        faults: Vec::new(),
    };
    let done = session.disturb();
    session.wait_for_end();
    let seconds = session.started.elapsed().as_secs_f64();
    session.look_for_remains()?;
    Ok(Ended { done, seconds, faults: session.faults })
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn script(plan: &Plan, inputs: &Inputs, dir: &Path) -> String {
    let place = quoted(&dir.to_string_lossy());
    let mut text = format!("echo $HIGHWATER_RUN_DIR > {place}/session\n");
    for (i, program) in plan.programs.iter().enumerate() {
        let line: Vec<String> = inputs.command(program).iter().map(|it| quoted(it)).collect();
        let _ = writeln!(
            text,
            "({} > {place}/{i}.out 2> {place}/{i}.err; echo $? > {place}/{i}.status) &",
            line.join(" ")
        );
    }
    text + "wait\n"
}

fn command(plan: &Plan, inputs: &Inputs, highwater: &Path, dir: &Path, name: &str) -> Command {
    let mut command = Command::new(highwater);
    command.args(["run", "--quiet", "--name", name]).args(&plan.options);
    for spec in &plan.swap.specs {
        command.args(["--swap", &spec.replace("DIR", &dir.to_string_lossy())]);
    }
    command.arg("--report").arg(dir.join("report.json")).args(["--", "sh"]);
    command.arg(dir.join("run.sh")).current_dir(inputs.dir());
    command.env("LC_ALL", "C").env("HIGHWATER_TEST_FLAKY_SWAP", "1").process_group(0);
    let log = |name: &str| File::create(dir.join(name)).map_or_else(|_| Stdio::null(), Stdio::from);
    command.stdin(Stdio::null()).stdout(log("run.out")).stderr(log("run.err"));
    command
}

/// A command that ends within a minute.
fn limited(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "60"]).arg(program);
    command
}

/// The command that the run was started with.
pub(super) fn line(plan: &Plan) -> String {
    let swap = plan.swap.specs.iter().map(|spec| format!("--swap {spec}"));
    let parts: Vec<String> = plan.options.iter().cloned().chain(swap).collect();
    parts.join(" ")
}

impl Session<'_> {
    fn disturb(&mut self) -> Vec<Act> {
        let mut done = Vec::new();
        for disturbance in &self.plan.disturbances {
            sleep(Duration::from_millis(disturbance.after_millis));
            if self.has_ended() {
                break;
            }
            if self.act(disturbance.act) {
                done.push(disturbance.act);
            }
        }
        done
    }

    /// Returns whether it took place.
    fn act(&mut self, act: Act) -> bool {
        match act {
            Act::Budget(mib) => self.set(&format!("memory={mib}M")),
            Act::Kswapd(threads) => self.set(&format!("kswapd={threads}")),
            Act::AddSwap => {
                let more = self.dir.join("more");
                self.set(&format!("swap-add=dir:{}:{}", more.display(), Plan::ADDED))
            }
            Act::RemoveSwap => {
                let more = self.dir.join("more");
                self.set(&format!("swap-remove={}", more.display()))
            }
            Act::Stop => self.stop(),
            Act::StopServer(number) => {
                self.await_start() && self.servers[number].stop_for(SERVER_STOPPED)
            }
            Act::LoseServer(number, loss) => self.await_start() && self.servers[number].lose(loss),
            Act::Kill => self.victim().is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok()),
            Act::KillRun => {
                self.run_was_killed = self.child.kill().is_ok();
                self.run_was_killed
            }
        }
    }

    /// Waits until `highwater run` has found its servers: it refuses a replica that is not there.
    fn await_start(&self) -> bool {
        await_that(PATIENCE, || self.dir.join("session").exists())
    }

    fn ctl(&self, key: &str) -> Option<Output> {
        limited(self.highwater).args(["ctl", &self.name, key]).output().ok()
    }

    /// A refusal is a right answer: the session may have ended, or the device may be in use.
    fn set(&self, setting: &str) -> bool {
        self.ctl(setting).is_some_and(|output| output.status.success())
    }

    fn stop(&mut self) -> bool {
        let Some(pid) = self.victim() else { return false };
        let stopped = kill_process(pid, Signal::STOP).is_ok();
        sleep(STOPPED);
        // Fails if it has been killed meanwhile.
        let _ = kill_process(pid, Signal::CONT);
        stopped
    }

    /// A process of the session that is not a shell.
    fn victim(&mut self) -> Option<Pid> {
        let output = self.ctl("processes")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let of = |line: &str| line.split_whitespace().nth(1)?.parse::<i32>().ok();
        let is_shell = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sh")
        };
        let pids: Vec<i32> = text.lines().filter_map(of).filter(|pid| !is_shell(pid)).collect();
        self.random.choice(pids).and_then(Pid::from_raw)
    }

    /// Whether all programs have ended. `highwater run` may be killed before.
    fn has_ended(&mut self) -> bool {
        let has = |i: usize| {
            let status = fs::read_to_string(self.dir.join(format!("{i}.status")));
            status.is_ok_and(|status| status.ends_with('\n'))
        };
        (0..self.plan.programs.len()).all(has) || self.refused()
    }

    /// Whether `highwater run` started nothing.
    fn refused(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_))) && !self.dir.join("session").exists()
    }

    fn wait_for_end(&mut self) {
        let left = TIME_LIMIT.saturating_sub(self.started.elapsed());
        if !await_that(left, || self.has_ended()) {
            self.give_up();
        }
        if !await_that(PATIENCE, || !matches!(self.child.try_wait(), Ok(None))) {
            self.faults.push("highwater run goes on although its programs have ended".into());
            self.give_up();
            let _ = self.child.wait();
            return;
        }
        // The shell ends well whatever its programs do.
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() || self.run_was_killed => {}
            other => self.faults.push(format!("highwater run ended with {other:?}")),
        }
    }

    /// Describes the process group in a file, and kills it.
    fn give_up(&mut self) {
        self.faults.push(format!("no end after {:.0} s", self.started.elapsed().as_secs_f64()));
        let group = self.child.id();
        let _ = fs::write(self.dir.join("stuck.txt"), stuck(group));
        if let Some(group) = Pid::from_raw(group.cast_signed()) {
            // Fails if all have just ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Files of swap, the directory of the session, and pages on a server.
    fn look_for_remains(&mut self) -> Result<(), Trouble> {
        for name in SWAP_DIRS {
            let left = fs::read_dir(self.dir.join(name))?.count();
            if left > 0 {
                self.faults.push(format!("{left} files are left in the swap directory"));
            }
        }
        let session = fs::read_to_string(self.dir.join("session")).unwrap_or_default();
        let session = PathBuf::from(session.trim());
        let is_gone = || {
            let is_gone = !session.is_absolute() || !session.exists();
            if !is_gone && self.run_was_killed {
                // The next run removes what it left. If that fails, it stays.
                let mut next = limited(self.highwater);
                let _ = next.args(["run", "--quiet", "--memory", "16M", "--", "true"]).status();
            }
            is_gone
        };
        if !await_that(PATIENCE, is_gone) {
            self.faults.push(format!("{} is left", session.display()));
        }
        self.look_for_keys()
    }

    fn look_for_keys(&mut self) -> Result<(), Trouble> {
        for server in &self.servers {
            let mut keys = Ok(0);
            await_that(PATIENCE, || {
                keys = server.keys();
                !matches!(keys, Ok(1..))
            });
            match keys? {
                0 => {}
                left => self.faults.push(format!("{left} keys are left on a server")),
            }
        }
        Ok(())
    }
}

/// The processes of a group: where each of their threads stands.
fn stuck(group: u32) -> String {
    let mut text = String::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_string_lossy().into_owned();
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        if fields.split_whitespace().nth(2) != Some(&group.to_string()) {
            continue;
        }
        let _ = writeln!(text, "== {stat}");
        let mut debugger = limited(Path::new("gdb"));
        debugger.args(["-p", &pid, "-batch", "-ex", "thread apply all backtrace"]);
        let found = debugger.stdin(Stdio::null()).output();
        let lines = found.map_or_else(|error| error.to_string().into_bytes(), |it| it.stdout);
        text += &String::from_utf8_lossy(&lines);
    }
    text
}
