//! When a process is served: from its first request for paged memory on.
//!
//! ```text
//! STATE: Idle --first request--> Starting --> Running (process.rs: PROCESS is set)
//!        |\    /                         \--> Off     (not to be served, or it failed)
//!        | Later   until main begins, of a program with a malloc of its own (begin.rs)
//!        Declined  from then on, of a program that may restrict its system calls
//! ```
//! While one thread starts the manager, its own requests go unpaged, so that nothing recurses.
//! Requests of other threads wait, since memory that they got meanwhile would stay unpaged; but
//! only for [`START_MAX`], since they may hold a lock that the start needs.

use crate::end::{end, say};
use crate::process::{Process, running, set_running};
use crate::signals::Blocked;
use crate::{advise, environment, gate, go, heap, helper, limits, pins, stack};
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_platform::Cpu;
use highwater_session::{Malloc, MapFiles, Settings, SystemCalls, come_as_signals};
use highwater_units::Nanos;
use libc::c_int;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

const IDLE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
const OFF: u32 = 3;
const LATER: u32 = 4;
const DECLINED: u32 = 5;

/// Threads that wait for a start sleep on it.
static STATE: AtomicU32 = AtomicU32::new(IDLE);

/// Whether it is undecided if this process will be served.
pub(crate) fn is_undecided() -> bool {
    STATE.load(Acquire) == IDLE
}

/// Whether a thread is starting the manager.
pub(crate) fn is_starting() -> bool {
    STATE.load(Acquire) == STARTING
}

/// This process if it is served; starts serving it if that is still undecided.
pub(crate) fn get() -> Option<&'static Process> {
    match STATE.load(Acquire) {
        RUNNING => running(),
        IDLE => start(),
        STARTING => wait_for_start(),
        _ => None,
    }
}

/// Nothing starts before [`start_put_off`].
pub(crate) fn put_off() {
    let _ = STATE.compare_exchange(IDLE, LATER, AcqRel, Relaxed);
}

/// Lets the next request start what was put off. Returns whether anything was.
pub(crate) fn allow() -> bool {
    STATE.compare_exchange(LATER, IDLE, AcqRel, Relaxed).is_ok()
}

/// This process, if it is not served yet, is not to be served: it is about to restrict its system
/// calls, and a start needs many of them.
pub(crate) fn decline() {
    for undecided in [IDLE, LATER] {
        let _ = STATE.compare_exchange(undecided, DECLINED, AcqRel, Relaxed);
    }
}

/// Whether this process is not served because its system calls may be restricted.
pub(crate) fn has_declined() -> bool {
    STATE.load(Acquire) == DECLINED
}

/// Starts what was put off.
pub(crate) fn start_put_off() {
    if allow() {
        get();
    }
}

/// How long other threads wait for a start, which takes milliseconds. A longer start may need a
/// lock that a waiting thread holds, such as the dynamic loader's.
const START_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread is starting the manager.
    static STARTS: Cell<bool> = const { Cell::new(false) };
}

/// This process if it is served once the starting thread is done.
#[cold]
pub(crate) fn wait_for_start() -> Option<&'static Process> {
    let end = Instant::now() + START_MAX;
    while is_starting() && !STARTS.get() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        futex_wait(&STATE, STARTING, Some(Nanos(left.as_nanos() as u64)));
    }
    if is_starting() { None } else { running() }
}

/// This process, as from [`get`], if it serves mappings of files.
pub(crate) fn get_for_files() -> Option<&'static Process> {
    let wanted = match running() {
        Some(process) => process.settings.map_files,
        None => environment::map_files(),
    };
    (wanted != MapFiles::Off).then(get).flatten()
}

/// The start is over: wakes the threads that wait for it.
fn finish(state: u32) {
    STATE.store(state, Release);
    futex_wake_all(&STATE);
}

/// The caller may be a thread whose stack has 16 KiB, and a start takes 38: it runs on a stack of
/// its own.
fn start() -> Option<&'static Process> {
    if STATE.compare_exchange(IDLE, STARTING, AcqRel, Acquire).is_err() {
        return get();
    }
    if stack::call_apart(start_here).is_none() {
        start_here();
    }
    running()
}

/// Decides whether this process is served, and starts that. Always returns 0.
extern "C" fn start_here() -> c_int {
    let blocked = Blocked::now();
    STARTS.set(true);
    let started = match environment::settings() {
        Ok(None) => None,
        Ok(Some(settings)) if takes_signals(&settings) => None,
        Ok(Some(settings)) => {
            pins::look_at_inherited();
            // Before there is a helper, which inherits the limit.
            limits::begin();
            Some(prepare(&settings).and_then(|()| {
                let pid = std::process::id();
                helper::start(&blocked, pid, &[], 3, move |program| {
                    Process::start(settings, program)
                })
            }))
        }
        Err(error) => Some(Err(error)),
    };
    match started {
        None => finish(OFF),
        Some(Ok(process)) => begin(process),
        Some(Err(error)) => {
            gate::give_up();
            say(&format!("process {} is not paged: {error}", std::process::id()));
            finish(OFF);
        }
    }
    STARTS.set(false);
    0
}

/// Whether the program takes the signals that it would be served by.
fn takes_signals(settings: &Settings) -> bool {
    come_as_signals(settings.faults, settings.system_calls) && go::is_running()
}

/// Prepares the gate, before a helper is started, which may inherit the filter.
fn prepare(settings: &Settings) -> Result<(), String> {
    match settings.system_calls {
        SystemCalls::Faults => Ok(()),
        SystemCalls::Copies => gate::prepare(advise::follow),
    }
}

/// Before the program has paged memory: lets system calls reach that memory.
fn close_gate(process: &Process) {
    let closed = match process.settings.system_calls {
        SystemCalls::Faults => Ok(()),
        SystemCalls::Copies => gate::close(process.manager.platform().drops_in_batches()),
    };
    if let Err(error) = closed {
        end(&format!("this program cannot be served: {error}"));
    }
}

/// Serves a process from now on; its heap serves from the first request on.
fn begin(process: &'static Process) {
    close_gate(process);
    if go::is_running() {
        go::refuse_mlockall();
    }
    // First: another thread may fork as soon as the process runs.
    heap::gate::make(process.manager.platform().cpus());
    set_running(Some(process));
    pins::carry_over(process);
    if process.settings.malloc == Malloc::All
        && let Err(error) = heap::start(process)
    {
        end(&format!("this program cannot be served: {error}"));
    }
    finish(RUNNING);
}

/// Makes a process the served one; in a forked child it replaces the parent's.
pub(crate) fn publish(process: &'static Process) {
    set_running(Some(process));
    pins::carry_over(process);
    finish(RUNNING);
    STARTS.set(false);
}

/// In a forked child: no process is served until [`publish`]. The parent's Process stays, unused.
pub(crate) fn withdraw() {
    STARTS.set(true);
    STATE.store(STARTING, Release);
    set_running(None);
}

/// In a forked child that is served once it needs a manager: requests find out whether it is
/// (`later.rs`).
pub(crate) fn put_off_child() {
    STATE.store(RUNNING, Release);
    STARTS.set(false);
}

/// In a forked child whose parent was not served: cancels the start that another thread had begun.
pub(crate) fn forget_start() {
    let _ = STATE.compare_exchange(STARTING, IDLE, AcqRel, Relaxed);
}
