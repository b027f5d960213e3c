//! `highwater`: runs a program in less memory than it uses.
//!
//! ```text
//! run.rs     highwater run     options swap program probe preload -> child -> report
//!                              watch (progress, series) -> report_file: JSON, or page/
//!                                                      -> metrics/
//!                              config (settings from a file and the environment)
//!                              run_dir (statistics)   family (processes of the run)
//! ls.rs      highwater ls      session (the running sessions of this user)
//! ctl.rs     highwater ctl     session
//! top/       highwater top     session, samples -> screen
//! doctor.rs  highwater doctor  machine (what this machine allows, and what to change)
//! manual.rs  highwater manual  man pages and completions, for the installation
//! ```
//! One file per subcommand, and one per check. A command that cannot run ends with a [`Refusal`]:
//! one line with the reason and the remedy, and exit status 2.

mod child;
mod config;
mod ctl;
mod doctor;
mod elf;
mod family;
mod faults;
mod lock_figures;
mod look;
mod ls;
mod machine;
mod malloc_figures;
mod manual;
mod metrics;
mod need;
mod options;
mod page;
mod preload;
mod probe;
mod processes;
mod program;
mod progress;
mod report;
mod report_file;
mod run;
mod run_dir;
mod series;
mod session;
mod summary;
mod swap;
mod top;
mod totals;
mod unserved;
mod verdict;
mod watch;

use clap::{ArgMatches, CommandFactory, Parser, Subcommand};
use highwater_command::Refusal;
use std::ffi::OsString;
use std::process::ExitCode;

/// Examples for `--help`: running a program, and commands for another terminal meanwhile.
const EXAMPLES: &str = "\
Examples:
  highwater run --memory 256M -- python3 job.py    # in 256 MiB
  highwater top                                    # in another terminal: watch it
  highwater ctl memory=512M                        # give it more";

/// Runs a program in less memory than it needs.
#[derive(Parser)]
#[command(name = "highwater", version, arg_required_else_help = false, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Ls(ls::Ls),
    Ctl(ctl::Ctl),
    Top(top::Top),
    Doctor(doctor::Doctor),
    Manual(manual::Manual),
}

fn main() -> ExitCode {
    highwater_command::execute_with(more, |Cli { command }| match command {
        Command::Run(run) => run.execute(),
        Command::Ls(ls) => ls.execute(),
        Command::Ctl(ctl) => ctl.execute(),
        Command::Top(top) => top.execute(),
        Command::Doctor(doctor) => doctor.execute(),
        Command::Manual(manual) => manual.execute(Cli::command()),
    })
}

/// Settings of `highwater run` that its command line lacks.
fn more(given: &ArgMatches) -> Result<Vec<OsString>, Refusal> {
    let mut definition = Cli::command();
    definition.build();
    match (given.subcommand(), definition.find_subcommand("run")) {
        (Some(("run", given)), Some(run)) => {
            config::arguments(run, given, std::env::vars_os().collect())
        }
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Each example is `highwater`, its arguments, and possibly a remark.
    #[test]
    fn the_examples_of_the_help_are_right() {
        let mut cli = Cli::command();
        cli.build();
        let mut helps = vec![cli.render_long_help().to_string()];
        helps.extend(cli.find_subcommand_mut("run").map(|run| run.render_long_help().to_string()));
        for help in &helps {
            let (_, examples) = help.split_once("Examples:\n").expect("examples");
            assert_eq!(examples.trim_end().lines().count(), 3, "{examples}");
            for line in examples.trim_end().lines() {
                let example = line.split(" # ").next().unwrap_or_default();
                let parsed = Cli::try_parse_from(example.split_whitespace());
                parsed.map(drop).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn wrong_usage_becomes_one_line() {
        for (args, expected) in [
            (vec!["highwater"], "requires a subcommand"),
            (vec!["highwater", "run"], "<PROGRAM>"),
            (vec!["highwater", "run", "--memry", "1G", "true"], "'--memory'"),
            (vec!["highwater", "run", "--kswapd", "17", "true"], "1 to 16"),
            (vec!["highwater", "run", "--kswapd", "-1", "true"], "'-1' is neither 1 to 16"),
            (
                vec!["highwater", "run", "--remote-patience", "-1", "true"],
                "'-1' is not a number of seconds",
            ),
            (vec!["highwater", "run", "--name", "-5", "true"], "unexpected argument '-5' found"),
        ] {
            let error = Cli::try_parse_from(args).err().expect("refused by clap");
            let line = highwater_command::parse_error("highwater run", error).to_string();
            assert!(
                line.contains(expected) && line.ends_with("; see 'highwater run --help'"),
                "{line}"
            );
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
}
