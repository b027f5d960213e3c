//! Files that commands write beside their result, and failures of simulations.

use highwater_command::{Refusal, say};
use highwater_lab::simulate::BadSetting;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn refusal(bad: BadSetting) -> Refusal {
    Refusal::new(bad.what, bad.remedy)
}

/// Prints why a run or a measurement failed.
pub(crate) fn failed(error: impl Display) -> ExitCode {
    say(error);
    ExitCode::FAILURE
}

pub(crate) fn create(path: &Path) -> Result<File, Refusal> {
    File::create(path).map_err(|error| not_created(path, &error))
}

/// Refuses a file that [`replace`] could not write, and leaves what is in it.
pub(crate) fn check_writable(path: &Path) -> Result<(), Refusal> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| not_created(path, &error))
}

fn not_created(path: &Path, error: &io::Error) -> Refusal {
    let what = format!("'{}' cannot be created: {error}", path.display());
    Refusal::new(what, "name a file in a directory that exists and is writable")
}

/// Replaces a file as a whole, so that it is never half written.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, path)
}

/// Writes a file. A failed write is reported, and the command continues: its result is printed.
pub(crate) fn write(
    what: &str,
    file: &File,
    contents: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) {
    let mut to = BufWriter::new(file);
    let written = contents(&mut to).and_then(|()| to.flush());
    if let Err(error) = written {
        say(format_args!("the {what} could not be written: {error}"));
    }
}
