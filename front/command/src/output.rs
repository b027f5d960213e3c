//! The result of a command, on standard output.

use crate::say::say;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Prints a result. A failed write is reported and fails the command, except if the reader has
/// closed the pipe (`| head`).
pub fn print(text: impl Display) -> ExitCode {
    let mut out = io::stdout();
    let printed = out.write_all(format!("{text}").as_bytes()).and_then(|()| out.flush());
    outcome(printed)
}

/// The exit status after printing.
pub(crate) fn outcome(printed: io::Result<()>) -> ExitCode {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("the result could not be printed: {error}"));
            ExitCode::FAILURE
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}
