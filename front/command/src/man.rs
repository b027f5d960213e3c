//! Man pages, from the definition of a command line.
//!
//! ```text
//! Command ── highwater-lab ──> highwater-lab.1
//!            |- bench ───────> highwater-lab-bench.1
//!            |  \- pmbench ──> highwater-lab-bench-pmbench.1     share/man/man1
//! ```

use crate::Refusal;
use clap::Command;
use clap_mangen::Man;
use std::io;
use std::path::Path;

/// Writes a page for the program and for each of its commands to man/man1 below `share`, such as
/// /usr/local/share.
///
/// # Errors
/// A file or directory cannot be written.
pub fn write_man_pages(share: &Path, definition: Command) -> io::Result<()> {
    // `highwater help run` needs no page beside that of `highwater run`.
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let version = format!("{} {}", definition.get_name(), env!("CARGO_PKG_VERSION"));
    write_pages(&share.join("man/man1"), &version, &definition)
}

fn write_pages(dir: &Path, version: &str, command: &Command) -> io::Result<()> {
    let man = Man::new(command.clone()).source(version).manual("Highwater");
    write_file(&dir.join(man.get_filename()), &page(&man)?)?;
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    command.get_subcommands().filter(shown).try_for_each(|inner| write_pages(dir, version, inner))
}

/// The page. The line breaks of the text after the options are kept.
fn page(man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    Ok(page.replace(".SH EXTRA\n", ".SH DETAILS\n.nf\n").into_bytes())
}

/// Writes a file, and creates the directories that contain it.
///
/// # Errors
/// The system's.
pub fn write_file(path: &Path, text: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::write(path, text)
}

/// The refusal of a directory that cannot be written to.
pub fn unwritable(share: &Path, error: &io::Error) -> Refusal {
    let what = format!("cannot write below '{}': {error}", share.display());
    Refusal::new(what, "name a directory that you may write to")
}
