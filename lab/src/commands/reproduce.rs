//! `highwater-lab reproduce`: published experiments on simulated machines, beside what was
//! published.
//!
//! ```text
//! name, or all ── lab::reproduce ──> runs: base, improved, beyond ──> table, JSON, plot
//!                    ^ FILE.runs: figures of runs that ended
//! ```
//! Exit status: 0, 1 if a run failed, 2 if it cannot be run.

use super::files::{create, failed, refusal, replace, write};
use super::progress::Progress;
use crate::commands::number::number;
use clap::Args;
use highwater_command::{Refusal, print};
use highwater_lab::report::latency::bars;
use highwater_lab::report::plot::Plot;
use highwater_lab::reproduce::{
    self, Curves, Experiment, Kept, Options, Reproduced, Results, table,
};
use highwater_lab::simulate::RunError;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The name for all published experiments.
const ALL: &str = "all";

/// Run a published experiment on a simulated machine, and compare with the published values
#[derive(Debug, Args)]
#[command(after_help = experiments())]
pub(crate) struct Reproduce {
    /// An experiment from the list below, or 'all' for those that have published values
    #[arg(value_parser = experiment)]
    experiment: Choice,
    /// Divide memory and devices by N [default: the smallest divisor that fits into this computer's
    /// memory]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    scale: Option<u64>,
    /// Run each variant with N seeds, and print the median, minimum and maximum
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = number::<u64>(1..=99))]
    seeds: u64,
    /// Run only the rows with these numbers of tasks, in experiments that vary the number
    #[arg(long, value_name = "N,...", value_delimiter = ',',
        value_parser = number::<usize>(1..=9999))]
    tasks: Option<Vec<usize>>,
    /// Also write the results to FILE, keeping those of other experiments there. Completed runs are
    /// saved in FILE.runs: after an interruption, repeat the command to continue
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Plot throughput against the number of processes, as SVG, which takes further runs; some
    /// experiments also write system CPU to FILE-system.svg and direct reclaims to FILE-stalls.svg
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Which experiments to run.
#[derive(Clone, Copy, Debug)]
enum Choice {
    One(&'static Experiment),
    All,
}

/// The experiments, for --help.
fn experiments() -> String {
    let lines = reproduce::ALL.iter().map(|e| format!("\n  {:14} {}", e.name, e.about));
    lines.fold("Experiments:".to_owned(), |text, line| text + &line)
}

fn experiment(name: &str) -> Result<Choice, String> {
    if name == ALL {
        return Ok(Choice::All);
    }
    let names = reproduce::ALL.iter().map(|experiment| experiment.name);
    let names: Vec<&str> = names.chain([ALL]).collect();
    let found = reproduce::find(name).map(Choice::One);
    found.ok_or_else(|| format!("use {}", names.join(", ")))
}

/// Refuses numbers of tasks that no row of an experiment has.
fn has_rows(experiment: &Experiment, wanted: &[usize]) -> Result<(), Refusal> {
    let rows = experiment.rows();
    let Some(missing) = wanted.iter().find(|tasks| !rows.contains(tasks)) else { return Ok(()) };
    let what = format!("{} has no row of {missing} tasks", experiment.name);
    let numbers: Vec<String> = rows.iter().map(usize::to_string).collect();
    Err(match numbers.is_empty() {
        true => Refusal::new(what, "leave --tasks out: all its runs are of one number of tasks"),
        false => Refusal::new(what, format!("use {}", numbers.join(", "))),
    })
}

/// Results in a file, and the runs that ended for it.
struct Store {
    path: PathBuf,
    results: Results,
    kept: Kept,
}

impl Store {
    fn open(path: PathBuf) -> Result<Store, Refusal> {
        let refused = |of: &Path, error: &dyn std::fmt::Display| {
            let what = format!("'{}' cannot be used for results: {error}", of.display());
            Refusal::new(what, "give --json a new file in a directory that is writable")
        };
        let results = match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| refused(&path, &error))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Results::default(),
            Err(error) => return Err(refused(&path, &error)),
        };
        let mut runs = path.clone().into_os_string();
        runs.push(".runs");
        let runs = PathBuf::from(runs);
        let kept = Kept::open(&runs).map_err(|error| refused(&runs, &error))?;
        Ok(Store { path, results, kept })
    }

    fn write(&self) -> std::io::Result<()> {
        replace(&self.path, &self.results.text())
    }
}

/// For people.
fn text(reproduced: &Reproduced) -> String {
    let distributions = reproduced.latency.iter();
    let shown = distributions
        .map(|(of, latency)| format!("\nlatency of accesses: {of}\n{}", bars(latency)));
    let latency: String = shown.collect();
    format!("{}\n\n{}\n{latency}", reproduced.conditions.join("\n"), table(&reproduced.rows))
}

/// Writes the first plot to `first`, the others to files beside it.
fn draw(path: &Path, first: File, plots: &[(String, Plot)]) -> Result<(), Refusal> {
    let mut first = Some(first);
    for (suffix, plot) in plots {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!("{stem}{suffix}.svg"));
        let file = first.take().map_or_else(|| create(&beside), Ok)?;
        let svg = plot.svg().expect("a plot of sound figures can be drawn");
        write("plot", &file, |to| to.write_all(svg.as_bytes()));
    }
    Ok(())
}

impl Reproduce {
    /// The experiments to run, if the other options apply to them.
    fn experiments(&self) -> Result<Vec<&'static Experiment>, Refusal> {
        let one = |option| {
            Err(Refusal::new(format!("{option} is of one experiment"), "name it instead of 'all'"))
        };
        match self.experiment {
            Choice::All if self.plot.is_some() => one("--plot"),
            Choice::All if self.tasks.is_some() => one("--tasks"),
            Choice::All => Ok(reproduce::published().collect()),
            Choice::One(experiment) => {
                has_rows(experiment, self.tasks.as_deref().unwrap_or_default())?;
                Ok(vec![experiment])
            }
        }
    }

    /// Runs the subcommand.
    pub(crate) fn execute(self) -> Result<ExitCode, Refusal> {
        let experiments = self.experiments()?;
        let fit = |experiment: &&Experiment| experiment.check(self.scale).map_err(refusal);
        experiments.iter().try_for_each(fit)?;
        let mut first = self.plot.as_deref().map(create).transpose()?;
        let mut store = self.json.map(Store::open).transpose()?;
        let curves = if first.is_some() { Curves::Plot } else { Curves::Skip };
        let (scale, seeds, tasks) = (self.scale, self.seeds, self.tasks.as_deref());
        let options = Options { scale, seeds, tasks, curves, kept: None };
        let progress = Progress::start(&experiments, options);
        for experiment in experiments {
            let options = Options { kept: store.as_ref().map(|store| &store.kept), ..options };
            let result = experiment.reproduce(options, |event| progress.show(experiment, event));
            let reproduced = match result {
                Ok(reproduced) => reproduced,
                Err(RunError::Setup(bad)) => return Err(refusal(bad)),
                Err(error) => return Ok(failed(&error)),
            };
            if let Some((path, first)) = self.plot.as_deref().zip(first.take()) {
                draw(path, first, &reproduced.plots)?;
            }
            if let Some(store) = &mut store {
                store.results.put(experiment.name, self.seeds, &reproduced);
                if let Err(error) = store.write() {
                    let what = format!("'{}' cannot be written: {error}", store.path.display());
                    return Err(Refusal::new(what, "make room and repeat the command"));
                }
            }
            progress.suspend(|| print(format_args!("{}\n", text(&reproduced))));
        }
        Ok(ExitCode::SUCCESS)
    }
}
