//! Why a page fault of a program could not be served, and the remedy, in words.

use highwater_mm::stats::Counter;
use highwater_mm::{FaultError, Manager};
use highwater_uffd::Uffd;
use highwater_units::Bytes;
use std::collections::BTreeSet;
use std::fmt;

/// Why a fault on swapped or new memory could not be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A swap device returned a page that differs from the page that was written.
    Changed {
        /// The device.
        device: String,
    },
    /// A swap device could not read the page.
    Unreadable {
        /// The error.
        error: FaultError,
        /// All swap devices.
        devices: String,
    },
    /// No page can be swapped out, because writes to swap fail.
    WritesFail {
        /// All swap devices.
        devices: String,
    },
    /// Anything else: memory and swap are full.
    Short {
        /// The error.
        error: FaultError,
        /// All swap devices.
        devices: String,
    },
}

impl Cause {
    /// The cause of an error that a manager has just returned.
    pub fn of(error: FaultError, manager: &Manager<Uffd>) -> Cause {
        let devices = manager.platform().devices();
        let names = || {
            let all = devices.fixed().into_iter().flatten().map(|device| device.info().name);
            all.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
        };
        let failed = manager.shortage().is_some_and(|shortage| shortage.write_errors > 0);
        match error {
            FaultError::Read(_) => match devices.altered() {
                Some(device) => Cause::Changed { device },
                None => Cause::Unreadable { error, devices: names() },
            },
            FaultError::Poisoned => Cause::Unreadable { error, devices: names() },
            FaultError::OutOfMemory if failed => Cause::WritesFail { devices: names() },
            _ => Cause::Short { error, devices: names() },
        }
    }

    /// The state of memory and swap in parentheses, after a blank; an empty text if it does not
    /// explain the cause. `room` is inserted after the slots in use.
    pub fn figures(&self, manager: &Manager<Uffd>, room: &str) -> String {
        if let Cause::Changed { .. } | Cause::Unreadable { .. } = self {
            return String::new();
        }
        let now = manager.statistics();
        let of_pages = |counter| Bytes::of_pages(now.get(counter));
        let (frames, slots) = (of_pages(Counter::Frames), of_pages(Counter::SlotsTotal));
        let used = of_pages(Counter::SlotsUsed);
        let seen = manager.shortage().map_or(String::new(), |shortage| format!("; {shortage}"));
        format!(" (memory {frames}, swap {used} of {slots} used{room}{seen})")
    }

    /// The remedy, for the user.
    pub fn remedy(&self) -> String {
        match self {
            Cause::Changed { device } => {
                format!("check the disk{}, and who can write to it", or_server(device))
            }
            Cause::Unreadable { devices, .. } | Cause::WritesFail { devices } => {
                format!("check the disk{} of swap {devices}", or_server(devices))
            }
            Cause::Short { devices, .. } => {
                format!("give more with --memory or --swap, or free space where {devices} is")
            }
        }
    }
}

/// " or server" if one of the devices, given by their names, is on a server.
fn or_server(devices: &str) -> &'static str {
    if ["redis", "nbd"].iter().any(|kind| devices.contains(kind)) { " or server" } else { "" }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Changed { device } => {
                write!(f, "swap {device} returned a page that was changed since it was written")
            }
            Cause::WritesFail { .. } => f.write_str("memory is full, and writes to disk fail"),
            Cause::Unreadable { error, .. } | Cause::Short { error, .. } => error.fmt(f),
        }
    }
}
