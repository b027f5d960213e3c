//! Creates the file of a device: unlinked, readable by its owner only, sparse, and checked.
//!
//! ```text
//! dir:   O_TMPFILE, or a random name created and unlinked  ->  does O_DIRECT work?
//! file:  the given name created with O_EXCL and unlinked   ->  check the length against free space
//! ```

use crate::error::Reason;
use crate::spec::Spec;
use crate::sys::transfer;
use highwater_platform::Direction;
use highwater_units::{Bytes, PAGE_SIZE};
use libc::iovec;
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, fstatfs, fstatvfs, statx};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file holds the program's memory: only its owner may read it.
const MODE: u32 = 0o600;

/// Retries if the name exists: all processes of a run open the same specification, and for each of
/// them the name exists for a moment. The waits add up to 63 ms.
const NAME_ATTEMPTS: u32 = 6;

const TMPFS_MAGIC: u32 = 0x0102_1994;
const RAMFS_MAGIC: u32 = 0x8584_58f6;

/// Creates the file of a `file:` or `dir:` device: of full length, all holes.
pub(crate) fn create(spec: &Spec) -> Result<File, Reason> {
    let file = match spec {
        Spec::Dir { path, .. } => create_unnamed(path),
        Spec::File { path, .. } => create_hidden(|| path.clone()),
        Spec::Ram { .. }
        | Spec::Zram { .. }
        | Spec::Redis { .. }
        | Spec::Nbd { .. }
        | Spec::Replicate { .. }
        | Spec::Tier { .. }
        | Spec::Flaky { .. } => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    let file = file.map_err(|error| match Reason::from_io("create the file", &error) {
        Reason::Missing if directory(spec).is_some_and(Path::is_dir) => Reason::TakesNoFiles,
        reason => reason,
    })?;
    check_size(&file, spec.size())?;
    choose_caching(&file)?;
    resize(&file, Bytes::of_pages(u64::from(spec.pages())).0)?;
    Ok(file)
}

/// The directory that the file of a device lies in.
fn directory(spec: &Spec) -> Option<&Path> {
    match spec {
        Spec::Dir { path, .. } => Some(path),
        Spec::File { path, .. } => path.parent(),
        _ => None,
    }
}

fn resize(file: &File, len: u64) -> Result<(), Reason> {
    file.set_len(len).map_err(|error| Reason::from_io("extend the file", &error))
}

fn create_unnamed(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(MODE).custom_flags(libc::O_TMPFILE | libc::O_EXCL);
    let opened = options.open(dir);
    match opened.as_ref().map_err(io::Error::raw_os_error) {
        // File systems without O_TMPFILE, and kernels that do not know it.
        Err(Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
            create_hidden(|| dir.join(random_name()))
        }
        _ => opened,
    }
}

/// Creates a file that did not exist and unlinks it before anything is written.
fn create_hidden(name: impl Fn() -> PathBuf) -> io::Result<File> {
    let mut attempt = 0;
    loop {
        let path = name();
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create_new(true).mode(MODE).open(&path);
        match opened {
            Ok(file) => return remove_file(&path).map(|()| file),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < NAME_ATTEMPTS => {
                std::thread::sleep(Duration::from_millis(1 << attempt));
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn random_name() -> String {
    let mut bytes = [0u8; 8];
    // If it fails, O_EXCL still protects a file that exists.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    format!(".highwater-{}-{:016x}", std::process::id(), u64::from_ne_bytes(bytes))
}

/// Refuses sizes that the file system or the process's limit cannot hold, so that the run fails at
/// its start. Other programs may still fill the file system later.
fn check_size(file: &File, size: Bytes) -> Result<(), Reason> {
    let limit = file_size_limit();
    if size > limit {
        return Err(Reason::FileSizeLimit { limit });
    }
    match free_space(file)? {
        Some(free) if free < size => Err(Reason::LittleSpace { free }),
        _ => Ok(()),
    }
}

/// The largest file that this process may write (RLIMIT_FSIZE). Beyond it the kernel also raises
/// SIGXFSZ.
pub fn file_size_limit() -> Bytes {
    Bytes(getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX))
}

/// Free space for this user; `None` where the file system reports none (a file system in memory
/// without a limit has size zero).
fn free_space(file: &File) -> Result<Option<Bytes>, Reason> {
    let status = fstatvfs(file)
        .map_err(|errno| Reason::from_errno("ask for free space", errno.raw_os_error()))?;
    let free = status.f_bavail.saturating_mul(status.f_frsize);
    Ok((status.f_blocks > 0).then_some(Bytes(free)))
}

/// Whether the file is on a file system in memory: its transfers never wait.
pub(crate) fn is_in_memory(file: &File) -> bool {
    // The width of the field differs by machine; the numbers have 32 bits.
    fstatfs(file).is_ok_and(|status| matches!(status.f_type as u32, TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Bypasses the page cache where that works: cached swap pages would count against the same memory
/// limit. Some file systems accept O_DIRECT and then fail transfers. If the kernel does not say
/// whether O_DIRECT works, a probe finds out, which waits for the disk twice. Leaves the file
/// empty.
fn choose_caching(file: &File) -> Result<(), Reason> {
    let direct = set_direct(file, OFlags::DIRECT).is_ok();
    if direct && supports_direct_pages(file) {
        return Ok(());
    }
    if !(direct && probe(file).is_ok()) {
        let failed = |errno| Reason::from_errno("write to the file", errno);
        set_direct(file, OFlags::empty()).and_then(|()| probe(file)).map_err(failed)?;
    }
    // The block that the probe wrote becomes a hole again.
    resize(file, 0)
}

/// Whether the kernel says that single pages can be moved with O_DIRECT. Linux 6.1 and later say so
/// on most file systems.
fn supports_direct_pages(file: &File) -> bool {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    found.is_ok_and(|found| {
        let told = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let [memory, offset] = [found.stx_dio_mem_align, found.stx_dio_offset_align];
        told && [memory, offset].iter().all(|align| (1..=PAGE_SIZE as u32).contains(align))
    })
}

/// Turns O_DIRECT on (`OFlags::DIRECT`) or off (empty) for a file that is not used yet.
pub(crate) fn set_direct(file: &File, direct: OFlags) -> Result<(), i32> {
    let set =
        fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, (flags - OFlags::DIRECT) | direct));
    set.map_err(Errno::raw_os_error)
}

/// Memory for a probe, aligned for O_DIRECT.
#[repr(align(4096))]
pub(crate) struct Page(pub(crate) [u8; PAGE_SIZE]);

/// Writes a page and reads it back, at the second page: devices with blocks of more than 4 KiB
/// refuse that offset.
fn probe(file: &File) -> Result<(), i32> {
    let mut written = Page(std::array::from_fn(|i| i as u8 ^ 0x5a));
    let at = PAGE_SIZE as u64;
    let write = move_probe(file, Direction::Write, &mut written, at)?;
    let mut read = Page([0; PAGE_SIZE]);
    let whole = [write, move_probe(file, Direction::Read, &mut read, at)?] == [PAGE_SIZE; 2];
    if whole && read.0 == written.0 { Ok(()) } else { Err(libc::EIO) }
}

/// Transfers a page, or the part of it that lies in the file; returns the number of bytes.
pub(crate) fn move_probe(
    file: &File,
    direction: Direction,
    page: &mut Page,
    at: u64,
) -> Result<usize, i32> {
    let vector = iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: PAGE_SIZE };
    loop {
        // SAFETY: the vector names the page, which is borrowed here alone.
        match unsafe { transfer(direction, file.as_fd(), &mut [vector], at) } {
            Err(libc::EINTR | libc::EAGAIN) => std::thread::yield_now(),
            moved => return moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn without_o_tmpfile_a_name_is_made_and_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = create_hidden(|| dir.path().join(random_name())).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let status = file.metadata().unwrap();
        assert_eq!((status.nlink(), status.mode() & 0o777), (0, 0o600));
    }

    #[test]
    fn a_name_in_use_for_an_instant_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap");
        std::fs::write(&path, "someone else's").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                remove_file(&path).unwrap();
            });
            create_hidden(|| path.clone()).unwrap();
        });
    }

    #[test]
    fn the_file_is_sparse_private_and_of_full_length() {
        let dir = tempfile::tempdir().unwrap();
        let size = Bytes(4 << 20);
        let file = create(&Spec::Dir { path: dir.path().into(), size }).unwrap();
        let status = file.metadata().unwrap();
        assert_eq!((status.len(), status.blocks(), status.nlink()), (size.0, 0, 0));
        assert_eq!(status.mode() & 0o777, 0o600);
    }

    #[test]
    fn sizes_beyond_the_file_system_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let spec = Spec::Dir { path: dir.path().into(), size: crate::spec::SIZE_MAX };
        assert!(matches!(create(&spec), Err(Reason::LittleSpace { .. })));
    }
}
