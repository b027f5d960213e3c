//! From the command line to the exit status.

use crate::{Refusal, output, say};
use clap::error::{ContextKind, Error, ErrorKind};
use clap::{ArgMatches, Command, Parser};
use std::ffi::OsString;
use std::process::ExitCode;

/// Parses the command line and runs `command`. A refusal is printed on standard error.
pub fn execute<C: Parser>(command: impl FnOnce(C) -> Result<ExitCode, Refusal>) -> ExitCode {
    execute_with(|_| Ok(Vec::new()), command)
}

/// Like [`execute`], with further arguments for the subcommand. `more` returns them once the
/// command line has been parsed without an error; they are inserted before the subcommand's own
/// arguments.
pub fn execute_with<C: Parser>(
    more: impl FnOnce(&ArgMatches) -> Result<Vec<OsString>, Refusal>,
    command: impl FnOnce(C) -> Result<ExitCode, Refusal>,
) -> ExitCode {
    let name = C::command().get_name().to_owned();
    say::set_program(&name);
    let own: Vec<OsString> = std::env::args_os().collect();
    let named = command_of(&C::command(), &own);
    let done = match C::command().try_get_matches_from(&own) {
        Ok(matches) => more(&matches).and_then(|more| match C::try_parse_from(joined(own, more)) {
            Ok(arguments) => command(arguments),
            Err(error) => help_or_refusal(&named, error),
        }),
        Err(error) => help_or_refusal(&named, error),
    };
    done.unwrap_or_else(|refusal| {
        say(&refusal);
        ExitCode::from(Refusal::STATUS)
    })
}

/// The arguments with `more` inserted after the names of program and subcommand.
fn joined(mut own: Vec<OsString>, more: Vec<OsString>) -> Vec<OsString> {
    let behind = own.len().min(2);
    own.splice(behind..behind, more);
    own
}

/// The program and the subcommand that the arguments name, such as `highwater run`.
fn command_of(definition: &Command, arguments: &[OsString]) -> String {
    let (mut names, mut command) = (vec![definition.get_name()], definition);
    for argument in arguments.iter().skip(1) {
        let Some(found) = command.find_subcommand(argument) else { break };
        names.push(found.get_name());
        command = found;
    }
    names.join(" ")
}

/// Prints help and version on request; any other error of clap is a refusal.
fn help_or_refusal(command: &str, error: Error) -> Result<ExitCode, Refusal> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(output::outcome(error.print())),
        _ => Err(parse_error(command, error)),
    }
}

/// The refusal of the arguments of `command` (program and subcommand): clap's error and tips on one
/// line, without the usage.
pub fn parse_error(command: &str, mut error: Error) -> Refusal {
    // clap suggests "to pass '-5' as a value, use '-- -5'", which would run a program named -5.
    error.remove(ContextKind::Suggested);
    let text = error.to_string();
    let reason = text.split("Usage:").next().unwrap_or_default();
    let paragraphs = reason.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ").trim_start_matches("error: ").to_owned()
    });
    let lines: Vec<String> = paragraphs
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    Refusal::new(lines.join("; "), format!("see '{command} --help'"))
}
