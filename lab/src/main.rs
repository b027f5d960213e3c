//! `highwater-lab`: measurements, simulations and published experiments.
//!
//! ```text
//! commands/bench.rs      workloads on this machine, beside the kernel's ways
//! commands/simulate.rs   workloads on simulated machines
//! commands/swarm.rs      random runs on simulated machines, with every check
//! commands/calibrate.rs  costs of simulated machines, from published values of bases
//! commands/machine.rs    this computer as a machine that can be simulated
//! commands/reproduce.rs  published experiments, beside the published values
//! commands/page.rs       their results as tables inside a page of documentation
//! ```
//! `highwater` (front/cli) is the product; this program is for its developers.

mod commands;

use clap::{Parser, Subcommand};
use commands::{bench, calibrate, machine, page, reproduce, simulate, swarm};
use std::process::ExitCode;

/// Measures Highwater, and runs it on simulated machines.
#[derive(Parser)]
#[command(name = "highwater-lab", version, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
    Simulate(Box<simulate::Simulate>),
    Swarm(swarm::Swarm),
    Calibrate(calibrate::Calibrate),
    Machine(machine::MachineArgs),
    Reproduce(reproduce::Reproduce),
    Page(page::Page),
}

fn main() -> ExitCode {
    highwater_command::execute(|Cli { command }| match command {
        Command::Bench(bench) => Ok(bench::run(bench)),
        Command::Simulate(simulate) => simulate.execute(),
        Command::Swarm(swarm) => Ok(swarm.execute()),
        Command::Calibrate(calibrate) => calibrate.execute(),
        Command::Machine(machine) => machine.execute(),
        Command::Reproduce(reproduce) => reproduce.execute(),
        Command::Page(page) => page.execute(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
