//! Programs of the machine that tasks call.

use crate::tidy::ROOT;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// Why a task cannot be done, in one line.
#[derive(Debug)]
pub struct Trouble(pub String);

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble(error.to_string())
    }
}

/// Cargo's directory of builds.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| Path::new(ROOT).join("target"), PathBuf::from)
}

/// Waits until `is_so`, and no longer than `limit`; returns whether it is so.
pub(crate) fn await_that(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        match () {
            () if is_so() => return true,
            () if started.elapsed() > limit => return false,
            () => sleep(POLL),
        }
    }
}

/// The text that a command prints, which must succeed.
///
/// # Errors
/// The reason: its standard error, or that it is not installed.
pub(crate) fn run(command: &mut Command) -> Result<String, Trouble> {
    output(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// [`run`], for any bytes.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Trouble> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|error| Trouble(format!("{name}: {error}")))?;
    match done.status.success() {
        true => Ok(done.stdout),
        false => {
            let errors = String::from_utf8_lossy(&done.stderr);
            Err(Trouble(format!("{name}: {}: {}", done.status, errors.trim())))
        }
    }
}
