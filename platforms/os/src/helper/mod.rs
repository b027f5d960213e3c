//! The helper: a process that shares the memory of the program and nothing else. Its threads are
//! the manager's.
//!
//! ```text
//! program --- starter    vfork; ends at once, so that the program has no additional child
//!                \- guardian   waits for the helper; if the helper dies, kills the program
//!                       \- helper    the manager's threads
//! memory       one, shared by all                       CLONE_VM
//! descriptors  the program's, and a copy for guardian and helper that has only a few of them
//! credentials, signal handlers, thread and process group: the program's, and the helper's own
//! ```
//! The C library does not know the helper's threads: it does not count them when the last thread of
//! the program ends and does not run setuid(2) in them, and the program cannot join or signal them.
//! To the kernel they are not threads of the program either. So the program can unshare its user
//! namespace, and the descriptors that it closes, the privileges that it drops and the filters that
//! it loads do not affect them; the program's limit on descriptors does not affect them either, as
//! far as the system permits. A debugger of the program does not stop them (CLONE_UNTRACED), so it
//! can read pages that are swapped out.
//!
//! The C library skips the locks of its malloc and stdio while the program has one thread, and then
//! wakes no thread that waits for the dynamic loader's. So code that runs in the helper must use
//! none of these, dl_iterate_phdr included, and must start threads by [`spawn`] only.

mod clone;
mod descriptors;
mod tls;

use clone::{Block, Ended, Task, flags};
pub use descriptors::{descriptor_of, identity_of, lift, number_in_proc, renumber};
use std::cell::Cell;
use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
pub use tls::learn;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread belongs to a helper.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// The process whose memory a helper manages.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its number, as it sees itself.
    pub pid: i32,
    /// Its number in /proc, which may be for another PID namespace; 0: /proc does not show it.
    pub in_proc: i32,
    /// A descriptor in the helper that is readable when the process has ended.
    pub pidfd: RawFd,
}

impl Program {
    /// Writes to the program's standard error, if the system permits that.
    fn say(self, line: &str) {
        let (call, stream) = (libc::SYS_pidfd_getfd, libc::STDERR_FILENO);
        // SAFETY: requests a descriptor, and writes a line that lives for the call.
        unsafe {
            let copy = libc::syscall(call, self.pidfd, stream, 0);
            let stream = if copy < 0 { self.open(stream) } else { copy };
            libc::syscall(libc::SYS_write, stream, line.as_ptr(), line.len());
        }
    }

    /// Opens the file of a program's descriptor for writing, through /proc: containers refuse
    /// pidfd_getfd. Does not allocate. -1: the system refuses.
    fn open(self, descriptor: i32) -> i64 {
        let mut path = [0; 48];
        if write!(&mut path[..], "/proc/{}/fd/{descriptor}\0", self.in_proc).is_err() {
            return -1;
        }
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC;
        // SAFETY: a path that ends with a zero and lives for the call.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }
    }

    /// Kills the program.
    pub fn kill(self) {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        let (call, signal) = (libc::SYS_pidfd_send_signal, libc::SIGKILL);
        // SAFETY: a signal to the process of a descriptor that this process owns.
        unsafe { libc::syscall(call, self.pidfd, signal, no_info, 0) };
    }
}

/// The arguments of a helper's start. Lives until its first thread has taken the body.
struct Start<F> {
    name: &'static CStr,
    program: Program,
    keep: Vec<RawFd>,
    above: RawFd,
    body: Cell<Option<F>>,
    guardian: Block,
    helper: Cell<Option<Block>>,
    /// The guardian's pid, or minus the error number of its clone; 0: not cloned yet.
    made: AtomicI32,
}

/// Starts a helper of the program `pid`, which owns this memory. The helper runs `body` and ends
/// when `body` returns. Returns the pid of the guardian. `name` is the name (comm) of both. The
/// helper has copies of the descriptors `keep`, standard streams on /dev/null, and its own
/// descriptors with numbers of at least `above`. The caller has blocked all signals: the helper's
/// threads inherit the mask.
///
/// # Errors
/// The system refuses a process, or [`learn`] found an unknown layout of thread-local variables.
pub fn start<F>(
    name: &'static CStr,
    pid: u32,
    keep: Vec<RawFd>,
    above: RawFd,
    body: F,
) -> io::Result<i32>
where
    F: FnOnce(Program) + Send + 'static,
{
    let scratch = Block::new(tls::STACK_BYTES)?;
    let start = Box::new(Start {
        name,
        program: Program { pid: pid.cast_signed(), in_proc: 0, pidfd: -1 },
        keep,
        above,
        body: Cell::new(Some(body)),
        guardian: Block::new(tls::STACK_BYTES)?,
        helper: Cell::new(Some(Block::new(tls::STACK_BYTES)?)),
        made: AtomicI32::new(0),
    });
    let start = Box::into_raw(start);
    let task = Task { entry: starter::<F>, argument: start.cast() };
    // SAFETY: the starter runs on its own stack while this thread waits. `start` is leaked: the
    // guardian's stack is in use as long as the guardian lives.
    let made = unsafe { clone::clone(flags::STARTER, &scratch, task, clone::Words::none()) };
    // The starter has ended, because this thread runs: only its status is left to collect.
    clone::wait(made.map_err(io::Error::from_raw_os_error)?);
    drop(scratch);
    // SAFETY: leaked above; the starter stored the number before it ended.
    match unsafe { (*start).made.load(Acquire) } {
        0 => Err(io::ErrorKind::Interrupted.into()),
        error @ ..0 => Err(io::Error::from_raw_os_error(-error)),
        guardian => Ok(guardian),
    }
}

/// Clones the guardian and ends. Runs with the thread-local variables of the thread that waits.
extern "C" fn starter<F: FnOnce(Program) + Send + 'static>(argument: *mut libc::c_void) -> i32 {
    let start = argument.cast::<Start<F>>();
    // SAFETY: the box of `start`, whose thread waits.
    let start = unsafe { &mut *start };
    let task = Task { entry: guardian::<F>, argument };
    // SAFETY: the guardian has its own stack and thread-local variables, which are leaked.
    let made = unsafe { clone::clone(flags::PROCESS, &start.guardian, task, clone::Words::none()) };
    start.made.store(made.unwrap_or_else(|error| -error), Release);
    0
}

/// Clones the helper and waits for its end. The guardian shares the helper's descriptors: they stay
/// open until the guardian ends, so that no page of the program can read as zeros.
extern "C" fn guardian<F: FnOnce(Program) + Send + 'static>(argument: *mut libc::c_void) -> i32 {
    INSIDE.set(true);
    // SAFETY: leaked by `start`, and used by the guardian alone until it clones the helper.
    let start = unsafe { &mut *argument.cast::<Start<F>>() };
    clone::begin(start.name);
    clone::leave_group();
    descriptors::close_others(&start.keep);
    descriptors::raise_limit();
    // Not opened earlier, because the program may be at its limit of descriptors.
    start.program.pidfd = lift(descriptors::pidfd_open(start.program.pid), start.above);
    start.program.in_proc = number_in_proc(start.program.pidfd);
    let block = start.helper.take().expect("cloned once");
    let task = Task { entry: helper::<F>, argument };
    // SAFETY: as for the guardian; the block is leaked.
    let made = unsafe { clone::clone(flags::PROCESS, &block, task, clone::Words::none()) };
    std::mem::forget(block);
    match made.map(|helper| guard(helper, start.program)) {
        Ok(Ended::Status(0)) => 0,
        _ => {
            start.program.say(LAST_WORDS);
            start.program.kill();
            1
        }
    }
}

const LAST_WORDS: &str = "highwater: the manager's process has died: the program is ended\n";

/// The time that a helper has to end after its program, in milliseconds.
const END_MAX: i32 = 2000;

/// Waits for the end of a helper. Kills it if it outlives the program: it may wait for a lock that
/// the program held when it died.
fn guard(helper: i32, program: Program) -> Ended {
    let pidfd = descriptors::pidfd_open(helper);
    // Without a pidfd, for lack of descriptors, the helper's end could not be noticed.
    if pidfd >= 0 {
        clone::wait_for_either(pidfd, program.pidfd);
        clone::wait_a_while(pidfd, END_MAX);
        // SAFETY: a child of this process, for which only this thread waits.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, 0usize, 0) };
    }
    clone::wait(helper)
}

/// The first thread of the helper.
extern "C" fn helper<F: FnOnce(Program) + Send + 'static>(argument: *mut libc::c_void) -> i32 {
    INSIDE.set(true);
    // SAFETY: leaked by `start`; only this thread takes the body.
    let start = unsafe { &*argument.cast::<Start<F>>() };
    clone::begin(start.name);
    let body = start.body.take().expect("there is one helper");
    body(start.program);
    clone::end_process(0)
}

/// A thread of a helper.
pub(crate) struct Thread {
    block: Block,
    body: *mut Body,
}

// SAFETY: `block` and `body` belong to the thread; another one uses them only after joining it.
unsafe impl Send for Thread {}
// SAFETY: a shared reference gives no access.
unsafe impl Sync for Thread {}

struct Body {
    name: std::ffi::CString,
    run: Cell<Option<Box<dyn FnOnce() + Send>>>,
    /// The kernel clears this when the thread ends.
    alive: AtomicU32,
}

/// Starts a thread of the helper that this thread belongs to.
pub(crate) fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Thread> {
    let block = Block::new(tls::STACK_BYTES)?;
    let (name, run) = (std::ffi::CString::new(name)?, Cell::new(Some(run)));
    let body = Box::into_raw(Box::new(Body { name, run, alive: AtomicU32::new(1) }));
    let task = Task { entry: thread, argument: body.cast() };
    // SAFETY: the body lives until the thread is joined, or is leaked.
    let words = clone::Words { ended: Some(unsafe { (*body).alive.as_ptr() }) };
    // SAFETY: as above; so does the block.
    match unsafe { clone::clone(flags::THREAD, &block, task, words) } {
        Ok(_) => Ok(Thread { block, body }),
        Err(error) => {
            // SAFETY: no thread was started that has it.
            drop(unsafe { Box::from_raw(body) });
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

extern "C" fn thread(body: *mut libc::c_void) -> i32 {
    INSIDE.set(true);
    // SAFETY: the box of `spawn`.
    let body = unsafe { &*body.cast::<Body>() };
    clone::begin(&body.name);
    let run = body.run.take().expect("there is one thread");
    run();
    0
}

impl Thread {
    /// Waits for the thread's end.
    pub(crate) fn join(self) {
        // SAFETY: the box of `spawn`, which only this frees.
        let body = unsafe { Box::from_raw(self.body) };
        clone::wait_until_cleared(&body.alive);
        drop(self.block);
    }

    /// Detaches the thread: its stack and argument are leaked.
    pub(crate) fn detach(self) {
        std::mem::forget(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::Thread as _;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn wait_for(what: &str, done: impl Fn() -> bool) {
        let started = Instant::now();
        while !done() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").expect("/proc").count()
    }

    #[test]
    fn a_helper_shares_memory_and_nothing_else() {
        learn();
        let words: Arc<[AtomicU32; 4]> = Arc::default();
        let (theirs, kept) = (words.clone(), std::fs::File::open("/dev/null").expect("a file"));
        let keep = std::os::fd::AsRawFd::as_raw_fd(&kept);
        let made = start(c"test", std::process::id(), vec![keep], 3, move |program| {
            theirs[0].store(std::process::id(), Relaxed);
            let threads_words = theirs.clone();
            let body = Box::new(move || {
                let inside = is_inside() && std::process::id() == threads_words[0].load(Relaxed);
                threads_words[1].store(u32::from(inside), Relaxed);
            });
            crate::spawn("a thread", body).expect("a thread").join();
            theirs[2].store(program.pid as u32, Relaxed);
            theirs[3].store(descriptors() as u32, Release);
        });
        assert!(made.expect("a helper") > 0);
        wait_for("the helper is done", || words[3].load(Acquire) > 0);
        assert_ne!(words[0].load(Relaxed), std::process::id());
        assert_eq!(words[1].load(Relaxed), 1, "threads of a helper are of its process");
        assert_eq!(words[2].load(Relaxed), std::process::id());
        // Three streams, the kept one, the program's pidfd, the directory being read; and the
        // helper's pidfd, as soon as the guardian has it.
        assert!((6..=7).contains(&words[3].load(Relaxed)));
        assert!(!is_inside());
    }

    #[test]
    fn a_program_whose_helper_dies_is_killed() {
        learn();
        // SAFETY: the child makes system calls, allocates, and ends by a signal or _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let made = start(c"test", std::process::id(), Vec::new(), 3, |_| {
                // SAFETY: kills the helper.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
            let seconds = if made.is_ok() { 20 } else { 0 };
            std::thread::sleep(Duration::from_secs(seconds));
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    }

    #[test]
    fn descriptors_get_the_numbers_of_another_process() {
        let file = |path: &str| std::fs::File::open(path).expect("a file");
        let [first, second] = ["/dev/null", "/dev/zero"].map(file);
        let fds = [&first, &second].map(std::os::fd::AsRawFd::as_raw_fd);
        let link = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("open");
        // The two are swapped: neither may be overwritten on the way.
        renumber(&[(fds[0], fds[1]), (fds[1], fds[0])]).expect("descriptors");
        assert_eq!(fds.map(link), ["/dev/zero", "/dev/null"].map(std::path::PathBuf::from));
    }
}
