//! `highwater-lab manual`: its man pages, from the definition of the command line.

use clap::{Args, Command};
use highwater_command::{Refusal, unwritable, write_man_pages};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write man pages
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// The installation's share directory, such as /usr/local/share
    #[arg(value_name = "DIR")]
    share: PathBuf,
}

impl Manual {
    /// Writes the files of `definition`, the whole command line.
    pub(crate) fn execute(&self, definition: Command) -> Result<ExitCode, Refusal> {
        let written = write_man_pages(&self.share, definition);
        written.map(|()| ExitCode::SUCCESS).map_err(|error| unwritable(&self.share, &error))
    }
}
