//! Serves faults in the thread that faults, by SIGBUS.
//!
//! For spaces with [`Delivery::InThread`](highwater_uffd::Delivery::InThread), whose owners make no
//! system calls that reach into them. The kernel raises SIGBUS where it would have sent a message;
//! the signal handler serves the fault and returns to the access, past the kernel where it can
//! (`resume.rs`). There is no context switch and no wake-up, so a fault costs about half. The
//! handler may run the whole fault path, because the thread was at an access to paged memory: it
//! holds no lock, and is inside no function that the manager uses.
//!
//! A signal's disposition belongs to the process, so all managers of a process share the table of
//! served spaces. A SIGBUS at any other address goes to the handler that was installed before.

#[cfg(target_arch = "x86_64")]
use crate::resume::resume;
use highwater_mm::{Access, Fault, FaultError, Manager};
use highwater_uffd::Uffd;
use highwater_units::{SpaceId, Vpn};
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
    failed: fn(Vpn, FaultError),
}

/// Serves a space in the threads that use it, until it is dropped. No thread may use the space
/// after that.
pub struct Service {
    served: Box<Served>,
}

impl Service {
    /// Starts serving. `failed` is called in the faulting thread for a fault that cannot be served,
    /// and must not return.
    ///
    /// # Errors
    /// `None` if 16 spaces are served already.
    pub fn start(
        manager: Arc<Manager<Uffd>>,
        space: SpaceId,
        failed: fn(Vpn, FaultError),
    ) -> Option<Service> {
        BEFORE.get_or_init(install);
        let mut served = Box::new(Served { manager, space, failed });
        let pointer = ptr::from_mut(&mut *served);
        let free = |place: &&AtomicPtr<Served>| {
            place.compare_exchange(ptr::null_mut(), pointer, AcqRel, Relaxed).is_ok()
        };
        SERVED.iter().find(free)?;
        Some(Service { served })
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
    // SAFETY: the kernel passes a siginfo and a ucontext that live while the handler runs.
    let (address, write) = unsafe { ((*info).si_addr() as u64, is_write(context)) };
    // The interrupted code must find errno unchanged.
    // SAFETY: errno is the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let served = serve(address, write);
    if !served {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    #[cfg(target_arch = "x86_64")]
    if served {
        // SAFETY: this handler's context; it was installed as `resume` requires (`install`), and
        // serving a fault changes neither the signal mask nor the alternate stack.
        unsafe { resume(context) };
    }
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

/// The context does not tell: a store is assumed, which at worst writes a clean page back.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_: *mut libc::c_void) -> bool {
    true
}

/// Serves a fault in one of the spaces; `false` if the address is in none.
fn serve(address: u64, write: bool) -> bool {
    for place in &SERVED {
        let pointer = place.load(Acquire);
        // SAFETY: a slot holds a live Served until its Service is dropped, and that happens only
        // when no thread uses the space any more.
        let Some(served) = (unsafe { pointer.as_ref() }) else { continue };
        let Some(vpn) = served.manager.platform().page_at(served.space, address) else { continue };
        let access = if write { Access::Write } else { Access::Read };
        let within = served.manager.whole(served.space);
        if let Err(error) = served.manager.fault(served.space, Fault { vpn, access, within }) {
            (served.failed)(vpn, error);
        }
        return true;
    }
    false
}

/// Passes a SIGBUS at an unserved address to the handler that was installed before, or restores
/// the default action, which ends the process.
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
