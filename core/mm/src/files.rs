//! Files that are opened and closed while the manager runs. Each gets a place, which is a device of
//! role Place, and a space.
//!
//! ```text
//! place:       vacant -------- open --> taken ------- close --> vacant
//! its spaces:  ended at page 0 ------> [0, pages) -----------> ended at page 0, all absent
//! ```
//! Spaces are never removed, because other threads may still refer to one. A closed space has no
//! pages, and is used again for a file that fits; capacities are powers of two, so that most files
//! fit. A thread with an outdated owner or readahead request finds absent pages beyond the end, or
//! pages of the next file, just as if a page had been dropped and read again. At most one space of
//! a place is open.
//!
//! Locking: one atomic word claims and releases a place.

use crate::error::FaultError;
use crate::machine::Machine;
use crate::range::{Large, discard, each_held};
use crate::space::{Backing, Entry, Range, Space};
use crate::write_back::write_back;
use highwater_platform::{AttachError, DeviceRole, FileAccess, FileInfo, Platform};
use highwater_units::{Order, Vpn};

/// Why a file could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSpace {
    /// All places are taken, or there are 256 spaces.
    Places,
    /// The platform refused.
    Refused(AttachError),
}

/// Gives a file a place and a space.
///
/// # Errors
/// See [`NoSpace`].
pub fn open<P: Platform>(m: &Machine<P>, file: P::File) -> Result<&Space<P>, NoSpace> {
    let FileInfo { pages, access } = m.platform.describe(&file);
    let (space, device) = take_place(m, pages.into()).ok_or(NoSpace::Places)?;
    match m.platform.open(device, space.id(), file) {
        Ok(()) => {
            space.begin(Vpn(pages.into()), access);
            Ok(space)
        }
        Err(error) => {
            m.release_file(device);
            Err(NoSpace::Refused(error))
        }
    }
}

/// Writes a file's changes, then ends its space. The caller makes sure that no other thread uses
/// the space.
///
/// # Errors
/// As for [`write_back`]; then the file stays open.
pub fn close<P: Platform>(m: &Machine<P>, space: &Space<P>) -> Result<(), FaultError> {
    let place = place_of(m, space);
    let device = place.expect("the space of an opened file");
    if space.access() == FileAccess::ReadWrite {
        write_back(m, space, Range::whole(space))?;
    }
    discard(m, space, Range { first: Vpn(0), end: space.cut(Vpn(0)) });
    let remembers = |entry: Entry| entry.shadow().is_some();
    each_held(space, Range::whole(space), Large::Leave, remembers, |held| {
        held.release(|_, _| Entry::ABSENT);
    });
    m.platform.close(device, space.id());
    m.release_file(device);
    Ok(())
}

/// The place of a space, if it has one.
fn place_of<P: Platform>(m: &Machine<P>, space: &Space<P>) -> Option<u8> {
    let Backing::File { device } = space.backing() else { return None };
    let info = m.swap.info(device)?;
    (info.role == DeviceRole::Place).then_some(device)
}

/// Claims a vacant place, with a space of at least `pages` pages.
fn take_place<P: Platform>(m: &Machine<P>, pages: u64) -> Option<(&Space<P>, u8)> {
    loop {
        let (space, device) = choose(m, pages)?;
        if !m.claim_file(device) {
            continue;
        }
        let space = space.or_else(|| {
            let added =
                m.add_space(pages.next_power_of_two(), Order(0), Backing::File { device })?;
            added.cut(Vpn(0));
            Some(added)
        });
        if space.is_none() {
            m.release_file(device);
        }
        return Some((space?, device));
    }
}

/// The best vacant place: the one with the smallest space that fits; else the one with the fewest
/// spaces, to which the caller adds a space.
fn choose<P: Platform>(m: &Machine<P>, pages: u64) -> Option<(Option<&Space<P>>, u8)> {
    let vacant = |device: &u8| !m.has_file(*device);
    let fits = m.spaces().filter(|space| space.pages() >= pages);
    let known = fits.filter_map(|space| Some((space, place_of(m, space).filter(vacant)?)));
    if let Some((space, device)) = known.min_by_key(|(space, _)| space.pages()) {
        return Some((Some(space), device));
    }
    let spaces = |device: &u8| {
        let of_it = |space: &&Space<P>| space.backing() == Backing::File { device: *device };
        m.spaces().filter(of_it).count()
    };
    m.places().filter(vacant).min_by_key(spaces).map(|device| (None, device))
}
