//! The default swap device: a file in a directory on a disk.

use highwater_devices::{Spec, secure_var};
use highwater_units::Bytes;
use rustix::fs::{Access, StatFs, access, statfs};
use std::path::{Path, PathBuf};

/// Limits the default device: a faulty program must not fill a server's disk.
const SIZE_MAX: Bytes = Bytes(64 << 30);
/// A directory with less counts as full.
const SIZE_MIN: Bytes = Bytes(16 << 20);

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// `dir:` on the first of $TMPDIR, /var/tmp and /tmp that is writable and on a disk. Its size is
/// half the free space there, at most 64 GiB. A process that has raised its privileges does not
/// heed TMPDIR, which is that of a user with fewer.
pub fn default_swap() -> Result<Spec, String> {
    let temporary = secure_var("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let fixed = ["/var/tmp", "/tmp"].map(PathBuf::from);
    first_usable(temporary.into_iter().chain(fixed))
}

fn first_usable(dirs: impl Iterator<Item = PathBuf>) -> Result<Spec, String> {
    let mut refused = Vec::new();
    for path in dirs {
        match size_for(&path) {
            Ok(size) => return Ok(Spec::Dir { path, size }),
            Err(reason) => refused.push(format!("{}: {reason}", path.display())),
        }
    }
    Err(format!("no directory for a swap file ({})", refused.join(", ")))
}

/// The size of a default device in `dir`, or why it cannot hold one.
fn size_for(dir: &Path) -> Result<Bytes, String> {
    let usable = Access::WRITE_OK | Access::EXEC_OK;
    let status = access(dir, usable).and_then(|()| statfs(dir)).map_err(|e| e.to_string())?;
    let size = Bytes::of_pages(Bytes(free_in(&status).0 / 2).pages()).min(SIZE_MAX);
    match () {
        () if is_of_memory(&status) => Err("in memory, not on a disk".to_owned()),
        // A specification is text, so the name must be UTF-8.
        () if dir.to_str().is_none() => Err("name is not UTF-8".to_owned()),
        () if size < SIZE_MIN => Err(format!("only {} free", free_in(&status))),
        () => Ok(size),
    }
}

/// Whether files below `path` are in memory, not on a disk.
pub fn is_in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| is_of_memory(&status))
}

fn is_of_memory(status: &StatFs) -> bool {
    matches!(magic(status), TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Free space for an unprivileged user on the file system of `path`.
pub fn free_space(path: &Path) -> std::io::Result<Bytes> {
    Ok(free_in(&statfs(path)?))
}

pub(crate) fn free_in(status: &StatFs) -> Bytes {
    Bytes(status.f_bavail.saturating_mul(status.f_bsize as u64))
}

/// Magic numbers of file systems have 32 bits; the field's width and sign depend on the machine.
fn magic(status: &StatFs) -> u64 {
    status.f_type as u64 & 0xffff_ffff
}

/// The name of the file system of `path`, or its magic number in hexadecimal.
pub fn file_system_name(path: &Path) -> std::io::Result<String> {
    let magic = magic(&statfs(path)?);
    let name = match magic {
        TMPFS_MAGIC => "tmpfs",
        RAMFS_MAGIC => "ramfs",
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x794c_7630 => "overlayfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        _ => return Ok(format!("type {magic:#x}")),
    };
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_in_memory_are_known() {
        let found = ["/dev/shm", "/proc", "/nonexistent"].map(|path| is_in_memory(Path::new(path)));
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn memory_and_missing_directories_are_passed_over() {
        let dirs = ["/nonexistent", "/dev/shm"].map(PathBuf::from);
        let error = first_usable(dirs.into_iter()).unwrap_err();
        assert!(error.contains("/nonexistent: ") && error.contains("/dev/shm: in memory"));
    }

    #[test]
    fn the_default_leaves_half_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let Ok(spec) = first_usable([dir.path().to_owned()].into_iter()) else {
            // The temporary directory may be a tmpfs, or full.
            let free = free_space(dir.path()).unwrap();
            let name = file_system_name(dir.path()).unwrap();
            assert!(free < Bytes(64 << 20) || name == "tmpfs", "{free} free on {name}");
            return;
        };
        let Spec::Dir { path, size } = spec else { panic!("{spec} is no directory") };
        assert_eq!(path, dir.path());
        assert!(size >= SIZE_MIN && size <= SIZE_MAX);
    }
}
