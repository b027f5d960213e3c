//! A fault on a file's page that is not in memory: reads it, and pages after it.

use super::access::{Fault, Served, Window};
use super::file_readahead::{OwnRead, is_on, plan};
use super::map::{adopt, map_first};
use super::read::{read_run, within_end};
use super::refault::list_file;
use crate::alloc;
use crate::error::FaultError;
use crate::machine::Machine;
use crate::space::{Access, Held, Page, Pinned};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{Direction, RUN_PAGES_MAX, Slot};

/// Reads and maps a page of a file, and pages after it.
pub(super) fn load<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    device: u8,
    fault: Fault,
    window: Window,
) -> Result<Served, FaultError> {
    let own = if is_on(m, m.swap.info(device)) {
        plan(m, held.space(), fault)
    } else {
        let pages = match window.direction {
            Direction::Up => window.pages,
            Direction::Down => 1,
        };
        OwnRead { pages, mapped: pages }
    };
    while held.len() < own.pages && held.extend(Pinned::Refuse, |e| e.page() == Page::Absent) {}
    within_end(&mut held)?;
    let frames = alloc::frames(m, held.len())?;
    let first = held.first().0 as u32;
    held.truncate(frames.len());
    let place = |index| Slot { device, index: first.wrapping_add(index as u32) };
    let places: [Slot; RUN_PAGES_MAX] = std::array::from_fn(place);
    let frames = read_run(m, &mut held, &places[..frames.len()], frames)?;
    m.count(Counter::PgMajFault, 1);
    m.count(Counter::FileRa, frames.len() as u64 - 1);
    let protection = match fault.access {
        Access::Read => Protection::ReadOnly,
        Access::Write => Protection::ReadWrite,
    };
    adopt(m, &held, &frames);
    list_file(m, &held, &frames);
    Ok(map_first(m, held, &frames, own.mapped, protection, Served::Major))
}
