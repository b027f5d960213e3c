//! Makes a call for the program: the way that the table says.

use super::copied::Arguments;
use super::table::{Call, Way};
use super::{actions, calls, exec, long, page, special};
use crate::end::say;
use highwater_os::helper;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Makes a call for the program. `context`: of the signal, if the call was trapped.
pub(super) fn make(
    number: usize,
    arguments: Arguments,
    context: Option<&mut libc::ucontext_t>,
) -> isize {
    if helper::is_inside() {
        // The manager names addresses of the range, and knows which pages are there.
        // SAFETY: the manager's call.
        return unsafe { page::call(number, arguments) };
    }
    // As on the kernel of the table: programs do without calls that are newer.
    let Some(call) = calls::find(number) else { return -(libc::ENOSYS as isize) };
    match call.way {
        Way::Copied => long::make(call, arguments),
        // SAFETY: the program's call, which accesses no memory of the range.
        Way::Passed => unsafe { page::call(number, arguments) },
        Way::InPlace => special::in_place(number, arguments),
        Way::Absent => -(libc::ENOSYS as isize),
        Way::Unknown => refuse(number, call.name),
        Way::Special => by_function(call, arguments, context),
    }
}

fn by_function(call: &Call, arguments: Arguments, context: Option<&mut libc::ucontext_t>) -> isize {
    let number = usize::from(call.number);
    match number as libc::c_long {
        libc::SYS_execve | libc::SYS_execveat => exec::make(number, arguments),
        libc::SYS_rt_sigprocmask | libc::SYS_rt_sigaction | libc::SYS_sigaltstack => {
            actions::make(number as libc::c_long, arguments, context)
        }
        _ => special::make(number, arguments).unwrap_or_else(|| refuse(number, call.name)),
    }
}

/// Refuses a call about whose pointers nothing is known: it could not be made right.
fn refuse(number: usize, name: &str) -> isize {
    /// The most messages: a program may repeat the call.
    const MESSAGES_MAX: usize = 10;
    static MESSAGES: AtomicUsize = AtomicUsize::new(0);
    if MESSAGES.fetch_add(1, Relaxed) >= MESSAGES_MAX {
        return -(libc::EFAULT as isize);
    }
    say(&format!(
        "system call {number} ({name}) with an address in paged memory is refused: use \
         --system-calls faults"
    ));
    -(libc::EFAULT as isize)
}
