//! Opens devices: the one place that knows every kind.

use crate::device::Device;
use crate::error::{OpenError, Reason};
use crate::file::{FileDevice, Submission};
use crate::part::Part;
use crate::ram::Ram;
use crate::spec::Spec;
use crate::tier::Tier;
use crate::zram::Zram;
use std::sync::Arc;

/// Opens a device. It starts empty, and nothing of it is left behind by any end of the process.
///
/// # Errors
/// Why there can be no such device, in one line.
pub fn open(spec: &Spec) -> Result<Box<dyn Device>, OpenError> {
    open_with(spec, Submission::Auto)
}

/// As [`open`], with a choice of how files are reached.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &Spec, submission: Submission) -> Result<Box<dyn Device>, OpenError> {
    let device = match spec {
        Spec::Ram { .. } => Ram::open(spec).map(boxed),
        Spec::Zram { size, algorithm } => Zram::open(spec, *size, *algorithm).map(boxed),
        Spec::File { .. } | Spec::Dir { .. } => FileDevice::open(spec, submission).map(boxed),
        Spec::Tier { fast, slow } => {
            let [fast, slow] = [fast, slow].map(|level| open_with(level, submission));
            tier(spec.to_string(), fast?, slow?)
        }
    };
    device.map_err(|reason| OpenError { spec: spec.clone(), reason })
}

/// Two devices, both empty, as one: pages go to `fast`, and cold ones from there to `slow`. It
/// has as many slots as both.
///
/// # Errors
/// The system has no memory to give.
pub fn tier(
    name: String,
    fast: Box<dyn Device>,
    slow: Box<dyn Device>,
) -> Result<Box<dyn Device>, Reason> {
    Tier::new(name, fast, slow).map(boxed)
}

/// `pages` pages of a device, from `first` on, as a device of its own.
///
/// # Panics
/// If it does not have them.
pub fn part(whole: Arc<dyn Device>, first: u32, pages: u32) -> Box<dyn Device> {
    boxed(Part::new(whole, first, pages))
}

fn boxed(device: impl Device + 'static) -> Box<dyn Device> {
    Box::new(device)
}
