//! A process that holds the machine-wide set-up of a peer, and always undoes it.
//!
//! ```text
//! bench ── stdin: open while wanted ──> keeper: zram, swapon, cgroup
//!       <─ stdout: one line, Ready ────
//! ```
//! Undoing starts when stdin closes, because the bench closes it or dies in any way. Signals do not
//! end the keeper, and a time limit ends the wait if the bench hangs.

use super::Unavailable;
use super::cgroup::MemoryCgroup;
use super::zram::{SwapDevice, ZramSwap};
use highwater_units::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What to hold.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Limit of the cgroup.
    pub limit: Bytes,
    /// Size of a swap area on zram; none for no swap.
    pub swap: Option<Bytes>,
    /// After this time at the latest, the set-up is undone, and all processes in the cgroup are
    /// killed.
    pub at_most: Duration,
}

/// What is in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The cgroup, for [`super::cgroup::join`].
    pub cgroup: PathBuf,
    /// The swap device, if one was planned.
    pub swap: Option<SwapDevice>,
}

/// Sets up `plan`, reports through `ready`, waits until `wanted` is closed, and undoes it.
///
/// # Errors
/// Something is not allowed (what was set up before it is undone), or cannot be undone.
pub fn keep(
    plan: Plan,
    wanted: impl AsFd,
    ready: impl FnOnce(&Ready) -> std::io::Result<()>,
) -> Result<(), Unavailable> {
    ignore_signals().map_err(|reason| Unavailable::because("signals", reason))?;
    if let Some(swap) = plan.swap {
        enough_memory(swap)?;
    }
    let cgroup =
        MemoryCgroup::create(&format!("highwater-bench-{}", std::process::id()), plan.limit)?;
    let swap = match plan.swap.map(ZramSwap::add).transpose() {
        Ok(swap) => swap,
        Err(reason) => return cgroup.remove().and(Err(reason)),
    };
    let device = swap.as_ref().map(ZramSwap::describe);
    let reported = ready(&Ready { cgroup: cgroup.dir().to_owned(), swap: device });
    if reported.is_ok() {
        wait_for_close(wanted, plan.at_most);
    }
    // The cgroup first: with its processes gone, swapoff has nothing to bring back. Both are tried.
    let emptied = cgroup.remove();
    let removed = swap.map_or(Ok(()), |swap| swap.remove());
    emptied.and(removed)
}

/// Ignores the signals that ask a process to end: they are for the bench, and the keeper waits for
/// its end.
fn ignore_signals() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGPIPE, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    Ok(())
}

/// Refuses a device that could fill the machine: zram stores incompressible pages uncompressed.
fn enough_memory(swap: Bytes) -> Result<(), Unavailable> {
    use procfs::Current;
    let read = procfs::Meminfo::current();
    let info = read.map_err(|reason| Unavailable::because("/proc/meminfo", reason))?;
    let available = Bytes(info.mem_available.unwrap_or(info.mem_free));
    if available.0 / 2 >= swap.0 {
        Ok(())
    } else {
        Err(Unavailable(format!(
            "zram swap of {swap} wants twice that available, and {available} are"
        )))
    }
}

/// Returns when the other end of `wanted` is closed, or after `at_most`.
fn wait_for_close(wanted: impl AsFd, at_most: Duration) {
    let began = Instant::now();
    let mut drained = [0; 64];
    while let Some(left) = at_most.checked_sub(began.elapsed()) {
        let mut polled = [PollFd::new(&wanted, PollFlags::IN)];
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // A wait that a signal interrupts is repeated.
        let answered = rustix::event::poll(&mut polled, Some(&left));
        if matches!(answered, Ok(1)) && !matches!(rustix::io::read(&wanted, &mut drained), Ok(1..))
        {
            return;
        }
    }
}
