//! Tasks of the repository: `cargo run -p highwater-xtask -- tidy`, `kernels`, `soak`.

use clap::{Parser, Subcommand};
use highwater_xtask::{Trouble, kernels, soak, tidy};
use std::path::Path;
use std::process::ExitCode;

/// Tasks of the repository.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Report every place that breaks a rule of STYLE.md which a program can check.
    Tidy,
    Kernels(kernels::Options),
    Soak(soak::Options),
}

fn main() -> ExitCode {
    match Options::parse().task {
        Task::Tidy => report(tidy::repository(Path::new(tidy::ROOT))),
        Task::Kernels(options) => report_failures("kernels", kernels::run(&options)),
        Task::Soak(options) => report_failures("soak", soak::run(&options)),
    }
}

/// Status 0: nothing found; 1: something found; 2: not able to look.
fn report(outcome: Result<Vec<tidy::Violation>, tidy::TidyError>) -> ExitCode {
    match outcome {
        Ok(violations) if violations.is_empty() => ExitCode::SUCCESS,
        Ok(violations) => {
            violations.iter().for_each(|violation| println!("{violation}"));
            println!("{} places to tidy", violations.len());
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// Status 0: nothing failed; 1: something failed; 2: not able to run.
fn report_failures(task: &str, outcome: Result<usize, Trouble>) -> ExitCode {
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            println!("{failed} failed");
            ExitCode::from(1)
        }
        Err(trouble) => {
            eprintln!("{task}: {}", trouble.0);
            ExitCode::from(2)
        }
    }
}
