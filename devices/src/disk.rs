//! The disk below a file, as far as the system tells (/sys/dev/block).
//!
//! ```text
//! file -- st_dev --> MAJ:MIN/{queue/rotational, device/numa_node}, or those of the whole disk
//! ```
//! File systems in memory, over several disks or over a network have no such entry: solid state, on
//! no node.

use highwater_platform::Medium;
use highwater_units::NodeId;
use std::fs::{File, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What matters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Whether it turns.
    pub(crate) medium: Medium,
    /// The memory node it is attached to.
    pub(crate) node: Option<NodeId>,
}

impl Disk {
    /// The disk that an open file is on.
    pub(crate) fn of(file: &File) -> Disk {
        let device = file.metadata().map_or(0, |status| status.dev());
        let (major, minor) = (libc::major(device), libc::minor(device));
        Disk::at(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
    }

    /// The disk, or the disk of the partition, that a directory describes.
    fn at(dir: &Path) -> Disk {
        let read = |name: &str| {
            let whole = dir.join("..").join(name);
            [dir.join(name), whole].iter().find_map(|path| read_to_string(path).ok())
        };
        let medium = match read("queue/rotational").as_deref().map(str::trim) {
            Some("1") => Medium::Rotational,
            _ => Medium::SolidState,
        };
        // Of a disk's controller, or of the bus device behind that; -1 where there is no node.
        let nodes = ["device/numa_node", "device/device/numa_node"];
        let node = nodes.iter().find_map(|name| read(name)?.trim().parse().ok().map(NodeId));
        Disk { medium, node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    const NONE: Disk = Disk { medium: Medium::SolidState, node: None };

    /// A disk with one partition, as the system shows them.
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
    fn files_on_no_disk_are_solid_state() {
        let pipe = File::open("/proc/self/status").unwrap();
        assert_eq!(Disk::of(&pipe), NONE);
    }
}
