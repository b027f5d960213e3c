//! Reads the host's clocks.
//!
//! Calls the C library, not rustix: at its first use rustix would search the vDSO, and may allocate
//! for that.

use highwater_units::Nanos;

/// Reads a clock; 0 if it does not exist.
fn read(clock: libc::clockid_t) -> Nanos {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills `now`, or fails.
    unsafe { libc::clock_gettime(clock, &mut now) };
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Monotonic time.
pub fn monotonic() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread.
pub fn thread_cpu_time() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of a process; 0 if it has ended.
pub fn process_cpu_time(pid: i32) -> Nanos {
    /// CPUCLOCK_SCHED for a process (include/linux/posix-timers.h).
    const OF_PROCESS: libc::clockid_t = 2;
    read(!pid << 3 | OF_PROCESS)
}
