//! What this machine allows, as items: a fact, a verdict, and what to change.
//!
//! ```text
//! facts (probe, /proc, /sys) ---> Item { name, status, found, change }
//! requirements(): items without which nothing runs     `run` refuses with the first that fails
//! advice():       all other items                      `doctor` prints both
//! ```

use crate::Refusal;
use crate::faults::Permitted;
use crate::probe::{self, Denied, Faults, Userfaultfd, Way};
use highwater_session::{
    CgroupVersion, FaultThreads, HostMemory, Mapping, RANGE_AND_OWN, SystemCalls,
};
use highwater_units::Bytes;
use procfs::sys::kernel::Version;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// The kernel's default for vm.max_map_count, a limit that arena and program share.
const MAPS_MIN: u64 = 65_530;

/// The fewest descriptors that a process may have: the library opens 12 of them and some for each
/// swap device, up to one for each server of a cluster; the program needs the others.
const DESCRIPTORS_MIN: u64 = 64;

/// The verdict on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Ok,
    /// Works, but slower or with less room than possible.
    Warn,
    /// `highwater run` does not work.
    Fail,
}

/// One fact about this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Item {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    /// What was found.
    pub(crate) found: String,
    /// What to change; empty if nothing.
    pub(crate) change: Option<String>,
}

impl Item {
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Item {
        Item { name, status: Status::Ok, found: found.into(), change: None }
    }

    pub(crate) fn warn(name: &'static str, found: impl Into<String>, change: &str) -> Item {
        let change = Some(change.to_owned());
        Item { name, status: Status::Warn, found: found.into(), change }
    }

    pub(crate) fn fail(name: &'static str, found: impl Into<String>, change: &str) -> Item {
        Item { status: Status::Fail, ..Item::warn(name, found, change) }
    }

    /// The item for a refusal.
    pub(crate) fn refused(name: &'static str, refusal: &Refusal) -> Item {
        Item::fail(name, refusal.what(), refusal.remedy())
    }

    /// The refusal for an item that fails.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let remedy = || self.change.clone().unwrap_or_default();
        let what = || format!("{}: {}", self.name, self.found);
        (self.status == Status::Fail).then(|| Refusal::new(what(), remedy()))
    }
}

/// Items without which no program can be served.
pub(crate) fn requirements(mapping: Mapping, system_calls: SystemCalls) -> Vec<Item> {
    let probed = match system_calls {
        SystemCalls::Faults => probe::userfaultfd(),
        SystemCalls::Copies => probe::userfaultfd_of_user_mode(),
    };
    let mut items = vec![descriptors(getrlimit(Resource::Nofile).current)];
    items.extend(userfaultfd(probed, mapping));
    items.push(overcommit(&read_line("/proc/sys/vm/overcommit_memory")));
    for (name, flag, resource) in
        [("address space", "-v", Resource::As), ("data", "-d", Resource::Data)]
    {
        let limit = getrlimit(resource);
        items.push(addresses(name, flag, limit.current, limit.maximum));
    }
    items
}

/// The userfaultfds that this process may have.
pub(crate) fn permitted() -> Permitted {
    Permitted {
        all: probe::userfaultfd().is_ok(),
        user_mode: probe::userfaultfd_of_user_mode().is_ok(),
    }
}

/// Which threads serve page faults.
pub(crate) fn page_faults(threads: FaultThreads) -> Item {
    const NAME: &str = "page faults";
    match threads {
        FaultThreads::InThread => Item::ok(NAME, "served by the thread that faults"),
        FaultThreads::Handlers => Item::ok(NAME, "served by threads beside the program"),
    }
}

/// Items that affect speed and room only.
pub(crate) fn advice() -> Vec<Item> {
    let mut items = vec![kernel(), io_uring()];
    items.extend(memory());
    items.push(huge_pages(&read_line("/sys/kernel/mm/transparent_hugepage/enabled")));
    items.push(maps(procfs::sys::vm::max_map_count().ok()));
    items
}

/// The first line of a small file in /proc or /sys; empty if it cannot be read.
fn read_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn kernel() -> Item {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match Version::current() {
        Ok(version) if version < Version::new(6, 8, 0) => {
            Item::warn("kernel", release, "Linux 6.8 or later shows which pages direct I/O uses")
        }
        _ => Item::ok("kernel", release),
    }
}

fn userfaultfd(probed: Result<Userfaultfd, Denied>, mapping: Mapping) -> Vec<Item> {
    const NAME: &str = "userfaultfd";
    match probed {
        Ok(granted) => {
            let way = match (granted.faults, granted.way) {
                (Faults::All, Way::Device) => "permitted, by /dev/userfaultfd",
                (Faults::All, Way::SystemCall) => "permitted, by the system call",
                (Faults::UserMode, Way::Device) => {
                    "permitted for faults of user mode, by /dev/userfaultfd"
                }
                (Faults::UserMode, Way::SystemCall) => "permitted for faults of user mode",
            };
            let calls = match granted.faults {
                Faults::All => "paged buffers are read by faults of the kernel",
                Faults::UserMode => "get copies of paged buffers (--system-calls copies)",
            };
            vec![
                Item::ok(NAME, way),
                Item::ok("system calls", calls),
                page_move(granted, mapping),
                write_protection(granted),
            ]
        }
        Err(denied) => vec![userfaultfd_denied(NAME, denied)],
    }
}

fn userfaultfd_denied(name: &'static str, denied: Denied) -> Item {
    // The remedy that weakens the machine least comes first (docs/security.md).
    const PERMIT: &str = "use --system-calls copies, or get access to /dev/userfaultfd, or run as \
        root, or 'sysctl vm.unprivileged_userfaultfd=1'; in docker also \
        --device /dev/userfaultfd, or --security-opt seccomp=unconfined, which lifts the filter \
        from all system calls";
    const FILTER: &str = "in docker add --device /dev/userfaultfd (Linux 6.1; for users other than \
        root also --group-add GID, after 'chgrp GID' and 'chmod 660' of it on the host), or \
        --security-opt seccomp=unconfined, which lifts the filter from all system calls";
    match denied {
        Denied::NotInKernel => {
            let change = "use a kernel built with CONFIG_USERFAULTFD";
            Item::fail(name, "not in this kernel", change)
        }
        Denied::UserModeUnknown => {
            let found = "not for faults of user mode alone: this kernel is older than 5.14";
            Item::fail(name, found, "leave out --faults in-thread and --system-calls copies")
        }
        Denied::Unprivileged => {
            let found = "permitted to root alone, and this kernel is older than 5.14";
            Item::fail(name, found, "run as root, or 'sysctl vm.unprivileged_userfaultfd=1'")
        }
        Denied::UserModeOnly => {
            let found = "not permitted for kernel-mode faults, so that system calls into paged \
                buffers would fail";
            Item::fail(name, found, PERMIT)
        }
        Denied::Filtered => Item::fail(name, "not permitted, by a seccomp filter", FILTER),
        Denied::Error(number) => {
            let error = std::io::Error::from_raw_os_error(number);
            Item::fail(name, format!("refused: {error}"), PERMIT)
        }
    }
}

fn page_move(granted: Userfaultfd, mapping: Mapping) -> Item {
    const NAME: &str = "page move";
    const CHANGE: &str = "use Linux 6.8 or later";
    match (granted.can_move(), mapping) {
        (true, _) => Item::ok(NAME, "UFFDIO_MOVE: pages that direct I/O uses stay in memory"),
        (false, Mapping::Move) => Item::fail(NAME, "no UFFDIO_MOVE in this kernel", CHANGE),
        (false, _) => {
            let copied = "no UFFDIO_MOVE: no direct I/O into paged buffers";
            Item::warn(NAME, copied, CHANGE)
        }
    }
}

fn write_protection(granted: Userfaultfd) -> Item {
    const NAME: &str = "write protection";
    const CHANGE: &str = "use Linux 5.7 or later, built with CONFIG_HAVE_ARCH_USERFAULTFD_WP";
    match (granted.can_write_protect(), granted.can_move()) {
        (true, _) => Item::ok(NAME, "of anonymous memory"),
        (false, true) => Item::warn(NAME, "missing: every evicted page counts as dirty", CHANGE),
        (false, false) => Item::fail(NAME, "missing, and no UFFDIO_MOVE either", CHANGE),
    }
}

fn io_uring() -> Item {
    match io_uring::IoUring::new(2) {
        Ok(_) => Item::ok("io_uring", "available"),
        Err(error) => Item::warn(
            "io_uring",
            format!("not available ({error}): pread and pwrite are used"),
            "leave it where it was disabled for safety: they differ in CPU time; else 'sysctl \
             kernel.io_uring_disabled=0'",
        ),
    }
}

fn memory() -> Vec<Item> {
    let memory = match HostMemory::read() {
        Ok(memory) => memory,
        Err(error) => return vec![Item::warn("memory", error, "mount /proc")],
    };
    let limit = memory.limit.map_or("no limit".to_owned(), |limit| {
        let version = match limit.version {
            CgroupVersion::V1 => "cgroup v1",
            CgroupVersion::V2 => "cgroup v2",
        };
        format!("{}, by {version}", limit.bytes)
    });
    vec![
        Item::ok("memory", format!("{}, {} available", memory.total, memory.available)),
        Item::ok("memory limit", limit),
    ]
}

fn huge_pages(enabled: &str) -> Item {
    const NAME: &str = "huge pages";
    let mode = enabled.split(['[', ']']).nth(1);
    match mode {
        Some(mode) => Item::ok(NAME, format!("{mode}; paged memory is exempt")),
        None => Item::ok(NAME, "not in this kernel"),
    }
}

fn overcommit(mode: &str) -> Item {
    const NAME: &str = "overcommit";
    match mode {
        "2" => Item::fail(
            NAME,
            "vm.overcommit_memory=2 refuses to reserve more addresses than there is memory",
            "'sysctl vm.overcommit_memory=0'",
        ),
        mode => Item::ok(NAME, format!("vm.overcommit_memory={mode}")),
    }
}

/// The item of a limit that counts the whole range of paged memory. Each process raises its soft
/// limit by the size of this range, where the hard limit permits it.
fn addresses(name: &'static str, flag: &str, soft: Option<u64>, hard: Option<u64>) -> Item {
    let Some(soft) = soft else { return Item::ok(name, "no limit") };
    let may_rise = hard.is_none_or(|hard| hard.saturating_sub(soft) >= RANGE_AND_OWN);
    let limit = Bytes(soft);
    match may_rise || soft >= RANGE_AND_OWN {
        true => Item::ok(name, format!("limit {limit}")),
        false => Item::fail(
            name,
            format!("limited to {limit}, too little to reserve the paged range in"),
            &format!("'ulimit {flag} unlimited'"),
        ),
    }
}

/// The item of the limit on descriptors. With too few, the library cannot serve a process, and the
/// program would run without a budget.
fn descriptors(soft: Option<u64>) -> Item {
    const NAME: &str = "descriptors";
    match soft {
        None => Item::ok(NAME, "no limit"),
        Some(soft) if soft < DESCRIPTORS_MIN => {
            let change = format!("'ulimit -n {DESCRIPTORS_MIN}', or more");
            Item::fail(NAME, format!("ulimit -n is {soft}, too few to serve a program"), &change)
        }
        Some(soft) => Item::ok(NAME, format!("limit {soft}")),
    }
}

fn maps(most: Option<u64>) -> Item {
    const NAME: &str = "mappings";
    match most {
        Some(most) if most < MAPS_MIN => Item::warn(
            NAME,
            format!("vm.max_map_count={most}, below the default"),
            "'sysctl vm.max_map_count=65530'",
        ),
        Some(most) => Item::ok(NAME, format!("vm.max_map_count={most}")),
        None => Item::ok(NAME, "vm.max_map_count not known"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_well_says_what_to_change() {
        let denials = [
            Denied::NotInKernel,
            Denied::UserModeOnly,
            Denied::UserModeUnknown,
            Denied::Unprivileged,
            Denied::Filtered,
            Denied::Error(12),
        ];
        let mut items = vec![
            overcommit("2"),
            addresses("data", "-d", Some(1 << 30), Some(1 << 43)),
            descriptors(Some(DESCRIPTORS_MIN - 1)),
            maps(Some(100)),
        ];
        items.extend(denials.map(|denied| userfaultfd_denied("userfaultfd", denied)));
        for item in items {
            assert_ne!(item.status, Status::Ok);
            assert!(item.change.is_some_and(|change| !change.is_empty()), "{}", item.found);
        }
    }

    #[test]
    fn user_mode_faults_are_not_enough_without_copies() {
        let refusal = userfaultfd(Err(Denied::UserModeOnly), Mapping::Auto)[0].refusal().unwrap();
        assert!(refusal.remedy().starts_with("use --system-calls copies"));
        for remedy in ["root", "vm.unprivileged_userfaultfd=1", "/dev/userfaultfd", "seccomp"] {
            assert!(refusal.remedy().contains(remedy), "{refusal}");
        }
        assert!(refusal.what().contains("kernel-mode"));
    }

    /// Copies need faults of user mode alone and MADV_POPULATE_READ, which kernels before 5.14 do
    /// not have together.
    #[test]
    fn kernels_before_5_14_are_not_told_to_use_copies() {
        for denied in [Denied::UserModeUnknown, Denied::Unprivileged] {
            let item = userfaultfd_denied("userfaultfd", denied);
            assert!(!item.change.unwrap_or_default().contains("use --system-calls copies"));
        }
    }

    #[test]
    fn without_move_pages_are_copied_unless_that_was_ruled_out() {
        let status = |features, mapping| {
            let granted = Userfaultfd::with_features(features);
            (page_move(granted, mapping).status, write_protection(granted).status)
        };
        use Status::*;
        use probe::{FEATURE_MOVE as MOVE, FEATURE_PAGEFAULT_FLAG_WP as PROTECT};
        assert_eq!(status(MOVE | PROTECT, Mapping::Auto), (Ok, Ok));
        assert_eq!(status(MOVE, Mapping::Move), (Ok, Warn));
        assert_eq!(status(PROTECT, Mapping::Auto), (Warn, Ok));
        assert_eq!(status(PROTECT, Mapping::Move), (Fail, Ok));
        assert_eq!(status(0, Mapping::Copy), (Warn, Fail));
    }

    #[test]
    fn limits_are_judged() {
        let of_data = |soft, hard| addresses("data", "-d", soft, hard).status;
        assert_eq!(of_data(None, None), Status::Ok);
        assert_eq!(of_data(Some(1 << 30), None), Status::Ok);
        assert_eq!(of_data(Some(2 << 40), Some(13 << 40)), Status::Fail);
        assert_eq!(of_data(Some(13 << 40), Some(13 << 40)), Status::Ok);
        assert_eq!(descriptors(Some(10)).status, Status::Fail);
        assert_eq!(descriptors(Some(DESCRIPTORS_MIN)).status, Status::Ok);
        assert_eq!(descriptors(None).status, Status::Ok);
        assert_eq!(overcommit("0").status, Status::Ok);
        assert_eq!(maps(Some(65_530)).status, Status::Ok);
        assert!(huge_pages("always [madvise] never").found.starts_with("madvise"));
    }
}
