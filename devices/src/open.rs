//! Opens devices: the one file that names every kind.

use crate::device::Device;
use crate::error::{OpenError, Reason};
use crate::file::{FileDevice, Submission};
use crate::flaky::{Faults, Flaky};
use crate::part::Part;
use crate::ram::Ram;
use crate::remote::{RemoteOptions, nbd, redis};
use crate::replicate::{self, Replicated, Survivor};
use crate::seal::{Seal, Sealed};
use crate::spec::Spec;
use crate::tier::Tier;
use crate::zram::Zram;
use std::sync::Arc;

/// Blocks of a compressing level for each page of its size: enough that its memory runs out first.
const TIER_BLOCKS_PER_PAGE: u64 = 8;

/// How files and servers are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// How transfers reach files.
    pub submission: Submission,
    /// Whether files are encrypted. Pages on a server always are.
    pub seal: Seal,
    /// How servers are reached.
    pub remote: RemoteOptions,
}

/// Opens a device. It is empty, and leaves nothing behind however the process ends.
///
/// # Errors
/// The reason, in one line.
pub fn open(spec: &Spec) -> Result<Box<dyn Device>, OpenError> {
    open_with(spec, &OpenOptions::default())
}

/// [`open`] with a choice of how files and servers are used.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &Spec, options: &OpenOptions) -> Result<Box<dyn Device>, OpenError> {
    open_wrapped(spec, options, &|device| device)
}

/// [`open_with`], with each file and server wrapped in a device of the caller's, which sees the
/// pages as they are stored. Two replicas get one wrapper, which sees the pages as they are
/// written.
///
/// # Errors
/// As [`open`].
pub fn open_wrapped(
    spec: &Spec,
    options: &OpenOptions,
    wrap: &dyn Fn(Box<dyn Device>) -> Box<dyn Device>,
) -> Result<Box<dyn Device>, OpenError> {
    let sealed =
        |device: Result<Box<dyn Device>, Reason>| device.map(wrap).and_then(Sealed::new).map(boxed);
    let device = match spec {
        Spec::Ram { .. } => Ram::open(spec).map(boxed),
        Spec::Zram { size, algorithm } => {
            Zram::open(spec, spec.pages(), *size, *algorithm).map(boxed)
        }
        Spec::File { .. } | Spec::Dir { .. } => {
            let file = FileDevice::open(spec, options.submission).map(boxed);
            match options.seal {
                Seal::On => sealed(file),
                Seal::Off => file.map(wrap),
            }
        }
        Spec::Redis { .. } | Spec::Nbd { .. } if options.seal == Seal::Off => Err(Reason::Unsealed),
        Spec::Redis { servers, .. } => sealed(redis::open(spec, servers, &options.remote)),
        Spec::Nbd { server, export, .. } => {
            sealed(nbd::open(spec, server, export, &options.remote))
        }
        Spec::Flaky { faults, device } => {
            let inject =
                |device: Box<dyn Device>| flaky(device.into(), Arc::new(Faults::new(faults)));
            let is_outside = device.is_outside();
            let wrap = |file| wrap(if is_outside { inject(file) } else { file });
            let opened = open_wrapped(device, options, &wrap)?;
            Ok(if is_outside { opened } else { inject(opened) })
        }
        Spec::Replicate { first, second } => {
            return open_replicas(spec, [first, second], options).map(wrap);
        }
        Spec::Tier { fast, slow } => {
            let fast = match &**fast {
                Spec::Zram { size, algorithm } => {
                    let blocks = u32::try_from(size.pages() * TIER_BLOCKS_PER_PAGE);
                    Zram::open(fast, blocks.unwrap_or(u32::MAX), *size, *algorithm).map(boxed)
                }
                fast => open_wrapped(fast, options, wrap).map_err(|error| error.reason),
            };
            let slow = open_wrapped(slow, options, wrap)?;
            fast.and_then(|fast| Tier::new(spec.to_string(), spec.pages(), fast, slow)).map(boxed)
        }
    };
    device.map_err(|reason| OpenError { spec: spec.clone(), reason })
}

/// Opens both replicas. In a process of a run, one replica may have failed since the run began with
/// both.
fn open_replicas(
    spec: &Spec,
    replicas: [&Spec; 2],
    options: &OpenOptions,
) -> Result<Box<dyn Device>, OpenError> {
    let patience = options.remote.patience;
    let mut soon = options.clone();
    soon.remote.patience = patience.min(replicate::PATIENCE);
    let is_gone = |error: &OpenError| {
        options.remote.run.is_some() && error.reason.is_of_a_server_that_ended()
    };
    match replicas.map(|replica| open_wrapped(replica, &soon, &|device| device)) {
        [Ok(first), Ok(second)] => Replicated::new(spec.to_string(), [first, second], patience)
            .map(boxed)
            .map_err(|reason| OpenError { spec: spec.clone(), reason }),
        [Ok(left), Err(error)] | [Err(error), Ok(left)] if is_gone(&error) => {
            Ok(boxed(Survivor::new(spec.to_string(), left, patience)))
        }
        [Err(error), _] | [_, Err(error)] => Err(error),
    }
}

/// Combines two empty devices: pages go to `fast`, and cold ones are written back to `slow`. The
/// tier has as many slots as both together.
///
/// # Errors
/// The system is out of memory.
pub fn tier(
    name: String,
    fast: Box<dyn Device>,
    slow: Box<dyn Device>,
) -> Result<Box<dyn Device>, Reason> {
    let pages = fast.info().pages.saturating_add(slow.info().pages);
    Tier::new(name, pages, fast, slow).map(boxed)
}

/// A device whose transfers `faults` strike.
pub fn flaky(device: Arc<dyn Device>, faults: Arc<Faults>) -> Box<dyn Device> {
    boxed(Flaky::new(device, faults))
}

/// A device of the `pages` pages of `whole` from `first` on.
///
/// # Panics
/// If `whole` is shorter.
pub fn part(whole: Arc<dyn Device>, first: u32, pages: u32) -> Box<dyn Device> {
    boxed(Part::new(whole, first, pages))
}

fn boxed(device: impl Device + 'static) -> Box<dyn Device> {
    Box::new(device)
}
