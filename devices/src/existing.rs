//! Opens an existing file or block device whose pages become those of a space.
//!
//! ```text
//! path -> File, with O_DIRECT where that works           all pages but a partial last one
//!     \-> Tail: the file again, through the page cache   the bytes of a partial last page
//! ```
//! The file keeps its length: nothing is written past its end. The rest of the last page reads as
//! zeros. If another process truncates the file, transfers of pages past the new end fail.

use crate::create::{Page, move_probe, set_direct};
use crate::device::Device;
use crate::file::{FileDevice, Opened};
use crate::tail::Tail;
use highwater_platform::{Direction, FileAccess};
use highwater_units::PAGE_SIZE;
use rustix::fs::OFlags;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The error of a file that cannot be opened; its message is one line for the user.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    /// The system's error.
    Failed(io::Error),
    /// A directory, a pipe, a terminal.
    NoFile,
    Empty,
    TooLarge,
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Failed(error)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted with escapes: a path may hold a line break, the message may not.
        write!(f, "file {:?}: ", self.path)?;
        match &self.problem {
            Problem::Failed(error) => write!(f, "{error}"),
            Problem::NoFile => f.write_str("neither a file nor a block device: give one of these"),
            Problem::Empty => {
                f.write_str("empty: there is nothing to read; give it its size first")
            }
            Problem::TooLarge => f.write_str("larger than 16 TiB: give a smaller one"),
        }
    }
}

impl std::error::Error for FileError {}

/// Opens an existing file or block device as a device of role File: page n of a space is at byte
/// n * 4096 (`Manager::add_file_space`). The last page may be partial. The file is not locked:
/// writes by others are not seen in pages that are in memory.
///
/// # Errors
/// The reason, in one line.
pub fn open_file(path: &Path, access: FileAccess) -> Result<Box<dyn Device>, FileError> {
    let failed = |problem| FileError { path: path.to_owned(), problem };
    let opened = opened(path, access).map_err(failed)?;
    Ok(Box::new(FileDevice::existing(path, access, opened)))
}

fn opened(path: &Path, access: FileAccess) -> Result<Opened, Problem> {
    let mut options = OpenOptions::new();
    options.read(true).write(access == FileAccess::ReadWrite);
    let mut through = options.open(path)?;
    let kind = through.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Problem::NoFile);
    }
    let bytes = through.seek(SeekFrom::End(0))?;
    let pages = match u32::try_from(bytes.div_ceil(PAGE_SIZE as u64)) {
        Ok(0) => return Err(Problem::Empty),
        Ok(pages) => pages,
        Err(_) => return Err(Problem::TooLarge),
    };
    // Opened through the descriptor: the name may belong to another file by now.
    let file = options.open(format!("/proc/self/fd/{}", through.as_raw_fd()))?;
    if set_direct(&file, OFlags::DIRECT).is_err() || !reads(&file, bytes) {
        set_direct(&file, OFlags::empty()).map_err(io::Error::from_raw_os_error)?;
    }
    let tail = (bytes % PAGE_SIZE as u64 > 0).then(|| Tail {
        file: Arc::new(through),
        page: pages - 1,
        bytes: (bytes % PAGE_SIZE as u64) as usize,
    });
    Ok(Opened { file, pages, tail })
}

/// Whether O_DIRECT reads of the second page work: a device with blocks of more than 4 KiB refuses
/// that offset. A file of one page is tested at its first page.
fn reads(file: &File, bytes: u64) -> bool {
    let at = if bytes >= 2 * PAGE_SIZE as u64 { PAGE_SIZE as u64 } else { 0 };
    move_probe(file, Direction::Read, &mut Page([0; PAGE_SIZE]), at).is_ok()
}
