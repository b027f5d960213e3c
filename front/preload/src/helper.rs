//! The process beside this one that has the manager's threads: its start, its calls, its end.
//!
//! ```text
//! program                                  helper (os::helper): the same memory
//! start ----- make a Process ------------> lead: makes it, then watches the program
//! Calls::make -- closure, on the stack --> "call" threads: run it
//! Channel --- its end is closed by exec -> watch
//!         <-- descriptors for a child ---- fork.rs
//! ```
//! The manager's descriptors are in the helper's table alone. Threads of the program only look at
//! the manager; what may use a descriptor they have done by a thread of the helper
//! ([`Process::in_helper`]). The program's table has one descriptor for all of this, the channel.
//!
//! The helper ends after the program, or when that has become another (exec): then nobody uses the
//! memory any more. It never ends before: missing pages would read as zeros. If it is killed, its
//! guardian kills the program.
//!
//! Locking: `queue` is held to add or take a call only.

use crate::process::Process;
use crate::report::{self, PERIOD};
use crate::signals::Blocked;
use crate::{descriptors, memory};
use highwater_os::helper::{self, Program};
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_os::{OsThread, spawn};
use highwater_units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, test_kill_process};
use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Where the manager's threads learn what thread-local variables there are.
pub(crate) use highwater_os::helper::learn;

/// The two ends of what joins a program with its helper.
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

/// The program that this helper serves.
static PROGRAM: (AtomicI32, AtomicI32) = (AtomicI32::new(0), AtomicI32::new(-1));

/// The program, once a helper serves it.
pub(crate) fn program() -> Option<Program> {
    let (pid, pidfd) = (PROGRAM.0.load(Acquire), PROGRAM.1.load(Acquire));
    (pid > 0).then_some(Program { pid, pidfd })
}

/// What the helper answers once it serves, or why it cannot.
struct Answer {
    given: AtomicU32,
    result: UnsafeCell<Option<Result<&'static Process, String>>>,
}

// SAFETY: the helper writes the result before it sets `given`, and the program reads it after.
unsafe impl Sync for Answer {}

impl Answer {
    fn give(&self, result: Result<&'static Process, String>) {
        // SAFETY: nobody reads it before `given` is set, and it is given once.
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
        // SAFETY: set before `given`.
        unsafe { (*self.result.get()).take() }.unwrap_or(Err("answered twice".to_owned()))
    }
}

/// Starts a helper, which has `passed` of this process's descriptors, and uses numbers below
/// `above` for nothing of its own. It makes a Process by `make` and serves it. Signals are blocked.
///
/// # Errors
/// Why this process cannot be served, in one line.
pub(crate) fn start(
    _: &Blocked,
    passed: &[RawFd],
    above: RawFd,
    make: impl FnOnce(Program) -> Result<Process, String> + Send + 'static,
) -> Result<&'static Process, String> {
    if has_namespace_for_children() {
        return Err("its children are to be in a PID namespace of their own".to_owned());
    }
    // Without one, for want of descriptors, helpers of children ask this process's for theirs.
    let channel = descriptors::with_room(Channel::new).ok();
    let own = channel.as_ref().map(|channel| channel.helper.as_raw_fd());
    let answer: &'static Answer =
        Box::leak(Box::new(Answer { given: AtomicU32::new(0), result: UnsafeCell::new(None) }));
    let keep = passed.iter().copied().chain(own).collect();
    let guardian = helper::start(keep, above, move |program| {
        // SAFETY: the helper's copy, which nobody else has in its table.
        let owned = |fd| unsafe { OwnedFd::from_raw_fd(helper::lift(fd, above)) };
        lead(program, own.map(owned), answer, make);
    });
    let guardian = guardian.map_err(|error| format!("no process for the manager: {error}"))?;
    if let Some(channel) = channel {
        descriptors::guard(channel.program.into_raw_fd());
    }
    answer.wait(guardian)
}

/// Whether the next child begins a PID namespace (unshare(CLONE_NEWPID)): it is to be the
/// program's, not one that ends at once and the namespace with it.
fn has_namespace_for_children() -> bool {
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let children = namespace("pid_for_children");
    children.is_some() && children != namespace("pid")
}

/// The life of the helper.
fn lead(
    program: Program,
    channel: Option<OwnedFd>,
    answer: &Answer,
    make: impl FnOnce(Program) -> Result<Process, String>,
) {
    allow_descriptors();
    PROGRAM.1.store(program.pidfd, Release);
    PROGRAM.0.store(program.pid, Release);
    let process = match make(program) {
        Ok(process) => process,
        Err(error) => return answer.give(Err(error)),
    };
    // The program's directory is its own to leave, and its file system to unmount.
    let _ = rustix::process::chdir("/");
    let process: &'static Process = Box::leak(Box::new(process));
    process.calls.start(channel.as_ref());
    let publish = spawn("report", Box::new(|| process.reporter.run()));
    answer.give(Ok(process));
    watch(program, channel.as_ref().map(AsFd::as_fd));
    // The program may have been killed in the middle of an allocation.
    memory::abandon();
    if publish.is_ok() {
        process.reporter.finish();
    }
}

/// Few descriptors for the program need not mean few for the manager.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A number that only this memory has at its address.
static NONCE: AtomicU32 = AtomicU32::new(0);

/// Whether a process still uses this memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used,
    Left,
}

/// Returns when the program has ended, or uses this memory no more. Neither allocates nor waits for
/// a lock: a program that is killed may leave any of them taken.
fn watch(program: Program, channel: Option<BorrowedFd<'_>>) {
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
            return;
        }
        if left {
            joined = None;
        }
        if joined.is_none() && use_of_memory(program.pid) == Use::Left {
            return;
        }
    }
}

/// The channel is closed by exec, and by a program that closes what it does not know.
fn use_of_memory(pid: i32) -> Use {
    let mut found = 0u32;
    let len = size_of::<u32>();
    let to = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: len };
    let from = libc::iovec { iov_base: NONCE.as_ptr().cast(), iov_len: len };
    // SAFETY: writes `found`; the other address is only looked up.
    let read = unsafe { libc::process_vm_readv(pid, &raw const to, 1, &raw const from, 1, 0) };
    // Refused, or the first thread has ended before the others: the program may be here still.
    let gone = std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
    let other = read == len as isize && found != NONCE.load(Acquire);
    if other || (read < 0 && gone) { Use::Left } else { Use::Used }
}

/// A closure of a thread of the program, which waits until it was run.
#[derive(Clone, Copy)]
struct Call {
    run: unsafe fn(*const ()),
    closure: *const (),
    done: *const AtomicU32,
}

// SAFETY: the closure is Send, and lives until `done` is set.
unsafe impl Send for Call {}

/// Threads of the helper that run calls, at most.
const THREADS_MAX: usize = 8;

/// What threads of the program have the helper do.
pub(crate) struct Calls {
    queue: Mutex<Queue>,
    added: Condvar,
    /// The helper's end of the channel.
    channel: Cell<RawFd>,
}

// SAFETY: the channel is set once, before any other thread has this.
unsafe impl Sync for Calls {}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    idle: usize,
    threads: Vec<OsThread>,
}

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls { queue: Mutex::default(), added: Condvar::new(), channel: Cell::new(-1) }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a first thread run calls.
    fn start(&'static self, channel: Option<&OwnedFd>) {
        self.channel.set(channel.map_or(-1, AsRawFd::as_raw_fd));
        if let Err(error) = self.add_thread(&mut self.queue()) {
            report::end(&format!("no thread for the manager: {error}"));
        }
    }

    fn add_thread(&'static self, queue: &mut Queue) -> std::io::Result<()> {
        let name = format!("call{}", queue.threads.len());
        queue.threads.push(spawn(&name, Box::new(move || self.run()))?);
        Ok(())
    }

    /// The life of a thread that runs calls.
    fn run(&'static self) {
        loop {
            let call = self.take();
            // SAFETY: the caller waits until `done` is set; then the closure is gone.
            unsafe {
                (call.run)(call.closure);
                (*call.done).store(1, Release);
            }
            // SAFETY: only the address is used, of a word that may be gone.
            unsafe { wake_at(call.done) };
        }
    }

    fn take(&'static self) -> Call {
        let mut queue = self.queue();
        loop {
            if let Some(call) = queue.calls.pop_front() {
                // A call may take long: another thread takes the next one.
                if queue.idle == 0 && queue.threads.len() < THREADS_MAX {
                    // Without it, calls wait for each other.
                    let _ = self.add_thread(&mut queue);
                }
                return call;
            }
            queue.idle += 1;
            queue = self.added.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Runs `act` in the helper; here, if this thread is one of it. Signals are blocked meanwhile:
    /// a handler that left by a jump would take the closure's stack away.
    pub(crate) fn make<R: Send>(&self, act: impl FnOnce() -> R + Send) -> R {
        if helper::is_inside() {
            return act();
        }
        let _blocked = Blocked::now();
        let done = AtomicU32::new(0);
        let closure = Closure { act: Cell::new(Some(act)), result: Cell::new(None) };
        let call = Call {
            run: run_closure(&closure),
            closure: (&raw const closure).cast(),
            done: &raw const done,
        };
        self.queue().calls.push_back(call);
        self.added.notify_one();
        while done.load(Acquire) == 0 {
            futex_wait(&done, 0, None);
        }
        closure.result.take().expect("a call that is done has a result")
    }

    /// Sends copies of descriptors of the helper's to the program, if there is a channel.
    pub(crate) fn send(&self, descriptors: &[RawFd]) -> Result<(), Errno> {
        if self.channel.get() < 0 {
            return Ok(());
        }
        // SAFETY: open as long as the helper lives.
        let channel = unsafe { BorrowedFd::borrow_raw(self.channel.get()) };
        for few in descriptors.chunks(DESCRIPTORS_MAX) {
            // SAFETY: the caller's, open for the call.
            let few: Vec<_> = few.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
            let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&few));
            sendmsg(channel, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }
}

/// Descriptors of a message, fewer than the kernel's 253.
const DESCRIPTORS_MAX: usize = 128;
const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// Receives `count` descriptors that [`Calls::send`] has sent.
pub(crate) fn receive(count: usize) -> Result<Vec<OwnedFd>, Errno> {
    let channel = descriptors::guarded().ok_or(Errno::BADF)?;
    // SAFETY: guarded against being closed by the C library's functions; else an error follows.
    let channel = unsafe { BorrowedFd::borrow_raw(channel) };
    let mut received = Vec::new();
    while received.len() < count {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
        let before = received.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(few) = message {
                received.extend(few.map(descriptors::off_streams));
            }
        }
        if received.len() == before {
            return Err(Errno::MFILE);
        }
    }
    Ok(received)
}

struct Closure<F, R> {
    act: Cell<Option<F>>,
    result: Cell<Option<R>>,
}

/// How a closure of this type is run.
fn run_closure<F: FnOnce() -> R, R>(_: &Closure<F, R>) -> unsafe fn(*const ()) {
    /// # Safety
    /// The closure is of this type, and nobody else looks at it.
    unsafe fn run<F: FnOnce() -> R, R>(closure: *const ()) {
        // SAFETY: as the caller says.
        let closure = unsafe { &*closure.cast::<Closure<F, R>>() };
        closure.result.set(closure.act.take().map(|act| act()));
    }
    run::<F, R>
}

/// Wakes those who sleep at an address.
///
/// # Safety
/// None is needed: nothing is read there.
unsafe fn wake_at(word: *const AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address is only compared.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, i32::MAX) };
}

impl Process {
    /// Has the helper run `act`, and waits for it.
    pub(crate) fn in_helper<R: Send>(&self, act: impl FnOnce() -> R + Send) -> R {
        self.calls.make(act)
    }
}
