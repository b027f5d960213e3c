//! Pages that cannot be read: whether the program goes on without them.
//!
//! ```text
//! decide -- Signal  the page is poisoned: accesses raise SIGBUS, which the program handles
//!        \- End     the program is ended: by SIGKILL, after one line
//! ```
//! Locking: none. Called by threads of the helper. They hold the entry of the page while they print
//! its line, so that no thread gets the signal before.

use crate::end::say;
use crate::gate;
use crate::program::program;
use highwater_serve::Cause;
use highwater_uffd::Delivery;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The fate of a program that needs a page which cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Signal,
    End,
}

/// Whether the program handles SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sigbus {
    Handled,
    /// Its action is the default, or to ignore the signal: the kernel would end it.
    Fatal,
}

/// Decides. `can_poison`: the kernel has UFFDIO_POISON.
pub(crate) fn decide(sigbus: Sigbus, delivery: Delivery, can_poison: bool) -> Outcome {
    match (sigbus, delivery, can_poison) {
        // The thread has SIGBUS already, and the gate passes it on.
        (Sigbus::Handled, Delivery::InThread, _) => Outcome::Signal,
        (Sigbus::Handled, Delivery::Handler, true) => Outcome::Signal,
        (Sigbus::Handled, Delivery::Handler, false) | (Sigbus::Fatal, _, _) => Outcome::End,
    }
}

/// Whether the program that this helper serves handles SIGBUS.
pub(crate) fn sigbus() -> Sigbus {
    let handled = if gate::is_on() {
        // The kernel has the gate's handler.
        gate::has_handler(libc::SIGBUS)
    } else {
        program().is_some_and(|program| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", program.in_proc));
            catches_sigbus(&status.unwrap_or_default())
        })
    };
    if handled { Sigbus::Handled } else { Sigbus::Fatal }
}

/// Whether the mask of caught signals in /proc/PID/status has SIGBUS.
fn catches_sigbus(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (libc::SIGBUS - 1) & 1 == 1)
}

/// The most lines about lost pages of a process: a device that fails may lose all of its pages.
const LINES_MAX: u64 = 16;

/// The lines about lost pages of a process.
#[derive(Default)]
pub(crate) struct Lines {
    printed: AtomicU64,
}

impl Lines {
    /// Prints that the program gets SIGBUS at the page of `address`.
    pub(crate) fn print(&self, address: usize, cause: &Cause) {
        let rest = match self.printed.fetch_add(1, Relaxed) + 1 {
            LINES_MAX => "; further lost pages are not reported",
            number if number < LINES_MAX => "",
            _ => return,
        };
        let remedy = cause.remedy();
        say(&format!("{cause}: the program gets SIGBUS at {address:#x}; {remedy}{rest}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_handles_sigbus_goes_on_and_only_if_it_can_be_raised() {
        for (sigbus, delivery, can_poison, expected) in [
            (Sigbus::Handled, Delivery::InThread, false, Outcome::Signal),
            (Sigbus::Handled, Delivery::Handler, true, Outcome::Signal),
            (Sigbus::Handled, Delivery::Handler, false, Outcome::End),
            (Sigbus::Fatal, Delivery::InThread, true, Outcome::End),
            (Sigbus::Fatal, Delivery::Handler, true, Outcome::End),
        ] {
            let found = decide(sigbus, delivery, can_poison);
            assert_eq!(found, expected, "{sigbus:?} {delivery:?} {can_poison}");
        }
    }

    #[test]
    fn caught_signals_are_bits_counted_from_one() {
        let status = |mask| format!("Name:\ta\nSigIgn:\t0000000000000040\nSigCgt:\t{mask}\n");
        for (mask, expected) in [
            ("0000000000000040", true),
            ("00000001800044ff", true),
            ("0000000000000080", false),
            ("0000000000000000", false),
            ("", false),
        ] {
            assert_eq!(catches_sigbus(&status(mask)), expected, "{mask}");
        }
    }
}
