//! `highwater run`: runs a program in less memory than it needs.
//!
//! ```text
//! Run (arguments) --- plan: every check ---> Plan --- carry_out ---> Ended, statistics ---> Report
//! ```
//! All checks come first: a refused run creates and starts nothing.

use crate::child::{self, Ended, Orphans, Running};
use crate::elf::Runtime;
use crate::family::Family;
use crate::faults::{self, Wish};
use crate::metrics::{self, Address, Board, Port};
use crate::need::Need;
use crate::options::{Given, Memory, Shared};
use crate::preload::ServedGo;
use crate::progress::{Mode, PERIOD, Progress};
use crate::report::{Observed, Report};
use crate::report_file::{Format, ReportFile};
use crate::run_dir::RunDir;
use crate::series::Series;
use crate::session::{self, Description, SessionName};
use crate::totals::Totals;
use crate::unserved::Unserved;
use crate::watch::{Shown, Watch};
use crate::{Refusal, machine, options, preload, program, summary, swap};
use clap::{Args, ValueHint};
use highwater_command::say;
use highwater_devices::{RemoteOptions, Seal, seconds};
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_session::{
    Budget, LargePages, Malloc, MapFiles, Mapping, Settings, SystemCalls, Tuning, oom_kills,
};
use highwater_units::Bytes;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long processes may take to end after the program.
const REST: Duration = Duration::from_millis(100);

/// The terms of the summary, for `--help`.
const SUMMARY_TERMS: &str = "\
Summary, printed when the program has ended:
  budget           the limit: of --memory for all processes together, or of --memory-per-process
                   for the pages of each process
  swap             the swap devices at the start, given by --swap or chosen by default
  peak RAM         most memory of one process, and its parts; each part is at its own maximum, so
                   the parts may add up to more. A page that is mapped several times counts once,
                   and one that several processes map counts by a share, as for --memory
                     paged        pages that can be swapped out
                     Highwater    Highwater's own tables
                     swap in RAM  ram: and zram: devices
                     not paged    stacks, libraries, shared memory, generated code, and small
                                  blocks of programs that need little (docs/limits.md); the next
                                  line lists the kinds
  peak demand      most memory in use, in RAM or swapped out, that counts towards the budget
  malloc           blocks of less than 64 KiB (objects, in slabs) and larger blocks, at their
                   maximum in bytes, and the blocks that were left at the end
  page faults      minor: served from memory; major: waited for a read from swap
  swapped in, out  traffic with the swap devices; a read or write carries several pages
  direct reclaims  how often a thread of the program had to free memory itself, because the
                   background threads (kswapd) were too slow, and how long that took
  time stalled     time during which a thread, or all threads that could have run, waited for
                   memory, as 'some' and 'full' in /proc/pressure/memory
  fault latency    how long page faults took: half of them up to p50, 99 % up to p99
    major faults   how long the faults took that waited for a read from swap
  compressed       most data on zram: devices, and the memory that it took
  tiers            most data on tier: devices; 'written back': cold pages moved to the slow level;
                   'written at once': pages written there because the fast level was full
  swap sealed      how swap files are encrypted, and the most memory that this took in a process
  by process       if there were several processes: those with the largest peaks, with their faults,
                   their traffic, and the time during which a thread waited for memory. All lines
                   above are sums over processes, except budget, peak RAM and peak demand
  Highwater CPU    CPU time of Highwater's threads, which is not part of the program's; the rest of
                   it is for readahead, writes for the program's threads, and statistics
  program CPU      CPU time of the program and of the children that it waited for, in their own code
                   (user) and in system calls (system); faults served in-thread are part of it
  verdict          what limited the run: waiting for reads from swap, waiting for free memory, or
                   nothing; if it can be estimated, the budget that would avoid nine of ten of these
                   reads, and how much faster compressed memory (zram:) would be; or how much more
                   than --memory the run needed, because memory that cannot be paged took it; or
                   that memory and swap were full, or that the kernel's OOM killer ended a process
--report FILE.html draws these figures over time, and adds malloc by size, locks and all processes;
--report FILE.json has all figures, and every counter (docs/report.md).

Exit status: that of the program; 128 + N if signal N ended it; 2, with one line on standard error,
if Highwater refuses to start the program: a wrong argument, a missing program or directory, a
machine that lacks what it needs.";

/// The end of `--help`.
const EXAMPLES: &str = "\
Examples:
  highwater run --memory 256M -- python3 job.py
  highwater run --memory 256M --swap dir:/var/tmp:8G -- sort -S 1G big.txt
  highwater run --memory 1G --name night --report night.html -- make -j4";

/// Run a program in less memory than it needs
///
/// Pages beyond the budget are written to swap devices. The program is not modified. Its children
/// run with the same settings, and share its budget.
#[derive(Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{SUMMARY_TERMS}\n\n{EXAMPLES}"))]
pub(crate) struct Run {
    /// Limit on the memory of the program and its children together, such as 512M: pages, code,
    /// stacks, Highwater's own tables and swap in RAM. highwater ctl changes it [default: half of
    /// the available memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,
    /// Instead of --memory: a limit on pages alone; memory that cannot be paged comes on top
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    paged: Option<String>,
    /// Limit on the pages of each process; if given alone, processes share no budget
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory_per_process: Option<String>,
    /// Highest budget that highwater ctl may set; each process reserves address space for tables of
    /// that size [default: twice --memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory_max: Option<String>,
    /// Swap device: dir:PATH:SIZE, file:PATH:SIZE, ram:SIZE, zram:SIZE[:lz4|zstd],
    /// redis:HOST:PORT[,HOST:PORT...]:SIZE, redis+unix:PATH:SIZE, nbd:HOST:PORT[/EXPORT]:SIZE,
    /// nbd+unix:PATH[:/EXPORT]:SIZE; rediss: and nbds: are redis: and nbd: by TLS; replicate:A+B
    /// keeps each page on two of these devices (not ram: or zram:); tier:FAST+SLOW, such as
    /// tier:zram:1G+dir:/var/tmp:8G, moves cold pages from the fast device to the slow one. May end
    /// in ,priority=N (0 to 65535, higher first) or ,rotational=0|1. May be repeated. With --memory
    /// or --paged, SIZE is for all processes together
    /// [default: compressed memory, then a file in a directory for temporary files; with --paged,
    /// or --memory-per-process alone, that file only]
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Whether swap files (dir: and file:) are encrypted and authenticated: on, or off. Pages on
    /// servers are always encrypted and authenticated
    #[arg(long, value_name = "on|off", default_value_t = Seal::On)]
    seal: Seal,
    /// How many seconds to wait for a swap server that does not answer; after that, a read ends the
    /// program, and writes go to the next device
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    #[arg(allow_hyphen_values = true)]
    remote_patience: Duration,
    /// Background threads that free memory: 1 to 16, or auto for as many as are needed while CPUs
    /// are idle
    #[arg(long, value_name = "N|auto", default_value_t = Config::default().kswapd_threads)]
    #[arg(allow_hyphen_values = true)]
    kswapd: KswapdThreads,
    /// Which file mappings are paged: off for none, or read for read-only mappings of files that
    /// are open for reading; later writes to such a file may not be seen in the mapping
    #[arg(long, value_name = "off|read", default_value_t = MapFiles::Off)]
    map_files: MapFiles,
    /// Which blocks of malloc are paged: all, or large for blocks of 64 KiB and more
    #[arg(long, value_name = "all|large", default_value_t = Malloc::default())]
    malloc: Malloc,
    /// Whether blocks of 2 MiB are read from swap and written to it as a whole: on, or off
    #[arg(long, value_name = "on|off", default_value_t = LargePages::Off)]
    large_pages: LargePages,
    /// Which threads serve page faults: in-thread for the thread that faults, handlers for separate
    /// threads, auto for in-thread where the machine and the program permit it. In-thread is faster
    /// and needs no privileges. io_uring, Linux AIO, debuggers and other processes that read the
    /// program's memory need handlers
    #[arg(long, value_name = "auto|in-thread|handlers", default_value = "auto")]
    faults: Wish,
    /// How system calls reach paged memory: copies gives the kernel copies of their buffers; faults
    /// lets the kernel fault on them, which needs privileges, and handlers [default: copies
    /// in-thread; faults with handlers, where permitted]
    #[arg(long, value_name = "faults|copies")]
    system_calls: Option<SystemCalls>,
    /// File with settings in TOML: keys are the long options here, such as memory = "256M", swap =
    /// ["dir:/var/tmp:8G"], quiet = true. The command line wins over the environment
    /// (HIGHWATER_MEMORY, HIGHWATER_SWAP with ';' between devices, and so on), which wins over the
    /// file
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Name of the session, for 'highwater ls' and 'highwater top': a letter, then letters, digits,
    /// dots, dashes and underscores; no other running session of this user may have it
    #[arg(long, value_name = "NAME")]
    name: Option<SessionName>,
    /// Write a report: FILE.html is a page with plots over time, FILE.json has all figures
    #[arg(long, value_name = "FILE.html|FILE.json")]
    report: Option<PathBuf>,
    /// Serve metrics for Prometheus at PORT of the loopback address, or at ADDRESS:PORT, while the
    /// program runs
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    metrics: Option<Address>,
    /// Show progress even where its line may overwrite the program's output. By default it is
    /// shown if standard error is a terminal and standard output is not
    #[arg(long)]
    progress: bool,
    /// Print neither progress nor summary
    #[arg(long)]
    quiet: bool,
    /// Userfaultfd operation that maps pages: auto, move or copy
    #[arg(long, value_name = "WAY", default_value_t = Mapping::Auto, hide = true)]
    mapping: Mapping,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// A run that passed all checks.
struct Plan {
    settings: Settings,
    memory: Memory,
    program: PathBuf,
    runtime: Runtime,
    library: PathBuf,
    go: ServedGo,
    /// The file for the report.
    report: Option<ReportFile>,
    /// The port at which metrics will be served.
    metrics: Option<Port>,
}

/// A program that has ended.
struct Finished {
    pid: u32,
    ended: Ended,
    /// Has watched the program until its end.
    watch: Watch,
    /// The most that its processes were seen to need beyond the limit.
    need: Option<Need>,
}

impl Run {
    /// Runs the program and passes on its exit status.
    pub(crate) fn execute(&self) -> Result<ExitCode, Refusal> {
        let mut plan = self.plan()?;
        if let Some(dir) = swap::in_memory(&plan.settings.swap).filter(|_| !self.quiet) {
            say(format_args!(
                "swap in '{}' is in memory, which --memory does not count: name a directory on a \
                 disk, or give --swap zram:SIZE",
                dir.display(),
            ));
        }
        let description = Description::now(
            self.name.clone(),
            &self.program,
            &plan.settings,
            plan.memory.budget(),
        );
        let run_dir = RunDir::create(&description.to_text())?;
        // Checked again: if two runs begin at the same time, at least one finds the other here.
        self.refuse_taken_name(Some(run_dir.path()))?;
        plan.settings.run_dir = Some(run_dir.path().to_owned());
        plan.memory.shared.map_or(Ok(()), |it| create_budget(&run_dir, &it, &plan.settings))?;
        let (started, kills) = (Instant::now(), oom_kills());
        let mut totals = Totals::new();
        let board = plan.metrics.take().map(|port| self.serve(port, &description)).transpose()?;
        let Finished { pid, ended, watch, need } =
            self.carry_out(&plan, run_dir.path(), board, &mut totals)?;
        let elapsed = started.elapsed();
        let left = child::wait_for_rest(REST);
        if let Err(other_build) = totals.finish(run_dir.path(), pid) {
            say(other_build);
            return Ok(ExitCode::from(ended.code()));
        }
        let series = watch.finish(&totals.all);
        // `highwater ctl` may have changed the budget and the devices.
        let shared = Budget::open(run_dir.path()).ok();
        let limit_at_end = shared.as_ref().map(|budget| Bytes::of_pages(budget.limit()));
        if let Some(budget) = shared {
            let used = budget.swap_in_use().into_iter();
            plan.settings.swap = used.map(|device| device.area).collect();
        }
        let oom_kills = oom_kills().zip(kills).map_or(0, |(now, then)| now.saturating_sub(then));
        let Plan { settings, memory, .. } = &plan;
        let report = Report::new(&Observed {
            settings,
            memory,
            elapsed,
            pid,
            ended,
            oom_kills,
            limit_at_end,
            need: need.as_ref(),
            totals: &totals,
            description: &description,
            series: &series,
        });
        self.publish(&report, &left, plan.report.as_ref());
        Ok(ExitCode::from(ended.code()))
    }

    /// Makes every check: arguments, program, machine, devices. The report file is opened last, so
    /// that a refused run leaves nothing behind.
    fn plan(&self) -> Result<Plan, Refusal> {
        let report = self.report.as_deref().map(Format::of).transpose()?;
        let memory = options::memory(Given {
            memory: self.memory.as_deref(),
            paged: self.paged.as_deref(),
            per_process: self.memory_per_process.as_deref(),
            max: self.memory_max.as_deref(),
        })?;
        let program = program::find(&self.program[0], std::env::var_os("PATH").as_deref())?;
        let runtime = program::check(&program)?;
        let library = preload::find()?;
        // Before the check of swap: in a container userfaultfd and swap may both be missing, and no
        // swap device would help.
        let permitted = machine::permitted();
        let (faults, system_calls) =
            faults::decide(self.faults, self.system_calls, permitted, runtime)?;
        program::check_go(&program, runtime, faults, system_calls)?;
        let go = program::served_go(permitted);
        let requirements = machine::requirements(self.mapping, system_calls);
        requirements.iter().find_map(machine::Item::refusal).map_or(Ok(()), Err)?;
        let swap = swap::devices(&self.swap, memory.compressed_most())?;
        swap::try_open(&swap, self.seal)?;
        self.refuse_taken_name(None)?;
        let metrics = self.metrics.map(Port::open).transpose()?;
        let report = report.map(ReportFile::open).transpose()?;
        let Run { seal, kswapd, mapping, map_files, malloc, large_pages, .. } = *self;
        let run_dir = None;
        let settings = Settings {
            memory: memory.alone,
            memory_max: memory.shared.map(|shared| shared.each_max),
            swap,
            seal,
            remote: RemoteOptions { patience: self.remote_patience, ..swap::remote()? },
            kswapd,
            mapping,
            map_files,
            malloc,
            large_pages,
            system_calls,
            faults,
            run_dir,
        };
        Ok(Plan { settings, memory, program, runtime, library, go, report, metrics })
    }

    /// Refuses a name that another session has. `own`: the directory of this session.
    fn refuse_taken_name(&self, own: Option<&Path>) -> Result<(), Refusal> {
        let name = self.name.as_ref();
        name.map_or(Ok(()), |name| session::refuse_taken(name, &session::running(), own))
    }

    /// Serves metrics, and prints their address.
    fn serve(&self, port: Port, description: &Description) -> Result<Arc<Board>, Refusal> {
        let session = match &description.name {
            Some(name) => name.to_string(),
            None => description.pid.to_string(),
        };
        let served = port.url().and_then(|url| Ok((metrics::serve(port, session)?, url)));
        let (board, url) = served.map_err(|error| {
            Refusal::new(format!("metrics cannot be served: {error}"), "leave out --metrics")
        })?;
        if !self.quiet {
            say(format_args!("metrics at {url}"));
        }
        Ok(board)
    }

    /// Starts the program and waits for its end. Adds up the figures of processes that end before
    /// the program.
    fn carry_out(
        &self,
        plan: &Plan,
        run_dir: &Path,
        board: Option<Arc<Board>>,
        totals: &mut Totals,
    ) -> Result<Finished, Refusal> {
        let failed = |error: io::Error| {
            let what = format!("cannot run '{}': {error}", plan.program.display());
            Refusal::new(what, "check that the program starts without highwater")
        };
        let Plan { program, runtime, library, go, .. } = plan;
        let mut command = preload::command(program, *runtime, library, *go);
        command.arg0(&self.program[0]).args(&self.program[1..]).envs(plan.settings.to_env());
        let mut unserved = Unserved::of(run_dir);
        unserved.iter_mut().for_each(|unserved| unserved.tick(PERIOD));
        let running = Running::start(&mut command, Orphans::Adopt).map_err(failed)?;
        plan.report.as_ref().map_or(Ok(()), ReportFile::empty).unwrap_or_else(not_written);
        let shown = Shown {
            progress: Progress::start(self.progress_mode()),
            series: plan.report.as_ref().map(|_| Series::new()),
            board,
        };
        let mut watch = Watch::start(run_dir, &plan.memory, shown);
        let ended = loop {
            match running.wait(PERIOD) {
                Some(ended) => break ended.map_err(failed)?,
                None => {
                    totals.take_ended(run_dir);
                    watch.tick(&totals.all);
                    unserved.iter_mut().for_each(|unserved| unserved.tick(PERIOD));
                }
            }
        };
        watch.hide_progress();
        let need = unserved.and_then(Unserved::most);
        Ok(Finished { pid: running.pid(), ended, watch, need })
    }

    fn progress_mode(&self) -> Mode {
        match (self.progress, io::stderr().is_terminal()) {
            (true, false) => Mode::Lines,
            (true, true) => Mode::Spinner,
            // The program's prompts and output must stay on the screen.
            (false, true) if !self.quiet && !io::stdout().is_terminal() => Mode::Spinner,
            (false, _) => Mode::Off,
        }
    }

    /// Prints the summary and writes the report. Errors do not change the program's exit status.
    fn publish(&self, report: &Report, left: &Family, file: Option<&ReportFile>) {
        if !self.quiet && !left.is_empty() {
            say(format_args!("still running: {left}"));
        }
        if !self.quiet {
            // Standard error may be closed.
            let _ = io::stderr().write_all(summary::text(report).as_bytes());
        }
        file.map_or(Ok(()), |file| file.write(report)).unwrap_or_else(not_written);
    }
}

fn not_written(error: io::Error) {
    say(format_args!("the report could not be written: {error}"));
}

/// Creates the budget that processes share.
fn create_budget(run_dir: &RunDir, shared: &Shared, settings: &Settings) -> Result<(), Refusal> {
    let [limit, most] = [shared.limit, shared.limit_max].map(Bytes::pages);
    let created = Budget::create(run_dir.path(), shared.scope, limit, most);
    let opened = created.and_then(|budget| run_dir.open_budget().map(|()| budget));
    let budget = opened.map_err(|error| {
        let what = format!("no budget for the run in '{}': {error}", run_dir.path().display());
        Refusal::new(what, "free some space there")
    })?;
    for area in &settings.swap {
        budget.add_swap(area).ok_or_else(|| {
            let what = format!("swap {area}: its path is too long");
            Refusal::new(what, "name a directory with a shorter path")
        })?;
    }
    budget.tune(Tuning { kswapd: Some(settings.kswapd), ..Tuning::default() });
    Ok(())
}
