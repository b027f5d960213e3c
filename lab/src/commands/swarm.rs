//! `highwater-lab swarm`: runs that seeds draw, as many at once as there are CPUs, until one fails.
//!
//! Each run is a thread of the host, named after its seed: a failed check is a panic of that
//! thread, and the panic hook takes its seed from the name.

use crate::commands::number::number;
use clap::Args;
use highwater_command::{counted, print, say, say_bare};
use highwater_lab::swarm::{self, Case};
use std::io::Write;
use std::panic;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Run random machines, sizes, workloads, schedules and faults, drawn from seeds, with all checks
#[derive(Debug, Args)]
pub(crate) struct Swarm {
    /// The first seed
    #[arg(long, value_name = "S", value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// Number of seeds to run [default: 1; with --minutes: no limit]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    seeds: Option<u64>,
    /// Start new runs for this many minutes
    #[arg(long, value_name = "M", value_parser = number::<u64>(1..=100_000))]
    minutes: Option<u64>,
}

/// What a swarm of threads shares.
struct Shared {
    next: AtomicU64,
    /// One more than the last seed.
    end: u64,
    deadline: Option<Instant>,
    /// What is printed of runs that succeed.
    verbosity: Verbosity,
    failed: AtomicBool,
    runs: AtomicU64,
    operations: AtomicU64,
    events: AtomicU64,
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
        let (count, verbosity) = match (self.seeds, self.minutes) {
            (Some(seeds), _) => (seeds, Verbosity::Sums),
            (None, Some(_)) => (u64::MAX, Verbosity::Sums),
            (None, None) => (1, Verbosity::Run),
        };
        let began = Instant::now();
        let shared = Shared {
            next: AtomicU64::new(self.seed),
            end: self.seed.saturating_add(count),
            deadline: self.minutes.map(|minutes| began + Duration::from_secs(60 * minutes)),
            verbosity,
            failed: AtomicBool::new(false),
            runs: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            events: AtomicU64::new(0),
        };
        name_seeds_of_panics();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            (0..threads).for_each(|_| {
                scope.spawn(|| shared.work());
            });
        });
        shared.print_sums(began.elapsed())
    }
}

impl Shared {
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

    /// The next seed; `None` at the end, after the deadline, and after a failure.
    fn take(&self) -> Option<u64> {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let below_end = |seed| (seed < self.end).then(|| seed + 1);
        if late || self.failed.load(Relaxed) {
            return None;
        }
        self.next.fetch_update(Relaxed, Relaxed, below_end).ok()
    }

    fn run_seed(&self, seed: u64) {
        match swarm::run(seed) {
            Ok(summary) => {
                self.runs.fetch_add(1, Relaxed);
                self.operations.fetch_add(summary.operations, Relaxed);
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

    /// Prints the sums, unless a run has failed.
    fn print_sums(&self, took: Duration) -> ExitCode {
        if self.failed.load(Relaxed) {
            return ExitCode::FAILURE;
        }
        let [runs, operations, events] =
            [&self.runs, &self.operations, &self.events].map(|sum| sum.load(Relaxed));
        let (seconds, seeds) = (took.as_secs_f64(), counted(runs, "seed", "seeds"));
        print(format_args!(
            "{seeds}, {operations} operations, {events} events in {seconds:.1} s: \
             nothing wrong\n"
        ))
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
