//! The label in the first page of an export: it is swap of Highwater, and in use or not.
//!
//! ```text
//! "Highwater swap 1"   beat: 0, or a number that changes while processes use the export   zeros
//! ```
//! An export without a label is used if its first pages are zeros: what file systems, partition
//! tables and volume managers write is there.

use crate::error::Reason;
use crate::remote::nbd::link::{Failure, Link};
use crate::remote::verdict::Problem;
use highwater_units::PAGE_SIZE;
use rustix::rand::{GetRandomFlags, getrandom};
use std::time::Duration;

/// How often the beat changes.
pub(super) const BEAT: Duration = Duration::from_secs(2);
/// How long a beat is watched before nobody is taken to be there, and how often.
const WATCH: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(200);
/// Pages that are zeros in an empty export: up to the label of btrfs at 64 KiB, the last one.
const BLANK_PAGES: u64 = 17;

const MAGIC: &[u8; 16] = b"Highwater swap 1";

type Page = [u8; PAGE_SIZE];

/// The state of an export, by its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Zeros.
    Blank,
    /// Swap of Highwater that nobody uses.
    Idle,
    /// Swap of Highwater that was in use when it was written.
    Busy(u64),
    /// Data.
    Other,
}

fn standing(page: &Page) -> Standing {
    match page.split_first_chunk() {
        Some((MAGIC, rest)) => match rest.first_chunk().map_or(0, |beat| u64::from_le_bytes(*beat))
        {
            0 => Standing::Idle,
            beat => Standing::Busy(beat),
        },
        _ if is_zero(page) => Standing::Blank,
        _ => Standing::Other,
    }
}

fn is_zero(page: &Page) -> bool {
    page.iter().all(|byte| *byte == 0)
}

fn label(beat: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page[..MAGIC.len()].copy_from_slice(MAGIC);
    page[MAGIC.len()..][..8].copy_from_slice(&beat.to_le_bytes());
    page
}

/// Reads the first page. Refuses an export that holds data by it: a server that was started anew
/// may serve another one by that name.
pub(super) fn look(link: &mut Link) -> Result<Standing, Failure> {
    match standing(&link.read(0)?) {
        Standing::Other => Err(Failure::Unfit(Reason::HoldsData)),
        swap => Ok(swap),
    }
}

/// Refuses an export with this state if it holds data behind its first page, or is used.
pub(super) fn check(link: &mut Link, found: Standing) -> Result<(), Failure> {
    let beat = match found {
        Standing::Idle => return Ok(()),
        Standing::Other => return Err(Failure::Unfit(Reason::HoldsData)),
        Standing::Blank => {
            for page in 1..BLANK_PAGES {
                if !is_zero(&link.read(page * PAGE_SIZE as u64)?) {
                    return Err(Failure::Unfit(Reason::HoldsData));
                }
            }
            return Ok(());
        }
        Standing::Busy(beat) => beat,
    };
    // Looks are counted: the watcher itself may be stopped for a while.
    for _ in 0..WATCH.as_millis() / LOOK.as_millis() {
        std::thread::sleep(LOOK);
        match look(link)? {
            Standing::Busy(later) if later == beat => {}
            Standing::Busy(_) => return Err(Failure::Unfit(Reason::InUse)),
            Standing::Blank | Standing::Idle | Standing::Other => return Ok(()),
        }
    }
    Ok(())
}

/// Tells others that the export is in use.
pub(super) fn beat(link: &mut Link) -> Result<(), Problem> {
    let mut random = [0; 8];
    // Without random bytes it is in use, and does not change.
    let _ = getrandom(&mut random, GetRandomFlags::empty());
    link.write(0, &label(u64::from_ne_bytes(random).max(1)))
}

/// Tells others that it is not.
pub(super) fn rest(link: &mut Link) -> Result<(), Problem> {
    link.write(0, &label(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_written() {
        assert_eq!(standing(&label(0)), Standing::Idle);
        assert_eq!(standing(&label(7)), Standing::Busy(7));
        assert_eq!(standing(&[0; PAGE_SIZE]), Standing::Blank);
        for at in [0, 510, 1080, PAGE_SIZE - 1] {
            let mut page = [0; PAGE_SIZE];
            page[at] = 0x55;
            assert_eq!(standing(&page), Standing::Other, "a byte at {at}");
        }
    }
}
