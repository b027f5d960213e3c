//! Memory that this process may use on this machine, and whether it may load static programs.
//!
//! ```text
//! HostMemory { total, available, limit }      limit: the lowest of our memory cgroup and of those
//!                                             above it
//! oom_kills                                   processes of our cgroup that the kernel has ended
//! may_name_executable                         whether it may load static programs
//! ```

use highwater_units::Bytes;
use procfs::process::{MountInfo, Process};
use procfs::{Current, Meminfo, ProcResult, ProcessCGroup};
use rustix::thread::{CapabilitySet, capabilities};
use std::path::{Path, PathBuf};

/// The control-group interface that a limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes`
    V1,
    /// `memory.max`
    V2,
}

/// A limit from a memory cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit.
    pub bytes: Bytes,
    /// The interface it was read from.
    pub version: CgroupVersion,
}

/// Installed and available memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// MemTotal.
    pub total: Bytes,
    /// MemAvailable: free, or reclaimable without swapping.
    pub available: Bytes,
    /// The lowest limit of the cgroups this process is in, if it is below the total.
    pub limit: Option<MemoryLimit>,
}

impl HostMemory {
    /// Reads /proc and the cgroup file systems.
    pub fn read() -> Result<HostMemory, String> {
        let meminfo = Meminfo::current().map_err(|e| format!("/proc/meminfo unreadable: {e}"))?;
        let total = Bytes(meminfo.mem_total);
        // A process without control groups (or without /proc/self/cgroup) has no limit.
        let limit = cgroup_limit().unwrap_or(None);
        Ok(HostMemory {
            total,
            available: Bytes(meminfo.mem_available.unwrap_or(meminfo.mem_free)),
            limit: limit.filter(|limit| limit.bytes < total),
        })
    }

    /// The memory this process can use: the total, or the limit if that is lower.
    pub fn usable(&self) -> Bytes {
        self.limit.map_or(self.total, |limit| limit.bytes.min(self.total))
    }

    /// Half of the available memory, in whole pages: leaves room for memory that is not paged.
    pub fn half_available(&self) -> Bytes {
        let available = self.limit.map_or(self.available, |limit| limit.bytes.min(self.available));
        Bytes::of_pages(Bytes(available.0 / 2).pages())
    }
}

/// The budget of a run without `--memory`.
pub fn default_memory() -> Result<Bytes, String> {
    HostMemory::read().map(|memory| memory.half_available())
}

/// The largest sensible budget: the memory this process can use.
pub fn host_memory() -> Result<Bytes, String> {
    HostMemory::read().map(|memory| memory.usable())
}

/// The processes of this one's memory cgroup that the kernel's OOM killer has ended so far. `None`:
/// there is no cgroup that counts them.
pub fn oom_kills() -> Option<u64> {
    let groups = memory_groups().ok()?.into_iter();
    let counts = groups.filter_map(|group| {
        let text = std::fs::read_to_string(group.dir.join(events_file(group.version))).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
    });
    counts.reduce(u64::max)
}

/// A cgroup of a hierarchy that can limit memory.
struct MemoryGroup {
    version: CgroupVersion,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    dir: PathBuf,
}

/// The memory cgroups of this process: one in each hierarchy.
fn memory_groups() -> ProcResult<Vec<MemoryGroup>> {
    let process = Process::myself()?;
    let mounts = process.mountinfo()?;
    let groups = process.cgroups()?.into_iter().filter_map(|group| {
        let version = version_of(&group)?;
        let (mount, dir) = mounts.0.iter().find_map(|mount| place(version, mount, &group))?;
        Some(MemoryGroup { version, mount, dir })
    });
    Ok(groups.collect())
}

fn cgroup_limit() -> ProcResult<Option<MemoryLimit>> {
    let limits = memory_groups()?.into_iter().filter_map(|MemoryGroup { version, mount, dir }| {
        Some(MemoryLimit { bytes: lowest_limit(&mount, &dir, limit_file(version))?, version })
    });
    Ok(limits.min_by_key(|limit| limit.bytes))
}

/// The version of a hierarchy that can limit memory.
fn version_of(group: &ProcessCGroup) -> Option<CgroupVersion> {
    match group.controllers.as_slice() {
        [] => Some(CgroupVersion::V2),
        names if names.iter().any(|name| name == "memory") => Some(CgroupVersion::V1),
        _ => None,
    }
}

fn limit_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    }
}

fn events_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "memory.oom_control",
        CgroupVersion::V2 => "memory.events",
    }
}

/// The mount point of `group`'s hierarchy and the group's directory, if `mount` is that hierarchy.
/// A container may see only a part of the hierarchy: the mount's root is then not "/".
fn place(
    version: CgroupVersion,
    mount: &MountInfo,
    group: &ProcessCGroup,
) -> Option<(PathBuf, PathBuf)> {
    let fits = match version {
        CgroupVersion::V1 => {
            mount.fs_type == "cgroup" && mount.super_options.contains_key("memory")
        }
        CgroupVersion::V2 => mount.fs_type == "cgroup2",
    };
    let inside = Path::new(&group.pathname).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let inside = inside.strip_prefix("/").unwrap_or(inside);
    fits.then(|| (mount.mount_point.clone(), mount.mount_point.join(inside)))
}

/// The lowest limit in `dir` and the directories above it, up to `mount`. Version 2 writes "max"
/// for no limit, version 1 a number beyond all memory.
fn lowest_limit(mount: &Path, dir: &Path, file: &str) -> Option<Bytes> {
    let groups = dir.ancestors().take_while(|dir| dir.starts_with(mount));
    let limit = |dir: &Path| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
    groups.filter_map(limit).min().map(Bytes)
}

/// Whether this process may change what its /proc/self/exe names, as loading a static program does.
pub fn may_name_executable() -> bool {
    let needed = CapabilitySet::CHECKPOINT_RESTORE | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.intersects(needed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_above_us_counts() {
        let mount = tempfile::tempdir().unwrap();
        let inner = mount.path().join("slice/scope");
        std::fs::create_dir_all(&inner).unwrap();
        let limit = || lowest_limit(mount.path(), &inner, "memory.max");
        assert_eq!(limit(), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        std::fs::write(mount.path().join("slice/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit(), Some(Bytes(1 << 20)));
        std::fs::write(inner.join("memory.max"), "4096\n").unwrap();
        assert_eq!(limit(), Some(Bytes(4096)));
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount() {
        let line = |root| format!("30 23 0:26 {root} /sys/fs/cgroup rw - cgroup2 none rw");
        let group = |path: &str| ProcessCGroup {
            hierarchy: 0,
            controllers: vec![],
            pathname: path.to_owned(),
        };
        for (root, path, dir) in [
            ("/", "/user.slice/x", "/sys/fs/cgroup/user.slice/x"),
            ("/docker/1", "/docker/1/x", "/sys/fs/cgroup/x"),
            ("/docker/1", "/docker/1", "/sys/fs/cgroup"),
            ("/", "/", "/sys/fs/cgroup"),
        ] {
            let mount = MountInfo::from_line(&line(root)).unwrap();
            let (_, found) = place(CgroupVersion::V2, &mount, &group(path)).unwrap();
            assert_eq!(found.components().collect::<PathBuf>(), Path::new(dir), "{root} {path}");
        }
    }

    #[test]
    fn a_limit_lowers_what_exists_and_the_default() {
        let gib = |n: u64| Bytes(n << 30);
        let limit = |n| Some(MemoryLimit { bytes: gib(n), version: CgroupVersion::V2 });
        let host = |limit| HostMemory { total: gib(16), available: gib(8), limit };
        for (limit, usable, half) in
            [(None, 16, 4), (limit(2), 2, 1), (limit(12), 12, 4), (limit(64), 16, 4)]
        {
            assert_eq!(
                (host(limit).usable(), host(limit).half_available()),
                (gib(usable), gib(half))
            );
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = HostMemory::read().unwrap();
        assert!(memory.available <= memory.total && memory.total > Bytes(1 << 20));
    }
}
