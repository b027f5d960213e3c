//! `highwater-lab page`: tables of results inside a page of documentation.
//!
//! Exit status: 0, 2 if the page or a source cannot be used.

use super::files::replace;
use clap::Args;
use highwater_command::Refusal;
use highwater_lab::calibrate::Calibration;
use highwater_lab::page::Sources;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write tables of results into a page of documentation, between its markers
#[derive(Debug, Args)]
pub(crate) struct Page {
    /// The page: Markdown with '<!-- results: NAME -->' or '<!-- calibration: MACHINE -->', and
    /// '<!-- end -->'
    page: PathBuf,
    /// What 'reproduce --json' wrote
    #[arg(long, value_name = "FILE")]
    results: PathBuf,
    /// What 'calibrate --json' wrote; may be repeated
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
        let written = sources.write(&text(&self.page)?);
        let written = written
            .map_err(|what| Refusal::new(format!("'{shown}', {what}"), "nothing was written"))?;
        replace(&self.page, &written).map_err(|error| {
            Refusal::new(format!("'{shown}' cannot be written: {error}"), "make it writable")
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
