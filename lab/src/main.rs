//! `highwater-lab`: measurements, simulations and published experiments.
//!
//! ```text
//! commands/bench.rs      workloads on this machine, beside the kernel's ways
//! commands/simulate.rs   workloads on simulated machines
//! commands/swarm.rs      random runs on simulated machines, with every check
//! commands/calibrate.rs  costs of simulated machines, from published values of bases
//! commands/machine.rs    this computer as a machine that can be simulated
//! commands/reproduce.rs  published experiments, beside the published values
//! commands/manual.rs     man pages
//! commands/page.rs       their results as tables inside a page of documentation
//! ```
//! `highwater` (front/cli) is the product; this program is for its developers.

mod commands;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{bench, calibrate, machine, manual, page, reproduce, simulate, swarm};
use std::process::ExitCode;

/// Measures Highwater, and runs it on simulated machines
///
/// For developers of Highwater: `make lab` in its sources builds the program. docs/simulator.md
/// describes the simulated machines.
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
    Manual(manual::Manual),
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
        Command::Manual(manual) => manual.execute(Cli::command()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The pages of a command and of those below it have their options.
    fn assert_pages(man: &std::path::Path, name: &str, command: &clap::Command) {
        let page = std::fs::read_to_string(man.join(format!("{name}.1"))).expect(name);
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let Some(option) = option.get_long() else { continue };
            let text = format!("\\-\\-{}", option.replace('-', "\\-"));
            assert!(page.contains(&text), "{name} --{option}\n{page}");
        }
        let shown = |inner: &&clap::Command| !inner.is_hide_set();
        for inner in command.get_subcommands().filter(shown) {
            assert_pages(man, &format!("{name}-{}", inner.get_name()), inner);
        }
    }

    #[test]
    fn each_command_has_a_page_with_all_its_options() {
        let share = tempfile::tempdir().expect("a directory");
        let manual = |dir: &std::path::Path| {
            Cli::parse_from(["highwater-lab".as_ref(), "manual".as_ref(), dir.as_os_str()])
        };
        let Command::Manual(wanted) = manual(share.path()).command else { panic!("it is manual") };
        wanted.execute(Cli::command()).expect("written");
        assert_pages(&share.path().join("man/man1"), "highwater-lab", &Cli::command());
        let hidden = share.path().join("man/man1/highwater-lab-bench-keep.1");
        assert!(!hidden.exists());
        let Command::Manual(none) = manual("/proc/none".as_ref()).command else {
            panic!("it is manual")
        };
        assert!(none.execute(Cli::command()).is_err());
    }
}
