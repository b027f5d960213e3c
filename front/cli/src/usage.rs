//! The answer to a command line that clap does not accept: help if asked for, else one line.

use crate::{Refusal, output};
use clap::error::{Error, ErrorKind};
use std::process::ExitCode;

/// Prints help and version where they were asked for; any other error becomes a refusal.
pub(crate) fn answer(error: &Error) -> Result<ExitCode, Refusal> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(output::outcome(error.print())),
        _ => Err(refusal(&error.to_string())),
    }
}

/// clap's text without the usage: what is wrong and tips, a paragraph each.
fn refusal(text: &str) -> Refusal {
    let told = text.split("Usage:").next().unwrap_or_default();
    let paragraphs = told.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ").trim_start_matches("error: ").to_owned()
    });
    let told: Vec<String> = paragraphs
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    Refusal::new(told.join("; "), "see 'highwater help'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    fn told(args: &[&str]) -> String {
        let error = crate::Cli::try_parse_from(args).err().expect("refused by clap");
        answer(&error).unwrap_err().to_string()
    }

    #[test]
    fn the_definition_is_consistent() {
        crate::Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_becomes_one_line() {
        for (args, expected) in [
            (vec!["highwater"], "requires a subcommand"),
            (vec!["highwater", "run"], "<PROGRAM>"),
            (vec!["highwater", "run", "--memry", "1G", "true"], "'--memory'"),
            (vec!["highwater", "run", "--kswapd", "17", "true"], "1 to 16"),
        ] {
            let line = told(&args);
            assert!(line.contains(expected) && line.ends_with("; see 'highwater help'"), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }
}
