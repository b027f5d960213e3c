//! Files that come and go: each has a place, and a space, that had others before.
//!
//! ```text
//! place (a device of role Place):  vacant -- open --> taken -- close --> vacant
//! its spaces, of some capacities:  ended at 0 ------> [0, pages) ------> ended at 0, all absent
//! ```
//! Spaces are never removed, because anybody may still look at one. So a closed one stays, without
//! pages, and is used again for a file that fits; capacities are powers of two, so that they soon
//! do. Whoever comes late, by an owner or a wish that is out of date, finds absent pages beyond the
//! end, or pages of the next file: as after a page was dropped and read again. Two spaces of a
//! place are never open at once.
//!
//! Locking: a place is taken and given back by one atomic word.

use crate::error::FaultError;
use crate::machine::Machine;
use crate::range::{Large, discard, each_held};
use crate::space::{Backing, Entry, Range, Space};
use crate::write_back::write_back;
use highwater_platform::{AttachError, DeviceRole, FileAccess, FileInfo, Platform};
use highwater_units::{Order, Vpn};

/// Why a file has not got a space.
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

/// Ends the space of a file that was opened; its changes are written first. Nobody else uses the
/// space any more.
///
/// # Errors
/// As of [`write_back`]: then the file stays open.
pub fn close<P: Platform>(m: &Machine<P>, space: &Space<P>) -> Result<(), FaultError> {
    let place = place_of(m, space);
    let device = place.expect("the space is that of a file that was opened");
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

/// The place of a space, if it is that of files that come and go.
fn place_of<P: Platform>(m: &Machine<P>, space: &Space<P>) -> Option<u8> {
    let Backing::File { device } = space.backing() else { return None };
    let info = m.swap.info(device)?;
    (info.role == DeviceRole::Place).then_some(device)
}

/// Takes a vacant place, with a space of `pages` pages at least.
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

/// The best vacant place: that of the smallest space that fits; else one without any space, to have
/// a new one; else any.
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
