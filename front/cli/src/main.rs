//! `highwater`: gives a program more memory than it may use.
//!
//! ```text
//! run.rs     highwater run     options swap program probe preload -> child, progress -> report
//!                              run_dir (statistics)   family (processes of the run)
//! doctor.rs  highwater doctor  machine (what this machine allows, and what to change)
//! bench.rs   highwater bench   the workloads of lab/, beside the kernel's ways
//! simulate.rs  highwater simulate  the same workloads and manager on simulated machines
//! reproduce.rs highwater reproduce published experiments, beside what was published
//! ```
//! One file per subcommand, and one per question it asks. Whatever is refused is a [`Refusal`]:
//! one line that says what is wrong and what to do, exit status 2.

mod bench;
mod child;
mod counted;
mod doctor;
mod elf;
mod family;
mod machine;
mod malloc_figures;
mod options;
mod output;
mod preload;
mod probe;
mod program;
mod progress;
mod refusal;
mod report;
mod reproduce;
mod run;
mod run_dir;
mod say;
mod simulate;
mod summary;
mod swap;
mod usage;

use clap::{Parser, Subcommand};
use refusal::Refusal;
use std::process::ExitCode;

/// Gives a program more memory than it may use.
#[derive(Parser)]
#[command(name = "highwater", version, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Doctor(doctor::Doctor),
    Bench(bench::BenchArgs),
    Simulate(Box<simulate::Simulate>),
    Reproduce(reproduce::Reproduce),
}

fn main() -> ExitCode {
    let done = match Cli::try_parse() {
        Ok(Cli { command: Command::Run(run) }) => run.execute(),
        Ok(Cli { command: Command::Doctor(doctor) }) => doctor.execute(),
        Ok(Cli { command: Command::Bench(bench) }) => Ok(bench::run(bench)),
        Ok(Cli { command: Command::Simulate(simulate) }) => simulate.execute(),
        Ok(Cli { command: Command::Reproduce(reproduce) }) => reproduce.execute(),
        Err(error) => usage::answer(&error),
    };
    done.unwrap_or_else(|refusal| {
        say::say(&refusal);
        ExitCode::from(Refusal::STATUS)
    })
}
