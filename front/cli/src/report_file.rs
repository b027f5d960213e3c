//! The file of `--report`: the page or the JSON, by its extension. Locks: none.

use crate::Refusal;
use crate::report::Report;
use rustix::fs::{OFlags, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How a report is written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A page for a browser.
    Html(PathBuf),
    /// All figures.
    Json(PathBuf),
}

impl Format {
    /// The format that the extension of a path selects.
    pub(crate) fn of(path: &Path) -> Result<Format, Refusal> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        match extension.to_str() {
            Some("html" | "htm") => Ok(Format::Html(path.to_owned())),
            Some("json") => Ok(Format::Json(path.to_owned())),
            _ => {
                let what = format!("report '{}' ends in neither .html nor .json", path.display());
                Err(Refusal::new(what, "name it report.html for a page, report.json for figures"))
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Format::Html(path) | Format::Json(path) => path,
        }
    }

    fn text(&self, report: &Report) -> io::Result<String> {
        match self {
            Format::Html(_) => Ok(crate::page::html(report)),
            Format::Json(_) => Ok(serde_json::to_string_pretty(report)? + "\n"),
        }
    }
}

/// The file of a report, opened before the program starts.
pub(crate) struct ReportFile {
    format: Format,
    file: File,
}

impl ReportFile {
    /// Opens the file, or creates it. It keeps its contents: the run may still be refused.
    pub(crate) fn open(format: Format) -> Result<ReportFile, Refusal> {
        let mut options = OpenOptions::new();
        // A FIFO that no process reads is refused, not waited for.
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
        let file = options.open(format.path()).map_err(|error| {
            let what = format!("report '{}' cannot be created: {error}", format.path().display());
            let remedy = match error.raw_os_error() {
                Some(libc::ENXIO) => "start the reader of this FIFO before",
                _ => "name a file in a directory that exists and is writable",
            };
            Refusal::new(what, remedy)
        })?;
        Ok(ReportFile { format, file })
    }

    /// Empties the file: the program has started, and an earlier report is not of this run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn empty(&self) -> io::Result<()> {
        fcntl_setfl(&self.file, OFlags::empty())?;
        match self.file.metadata()?.is_file() {
            true => self.file.set_len(0),
            false => Ok(()),
        }
    }

    /// Writes the report.
    ///
    /// # Errors
    /// The file cannot be written; it then contains a part of the report.
    pub(crate) fn write(&self, report: &Report) -> io::Result<()> {
        (&self.file).write_all(self.format.text(report)?.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{report, two_processes};

    #[test]
    fn the_extension_chooses_the_format() {
        let of = |path: &str| Format::of(Path::new(path));
        assert_eq!(of("a.json"), Ok(Format::Json("a.json".into())));
        for path in ["out.html", "x.json/OUT.HTML", "b.htm"] {
            assert_eq!(of(path), Ok(Format::Html(path.into())));
        }
        for path in ["report", "a.txt", "html", ".json", "a.json.gz", ""] {
            let refusal = of(path).unwrap_err().to_string();
            assert!(refusal.contains("report.html for a page"), "{refusal}");
        }
    }

    #[test]
    fn a_file_has_what_its_name_promises() {
        let dir = tempfile::tempdir().unwrap();
        for (name, begins) in [("a.json", "{"), ("a.html", "<!DOCTYPE html>")] {
            let path = dir.path().join(name);
            std::fs::write(&path, "an earlier report").unwrap();
            let file = ReportFile::open(Format::of(&path).unwrap()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "an earlier report");
            file.empty().unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
            file.write(&report(&two_processes())).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with(begins), "{name}: {text}");
        }
    }
}
