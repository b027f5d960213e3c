//! A memory cgroup of our own, of either version.
//!
//! ```text
//! v1: a mount of type cgroup with option memory: memory.limit_in_bytes
//! v2: a mount of type cgroup2 whose root hands the memory controller on: memory.max
//! ```

use super::{Unavailable, zram};
use highwater_units::Bytes;
use procfs::process::Process;
use rustix::process::{Pid, Signal};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long killed processes may take to exit: most of the time goes into freeing their memory.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);

/// A limit on the memory of the processes in it; [`MemoryCgroup::remove`] kills them and removes
/// the cgroup.
pub(super) struct MemoryCgroup {
    dir: PathBuf,
}

impl MemoryCgroup {
    /// Creates the cgroup `name` with `limit`.
    pub(super) fn create(name: &str, limit: Bytes) -> Result<MemoryCgroup, Unavailable> {
        let (root, limit_file) = memory_hierarchy()?;
        let dir = root.join(name);
        fs::create_dir(&dir).map_err(|reason| match reason.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Unavailable("a memory cgroup needs root".into())
            }
            _ => Unavailable::because(dir.display(), reason),
        })?;
        let cgroup = MemoryCgroup { dir };
        let file = cgroup.dir.join(limit_file);
        if let Err(reason) = fs::write(&file, limit.0.to_string()) {
            cgroup.remove()?;
            return Err(Unavailable::because(file.display(), reason));
        }
        Ok(cgroup)
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kills the processes in it, waits until they are gone, and removes it.
    pub(super) fn remove(&self) -> Result<(), Unavailable> {
        let failed = |reason| Unavailable::because(self.dir.display(), reason);
        let began = Instant::now();
        loop {
            let listed = fs::read_to_string(self.dir.join("cgroup.procs")).map_err(failed)?;
            let members: Vec<_> = listed.lines().filter_map(|line| line.parse().ok()).collect();
            if members.is_empty() {
                return zram::retried(|| fs::remove_dir(&self.dir)).map_err(failed);
            }
            if began.elapsed() > EMPTY_WITHIN {
                return Err(Unavailable(format!("{}: not empty", self.dir.display())));
            }
            for pid in members.into_iter().filter_map(Pid::from_raw) {
                // The process may have exited by itself: the list is read again anyway.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Moves this process into the cgroup `dir`.
///
/// # Errors
/// There is no such cgroup, or it may not be entered.
pub fn join(dir: &Path) -> Result<(), Unavailable> {
    fs::write(dir.join("cgroup.procs"), "0")
        .map_err(|reason| Unavailable::because(dir.display(), reason))
}

/// The root of the hierarchy that has the memory controller, and its file for the limit.
fn memory_hierarchy() -> Result<(PathBuf, &'static str), Unavailable> {
    let mounts = Process::myself().and_then(|process| process.mountinfo());
    let mounts = mounts.map_err(|reason| Unavailable::because("mountinfo", reason))?;
    let of_type = |kind: &'static str| mounts.iter().filter(move |mount| mount.fs_type == kind);
    let v1 = of_type("cgroup").find(|mount| mount.super_options.contains_key("memory"));
    if let Some(mount) = v1 {
        return Ok((mount.mount_point.clone(), "memory.limit_in_bytes"));
    }
    let hands_on = |root: &Path| {
        let controllers = fs::read_to_string(root.join("cgroup.subtree_control"));
        controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
    };
    let v2 = of_type("cgroup2").find(|mount| hands_on(&mount.mount_point));
    v2.map(|mount| (mount.mount_point.clone(), "memory.max"))
        .ok_or_else(|| Unavailable("no cgroup hierarchy has the memory controller".into()))
}
