//! `highwater-lab reproduce`: published experiments on simulated machines, beside what was
//! published.
//!
//! ```text
//! name ── lab::reproduce ──> runs: base, improved, beyond ──> table, or JSON rows; plot
//! ```
//! Exit status: 0, 1 if a run failed, 2 if it cannot be run.

use super::files::{create, failed, refusal, write};
use clap::Args;
use highwater_command::{Refusal, print, say};
use highwater_lab::report::latency::bars;
use highwater_lab::report::plot::Plot;
use highwater_lab::reproduce::{self, Curves, Experiment, Options, Reproduced, table};
use highwater_lab::simulate::RunError;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a published experiment on a simulated machine, beside the published values
#[derive(Debug, Args)]
#[command(after_help = experiments())]
pub(crate) struct Reproduce {
    /// Which one
    #[arg(value_parser = experiment)]
    experiment: &'static Experiment,
    /// What memory and devices are divided by [default: the least this machine has memory for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    scale: Option<u64>,
    /// Runs of each variant, with as many seeds: medians, and in the table the least and the most
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=99))]
    seeds: u64,
    /// Print JSON instead of a table: an array of rows
    #[arg(long)]
    json: bool,
    /// Plot throughput against the number of processes, as SVG: takes a run for each; of tables
    /// also system CPU and direct reclaims, in FILE-system.svg and FILE-stalls.svg
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// The experiments, for --help.
fn experiments() -> String {
    let lines = reproduce::ALL.iter().map(|e| format!("\n  {:12} {}", e.name, e.about));
    lines.fold("Experiments:".to_owned(), |text, line| text + &line)
}

fn experiment(name: &str) -> Result<&'static Experiment, String> {
    let names: Vec<&str> = reproduce::ALL.iter().map(|experiment| experiment.name).collect();
    reproduce::find(name).ok_or_else(|| format!("use {}", names.join(", ")))
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
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> Result<ExitCode, Refusal> {
        let first = self.plot.as_deref().map(create).transpose()?;
        let curves = if first.is_some() { Curves::Plot } else { Curves::Skip };
        let options = Options { scale: self.scale, seeds: self.seeds, curves };
        let progress = |name: &str, tasks| match tasks {
            1 => say(format_args!("{name}, 1 task")),
            tasks => say(format_args!("{name}, {tasks} tasks")),
        };
        let reproduced = match self.experiment.reproduce(options, progress) {
            Ok(reproduced) => reproduced,
            Err(RunError::Setup(bad)) => return Err(refusal(bad)),
            Err(error) => return Ok(failed(&error)),
        };
        if let Some((path, first)) = self.plot.as_deref().zip(first) {
            draw(path, first, &reproduced.plots)?;
        }
        let text = if self.json {
            serde_json::to_string_pretty(&reproduced.rows).expect("rows have text keys")
        } else {
            text(&reproduced)
        };
        Ok(print(format_args!("{text}\n")))
    }
}
