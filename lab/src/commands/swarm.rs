//! `highwater-lab swarm`: runs that seeds draw, as many at once as there are CPUs, until one fails.
//!
//! Each run is a thread of the host, named after its seed: a failed check is a panic of that
//! thread, and the panic hook takes its seed from the name.

use crate::commands::number::number;
use clap::Args;
use highwater_command::{counted, print, say, say_bare};
use highwater_lab::swarm::{self, Case};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io::Write;
use std::panic;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Run random machines, sizes, workloads, schedules and faults, drawn from seeds, with all checks
#[derive(Debug, Args)]
pub(crate) struct Swarm {
    /// The first seed
    #[arg(long, value_name = "S", value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// Number of seeds to run [default: 1; with --minutes or --operations: no limit]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    seeds: Option<u64>,
    /// Start new runs for this many minutes
    #[arg(long, value_name = "M", value_parser = number::<u64>(1..=100_000))]
    minutes: Option<u64>,
    /// Start new runs until the ended ones made this many operations on pages
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    operations: Option<u64>,
}

/// Time between two lines of sums while runs go on.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Added to a signal: the exit status that shells have for a program that it ended.
const SIGNALLED: u8 = 128;

/// State shared by the threads of a swarm.
struct Shared {
    next: AtomicU64,
    limits: Limits,
    /// What is printed of runs that succeed.
    verbosity: Verbosity,
    failed: AtomicBool,
    signals: Signals,
    began: Instant,
    runs: AtomicU64,
    operations: AtomicU64,
    objects: AtomicU64,
    events: AtomicU64,
}

/// Whether SIGINT or SIGTERM arrived, and which: no new run starts.
#[derive(Default)]
struct Signals {
    has_arrived: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
}

/// Limits after which no new run starts.
struct Limits {
    /// One more than the last seed.
    end: u64,
    deadline: Option<Instant>,
    operations: u64,
}

/// What is printed of runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verbosity {
    /// Sums of all runs.
    Sums,
    /// A summary of the only run.
    Run,
}

impl Swarm {
    /// Runs the subcommand.
    pub(crate) fn execute(&self) -> ExitCode {
        let shared = Shared::new(self);
        name_seeds_of_panics();
        shared.signals.register();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let (working, all_ended) = mpsc::channel::<()>();
            (0..threads).for_each(|_| {
                let working = working.clone();
                scope.spawn(|| {
                    shared.work();
                    drop(working);
                });
            });
            drop(working);
            while all_ended.recv_timeout(REPORT_EVERY) == Err(RecvTimeoutError::Timeout) {
                if !shared.failed.load(Relaxed) {
                    say(format_args!("{} so far", shared.sums()));
                }
            }
        });
        shared.print_sums()
    }
}

impl Shared {
    fn new(swarm: &Swarm) -> Shared {
        let only = [swarm.seeds, swarm.minutes, swarm.operations] == [None; 3];
        let count = swarm.seeds.unwrap_or(if only { 1 } else { u64::MAX });
        let began = Instant::now();
        let limits = Limits {
            end: swarm.seed.saturating_add(count),
            deadline: swarm.minutes.map(|minutes| began + Duration::from_secs(60 * minutes)),
            operations: swarm.operations.unwrap_or(u64::MAX),
        };
        Shared {
            next: AtomicU64::new(swarm.seed),
            limits,
            verbosity: if only { Verbosity::Run } else { Verbosity::Sums },
            failed: AtomicBool::new(false),
            signals: Signals::default(),
            began,
            runs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }

    /// Runs seeds until none is left or one has failed.
    fn work(&self) {
        while let Some(seed) = self.take() {
            thread::scope(|scope| {
                let thread = thread::Builder::new().name(format!("seed {seed}"));
                let started = thread.spawn_scoped(scope, || self.run_seed(seed));
                started.expect("the system has threads");
            });
        }
    }

    /// The next seed; `None` beyond a limit, after a signal, and after a failure.
    fn take(&self) -> Option<u64> {
        let Limits { end, deadline, operations } = self.limits;
        let below_end = |seed| (seed < end).then(|| seed + 1);
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let enough = self.operations.load(Relaxed) >= operations;
        if late || enough || self.failed.load(Relaxed) || self.signals.have_arrived() {
            return None;
        }
        self.next.fetch_update(Relaxed, Relaxed, below_end).ok()
    }

    fn run_seed(&self, seed: u64) {
        match swarm::run(seed) {
            Ok(summary) => {
                self.runs.fetch_add(1, Relaxed);
                self.operations.fetch_add(summary.operations, Relaxed);
                self.objects.fetch_add(summary.objects, Relaxed);
                self.events.fetch_add(summary.events, Relaxed);
                if self.verbosity == Verbosity::Run {
                    let _ = writeln!(std::io::stdout(), "{summary}");
                }
            }
            Err(stuck) => {
                self.failed.store(true, Relaxed);
                let replay = replay(&seed.to_string());
                say(format_args!("{} is stuck: {stuck}\n{replay}", Case::draw(seed)));
            }
        }
    }

    /// Sums of the runs that ended.
    fn sums(&self) -> String {
        let [runs, operations, objects, events] =
            [&self.runs, &self.operations, &self.objects, &self.events]
                .map(|sum| sum.load(Relaxed));
        let (seconds, seeds) = (self.began.elapsed().as_secs_f64(), counted(runs, "seed", "seeds"));
        format!(
            "{seeds}, {operations} operations on pages, {objects} on objects, {events} events \
             in {seconds:.1} s: nothing wrong"
        )
    }

    /// Prints the sums, unless a run has failed.
    fn print_sums(&self) -> ExitCode {
        if self.failed.load(Relaxed) {
            return ExitCode::FAILURE;
        }
        let printed = print(format_args!("{}\n", self.sums()));
        match self.signals.last.load(Relaxed) {
            0 => printed,
            signal => ExitCode::from(SIGNALLED + signal as u8),
        }
    }
}

fn replay(seed: &str) -> String {
    format!("replay: highwater-lab swarm --seed {seed}")
}

/// Makes a panic of a run print the command that replays it, and end the program.
fn name_seeds_of_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        usual(panic);
        let thread = thread::current();
        if let Some(seed) = thread.name().and_then(|name| name.strip_prefix("seed ")) {
            say_bare(replay(seed));
            std::process::exit(1);
        }
    }));
}

impl Signals {
    /// At the first SIGINT or SIGTERM no new run starts and the sums are printed; the second one
    /// ends the program at once.
    fn register(&self) {
        for signal in [SIGINT, SIGTERM] {
            let [second, first] = [&self.has_arrived; 2].map(Arc::clone);
            let registered = flag::register_conditional_default(signal, second)
                .and_then(|_| flag::register(signal, first))
                .and_then(|_| {
                    flag::register_usize(signal, Arc::clone(&self.last), signal as usize)
                });
            registered.expect("both signals may be handled");
        }
    }

    fn have_arrived(&self) -> bool {
        self.has_arrived.load(Relaxed)
    }
}
