//! `highwater-lab simulate`: the manager on a machine that is not there, in virtual time.
//!
//! ```text
//! --machine, --tasks N      one run ──> report, JSON, trace
//! --machine, --tasks N,N..  a run each ──> scaling table, JSON, plot
//! ```
//! Exit status: 0, 1 if contents were wrong or a run failed, 2 if it cannot be run.

use super::files::{create, failed, refusal, write};
use crate::commands::number::number;
use clap::{Args, ValueEnum};
use highwater_command::{Refusal, print, say};
use highwater_lab::machines;
use highwater_lab::report::scaling;
use highwater_lab::report::simulation::SimulationFigures;
use highwater_lab::simulate::{self, Experiment, KEYS, RunError, Settings, Simulation};
use highwater_lab::workload::history::History;
use highwater_lab::workload::world::TASK;
use highwater_sim::{Machine, Trace, Traced};
use highwater_units::Nanos;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Longest virtual time, in seconds.
const SECONDS_MAX: f64 = 3600.0;

/// Run the manager on a simulated machine, in virtual time
#[derive(Debug, Args)]
#[command(after_long_help = keys())]
pub(crate) struct Simulate {
    /// The machine: a name from the list below, or a machine file
    #[arg(long, value_name = "NAME|FILE.toml")]
    machine: String,
    /// The workload to run
    #[arg(long, value_enum, default_value = "pmbench")]
    workload: Workload,
    /// Number of tasks; several numbers print a table with a run for each
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', value_parser = tasks,
          default_value = "1")]
    tasks: Vec<usize>,
    /// Seed of the run: equal seeds give equal runs
    #[arg(long, value_name = "S", value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// Time limit of the tasks, in virtual time [default: 2; usemem-seq: until they are done]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Nanos>,
    /// Change a setting (--help lists all; may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Write a trace of every CPU while the tasks run, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Plot throughput against the number of tasks, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// What can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Tasks that read and write random words of a set larger than memory
    Pmbench,
    /// Tasks that write the whole set once, in sequence
    UsememSeq,
    /// Tasks that write random words of the set
    UsememRand,
    /// Tasks that read swapped-out pages, in the order that the setting 'pattern' gives
    Swapin,
    /// Tasks that read files from end to end in blocks of 4 MiB, as dd does
    Streams,
    /// Tasks that allocate and free the slab objects of mmap and munmap, as in will-it-scale
    Mmap1,
    /// Groups of 40 tasks that allocate and free the slab objects of messages (--tasks groups)
    Hackbench,
    /// Allocation of 2 MiB blocks while --tasks kernels are built (stress-highalloc)
    Highalloc,
}

/// The settings, for --help.
fn keys() -> String {
    let mut text = "Settings (--set KEY=VALUE):\n".to_owned();
    for key in KEYS {
        let _ = writeln!(text, "  {:16} {} [{}]", key.name, key.help, key.accepts());
    }
    let names: Vec<&str> = machines::names().collect();
    text + "\nMachines:\n  " + &names.join("\n  ")
}

fn tasks(text: &str) -> Result<usize, String> {
    let most = History::THREADS_MAX;
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("not a number from 1 to {most}"))
}

fn seconds(text: &str) -> Result<Nanos, String> {
    let seconds = text.parse().ok().filter(|seconds| (1e-3..=SECONDS_MAX).contains(seconds));
    let nanos = |seconds: f64| Nanos((seconds * 1e9) as u64);
    seconds.map(nanos).ok_or_else(|| format!("not a number from 0.001 to {SECONDS_MAX}"))
}

/// Where results go.
struct Outputs {
    trace: Option<File>,
    plot: Option<File>,
}

impl Simulate {
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> Result<ExitCode, Refusal> {
        let experiments = self.experiments()?;
        let outputs = self.outputs()?;
        self.run(&experiments, outputs)
    }

    /// A run for each number of tasks, checked.
    fn experiments(&self) -> Result<Vec<Experiment>, Refusal> {
        let machine = find(&self.machine)?;
        let mut settings = Settings::default();
        for text in &self.set {
            settings.set(text).map_err(refusal)?;
        }
        let workload = match self.workload {
            Workload::Pmbench => simulate::Workload::Pmbench,
            Workload::UsememSeq => simulate::Workload::UsememSeq,
            Workload::UsememRand => simulate::Workload::UsememRand,
            Workload::Swapin => simulate::Workload::SwapIn,
            Workload::Streams => simulate::Workload::Streams,
            Workload::Mmap1 => simulate::Workload::Mmap1,
            Workload::Hackbench => simulate::Workload::Hackbench,
            Workload::Highalloc => simulate::Workload::Highalloc,
        };
        let traced = if self.trace.is_some() { Traced::While(TASK) } else { Traced::Off };
        let experiment = |tasks: &usize| Experiment {
            machine: machine.clone(),
            workload,
            tasks: *tasks,
            seed: self.seed,
            time: self.time,
            settings: settings.clone(),
            traced,
        };
        let experiments: Vec<Experiment> = self.tasks.iter().map(experiment).collect();
        experiments.iter().try_for_each(simulate::check).map_err(refusal)?;
        Ok(experiments)
    }

    /// Creates the files that were asked for.
    fn outputs(&self) -> Result<Outputs, Refusal> {
        if self.trace.is_some() && self.tasks.len() > 1 {
            return Err(Refusal::new("--trace is of one run", "give --tasks one number"));
        }
        if self.plot.is_some() && self.tasks.len() == 1 {
            return Err(Refusal::new(
                "--plot is of several runs",
                "give --tasks 1,2,4 for example",
            ));
        }
        let create = |path: &Option<PathBuf>| path.as_deref().map(create).transpose();
        Ok(Outputs { trace: create(&self.trace)?, plot: create(&self.plot)? })
    }

    /// Runs all experiments and prints their figures.
    fn run(&self, experiments: &[Experiment], outputs: Outputs) -> Result<ExitCode, Refusal> {
        let mut runs = Vec::new();
        for experiment in experiments {
            let Simulation { figures, trace } = match simulate::run(experiment) {
                Ok(simulation) => simulation,
                Err(RunError::Setup(bad)) => return Err(refusal(bad)),
                Err(error) => return Ok(failed(&error)),
            };
            runs.push(figures);
            if let Some((trace, file)) = trace.zip(outputs.trace.as_ref()) {
                write("trace", file, |to| write_trace(&trace, to));
            }
        }
        if let Some(file) = &outputs.plot {
            let svg = scaling::plot(&runs).svg().expect("a plot of sound figures can be drawn");
            write("plot", file, |to| to.write_all(svg.as_bytes()));
        }
        Ok(print(format_args!("{}\n", self.output(&runs))))
    }

    /// The figures as they are printed.
    fn output(&self, runs: &[SimulationFigures]) -> String {
        match (runs, self.json) {
            ([run], true) => serde_json::to_string_pretty(run).expect("figures have text keys"),
            ([run], false) => run.text(),
            (_, true) => serde_json::to_string_pretty(runs).expect("figures have text keys"),
            (_, false) => scaling::text(runs),
        }
    }
}

/// The machine of a name or of a file.
fn find(name: &str) -> Result<Machine, Refusal> {
    if let Some(machine) = machines::find(name) {
        return Ok(machine);
    }
    if !name.ends_with(".toml") {
        let names: Vec<&str> = machines::names().collect();
        let remedy = format!("use {}, or a FILE.toml", names.join(", "));
        return Err(Refusal::new(format!("no machine is called '{name}'"), remedy));
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let what = format!("machine '{name}' cannot be read: {error}");
        Refusal::new(what, "name a file that describes a machine")
    })?;
    Machine::load(&text).map_err(|defects| {
        let what = format!("machine '{name}': {}", defects.trim().replace('\n', "; "));
        Refusal::new(what, "docs/simulator.md says how to describe one")
    })
}

fn write_trace(trace: &Trace, to: &mut BufWriter<&File>) -> std::io::Result<()> {
    if trace.dropped() > 0 {
        say(format_args!("the trace lacks its last {} bars; shorten --time", trace.dropped()));
    }
    trace.write(to)
}
