//! A fault on a swapped page: reads it, and pages beside it.
//!
//! ```text
//! fetch -- Virtual  the pages after it that are on its device, while a stream continues
//!       |- Slot     the slots around it (around.rs)
//!       \- Off      the page alone
//! ```
//! The entries of all pages are held during the read.

use super::access::{Fault, Served};
use super::map::install;
use super::read::{extend_swapped, keep_or_free_slots, read_run};
use super::{around, request};
use crate::alloc;
use crate::error::FaultError;
use crate::machine::Machine;
use crate::space::Held;
use crate::stats::Counter;
use crate::swap::Ahead;
use highwater_platform::Platform;
use highwater_units::{RUN_PAGES_MAX, Slot};

/// Reads and maps a swapped page.
pub(super) fn fetch<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    slot: Slot,
    fault: Fault,
    window: usize,
) -> Result<Served, FaultError> {
    let access = fault.access;
    let window = match m.swap.ahead(slot) {
        Ahead::Slot => return around::fetch(m, held, slot, access),
        Ahead::Off => 1,
        Ahead::Virtual => window,
    };
    let mut slots = [slot; RUN_PAGES_MAX];
    while held.len() < window
        && let Some(next) = extend_swapped(m, &mut held, slot.device)
    {
        slots[held.len() - 1] = next;
    }
    let frames = alloc::frames(m, held.len())?;
    let frames = read_run(m, &mut held, &slots, frames)?;
    m.count(Counter::PgMajFault, 1);
    m.count(Counter::SwapRa, frames.len() as u64 - 1);
    if frames.len() == RUN_PAGES_MAX {
        let end = held.first().offset(RUN_PAGES_MAX as u64);
        request::continue_stream(m, held.space().id(), fault, end);
    }
    let protection = keep_or_free_slots(m, &slots[..frames.len()], &frames, access);
    Ok(install(m, held, &frames, protection, Served::Major))
}
