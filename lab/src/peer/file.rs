//! An unnamed file on a disk, which no other process can open.

use super::Unavailable;
use highwater_units::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::path::Path;

/// `f_type` of tmpfs: a file there is memory, and paging it pages nothing.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// A new file without a name in `dir`, empty, gone when closed; `more` beside read and write.
///
/// # Errors
/// `dir` is no directory one may write to, cannot do `more`, or is in memory.
pub(super) fn unnamed(dir: &Path, more: OFlags) -> Result<OwnedFd, Unavailable> {
    let failed = |reason| Unavailable::because(format!("a file in {dir:?}"), reason);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
    let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    match rustix::fs::fstatfs(&file).map_err(failed)?.f_type {
        TMPFS_MAGIC => Err(Unavailable(format!("{dir:?} is in memory: give --dir on a disk"))),
        _ => Ok(file),
    }
}

/// The error for a file of `len` bytes that does not fit.
pub(super) fn no_room(dir: &Path, len: Bytes, reason: rustix::io::Errno) -> Unavailable {
    Unavailable::because(format!("file of {len} in {dir:?}"), reason)
}
