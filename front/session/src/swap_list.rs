//! The swap devices of a run, in words of the budget's file: those it began with, and those that
//! its user has added or removed since.
//!
//! ```text
//! item:  free -- claimed, text and room written --> Used <==> Gone      the user; Used again: also
//!                                                                      a process that has no room
//! changes: counted; each process notes the last change that it has carried out (budget.rs)
//! ```
//! An item keeps its place, and its levels of the room (swap_room.rs), for the life of the run.
//!
//! Locking: none. The text of an item is written once, before its state says so. Another process
//! may write anything to the words: words that cannot be read are no item.

use crate::swap_room::{SWAP_LEVELS_MAX, SwapRoom};
use highwater_devices::{Area, Injection};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The longest text of a device: its path may have 4096 bytes.
const TEXT_WORDS: usize = 4352 / size_of::<u64>();
/// The longest reason why a device cannot be used. It names the device.
const REASON_WORDS: usize = 4608 / size_of::<u64>();

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const USED: u64 = 2;
const GONE: u64 = 3;

#[repr(C)]
struct Item {
    state: AtomicU64,
    /// A [`SwapFailure`].
    failure: AtomicU64,
    /// Processes that opened it, and those that could not.
    opened: AtomicU64,
    refused: AtomicU64,
    /// Why the first of them could not.
    reason: Text<REASON_WORDS>,
    text: Text<TEXT_WORDS>,
}

#[repr(C)]
struct Text<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The shared words.
#[repr(C)]
pub(crate) struct SwapList {
    changes: AtomicU64,
    items: [Item; SWAP_LEVELS_MAX],
}

/// The user's wish for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Pages go there.
    Used,
    /// It has no pages, or they are being moved away.
    Gone,
}

/// A swap device of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapItem {
    /// The device.
    pub area: Area,
    /// Whether it is used.
    pub wanted: Wanted,
    /// The first of its levels.
    pub level: usize,
}

/// A swap device that is used, with its room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapInUse {
    /// Its place in the list.
    pub place: usize,
    /// The device.
    pub area: Area,
    /// The room of its levels.
    pub rooms: Vec<SwapRoom>,
}

impl SwapInUse {
    /// Slots for which its levels have room: more than pages, if a level compresses.
    pub fn slots_left(&self) -> u64 {
        let levels = self.area.spec.levels().into_iter().zip(&self.rooms);
        let slots = levels.map(|(level, room)| {
            room.left().saturating_mul(level.capacity().pages() / level.size().pages())
        });
        slots.sum()
    }
}

/// How many processes of a run could open a device that was added, and why others could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapOpenings {
    /// Processes that opened it.
    pub opened: u64,
    /// Processes that could not.
    pub refused: u64,
    /// Why the first of these could not.
    pub reason: String,
}

/// Why a process could not move its pages off a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapFailure {
    /// This many pages have no room in memory and on other devices.
    NoRoom(u64),
    /// This many pages are left, one of which cannot be read.
    Unreadable(u64),
    /// Its user has cancelled the removal.
    Cancelled,
}

impl SwapFailure {
    const NO_ROOM: u64 = 1;
    const UNREADABLE: u64 = 2;
    const CANCELLED: u64 = 3;

    fn to_word(self) -> u64 {
        match self {
            SwapFailure::NoRoom(pages) => pages << 2 | SwapFailure::NO_ROOM,
            SwapFailure::Unreadable(pages) => pages << 2 | SwapFailure::UNREADABLE,
            SwapFailure::Cancelled => SwapFailure::CANCELLED,
        }
    }

    fn from_word(word: u64) -> Option<SwapFailure> {
        match word & 3 {
            SwapFailure::NO_ROOM => Some(SwapFailure::NoRoom(word >> 2)),
            SwapFailure::UNREADABLE => Some(SwapFailure::Unreadable(word >> 2)),
            SwapFailure::CANCELLED => Some(SwapFailure::Cancelled),
            _ => None,
        }
    }
}

impl SwapList {
    /// A number that grows with each change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    fn changed(&self) -> u64 {
        self.changes.fetch_add(1, SeqCst).wrapping_add(1)
    }

    /// The devices by place; `None`: the place is free.
    pub(crate) fn items(&self) -> Vec<Option<SwapItem>> {
        let mut level = 0;
        let item = |item: &Item| {
            let found = item.read(level);
            // Only devices of one level are added.
            level += found.as_ref().map_or(1, |item| item.area.spec.levels().len());
            found
        };
        self.items.iter().map(item).collect()
    }

    /// Adds a device; `room` is called with its first level before others see it. `None`: there are
    /// as many as can be. Returns the number of the change.
    pub(crate) fn add(&self, area: &Area, room: impl FnOnce(usize)) -> Option<u64> {
        let text = area.to_string();
        let claim =
            |item: &&Item| item.state.compare_exchange(FREE, CLAIMED, SeqCst, Relaxed).is_ok();
        let levels = |items: &[Option<SwapItem>]| -> usize {
            let of = |item: &Option<SwapItem>| {
                item.as_ref().map_or(1, |item| item.area.spec.levels().len())
            };
            items.iter().map(of).sum()
        };
        let place = self.items.iter().position(|item| claim(&item))?;
        let level = levels(&self.items()[..place]);
        if level + area.spec.levels().len() > SWAP_LEVELS_MAX
            || !self.items[place].text.write(&text)
        {
            self.items[place].state.store(FREE, SeqCst);
            return None;
        }
        room(level);
        self.items[place].state.store(USED, SeqCst);
        Some(self.changed())
    }

    /// Sets the user's wish for a device. Returns the number of the change.
    pub(crate) fn want(&self, place: usize, wanted: Wanted) -> u64 {
        let item = &self.items[place];
        item.failure.store(0, SeqCst);
        item.opened.store(0, SeqCst);
        item.refused.store(0, SeqCst);
        item.reason.len.store(0, SeqCst);
        item.state.store(if wanted == Wanted::Used { USED } else { GONE }, SeqCst);
        self.changed()
    }

    /// Ends the removal of a device, for all processes. Of several failures the first one counts.
    pub(crate) fn fail(&self, place: usize, failure: SwapFailure) {
        let item = &self.items[place];
        let _ = item.failure.compare_exchange(0, failure.to_word(), SeqCst, Relaxed);
        if item.state.compare_exchange(GONE, USED, SeqCst, Relaxed).is_ok() {
            self.changed();
        }
    }

    /// Why the last removal of a device has failed, if it has.
    pub(crate) fn failure(&self, place: usize) -> Option<SwapFailure> {
        SwapFailure::from_word(self.items[place].failure.load(SeqCst))
    }

    /// Notes whether a process could open a device, or why not.
    pub(crate) fn note_opening(&self, place: usize, opening: Result<(), &str>) {
        let item = &self.items[place];
        match opening {
            Ok(()) => _ = item.opened.fetch_add(1, SeqCst),
            Err(reason) if item.refused.fetch_add(1, SeqCst) == 0 => {
                item.reason.write_start(reason)
            }
            Err(_) => {}
        }
    }

    /// How many processes could open a device since it was added, and why others could not.
    pub(crate) fn openings(&self, place: usize) -> SwapOpenings {
        let item = &self.items[place];
        let [opened, refused] = [&item.opened, &item.refused].map(|it| it.load(SeqCst));
        // Another process may have written anything.
        let reason = item.reason.read().unwrap_or_default().replace(char::is_control, "?");
        SwapOpenings { opened, refused, reason }
    }
}

impl<const WORDS: usize> Text<WORDS> {
    /// Writes as much of the text as fits.
    fn write_start(&self, text: &str) {
        let most = text.len().min(WORDS * size_of::<u64>());
        let fits = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        self.write(&text[..fits.unwrap_or(0)]);
    }

    /// Writes the text, if it fits.
    fn write(&self, text: &str) -> bool {
        let words = text.as_bytes().chunks(size_of::<u64>()).map(|bytes| {
            let mut word = [0; size_of::<u64>()];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        });
        let fits = text.len() <= WORDS * size_of::<u64>();
        self.words.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        self.len.store(text.len() as u64, SeqCst);
        fits
    }

    fn read(&self) -> Option<String> {
        let len = self.len.load(SeqCst) as usize;
        let words = self.words.iter().take(len.div_ceil(size_of::<u64>()));
        let bytes: Vec<u8> = words.flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        String::from_utf8(bytes.get(..len)?.to_vec()).ok()
    }
}

impl Item {
    fn read(&self, level: usize) -> Option<SwapItem> {
        let wanted = match self.state.load(SeqCst) {
            USED => Wanted::Used,
            GONE => Wanted::Gone,
            _ => return None,
        };
        let area = Area::parse_with(&self.text.read()?, Injection::Allowed).ok()?;
        Some(SwapItem { area, wanted, level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Box<SwapList> {
        let word = || AtomicU64::new(0);
        fn text<const WORDS: usize>() -> Text<WORDS> {
            Text { len: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
        }
        let item = |_| Item {
            state: word(),
            failure: word(),
            opened: word(),
            refused: word(),
            reason: text(),
            text: text(),
        };
        Box::new(SwapList { changes: word(), items: std::array::from_fn(item) })
    }

    fn area(text: &str) -> Area {
        Area::parse(text).unwrap()
    }

    #[test]
    fn devices_keep_their_places_and_levels() {
        let list = list();
        let mut rooms = Vec::new();
        let long = format!("dir:/{}:1G,priority=3", "d".repeat(4000));
        let texts = ["tier:ram:1M+dir:/a:2M", long.as_str(), "zram:1G:zstd"];
        for (index, text) in texts.iter().enumerate() {
            let change = list.add(&area(text), |level| rooms.push(level));
            assert_eq!(change, Some(index as u64 + 1));
        }
        assert_eq!(rooms, [0, 2, 3]);
        let change = list.want(1, Wanted::Gone);
        assert_eq!((change, list.changes()), (4, 4));
        let items: Vec<_> = list.items().into_iter().flatten().collect();
        let found = items.iter().map(|it| (it.area.to_string(), it.wanted, it.level));
        let wanted = [Wanted::Used, Wanted::Gone, Wanted::Used];
        let expected = texts.iter().zip(wanted).zip(rooms);
        let expected = expected.map(|((text, wanted), level)| (text.to_string(), wanted, level));
        assert!(found.eq(expected), "{items:?}");
        for _ in 4..SWAP_LEVELS_MAX {
            assert!(list.add(&area("ram:1M"), |_| ()).is_some());
        }
        assert_eq!(list.add(&area("ram:1M"), |_| ()), None, "all levels are in use");
    }

    #[test]
    fn the_first_failure_ends_a_removal() {
        let list = list();
        list.add(&area("ram:1M"), |_| ());
        list.fail(0, SwapFailure::Cancelled);
        assert_eq!(list.changes(), 1, "no removal is under way");
        list.want(0, Wanted::Gone);
        assert_eq!(list.failure(0), None);
        for failure in [SwapFailure::NoRoom(1 << 40), SwapFailure::Unreadable(3)] {
            list.fail(0, failure);
            assert_eq!(list.failure(0), Some(SwapFailure::NoRoom(1 << 40)));
        }
        let wanted = list.items()[0].as_ref().map(|item| item.wanted);
        assert_eq!((wanted, list.changes()), (Some(Wanted::Used), 3));
        for failure in [SwapFailure::Unreadable(7), SwapFailure::Cancelled] {
            assert_eq!(SwapFailure::from_word(failure.to_word()), Some(failure));
        }
    }

    #[test]
    fn the_first_reason_is_kept_until_the_device_is_wanted_again() {
        let list = list();
        list.add(&area("ram:1M"), |_| ());
        assert_eq!(list.openings(0), SwapOpenings::default());
        for opening in [Err("full"), Ok(()), Err("gone")] {
            list.note_opening(0, opening);
        }
        let found = SwapOpenings { opened: 1, refused: 2, reason: "full".to_owned() };
        assert_eq!(list.openings(0), found);
        list.want(0, Wanted::Used);
        assert_eq!(list.openings(0), SwapOpenings::default());
    }

    #[test]
    fn what_cannot_be_read_is_no_device() {
        let list = list();
        list.add(&area("ram:1M"), |_| ());
        list.items[0].text.len.store(u64::MAX, SeqCst);
        assert_eq!(list.items()[0], None);
        list.items[0].text.len.store(3, SeqCst);
        assert_eq!(list.items()[0], None);
    }
}
