//! `highwater run`: a program with more memory than it may use.
//!
//! ```text
//! Run (arguments) --- plan: every check ---> Plan --- carry_out ---> Ended, statistics ---> Report
//! ```
//! Nothing is created and nothing is started before all checks have passed.

use crate::child::{self, Ended, Orphans, Running};
use crate::family::Family;
use crate::progress::{Mode, PERIOD, Progress};
use crate::report::{Observed, Report};
use crate::run_dir::RunDir;
use crate::{Refusal, machine, options, preload, program, summary, swap};
use clap::Args;
use highwater_command::say;
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_mm::stats::Counter;
use highwater_session::{
    Malloc, MapFiles, Mapping, OtherBuild, Published, Settings, read_published,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// How long processes that end with the program may take for it.
const REST: Duration = Duration::from_millis(100);

/// Run a program with more memory than it may use
///
/// Memory beyond the budget goes to swap devices, page by page, as the program needs other pages.
/// The program is not changed, and its children run under the same settings.
#[derive(Args)]
pub(crate) struct Run {
    /// Memory budget of each process, such as 512M [default: half of what is available]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Swap device: dir:PATH:SIZE, file:PATH:SIZE, ram:SIZE, zram:SIZE[:lz4|zstd], or
    /// tier:FAST+SLOW, such as tier:zram:1G+dir:/var/tmp:8G: cold pages of the fast one move on to
    /// the slow one. Behind it ,priority=N (0 to 65535, higher first) or ,rotational=0|1
    /// (may be repeated) [default: a directory for temporary files]
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Threads that free memory in the background: 1 to 16, or auto for as many as it takes while
    /// CPUs idle
    #[arg(long, value_name = "N|auto", default_value_t = Config::default().kswapd_threads)]
    kswapd: KswapdThreads,
    /// Which mappings of files count towards the budget, too: off, or read for those that are for
    /// reading, of files that are open for reading. What is written to such a file while it is
    /// mapped may not be seen
    #[arg(long, value_name = "off|read", default_value_t = MapFiles::Off)]
    map_files: MapFiles,
    /// Which blocks of malloc count towards the budget: all, or large for those of 64 KiB and more
    #[arg(long, value_name = "all|large", default_value_t = Malloc::default())]
    malloc: Malloc,
    /// Write what happened as JSON
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Show progress, also where standard error is no terminal
    #[arg(long)]
    progress: bool,
    /// No progress on a terminal and no summary
    #[arg(long)]
    quiet: bool,
    /// How pages are mapped: auto, move or copy
    #[arg(long, value_name = "WAY", default_value_t = Mapping::Auto, hide = true)]
    mapping: Mapping,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A run that has passed all checks.
struct Plan {
    settings: Settings,
    program: PathBuf,
    library: PathBuf,
    /// Where to write the report.
    report: Option<File>,
}

impl Run {
    /// Runs the program and passes on its exit status.
    pub(crate) fn execute(&self) -> Result<ExitCode, Refusal> {
        let mut plan = self.plan()?;
        let run_dir = RunDir::create()?;
        plan.settings.run_dir = Some(run_dir.path().to_owned());
        let started = Instant::now();
        let (pid, ended) = self.carry_out(&plan, run_dir.path())?;
        let elapsed = started.elapsed();
        let left = child::wait_for_rest(REST);
        let published = match last_published(run_dir.path(), pid) {
            Ok(published) => published,
            Err(other_build) => {
                say(other_build);
                return Ok(ExitCode::from(ended.code()));
            }
        };
        let malloc: Vec<_> = published.iter().filter_map(|(_, it)| it.malloc.clone()).collect();
        let processes: Vec<_> = published.into_iter().map(|(pid, it)| (pid, it.snapshot)).collect();
        let settings = &plan.settings;
        let report = Report::new(&Observed {
            settings,
            elapsed,
            pid,
            ended,
            processes: &processes,
            malloc: &malloc,
        });
        self.tell(&report, &left, plan.report.as_ref());
        Ok(ExitCode::from(ended.code()))
    }

    /// Every check: arguments, program, devices, machine. The report is created last, so that
    /// nothing is left behind by a run that was refused.
    fn plan(&self) -> Result<Plan, Refusal> {
        let memory = options::budget(self.memory.as_deref())?;
        let swap = swap::devices(&self.swap)?;
        let program = program::find(&self.program[0], std::env::var_os("PATH").as_deref())?;
        program::check(&program)?;
        swap.iter().try_for_each(swap::try_open)?;
        let library = preload::find()?;
        let requirements = machine::requirements(self.mapping);
        requirements.iter().find_map(machine::Item::refusal).map_or(Ok(()), Err)?;
        let report = self.report.as_deref().map(create_report).transpose()?;
        let Run { kswapd, mapping, map_files, malloc, .. } = *self;
        let run_dir = None;
        let settings = Settings { memory, swap, kswapd, mapping, map_files, malloc, run_dir };
        Ok(Plan { settings, program, library, report })
    }

    /// Starts the program and stays until its end.
    fn carry_out(&self, plan: &Plan, run_dir: &Path) -> Result<(u32, Ended), Refusal> {
        let failed = |error: io::Error| {
            let what = format!("cannot run '{}': {error}", plan.program.display());
            Refusal::new(what, "check that the program starts without highwater")
        };
        let existing = std::env::var_os("LD_PRELOAD");
        let mut command = Command::new(&plan.program);
        command.arg0(&self.program[0]).args(&self.program[1..]);
        command.envs(plan.settings.to_env());
        command.env("LD_PRELOAD", preload::variable(&plan.library, existing.as_deref()));
        let running = Running::start(&mut command, Orphans::Adopt).map_err(failed)?;
        let mut progress = Progress::start(self.progress_mode(), run_dir);
        let ended = loop {
            match running.wait(PERIOD) {
                Some(ended) => break ended.map_err(failed)?,
                None => progress.tick(),
            }
        };
        progress.finish();
        Ok((running.pid(), ended))
    }

    fn progress_mode(&self) -> Mode {
        let terminal = io::stderr().is_terminal();
        match (self.progress, self.quiet) {
            (true, _) if !terminal => Mode::Lines,
            (false, true) => Mode::Off,
            _ if terminal => Mode::Spinner,
            _ => Mode::Off,
        }
    }

    /// Summary and report. The program has ended: what fails here does not change its status.
    fn tell(&self, report: &Report, left: &Family, file: Option<&File>) {
        if !self.quiet && !left.is_empty() {
            say(format_args!("still running: {left}"));
        }
        if !self.quiet {
            // Standard error may be closed; there is then nobody to tell.
            let _ = io::stderr().write_all(summary::text(report).as_bytes());
        }
        if let Some(mut file) = file {
            let text = serde_json::to_string_pretty(report).map_err(io::Error::from);
            if let Err(error) = text.and_then(|text| writeln!(file, "{text}")) {
                say(format_args!("the report could not be written: {error}"));
            }
        }
    }
}

/// How long the last figures of a program are waited for: its helper publishes them after its end.
const PUBLISH_MAX: Duration = Duration::from_secs(1);

/// What the processes of a run published, once `pid` has for the last time.
fn last_published(run_dir: &Path, pid: u32) -> Result<Vec<(u32, Published)>, OtherBuild> {
    let started = Instant::now();
    loop {
        let published = read_published(run_dir)?;
        let last = published.iter().rfind(|(of, _)| *of == pid);
        let ended = last.is_none_or(|(_, last)| last.snapshot.get(Counter::ProcessEnded) > 0);
        if ended || started.elapsed() > PUBLISH_MAX {
            return Ok(published);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn create_report(path: &Path) -> Result<File, Refusal> {
    File::create(path).map_err(|error| {
        let what = format!("report '{}' cannot be created: {error}", path.display());
        Refusal::new(what, "name a file in a directory that exists and is writable")
    })
}
