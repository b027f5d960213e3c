//! Serves faults in the thread that faults, by SIGBUS.
//!
//! ```text
//! Engine   on_sigbus, installed by `install` --+--> serve --> attempt      in this thread
//! preload  a handler of its own ---------------+          \-> Desk::ask   in the helper
//! ```
//! For spaces with [`Delivery::InThread`](highwater_uffd::Delivery::InThread). The kernel raises
//! SIGBUS where it would have sent a message; the signal handler serves the fault and returns to
//! the access. There is no context switch and no wake-up, so a fault costs about half. A system
//! call that accesses a missing page fails with EFAULT: the owner makes no such calls, or passes
//! copies to them.
//!
//! The thread was interrupted at an access to paged memory, so it holds no lock of the manager. A
//! fault inside the manager itself is an access to a page that the program dropped by a call that
//! the manager did not see (`copy.rs` of the platform).
//!
//! A signal's disposition belongs to the process, so all managers of a process share the table of
//! served spaces.

use crate::desk::Desk;
use crate::owner::{At, Outcome, Owner, answer, attempt};
#[cfg(target_arch = "x86_64")]
use crate::resume::resume;
use highwater_mm::{Access, FaultError, Manager};
use highwater_uffd::{Uffd, api};
use highwater_units::SpaceId;
use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Arc, OnceLock};

/// The most spaces that a process can serve by SIGBUS at a time.
const SERVED_MAX: usize = 16;

/// The served spaces: pointers into live [`Service`]s.
static SERVED: [AtomicPtr<Served>; SERVED_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

/// The action for SIGBUS that was installed before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

struct Served {
    manager: Arc<Manager<Uffd>>,
    space: SpaceId,
    owner: Arc<dyn Owner>,
    desk: Option<Desk>,
}

/// Serves the faults of a space in the threads that use it, until the service is dropped. No thread
/// may use the space after that.
pub struct Service {
    served: Box<Served>,
}

impl Service {
    /// Starts serving an engine, which must not pass addresses in the space to system calls.
    /// Installs a handler for SIGBUS, which runs on the stack of the faulting thread.
    ///
    /// # Errors
    /// 16 spaces are served already.
    pub fn of_engine(
        manager: Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: Arc<dyn Owner>,
    ) -> io::Result<Service> {
        BEFORE.get_or_init(install);
        Service::start(Served { manager, space, owner, desk: None })
    }

    /// Starts serving a program, whose SIGBUS handler calls [`serve`]. Called in the helper
    /// process, where it starts threads for the faults that the program's threads cannot serve.
    ///
    /// # Errors
    /// The system refuses a thread, or 16 spaces are served already.
    pub fn of_program(
        manager: Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: Arc<dyn Owner>,
    ) -> io::Result<Service> {
        let desk = Some(Desk::start(&manager, &owner)?);
        Service::start(Served { manager, space, owner, desk })
    }

    fn start(served: Served) -> io::Result<Service> {
        let mut served = Box::new(served);
        let pointer = ptr::from_mut(&mut *served);
        let free = |place: &&AtomicPtr<Served>| {
            place.compare_exchange(ptr::null_mut(), pointer, AcqRel, Relaxed).is_ok()
        };
        let full = || io::Error::other("16 spaces are served by signals already");
        SERVED.iter().find(free).ok_or_else(full)?;
        Ok(Service { served })
    }

    /// In a forked child: forgets the services of the parent, which do not serve this process.
    pub fn forget_inherited() {
        SERVED.iter().for_each(|place| place.store(ptr::null_mut(), Release));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pointer = ptr::from_mut(&mut *self.served);
        for place in &SERVED {
            let _ = place.compare_exchange(pointer, ptr::null_mut(), AcqRel, Relaxed);
        }
    }
}

/// The threads that serve a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The thread that faulted; the threads of the helper if it cannot.
    ThisThread,
    /// The threads of the helper.
    Helper,
}

thread_local! {
    /// Whether this thread is serving a fault, or has locked pages.
    static SERVES: Cell<bool> = const { Cell::new(false) };
    /// The foreign page whose access this thread is retrying; 0: none.
    static FOREIGN: Cell<u64> = const { Cell::new(0) };
}

/// The outcome of a SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// The thread is to retry its access.
    Served,
    /// No served space has the address.
    Elsewhere,
    /// The page is lost (`Manager::poison`).
    Lost,
    /// The thread was serving another fault: it cannot serve this one.
    Nested,
}

/// Serves the fault of a thread that got SIGBUS.
///
/// # Safety
/// The arguments are those of its signal handler.
pub unsafe fn serve(info: *const libc::siginfo_t, context: *mut libc::c_void, by: By) -> Signalled {
    // SAFETY: the kernel passes a siginfo and a ucontext that live while the handler runs.
    let (address, write) = unsafe { ((*info).si_addr() as u64, is_write(context)) };
    // SAFETY: as above.
    if unsafe { (*info).si_code } == libc::BUS_MCEERR_AR {
        // Its memory has failed.
        return Signalled::Lost;
    }
    let Some((served, at)) = find(address, write) else { return Signalled::Elsewhere };
    // SAFETY: as above.
    if unsafe { leave_copy(context) } {
        return Signalled::Served;
    }
    if SERVES.replace(true) {
        return Signalled::Nested;
    }
    let outcome = serve_for(served, at, by);
    SERVES.set(false);
    if outcome == Outcome::Stray && served.owner.is_foreign(at.space, at.vpn) {
        return retry_foreign(address);
    }
    FOREIGN.set(0);
    if is_lost(outcome) { Signalled::Lost } else { Signalled::Served }
}

/// Whether the fault is at a page that was lost before: its owner knows.
fn is_lost(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_, FaultError::Poisoned))
}

/// Calls `act`, which locks pages. A signal handler that interrupts `act` and touches one of these
/// pages would wait for its own thread; the process is ended instead, as for a signal handler that
/// interrupts the service of a fault and faults itself.
pub fn while_pages_are_locked<R>(act: impl FnOnce() -> R) -> R {
    let before = SERVES.replace(true);
    let result = act();
    SERVES.set(before);
    result
}

/// An access to a page over which the program has mapped something else. The mapping may have been
/// made after the access, so the access is retried once; a second signal comes from that mapping.
fn retry_foreign(address: u64) -> Signalled {
    if FOREIGN.replace(address) == address { Signalled::Elsewhere } else { Signalled::Served }
}

/// Ends the copying of a page that has vanished; `false` if the thread was not copying.
///
/// # Safety
/// `context` is the ucontext of a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn leave_copy(context: *mut libc::c_void) -> bool {
    // SAFETY: by contract of this function.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let next = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let end = highwater_uffd::end_copy(*next as usize);
    *next = end.map_or(*next, |end| end as i64);
    end.is_some()
}

/// Copying cannot be recognized on this machine.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn leave_copy(_: *mut libc::c_void) -> bool {
    false
}

/// Serves a fault; returns the outcome of the last attempt.
fn serve_for(served: &Served, at: At, by: By) -> Outcome {
    let Served { manager, owner, desk, .. } = served;
    match (by, desk) {
        (By::ThisThread, None) => {
            let outcome = attempt(manager, &**owner, at, |_| ());
            answer(&**owner, at, outcome);
            outcome
        }
        (By::ThisThread, Some(desk)) => {
            api::take_lost();
            let outcome = attempt(manager, &**owner, at, |_| ());
            // A child of vfork may have closed its copies of the descriptors. Failures are handled
            // by the owner in the helper only.
            let fails = matches!(outcome, Outcome::Failed(..) | Outcome::Stray);
            if api::take_lost() || fails && !is_lost(outcome) {
                return desk.ask(at);
            }
            outcome
        }
        (By::Helper, Some(desk)) => desk.ask(at),
        (By::Helper, None) => unreachable!("an engine has no helper"),
    }
}

/// The served space that contains an address.
fn find(address: u64, write: bool) -> Option<(&'static Served, At)> {
    let access = if write { Access::Write } else { Access::Read };
    SERVED.iter().find_map(|place| {
        // SAFETY: a slot holds a live Served until its Service is dropped, and that happens only
        // when no thread uses the space any more.
        let served = unsafe { place.load(Acquire).as_ref() }?;
        let vpn = served.manager.platform().page_at(served.space, address)?;
        Some((served, At { space: served.space, vpn, access }))
    })
}

fn install() -> libc::sigaction {
    // SA_NODEFER and an empty mask: the program's signal handlers may fault as well, and there is
    // no mask to restore (`resume`). Not SA_ONSTACK: alternate stacks are sized for the few frames
    // of a signal handler, not for reclaim.
    // SAFETY: zeros are valid sigaction structures; the handler takes the three arguments of
    // SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGBUS, &action, &mut before);
        before
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // The interrupted code must find errno unchanged.
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel's arguments.
    let signalled = unsafe { serve(info, context, By::ThisThread) };
    match signalled {
        Signalled::Served => {}
        Signalled::Elsewhere | Signalled::Lost => pass_on(signal, info, context),
        Signalled::Nested => end_nested(),
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    #[cfg(target_arch = "x86_64")]
    if signalled == Signalled::Served {
        // SAFETY: this handler's context; it was installed as `resume` requires (`install`), and
        // serving a fault changes neither the signal mask nor the alternate stack.
        unsafe { resume(context) };
    }
}

/// Ends a process whose signal handler has interrupted the service of a fault, or another operation
/// that holds locks, and has faulted itself.
fn end_nested() -> ! {
    let line =
        "highwater: a signal handler used paged memory while its thread held locks of Highwater\n";
    // There is nowhere to report a failed write.
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    std::process::abort()
}

/// Whether the access was a store: bit 1 of the page fault's error code.
///
/// # Safety
/// `context` is the ucontext of a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *mut libc::c_void) -> bool {
    // SAFETY: by contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

/// The context does not tell whether the access was a store. A store is assumed, which at worst
/// causes a clean page to be written back.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_: *mut libc::c_void) -> bool {
    true
}

/// Passes a SIGBUS at an unserved address to the handler that was installed before. Without one,
/// restores the default action, which ends the process.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action: the access faults again and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Three = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: a handler with SA_SIGINFO has this form.
            let handler: Three = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler without SA_SIGINFO takes the number of the signal.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
