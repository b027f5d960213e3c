//! Starts threads of the manager. All signals are blocked, so that signals of the program go to the
//! program's threads.
//!
//! A thread of a helper process starts threads of that process (`helper`). Others are started by
//! pthread_create, not by the standard library: its threads register destructors when they begin,
//! and for that the C library takes the lock that dlopen holds while constructors run. A
//! constructor that faults would wait for a thread that waits for this lock.

use crate::helper;
use crate::sys;
use highwater_platform::Thread;
use libc::{c_int, c_void, pthread_attr_t, pthread_t};
use std::ffi::{CStr, CString};
use std::io::{self, Write};
use std::mem::{self, MaybeUninit};
use std::ptr;

/// Stack size of a manager thread. Its deepest path, a fault with direct reclaim, uses less than
/// 32 KiB.
const STACK_BYTES: usize = 256 << 10;

/// The largest stack size that is tried: the program's thread-local variables lie on the stack of
/// each thread and may leave too little room.
const STACK_BYTES_MAX: usize = 64 << 20;

/// A started thread. Dropping it detaches the thread.
pub struct OsThread(Option<Made>);

enum Made {
    Pthread(pthread_t),
    Helper(helper::Thread),
}

impl Thread for OsThread {
    fn join(mut self) {
        match self.0.take() {
            // SAFETY: a thread that is joined or detached once, here.
            Some(Made::Pthread(thread)) => unsafe {
                libc::pthread_join(thread, ptr::null_mut());
            },
            Some(Made::Helper(thread)) => thread.join(),
            None => {}
        }
    }
}

impl Drop for OsThread {
    fn drop(&mut self) {
        match self.0.take() {
            // SAFETY: as in `join`.
            Some(Made::Pthread(thread)) => unsafe {
                libc::pthread_detach(thread);
            },
            Some(Made::Helper(thread)) => thread.detach(),
            None => {}
        }
    }
}

/// The argument of a new thread.
struct Start {
    name: CString,
    body: Box<dyn FnOnce() + Send>,
}

/// Dropped by a panic, where panics unwind. It ends the process: locks would be released with
/// inconsistent contents.
struct EndOfProcess<'a>(&'a CStr);

impl Drop for EndOfProcess<'_> {
    fn drop(&mut self) {
        // A test harness would capture the output of eprintln.
        let name = self.0.to_string_lossy();
        let _ = writeln!(io::stderr(), "thread {name} of the manager panicked");
        std::process::abort();
    }
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `spawn` made for this thread and gave up.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    sys::reset_float_modes();
    // The kernel cuts the name at 15 bytes.
    let _ = rustix::thread::set_name(&name);
    let ending = EndOfProcess(&name);
    body();
    mem::forget(ending);
    ptr::null_mut()
}

/// Starts a thread that receives no signals except SIGBUS, which its own accesses can raise.
///
/// # Errors
/// The system refuses a thread.
pub fn spawn(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<OsThread> {
    if helper::is_inside() {
        let made = helper::spawn(name, body)?;
        return Ok(OsThread(Some(Made::Helper(made))));
    }
    let start = Box::into_raw(Box::new(Start { name: CString::new(name)?, body }));
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills `all`; pthread_sigmask reads it and fills `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let mut stack = STACK_BYTES;
    let mut created = create(stack, start);
    while created == Err(libc::EINVAL) && stack < STACK_BYTES_MAX {
        stack *= 2;
        created = create(stack, start);
    }
    // SAFETY: `before` was filled above; this thread gets its own mask back.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    created.map(|thread| OsThread(Some(Made::Pthread(thread)))).map_err(|error| {
        // SAFETY: no thread was started that could have taken it.
        drop(unsafe { Box::from_raw(start) });
        io::Error::from_raw_os_error(error)
    })
}

/// Creates a thread with argument `start`; returns the error number if that fails.
fn create(stack: usize, start: *mut Start) -> Result<pthread_t, c_int> {
    let mut attributes = MaybeUninit::<pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<pthread_t>::uninit();
    // SAFETY: the attributes are initialised before and destroyed after their use; the new thread
    // owns `start` from here on.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack);
        let to = thread.as_mut_ptr();
        let error = libc::pthread_create(to, attributes.as_ptr(), begin, start.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    match error {
        // SAFETY: pthread_create has filled it.
        0 => Ok(unsafe { thread.assume_init() }),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The result of `read` in a thread of the manager.
    fn inside<R: Send + 'static>(read: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, receiver) = channel();
        let body = move || sender.send(read()).expect("the receiver exists");
        spawn("a-name-that-is-too-long", Box::new(body)).expect("a thread").join();
        receiver.recv().expect("the thread has ended")
    }

    #[test]
    fn threads_have_names_and_get_no_signals() {
        let name = inside(|| std::fs::read_to_string("/proc/thread-self/comm").expect("a name"));
        assert_eq!(name, "a-name-that-is-\n");
        let status = inside(|| std::fs::read_to_string("/proc/thread-self/status").expect("text"));
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = u64::from_str_radix(blocked.expect("a line"), 16).expect("a mask");
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGSEGV, libc::SIGPROF, libc::SIGRTMAX()];
        assert!(signals.iter().all(|signal| blocked >> (signal - 1) & 1 == 1), "{blocked:x}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn threads_begin_with_the_initial_float_modes() {
        fn set(modes: u32) {
            // SAFETY: the caller restores the initial modes, and calculates nothing before that.
            unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const modes) };
        }
        fn get() -> u32 {
            let mut modes = 0_u32;
            // SAFETY: stores the register.
            unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut modes) };
            modes
        }
        let exceptions_trap = 0;
        set(exceptions_trap);
        let inside = inside(get);
        set(0x1f80);
        assert_eq!(inside, 0x1f80);
    }

    #[test]
    fn a_name_that_the_system_cannot_hold_is_refused() {
        assert!(spawn("in\0side", Box::new(|| unreachable!("no thread was made"))).is_err());
    }
}
