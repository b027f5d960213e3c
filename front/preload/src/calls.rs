//! Calls that the program's threads make into the helper, and descriptors sent between the two.
//!
//! ```text
//! Calls::make -- closure, on the caller's stack --> queue --> "call" threads of the helper: run it
//! Calls::send -- copies of the helper's descriptors --> receive, in the program
//! ```
//! Locking: `queue` is held only to add or take a call.

use crate::descriptors;
use crate::end::end;
use crate::memory::Aside;
use crate::signals::Blocked;
use highwater_os::helper;
use highwater_os::sys::{futex_wait, futex_wake_at};
use highwater_os::{OsThread, spawn};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A closure of a thread of the program, which waits until the closure has run.
#[derive(Clone, Copy)]
struct Call {
    run: unsafe fn(*const ()),
    closure: *const (),
    done: *const AtomicU32,
}

// SAFETY: the closure is Send, and lives until `done` is set.
unsafe impl Send for Call {}

/// Maximum number of helper threads that run calls.
const THREADS_MAX: usize = 8;

/// Calls that the program's threads make into the helper.
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

    /// Starts the first thread that runs calls.
    pub(crate) fn start(&'static self, channel: Option<&OwnedFd>) {
        self.channel.set(channel.map_or(-1, AsRawFd::as_raw_fd));
        if let Err(error) = self.add_thread(&mut self.queue()) {
            end(&format!("no thread for the manager: {error}"));
        }
    }

    fn add_thread(&'static self, queue: &mut Queue) -> std::io::Result<()> {
        let name = format!("call{}", queue.threads.len());
        queue.threads.push(spawn(&name, Box::new(move || self.run()))?);
        Ok(())
    }

    /// Body of a thread that runs calls.
    fn run(&'static self) {
        loop {
            let call = self.take();
            // SAFETY: the caller waits until `done` is set; then the closure is gone.
            unsafe {
                (call.run)(call.closure);
                (*call.done).store(1, Release);
            }
            futex_wake_at(call.done.addr());
        }
    }

    fn take(&'static self) -> Call {
        let mut queue = self.queue();
        loop {
            if let Some(call) = queue.calls.pop_front() {
                // A call may take long, so another thread takes the next one.
                if queue.idle == 0 && queue.threads.len() < THREADS_MAX {
                    // If this fails, calls wait for each other.
                    let _ = self.add_thread(&mut queue);
                }
                return call;
            }
            queue.idle += 1;
            queue = self.added.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Runs `act` in the helper, or here if this thread is one of the helper's. Signals are blocked
    /// meanwhile: a handler that left by longjmp would free the closure's stack.
    pub(crate) fn make<R: Send>(&self, act: impl FnOnce() -> R + Send) -> R {
        if helper::is_inside() {
            return act();
        }
        let _blocked = Blocked::now();
        // The helper allocates.
        let _aside = Aside::now();
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

    /// Sends copies of the helper's descriptors to the program, if there is a channel.
    pub(crate) fn send(&self, descriptors: &[RawFd]) -> Result<(), Errno> {
        if self.channel.get() < 0 {
            return Ok(());
        }
        // SAFETY: open as long as the helper lives.
        let channel = unsafe { BorrowedFd::borrow_raw(self.channel.get()) };
        for few in descriptors.chunks(DESCRIPTORS_MAX) {
            // SAFETY: open for the call, as the caller guarantees.
            let few: Vec<_> = few.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
            let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&few));
            sendmsg(channel, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }
}

/// Descriptors per message; the kernel's limit is 253.
const DESCRIPTORS_MAX: usize = 128;
const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// Receives `count` descriptors that [`Calls::send`] has sent.
pub(crate) fn receive(count: usize) -> Result<Vec<OwnedFd>, Errno> {
    let channel = descriptors::guarded().ok_or(Errno::BADF)?;
    // SAFETY: guarded against the C library's close functions; if it is closed all the same, an
    // error follows.
    let channel = unsafe { BorrowedFd::borrow_raw(channel) };
    let mut received = Vec::new();
    while received.len() < count {
        let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
        let before = received.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(few) = message {
                received.extend(few.map(descriptors::off_streams));
            }
        }
        // Descriptors for which the process had no room are lost.
        if received.len() == before || got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE);
        }
    }
    Ok(received)
}

struct Closure<F, R> {
    act: Cell<Option<F>>,
    result: Cell<Option<R>>,
}

/// The function that runs a closure of this type.
fn run_closure<F: FnOnce() -> R, R>(_: &Closure<F, R>) -> unsafe fn(*const ()) {
    /// # Safety
    /// The closure is of this type, and no other thread accesses it.
    unsafe fn run<F: FnOnce() -> R, R>(closure: *const ()) {
        // SAFETY: as the caller says.
        let closure = unsafe { &*closure.cast::<Closure<F, R>>() };
        closure.result.set(closure.act.take().map(|act| act()));
    }
    run::<F, R>
}
