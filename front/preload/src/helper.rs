//! The process beside the program that has the manager's threads: its start and its end.
//!
//! ```text
//! program                                  helper (os::helper): the same memory
//! start ----- make a Process ------------> lead: makes it, then watches the program
//! Calls::make -- closure, on the stack --> "call" threads: run it
//! Channel --- its end is closed by exec -> watch
//!         <-- descriptors for a child ---- fork.rs
//! ```
//! The manager's descriptors are in the helper's table. Threads of the program only read the
//! manager's state; a call that may use a descriptor is run by a thread of the helper
//! ([`Process::in_helper`]). The program's table has one descriptor for all of this, the channel;
//! and copies of those with which its threads serve their own faults, if they do (remote.rs).
//!
//! The helper ends after the program, or when the program executes another one: its memory is
//! unused then. It never ends earlier, because missing pages would read as zeros. If it is killed,
//! its guardian kills the program.

use crate::process::{Process, SPACE};
use crate::report::PERIOD;
use crate::signals::Blocked;
use crate::{balance, calls, descriptors, memory, program};
use highwater_os::helper::{self, Program};
use highwater_os::spawn;
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_session::HELPER_NAME;
use highwater_uffd::Delivery;
use highwater_units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, test_kill_process};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Looks up the thread-local variables that the manager's threads need.
pub(crate) use highwater_os::helper::learn;

/// The two ends of the socket that joins a program with its helper.
struct Channel {
    program: OwnedFd,
    helper: OwnedFd,
}

impl Channel {
    fn new() -> Result<Channel, Errno> {
        let (program, helper) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (program, helper) = (descriptors::raise(program), descriptors::off_streams(helper));
        Ok(Channel { program, helper })
    }
}

/// The helper's answer: it serves the process, or why it cannot.
struct Answer {
    given: AtomicU32,
    result: UnsafeCell<Option<Result<&'static Process, String>>>,
}

// SAFETY: the helper writes the result before it sets `given`, and the program reads it after.
unsafe impl Sync for Answer {}

impl Answer {
    fn give(&self, result: Result<&'static Process, String>) {
        // SAFETY: it is not read before `given` is set, and it is written once.
        unsafe { *self.result.get() = Some(result) };
        self.given.store(1, Release);
        futex_wake_all(&self.given);
    }

    /// Waits for the answer of a helper whose guardian is `guardian`.
    fn wait(&self, guardian: i32) -> Result<&'static Process, String> {
        while self.given.load(Acquire) == 0 {
            futex_wait(&self.given, 0, Some(Nanos(100_000_000)));
            let guardian = Pid::from_raw(guardian);
            let gone = guardian.is_some_and(|it| test_kill_process(it) == Err(Errno::SRCH));
            if gone && self.given.load(Acquire) == 0 {
                return Err("the helper process ended while it started".to_owned());
            }
        }
        // SAFETY: written before `given` was set.
        unsafe { (*self.result.get()).take() }.unwrap_or(Err("answered twice".to_owned()))
    }
}

/// Starts a helper of the program `pid`, which has this memory. The helper inherits the descriptors
/// `passed`, and its own have numbers from `above`. It makes a Process by `make` and serves it.
/// Signals are blocked.
///
/// # Errors
/// Why this process cannot be served, in one line.
pub(crate) fn start(
    _: &Blocked,
    pid: u32,
    passed: &[RawFd],
    above: RawFd,
    make: impl FnOnce(Program) -> Result<Process, String> + Send + 'static,
) -> Result<&'static Process, String> {
    if has_namespace_for_children() {
        return Err("its children are to be in a PID namespace of their own".to_owned());
    }
    // Without a channel, for lack of descriptors, helpers of children fetch theirs from this one.
    let channel = descriptors::with_room(Channel::new).ok();
    let own = channel.as_ref().map(|channel| channel.helper.as_raw_fd());
    let answer: &'static Answer =
        Box::leak(Box::new(Answer { given: AtomicU32::new(0), result: UnsafeCell::new(None) }));
    let keep = passed.iter().copied().chain(own).collect();
    let guardian = helper::start(HELPER_NAME, pid, keep, above, move |program| {
        // SAFETY: the helper's copy, which nothing else owns.
        let owned = |fd| unsafe { OwnedFd::from_raw_fd(helper::lift(fd, above)) };
        lead(program, own.map(owned), answer, make);
    });
    let guardian = guardian.map_err(|error| format!("no process for the manager: {error}"))?;
    if let Some(channel) = channel {
        descriptors::guard(channel.program.into_raw_fd());
    }
    let process = answer.wait(guardian)?;
    share_descriptors(process);
    Ok(process)
}

/// Gives the program copies of the descriptors with which its threads serve their faults, and of
/// those of as many swap files as there is room for. Without them the helper does this for them.
fn share_descriptors(process: &Process) {
    let platform = process.manager.platform();
    if platform.delivery(SPACE) == Delivery::Handler || descriptors::guarded().is_none() {
        return;
    }
    let mut wanted = platform.descriptors();
    let of_platform = wanted.len();
    let mut devices = Vec::new();
    // Ancestors' devices last, the oldest last of all: their number grows with the generations.
    let mut ancestors = platform.devices().fixed();
    let own = ancestors.split_off(process.inherited);
    for device in own.into_iter().chain(ancestors.into_iter().rev()).flatten() {
        let numbers = device.descriptors();
        if wanted.len() + numbers.len() <= descriptors::OTHERS_MAX {
            devices.push((device, numbers.len()));
            wanted.extend(numbers);
        }
    }
    let sent = process.in_helper(|| process.calls.send(&wanted));
    let Ok(copies) = sent.and_then(|()| calls::receive(wanted.len())) else { return };
    let raise = |fd| descriptors::raise(fd).into_raw_fd();
    let copies: Vec<RawFd> = copies.into_iter().map(raise).collect();
    descriptors::guard_others(&copies);
    platform.set_copies(&copies[..of_platform]);
    let mut rest = &copies[of_platform..];
    for (device, len) in devices {
        let (own, others) = rest.split_at(len);
        device.set_copies(own);
        rest = others;
    }
}

/// Whether the next child begins a PID namespace (unshare(CLONE_NEWPID)). That child must be one of
/// the program's: the helper's starter would end at once, and the namespace with it.
fn has_namespace_for_children() -> bool {
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let children = namespace("pid_for_children");
    children.is_some() && children != namespace("pid")
}

/// Body of the helper.
fn lead(
    program: Program,
    channel: Option<OwnedFd>,
    answer: &Answer,
    make: impl FnOnce(Program) -> Result<Process, String>,
) {
    allow_descriptors();
    program::set(program);
    let process = match make(program) {
        Ok(process) => process,
        Err(error) => return answer.give(Err(error)),
    };
    // The program may leave its directory, and unmount its file system.
    let _ = rustix::process::chdir("/");
    let process: &'static Process = Box::leak(Box::new(process));
    if let Some(share) = &process.share
        && let Err(error) = spawn("balance", Box::new(move || balance::run(process, share)))
    {
        share.leave();
        return answer.give(Err(format!("no thread to share memory: {error}")));
    }
    process.calls.start(channel.as_ref());
    // In a forked child: its parent's mappings.
    process.trim_files();
    let publish = || process.reporter.run(&process.shares);
    let publish = spawn("report", Box::new(publish));
    answer.give(Ok(process));
    process.adopt();
    let end = watch(program, channel.as_ref().map(AsFd::as_fd));
    // The program may have been killed in the middle of an allocation.
    memory::abandon();
    if publish.is_ok() {
        process.reporter.finish();
    }
    // The file may outlive this process in a forked child, which has keys of its own. First,
    // because it takes a while where pages are on a server: until then the memory is in use.
    process.manager.platform().devices().forget();
    if let Some(share) = &process.share {
        share.leave();
    }
    match end {
        End::OfProgram => process.reporter.leave(&process.settings),
        // Its next image has statistics of its own.
        End::OfImage => {}
    }
}

/// Raises the limit on descriptors: the program's limit need not be the manager's.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Whether another process has the memory of this one.
pub(crate) fn shares_memory(pid: u32) -> bool {
    NONCE.store(std::process::id() ^ 0x5bd1_e995, Release);
    use_of_memory(pid.cast_signed()) == Use::Used
}

/// A number that only this memory has at its address.
static NONCE: AtomicU32 = AtomicU32::new(0);

/// Whether a process still uses this memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used,
    Left,
}

/// Why the helper ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    OfProgram,
    /// The program has executed another one.
    OfImage,
}

/// Returns when the program has ended, or no longer uses this memory. Neither allocates nor takes a
/// lock: a killed program may leave any lock taken.
fn watch(program: Program, channel: Option<BorrowedFd<'_>>) -> End {
    NONCE.store(std::process::id() ^ 0x5bd1_e995, Release);
    // SAFETY: open as long as this process lives.
    let pidfd = unsafe { BorrowedFd::borrow_raw(program.pidfd) };
    let mut joined = channel;
    loop {
        let mut watched = [0; 2].map(|_| PollFd::new(&pidfd, PollFlags::IN));
        let period = Timespec { tv_sec: 0, tv_nsec: PERIOD.as_nanos() as i64 };
        let _ = match &joined {
            Some(channel) => {
                watched[1] = PollFd::new(channel, PollFlags::IN);
                poll(&mut watched, None)
            }
            None => poll(&mut watched[..1], Some(&period)),
        };
        let [ended, left] = watched.map(|fd| !fd.revents().is_empty());
        if ended {
            return End::OfProgram;
        }
        if left {
            joined = None;
        }
        if joined.is_none() && use_of_memory(program.pid) == Use::Left {
            return End::OfImage;
        }
    }
}

/// The channel is closed by exec, and by a program that closes unknown descriptors.
fn use_of_memory(pid: i32) -> Use {
    let mut found = 0u32;
    let len = size_of::<u32>();
    let to = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: len };
    let from = libc::iovec { iov_base: NONCE.as_ptr().cast(), iov_len: len };
    // SAFETY: writes `found`; the other address is only looked up.
    let read = unsafe { libc::process_vm_readv(pid, &raw const to, 1, &raw const from, 1, 0) };
    // If the read is refused, or the first thread ended before others, the program may still run.
    let gone = std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
    let other = read == len as isize && found != NONCE.load(Acquire);
    if other || (read < 0 && gone) { Use::Left } else { Use::Used }
}
