//! Programs of the machine that the task calls.

use std::io;
use std::process::Command;

/// Why kernels cannot be run, in one line.
#[derive(Debug)]
pub struct Trouble(pub String);

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble(error.to_string())
    }
}

/// The output of a command that must succeed.
///
/// # Errors
/// The reason: its standard error, or that it is not installed.
pub(super) fn run(command: &mut Command) -> Result<String, Trouble> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| Trouble(format!("{name}: {error}")))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => {
            let errors = String::from_utf8_lossy(&done.stderr);
            Err(Trouble(format!("{name}: {}: {}", done.status, errors.trim())))
        }
    }
}
