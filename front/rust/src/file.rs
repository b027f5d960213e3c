//! A file as a mapping: its pages are read from the file, and written back to it.

use crate::engine::Engine;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::page::PageMut;
use highwater_devices::open_file;
use highwater_mm::Range;
use highwater_platform::FileAccess;
use highwater_units::{PAGE_SIZE, Vpn};
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file in paged memory: its pages are read when they are used, and changed pages are written
/// back, at the latest when the mapping is dropped. It dereferences to a [`Mapping`], and so to a
/// slice; the budget limits how much of the file is in memory.
///
/// The file is opened with O_DIRECT where that works. It is locked (flock(2), shared for reading,
/// exclusive for writing), so that this library refuses other mappings that would not see its
/// changes. Programs that do not take the lock see changes after [`FileMapping::sync`]; changes by
/// those programs are not seen in pages that are in memory. A process that is killed loses the
/// changes that it had not synced.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = &tempfile::NamedTempFile::new()?;
/// use highwater::{FileAccess, Memory};
///
/// let memory = Memory::builder().memory("16M").swap("ram:16M").build()?;
/// let mut file = memory.map_file(path, FileAccess::ReadWrite)?;
/// file.resize(40 << 20)?;
/// file.bytes_mut()?[39 << 20] = 7;
/// file.sync()?;
/// assert_eq!(std::fs::read(path)?[39 << 20], 7);
/// # Ok(())
/// # }
/// ```
pub struct FileMapping {
    mapping: Mapping,
    file: File,
    path: PathBuf,
    access: FileAccess,
}

impl Memory {
    /// Maps a file or a block device. An empty file becomes a mapping of length 0. Each mapping
    /// reserves 256 KiB of memory, which other mappings cannot use; apart from that, only its pages
    /// in memory count.
    ///
    /// # Errors
    /// [`Error::File`]: it cannot be opened. [`Error::InUse`], [`Error::Files`], [`Error::Full`],
    /// [`Error::Addresses`], [`Error::System`], [`Error::Forked`].
    pub fn map_file(
        &self,
        path: impl AsRef<Path>,
        access: FileAccess,
    ) -> Result<FileMapping, Error> {
        let path = path.as_ref();
        self.engine().manager()?;
        let mut options = OpenOptions::new();
        options.read(true).write(access == FileAccess::ReadWrite);
        FileMapping::of(self.engine().clone(), options, path, access)
    }

    /// Makes a file of `len` zeros, replacing the contents of an existing file, and maps it for
    /// reading and writing.
    ///
    /// # Errors
    /// Those of [`Memory::map_file`]; a file that is in use elsewhere is left unchanged.
    pub fn create_file(&self, path: impl AsRef<Path>, len: usize) -> Result<FileMapping, Error> {
        let path = path.as_ref();
        self.engine().manager()?;
        let mut options = OpenOptions::new();
        // Truncated once it is locked.
        options.read(true).write(true).create(true).truncate(false);
        let engine = self.engine().clone();
        let mut file = FileMapping::of(engine, options, path, FileAccess::ReadWrite)?;
        file.resize(0)?;
        file.resize(len)?;
        Ok(file)
    }
}

impl FileMapping {
    fn of(
        engine: Arc<Engine>,
        mut options: OpenOptions,
        path: &Path,
        access: FileAccess,
    ) -> Result<FileMapping, Error> {
        // A pipe is refused, not waited for.
        options.custom_flags(libc::O_NONBLOCK);
        let opened = options.open(path).and_then(|file| {
            let kind = file.metadata()?.file_type();
            match kind.is_file() || kind.is_block_device() {
                true => Ok(file),
                false => Err(io::Error::other("neither a file nor a block device: give one")),
            }
        });
        let file = opened.map_err(|error| failed(path, error))?;
        lock(&file, path, access)?;
        let mapping = Mapping::of_nothing(engine);
        let mut made = FileMapping { mapping, file, path: path.to_owned(), access };
        let len = made.length()?;
        if len > 0 {
            let range = made.engine().add_file(pages(len))?;
            made.open(range, len).inspect_err(|_| made.engine().remove_file(range))?;
        }
        Ok(made)
    }

    fn engine(&self) -> &Arc<Engine> {
        self.mapping.engine()
    }

    /// The length of the file, in bytes.
    fn length(&self) -> Result<usize, Error> {
        let end = (&self.file).seek(SeekFrom::End(0));
        end.map(|end| end as usize).map_err(|error| failed(&self.path, error))
    }

    /// Opens the file at a range, which must have as many pages as the file.
    fn open(&mut self, range: Range, len: usize) -> Result<(), Error> {
        // By its descriptor: the name may belong to another file by now.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let device = open_file(Path::new(&path), self.access);
        let device = device.map_err(|error| failed(&self.path, io::Error::other(error)))?;
        if u64::from(device.info().pages) != range.end.0 - range.first.0 {
            let what = "another process changes its length";
            return Err(failed(&self.path, io::Error::other(what)));
        }
        let space = self.engine().open_file(device, range)?;
        self.mapping.set_file(space, range, len)
    }

    /// Whether the file is mapped for reading only, or also for writing.
    pub fn access(&self) -> FileAccess {
        self.access
    }

    /// The bytes, for writing by plain stores.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], Error> {
        self.expect_writable()?;
        Ok(&mut self.mapping)
    }

    /// As [`Mapping::write_at`].
    ///
    /// # Errors
    /// Those of [`Mapping::write_at`]; [`Error::ReadOnly`].
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        self.expect_writable()?;
        self.mapping.write_at(offset, from)
    }

    /// As [`Mapping::page_mut`].
    ///
    /// # Errors
    /// Those of [`Mapping::page_mut`]; [`Error::ReadOnly`].
    pub fn page_mut(&mut self, offset: usize) -> Result<PageMut<'_>, Error> {
        self.expect_writable()?;
        self.mapping.page_mut(offset)
    }

    /// Writes the changed pages of a range of bytes to the file, each as a whole, and makes them
    /// durable (msync(2), fdatasync(2)).
    ///
    /// # Errors
    /// [`Error::Write`]: pages that could not be written keep their changes, and a later call tries
    /// again to write them. [`Error::Range`], [`Error::Forked`].
    pub fn sync_range(&mut self, range: std::ops::Range<usize>) -> Result<(), Error> {
        let (end, len) = (range.end as u64, self.mapping.len() as u64);
        if end > len {
            return Err(Error::Range { end, len });
        }
        let manager = self.engine().manager()?;
        let Some((space, _)) = self.mapping.file() else { return Ok(()) };
        if self.access == FileAccess::Read || range.is_empty() {
            return Ok(());
        }
        let first = Vpn((range.start / PAGE_SIZE) as u64);
        Ok(manager.write_back(space, Range { first, end: Vpn(pages(range.end)) })?)
    }

    /// [`FileMapping::sync_range`] of all bytes.
    ///
    /// # Errors
    /// Those of [`FileMapping::sync_range`].
    pub fn sync(&mut self) -> Result<(), Error> {
        self.sync_range(0..self.mapping.len())
    }

    /// Changes the length of the file and of the mapping. All changes are written first; added
    /// bytes read as zeros. The address may change. Pages that were in memory are read again when
    /// they are used.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Forked`], [`Error::Write`]: the mapping is as it was. After
    /// [`Error::File`], [`Error::Full`] and [`Error::Addresses`] the mapping is empty, and the file
    /// has all changes.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        self.expect_writable()?;
        let engine = self.engine().clone();
        engine.manager()?;
        if len == self.mapping.len() && len > 0 {
            return Ok(());
        }
        if let Some((space, range)) = self.mapping.file() {
            self.mapping.end_fetches();
            engine.close_file(range, space)?;
        }
        let held = self.mapping.take_file().map(|(_, range)| range);
        let set = self.file.set_len(len as u64).map_err(|error| failed(&self.path, error));
        let range = match (set, held, pages(len)) {
            (Ok(()), None, 0) => return Ok(()),
            (Ok(()), None, new) => engine.add_file(new)?,
            (Ok(()), Some(held), new) if new > 0 => {
                engine.resize_file(held, new).inspect_err(|_| engine.remove_file(held))?
            }
            (set, held, _) => {
                held.into_iter().for_each(|held| engine.remove_file(held));
                return set;
            }
        };
        self.open(range, len).inspect_err(|_| engine.remove_file(range))
    }

    /// Writes all changes, and closes the file.
    ///
    /// # Errors
    /// Those of [`FileMapping::sync`]; the changes that could not be written are then lost.
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Closes the file; returns the error if changes are lost.
    fn end(&mut self) -> Result<(), Error> {
        self.engine().manager()?;
        self.mapping.end_fetches();
        let Some((space, range)) = self.mapping.take_file() else { return Ok(()) };
        let engine = self.engine();
        let closed = engine.close_file(range, space);
        if closed.is_err() {
            engine.abandon_file(range, space);
        }
        engine.remove_file(range);
        closed
    }

    fn expect_writable(&self) -> Result<(), Error> {
        match self.access {
            FileAccess::Read => Err(Error::ReadOnly),
            FileAccess::ReadWrite => Ok(()),
        }
    }
}

impl Deref for FileMapping {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        if self.engine().is_inherited() {
            // The lock, the file and its changes are the parent's.
            return;
        }
        if let Err(error) = self.end() {
            eprintln!("highwater: changes of file {:?} are lost: {error}", self.path);
        }
        // Explicitly: a forked child has a copy of the descriptor, which would keep the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl fmt::Debug for FileMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.mapping, self.path)
    }
}

/// Locks the file, so that no two mappings exist that would not see each other's changes.
fn lock(file: &File, path: &Path, access: FileAccess) -> Result<(), Error> {
    let operation = match access {
        FileAccess::Read => FlockOperation::NonBlockingLockShared,
        FileAccess::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, operation) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { path: path.to_owned() }),
        // A file system without locks.
        Err(error) => Err(failed(path, error.into())),
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::File { path: path.to_owned(), error }
}

fn pages(len: usize) -> u64 {
    len.div_ceil(PAGE_SIZE) as u64
}
