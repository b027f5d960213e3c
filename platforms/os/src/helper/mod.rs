//! A process that shares this process's memory, and nothing else: its threads are the manager's.
//!
//! ```text
//! program --- starter    vfork; ends at once, so that nothing of this is the program's child
//!                \- guardian   waits for the helper; if it dies, kills the program
//!                       \- helper    the manager's threads
//! memory      shared by all                       CLONE_VM
//! descriptors the program's | the helper's        no CLONE_FILES: a copy, closed but for a few
//! credentials, signal handlers, thread and process group: likewise two sets
//! ```
//! The C library does not know the helper's threads: it does not count them when the last thread
//! of the program ends, does not have them make setuid(2), and the program can neither join nor
//! signal them. The kernel does not count them as threads of the program, so it may unshare its
//! user namespace; descriptors that it closes, privileges that it drops and filters that it loads
//! are not theirs. A debugger of the program does not stop them (CLONE_UNTRACED), so it can read
//! pages that are swapped out.
//!
//! Code that runs in the helper must not use what the C library guards by locks that it leaves out
//! in a process of one thread: its malloc and stdio. Neither may it make threads but by [`spawn`].

mod clone;
mod descriptors;
mod tls;

use clone::{Block, Ended, Task, flags};
pub use descriptors::{descriptor_of, lift, renumber};
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};
pub use tls::learn;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is one of a helper.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// The process that a helper serves.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its number.
    pub pid: i32,
    /// Readable once it has ended; in the helper's table.
    pub pidfd: RawFd,
}

impl Program {
    /// Writes to the program's standard error, as far as the system lets others have it.
    fn say(self, line: &str) {
        let (call, stream) = (libc::SYS_pidfd_getfd, libc::STDERR_FILENO);
        // SAFETY: asks for a descriptor, and writes a line that lives for the call.
        unsafe {
            let copy = libc::syscall(call, self.pidfd, stream, 0);
            libc::syscall(libc::SYS_write, copy, line.as_ptr(), line.len());
        }
    }

    /// Ends the program at once. Only its end can follow.
    pub fn kill(self) {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        let (call, signal) = (libc::SYS_pidfd_send_signal, libc::SIGKILL);
        // SAFETY: a signal to the process that a descriptor of ours stands for.
        unsafe { libc::syscall(call, self.pidfd, signal, no_info, 0) };
    }
}

/// What starts a helper, alive until its first thread has taken the body over.
struct Start<F> {
    program: Program,
    keep: Vec<RawFd>,
    above: RawFd,
    body: Cell<Option<F>>,
    guardian: Block,
    helper: Cell<Option<Block>>,
    /// The guardian's number, or minus the error that kept it from being made; 0 before.
    made: AtomicI32,
}

/// Starts a helper that runs `body` and ends when it returns; returns the number of its guardian.
/// The helper has copies of the descriptors `keep`, standard streams that lead nowhere, and what it
/// needs itself under numbers of at least `above`. Signals are to be blocked: the helper's threads
/// inherit the mask.
///
/// # Errors
/// The system makes no process, or [`learn`] found no layout of thread-local variables that this
/// was written for.
pub fn start<F>(keep: Vec<RawFd>, above: RawFd, body: F) -> io::Result<i32>
where
    F: FnOnce(Program) + Send + 'static,
{
    let scratch = Block::new(tls::STACK_BYTES)?;
    let start = Box::new(Start {
        program: Program { pid: std::process::id() as i32, pidfd: -1 },
        keep,
        above,
        body: Cell::new(Some(body)),
        guardian: Block::new(tls::STACK_BYTES)?,
        helper: Cell::new(Some(Block::new(tls::STACK_BYTES)?)),
        made: AtomicI32::new(0),
    });
    let start = Box::into_raw(start);
    let task = Task { entry: starter::<F>, argument: start.cast() };
    // SAFETY: the starter runs on its own stack while this thread waits; `start` is leaked, since
    // the guardian's stack is in use as long as it lives.
    let made = unsafe { clone::clone(flags::STARTER, &scratch, task, clone::Words::none()) };
    // It has ended, since this thread goes on: only its status is left to be collected.
    clone::wait(made.map_err(io::Error::from_raw_os_error)?);
    drop(scratch);
    // SAFETY: leaked above; the starter stored the number before it ended.
    match unsafe { (*start).made.load(Acquire) } {
        0 => Err(io::ErrorKind::Interrupted.into()),
        error @ ..0 => Err(io::Error::from_raw_os_error(-error)),
        guardian => Ok(guardian),
    }
}

/// Makes the guardian and ends. Runs with the thread-local variables of the thread that waits.
extern "C" fn starter<F: FnOnce(Program) + Send + 'static>(argument: *mut libc::c_void) -> i32 {
    let start = argument.cast::<Start<F>>();
    // SAFETY: what `start` made; the thread that made it waits.
    let start = unsafe { &mut *start };
    let task = Task { entry: guardian::<F>, argument };
    // SAFETY: the guardian has a stack and thread-local variables of its own, which are leaked.
    let made =
        unsafe { clone::clone(flags::GUARDIAN, &start.guardian, task, clone::Words::none()) };
    start.made.store(made.unwrap_or_else(|error| -error), Release);
    0
}

/// Makes the helper and waits for its end. Its descriptors are the helper's, so nothing that the
/// helper has open is closed, and no page of the program's reads as zeros, before this ends.
extern "C" fn guardian<F: FnOnce(Program) + Send + 'static>(argument: *mut libc::c_void) -> i32 {
    INSIDE.set(true);
    // SAFETY: what `start` leaked, for the guardian alone until it makes the helper.
    let start = unsafe { &mut *argument.cast::<Start<F>>() };
    clone::begin(c"highwater");
    clone::leave_group();
    descriptors::close_others(&start.keep);
    // Not before: the program may have no descriptor left.
    start.program.pidfd = lift(descriptors::pidfd_open(start.program.pid), start.above);
    let block = start.helper.take().expect("made once");
    let task = Task { entry: helper::<F>, argument };
    // SAFETY: as for the guardian; the block is leaked.
    let made = unsafe { clone::clone(flags::HELPER, &block, task, clone::Words::none()) };
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

/// How long a helper may take to end after its program, in milliseconds.
const END_MAX: i32 = 2000;

/// Waits for the end of a helper; kills one that stays behind its program, at a lock perhaps that
/// this has left taken.
fn guard(helper: i32, program: Program) -> Ended {
    let pidfd = descriptors::pidfd_open(helper);
    clone::wait_for_either(pidfd, program.pidfd);
    clone::wait_a_while(pidfd, END_MAX);
    // SAFETY: a child of this process, which nobody else waits for.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, 0usize, 0) };
    clone::wait(helper)
}

/// The first thread of the helper.
extern "C" fn helper<F: FnOnce(Program) + Send + 'static>(argument: *mut libc::c_void) -> i32 {
    INSIDE.set(true);
    // SAFETY: what `start` leaked; only this thread takes the body.
    let start = unsafe { &*argument.cast::<Start<F>>() };
    clone::begin(c"highwater");
    let body = start.body.take().expect("there is one helper");
    body(start.program);
    clone::end_process(0)
}

/// A thread of a helper.
pub(crate) struct Thread {
    block: Block,
    body: *mut Body,
}

// SAFETY: `block` and `body` are of the thread, and reached by one that joins it, after its end.
unsafe impl Send for Thread {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Thread {}

struct Body {
    name: std::ffi::CString,
    run: Cell<Option<Box<dyn FnOnce() + Send>>>,
    /// The kernel clears it when the thread ends.
    alive: AtomicU32,
}

/// Starts a thread of the helper that this thread is of.
pub(crate) fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Thread> {
    let block = Block::new(tls::STACK_BYTES)?;
    let (name, run) = (std::ffi::CString::new(name)?, Cell::new(Some(run)));
    let body = Box::into_raw(Box::new(Body { name, run, alive: AtomicU32::new(1) }));
    let task = Task { entry: thread, argument: body.cast() };
    // SAFETY: the body lives until the thread is joined, or for ever.
    let words = clone::Words { ended: Some(unsafe { (*body).alive.as_ptr() }) };
    // SAFETY: as above; the block likewise.
    match unsafe { clone::clone(flags::THREAD, &block, task, words) } {
        Ok(_) => Ok(Thread { block, body }),
        Err(error) => {
            // SAFETY: no thread was made that has it.
            drop(unsafe { Box::from_raw(body) });
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

extern "C" fn thread(body: *mut libc::c_void) -> i32 {
    INSIDE.set(true);
    // SAFETY: what `spawn` made.
    let body = unsafe { &*body.cast::<Body>() };
    clone::begin(&body.name);
    let run = body.run.take().expect("there is one thread");
    run();
    0
}

impl Thread {
    /// Waits for the thread's end.
    pub(crate) fn join(self) {
        // SAFETY: what `spawn` made; nobody else frees it.
        let body = unsafe { Box::from_raw(self.body) };
        clone::wait_until_cleared(&body.alive);
        drop(self.block);
    }

    /// Lets the thread run on by itself: what it was given stays.
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
        let made = start(vec![keep], 3, move |program| {
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
        // Three streams, what was kept, the program's pidfd, the directory that was read; and, once
        // the guardian has it, the helper's pidfd.
        assert!((6..=7).contains(&words[3].load(Relaxed)));
        assert!(!is_inside());
    }

    #[test]
    fn a_program_whose_helper_dies_is_killed() {
        learn();
        // SAFETY: the child makes system calls and allocates, and leaves by signals alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let made = start(Vec::new(), 3, |_| {
                // SAFETY: ends the helper as nobody expects.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
            let patience = if made.is_ok() { 20 } else { 0 };
            std::thread::sleep(Duration::from_secs(patience));
            // SAFETY: ends the child without what belongs to its parent.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: a child of ours.
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
        // Crosswise: neither may be lost on the way.
        renumber(&[(fds[0], fds[1]), (fds[1], fds[0])]).expect("descriptors");
        assert_eq!(fds.map(link), ["/dev/zero", "/dev/null"].map(std::path::PathBuf::from));
    }
}
