//! From the command line to the exit status.

use crate::{Refusal, output, say};
use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Parser};
use std::ffi::OsString;
use std::process::ExitCode;

/// Parses the command line and runs `command`. A refusal is printed on standard error.
pub fn execute<C: Parser>(command: impl FnOnce(C) -> Result<ExitCode, Refusal>) -> ExitCode {
    execute_with(|_| Ok(Vec::new()), command)
}

/// As [`execute`]. `more` finds further arguments of the subcommand, once the command line is known
/// to be right; they come before its own.
pub fn execute_with<C: Parser>(
    more: impl FnOnce(&ArgMatches) -> Result<Vec<OsString>, Refusal>,
    command: impl FnOnce(C) -> Result<ExitCode, Refusal>,
) -> ExitCode {
    let name = C::command().get_name().to_owned();
    say::set_program(&name);
    let own: Vec<OsString> = std::env::args_os().collect();
    let done = match C::command().try_get_matches_from(&own) {
        Ok(matches) => more(&matches).and_then(|more| match C::try_parse_from(joined(own, more)) {
            Ok(arguments) => command(arguments),
            Err(error) => help_or_refusal(&name, &error),
        }),
        Err(error) => help_or_refusal(&name, &error),
    };
    done.unwrap_or_else(|refusal| {
        say(&refusal);
        ExitCode::from(Refusal::STATUS)
    })
}

/// The arguments with `more` behind the names of program and subcommand.
fn joined(mut own: Vec<OsString>, more: Vec<OsString>) -> Vec<OsString> {
    let behind = own.len().min(2);
    own.splice(behind..behind, more);
    own
}

/// Prints help and version on request; any other error of clap is a refusal.
fn help_or_refusal(program: &str, error: &Error) -> Result<ExitCode, Refusal> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(output::outcome(error.print())),
        _ => Err(parse_error(program, &error.to_string())),
    }
}

/// The refusal of a command line: clap's error and tips on one line, without the usage.
pub fn parse_error(program: &str, text: &str) -> Refusal {
    let reason = text.split("Usage:").next().unwrap_or_default();
    let paragraphs = reason.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ").trim_start_matches("error: ").to_owned()
    });
    let lines: Vec<String> = paragraphs
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    Refusal::new(lines.join("; "), format!("see '{program} help'"))
}
