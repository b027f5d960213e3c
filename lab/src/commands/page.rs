//! `highwater-lab page`: tables and pictures of results inside a page of documentation.
//!
//! Exit status: 0, 2 if the page or a source cannot be used.

use super::files::replace;
use clap::Args;
use highwater_command::Refusal;
use highwater_lab::calibrate::Calibration;
use highwater_lab::page::{Sources, Written};
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write result tables between the markers of a documentation page, and its pictures beside it
///
/// The pictures go to a directory next to the page that has the page's name without '.md'.
#[derive(Debug, Args)]
pub(crate) struct Page {
    /// The Markdown page; a table goes between '<!-- results: NAME -->' or
    /// '<!-- calibration: MACHINE -->' and '<!-- end -->'
    page: PathBuf,
    /// A file that 'reproduce --json' wrote
    #[arg(long, value_name = "FILE")]
    results: PathBuf,
    /// A file that 'calibrate --json' wrote (may be repeated)
    #[arg(long, value_name = "FILE")]
    calibration: Vec<PathBuf>,
}

fn text(path: &Path) -> Result<String, Refusal> {
    std::fs::read_to_string(path).map_err(|error| {
        let what = format!("'{}' cannot be read: {error}", path.display());
        Refusal::new(what, "name a file that exists")
    })
}

fn parsed<T: DeserializeOwned>(path: &Path, by: &str) -> Result<T, Refusal> {
    serde_json::from_str(&text(path)?).map_err(|error| {
        let what = format!("'{}' has no such results: {error}", path.display());
        Refusal::new(what, format!("name a file that '{by} --json' wrote"))
    })
}

/// Writes the pictures, then the page that shows them.
fn save(page: &Path, directory: &Path, written: &Written) -> io::Result<()> {
    if !written.pictures.is_empty() {
        std::fs::create_dir_all(directory)?;
    }
    for (file, svg) in &written.pictures {
        replace(&directory.join(file), svg)?;
    }
    replace(page, &written.page)
}

impl Page {
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> Result<ExitCode, Refusal> {
        let mut sources =
            Sources { results: parsed(&self.results, "reproduce")?, ..Sources::default() };
        for path in &self.calibration {
            let found: Calibration = parsed(path, "calibrate")?;
            sources.calibrations.insert(found.machine.clone(), found);
        }
        let shown = self.page.display();
        let directory = self.page.with_extension("");
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let written = sources.write(&text(&self.page)?, &name);
        let written = written
            .map_err(|what| Refusal::new(format!("'{shown}', {what}"), "nothing was written"))?;
        save(&self.page, &directory, &written).map_err(|error| {
            let what = format!("'{shown}' or its pictures cannot be written: {error}");
            Refusal::new(what, "make them writable")
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
