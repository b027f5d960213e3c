//! The disk below a file, from /sys/dev/block.
//!
//! ```text
//! file -- st_dev --> MAJ:MIN/{queue/rotational, device/numa_node}, of the partition or the disk
//! ```
//! File systems in memory, over several disks or over a network have no such entry and count as
//! solid state, on no node. So do virtual disks, whose `rotational` is only the kernel's default.

use highwater_platform::Medium;
use highwater_units::NodeId;
use std::ffi::OsStr;
use std::fs::{File, read_link, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Drivers of virtual disks, whose `rotational` is the kernel's default.
const VIRTUAL: [&str; 2] = ["virtio_blk", "vbd"];

/// Properties of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Rotational or solid state.
    pub(crate) medium: Medium,
    /// The memory node it is attached to.
    pub(crate) node: Option<NodeId>,
}

impl Disk {
    /// The disk below an open file.
    pub(crate) fn of(file: &File) -> Disk {
        let device = file.metadata().map_or(0, |status| status.dev());
        let (major, minor) = (libc::major(device), libc::minor(device));
        Disk::at(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
    }

    /// The disk, or the disk of the partition, that a directory describes.
    fn at(dir: &Path) -> Disk {
        let places = |name: &str| [dir.join(name), dir.join("..").join(name)];
        let read = |name: &str| places(name).iter().find_map(|path| read_to_string(path).ok());
        let driver = places("device/driver").iter().find_map(|path| read_link(path).ok());
        let driver = driver.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
        let is_virtual = driver.is_some_and(|driver| VIRTUAL.contains(&driver));
        let medium = match read("queue/rotational").as_deref().map(str::trim) {
            Some("1") if !is_virtual => Medium::Rotational,
            _ => Medium::SolidState,
        };
        // The node of the disk's controller, or of the bus device above it; -1: no node.
        let nodes = ["device/numa_node", "device/device/numa_node"];
        let node = nodes.iter().find_map(|name| read(name)?.trim().parse().ok().map(NodeId));
        Disk { medium, node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    const NONE: Disk = Disk { medium: Medium::SolidState, node: None };

    /// A disk with one partition, as in /sys/dev/block.
    fn disk(rotational: &str, node: Option<&str>) -> (tempfile::TempDir, [PathBuf; 2]) {
        let dir = tempfile::tempdir().unwrap();
        let (whole, part) = (dir.path().join("sda"), dir.path().join("sda/sda1"));
        create_dir_all(&part).unwrap();
        create_dir_all(whole.join("queue")).unwrap();
        create_dir_all(whole.join("device/device")).unwrap();
        write(whole.join("queue/rotational"), rotational).unwrap();
        if let Some(node) = node {
            write(whole.join("device/device/numa_node"), node).unwrap();
        }
        (dir, [whole, part])
    }

    #[test]
    fn disks_and_partitions_are_read() {
        for (rotational, node, expected) in [
            ("1\n", None, Disk { medium: Medium::Rotational, node: None }),
            ("0\n", Some("1\n"), Disk { medium: Medium::SolidState, node: Some(NodeId(1)) }),
            ("0\n", Some("-1\n"), NONE),
        ] {
            let (_dir, paths) = disk(rotational, node);
            assert_eq!(paths.map(|path| Disk::at(&path)), [expected; 2]);
        }
    }

    #[test]
    fn virtual_disks_do_not_turn() {
        for (driver, medium) in [("virtio_blk", Medium::SolidState), ("sd", Medium::Rotational)] {
            let (_dir, paths) = disk("1\n", None);
            symlink(Path::new("../drivers").join(driver), paths[0].join("device/driver")).unwrap();
            assert_eq!(paths.map(|path| Disk::at(&path).medium), [medium; 2], "{driver}");
        }
    }

    #[test]
    fn files_on_no_disk_are_solid_state() {
        let pipe = File::open("/proc/self/status").unwrap();
        assert_eq!(Disk::of(&pipe), NONE);
    }
}
