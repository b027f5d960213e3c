//! `highwater-lab calibrate`: costs of a simulated machine, from published values of bases.
//!
//! ```text
//! machine's file ── lab::calibrate ──> simulations of bases ──> text, and JSON for the page
//! ```
//! Exit status: 0, 1 if a simulation failed, 2 if the machine cannot be calibrated.

use super::files::{check_writable, failed, refusal, replace};
use crate::commands::number::number;
use clap::Args;
use highwater_command::{Refusal, print, say};
use highwater_lab::calibrate::{Options, calibrate};
use highwater_lab::machines;
use highwater_lab::simulate::RunError;
use std::path::PathBuf;
use std::process::ExitCode;

/// Derive the calibrated costs of a simulated machine from published base values
///
/// The machine's file lists these costs in [[calibrated]], each with the range to search and the
/// base values that determine it. Published values of improved versions are not used. If the base
/// values do not determine a cost, the result is the range that they allow, and each predicted
/// change is an interval.
#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// The machine's name
    #[arg(value_parser = machine)]
    machine: &'static str,
    /// Divide memory and devices by N in the fine search, and by up to 4 times N in the coarse one
    /// [default: the experiments' divisor]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    scale: Option<u64>,
    /// Number of rounds in the coarse and in the fine search
    #[arg(long, value_name = "COARSE,FINE", value_parser = rounds, default_value = "6,2")]
    rounds: [usize; 2],
    /// Divide the experiments' warm-up time and measured time by this
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=100),
        default_value_t = 1)]
    shorter: u16,
    /// Also write the result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The name of a machine that there is.
pub(crate) fn machine(name: &str) -> Result<&'static str, String> {
    let names: Vec<&str> = machines::names().collect();
    let found = names.iter().find(|other| **other == name).copied();
    found.ok_or_else(|| format!("use {}", names.join(", ")))
}

fn rounds(text: &str) -> Result<[usize; 2], String> {
    let both = text.split_once(',').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
    both.filter(|both| both.iter().all(|rounds| *rounds <= 99))
        .ok_or_else(|| "give two numbers from 0 to 99, as 6,2".into())
}

impl Calibrate {
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> Result<ExitCode, Refusal> {
        self.json.as_deref().map(check_writable).transpose()?;
        let shorter = f64::from(self.shorter);
        let options = Options { scale: self.scale, rounds: self.rounds, shorter };
        let text = machines::text(self.machine).expect("it was found by its name");
        match calibrate(text, options, &|line: &str| say(line)) {
            Ok(found) => {
                if let Some(path) = self.json {
                    let text = serde_json::to_string_pretty(&found).expect("text keys") + "\n";
                    if let Err(error) = replace(&path, &text) {
                        say(format_args!("the result could not be written: {error}"));
                    }
                }
                Ok(print(format_args!("{}", found.text())))
            }
            Err(RunError::Setup(bad)) => Err(refusal(bad)),
            Err(error) => Ok(failed(&error)),
        }
    }
}
