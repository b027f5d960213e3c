//! The part of a run's memory that a process may use.
//!
//! ```text
//! Share --- borrow, give_back, owed, pay ---> its entry of the Budget
//!       --- take_lent --------------------->  those of its children
//!       --- set_besides, aim -------------->  its entry; every process calculates the same targets
//! ```
//! Locking: as for [`crate::Budget`].

use crate::arbitration::{Claim, targets};
use crate::budget::{Activity, Budget, Compaction, FLOOR, START, Scope};
use crate::entry::Entry;
use crate::family::Lent;
use crate::shared_pages::{pages_in, signed_pages_in};
use crate::stats_file::Image;
use crate::swap_list::{SwapFailure, SwapInUse, SwapItem};
use crate::tuning::Tuning;
use crate::turns::Turn;
use rustix::thread::futex;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

/// How long a process counts as short after it asked in vain.
const SHORT: Duration = Duration::from_millis(500);

/// The high watermark is below one page in this many: min is at most 1/16, and the gaps 1/64.
const MARKS_SHARE: u64 = 8;

/// Pages that have parted are counted in batches of at least this many, because each count adds all
/// entries up.
const PARTED_MIN: u64 = 16;

/// What a process uses besides the pages that it was granted, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// All that cannot be paged.
    pub unpaged: u64,
    /// The part of `unpaged` that swap devices in RAM take.
    pub devices: u64,
    /// Its pages that count for other processes, which map them, too; negative if more than these
    /// have parted, that is, are no longer shared.
    pub shared: i64,
    /// The number of these pages when they were last counted: that many can part beyond `shared`.
    pub common: u64,
    /// All pages that had parted by then.
    pub parted: u64,
}

/// Pages that a fork has shared between a process and its parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forked {
    /// How many.
    pub pages: u64,
    /// The parent's entry ([`Share::index`]), if it has one.
    pub parent: Option<usize>,
}

impl Forked {
    /// The child's pages that count for the parent.
    pub fn own(self) -> u64 {
        self.pages - self.lent().pages
    }

    /// The parent's pages that count for the child.
    fn lent(self) -> Lent {
        let parent = self.parent.and_then(|parent| u16::try_from(parent).ok());
        parent.map_or(Lent::default(), |parent| Lent { pages: self.pages / 2, parent })
    }
}

/// The instruction to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// No process is short: it keeps its pages.
    Keep,
    /// It is to give pages back until it has this many, or may borrow up to this many.
    Pages(u64),
}

/// The part of the budget that this process may use.
pub struct Share {
    budget: Budget,
    index: usize,
    /// Pages of swap devices in RAM that the entry counts as unpaged, ...
    counted: AtomicU64,
    /// ... and those for which the process has given up frames, or need not give up any.
    paid: AtomicU64,
    /// Pages that had parted when the entry's shared pages were counted, ...
    parted: AtomicU64,
    /// ... and when [`Share::owed`] was last called.
    parted_now: AtomicU64,
    /// Pages that have parted, which the entry no longer counts as shared, and for which there was
    /// no memory: the process is to give up frames for them.
    unpaid: AtomicU64,
    /// It borrows no more than this in all.
    most: AtomicU64,
    /// 1: the last request was denied; until [`Share::aim`], further ones would be, too.
    denied: AtomicU32,
    /// A bit for each level of the swap devices that has little room left.
    scarce: AtomicU32,
    /// This process, as the owner of its entry.
    image: Image,
    /// Takes the changes of this process once its entry has another owner, or none.
    nobodys: Entry,
}

impl Budget {
    /// Takes an entry for a process, with [`START`] pages, whatever the others have. A forked child
    /// also gets the pages that it has in common with its parent, and the free pages that
    /// watermarks ask for beside that many, up to [`FLOOR`].
    ///
    /// # Errors
    /// All entries are taken.
    pub fn join(self, image: Image, forked: Forked) -> io::Result<Share> {
        let index = self.entries().take(image.to_bits());
        let index = index.ok_or_else(|| io::Error::other("too many processes share memory"))?;
        let share = Share {
            budget: self,
            index,
            counted: AtomicU64::new(0),
            paid: AtomicU64::new(0),
            parted: AtomicU64::new(0),
            parted_now: AtomicU64::new(0),
            unpaid: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            denied: AtomicU32::new(0),
            scarce: AtomicU32::new(0),
            image,
            nobodys: Entry::default(),
        };
        share.budget.head().used.fetch_max(index as u32 + 1, AcqRel);
        // Its memory is new: earlier requests do not concern it.
        share.has_compacted(share.budget.head().compactions.load(Acquire), 0);
        let free = (forked.pages / MARKS_SHARE).clamp(START, FLOOR);
        let parent = forked.parent.map(|parent| &share.budget.words().entries[parent]);
        let family = parent.map_or(image.to_bits(), |parent| parent.family.load(SeqCst));
        share.entry().family.store(family, SeqCst);
        share.entry().lent.store(forked.lent().to_bits(), SeqCst);
        share.entry().common.store(forked.own(), SeqCst);
        share.entry().shared.store(forked.own().cast_signed(), SeqCst);
        share.entry().granted.store(free + forked.pages, SeqCst);
        if forked.pages > 0 {
            // The parent takes its half.
            share.budget.notify();
        } else {
            share.budget.notify_if_over();
        }
        Ok(share)
    }
}

impl Share {
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn entry(&self) -> &Entry {
        let entries = self.budget.entries();
        entries.of(self.index, self.image.to_bits()).unwrap_or(&self.nobodys)
    }

    /// Whether the entry may be another process's: this one has left it, or was taken for ended.
    fn has_left(&self) -> bool {
        std::ptr::eq(self.entry(), &self.nobodys)
    }

    /// Identifies this process's entry.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The pages that this process may use.
    pub fn granted(&self) -> u64 {
        self.entry().granted()
    }

    /// Whether memory that cannot be paged counts, too.
    pub fn counts_everything(&self) -> bool {
        self.budget.scope() == Scope::Everything
    }

    /// The pages that no process has been granted.
    pub fn left(&self) -> u64 {
        self.budget.pages_left()
    }

    /// The pages that no process has been granted; negative: processes have been granted more than
    /// there are.
    pub fn balance(&self) -> i64 {
        let used = self.budget.granted() + self.budget.besides().saturating_sub(self.limit());
        self.budget.room().cast_signed() - used.cast_signed()
    }

    /// The pages that all processes may use together.
    pub fn limit(&self) -> u64 {
        self.budget.limit()
    }

    /// The pages that it could borrow if it asked now.
    pub fn room(&self) -> u64 {
        self.budget.pages_left().max(FLOOR.saturating_sub(self.granted()))
    }

    /// Asks for `pages` more; returns how many it may use in addition. It gets those below
    /// [`FLOOR`] whatever the others have; the others then give as many. Makes a system call only
    /// for these pages, or if this process is the first to be short.
    pub fn borrow(&self, pages: u64) -> u64 {
        let own = self.granted();
        let certain = FLOOR.saturating_sub(own).min(pages);
        if certain == 0 && self.denied.load(Relaxed) != 0 {
            return 0;
        }
        let asked = certain.max(pages.min(self.most.load(Relaxed).saturating_sub(own)));
        let granted = self.entry().borrow(asked, certain, || self.excess());
        if granted.pages < pages {
            self.ask();
        } else if granted.excess > 0 {
            self.budget.notify();
        }
        granted.pages
    }

    /// Lets all processes know that this one is short.
    fn ask(&self) {
        self.denied.store(1, Relaxed);
        let now = self.budget.now();
        let until = now + SHORT.as_millis() as u64;
        self.entry().short_until.store(until, Relaxed);
        if self.budget.head().short_until.fetch_max(until, AcqRel) <= now {
            self.budget.notify();
        }
    }

    /// Returns pages that this process no longer uses.
    pub fn give_back(&self, pages: u64) {
        self.entry().give_back(pages);
    }

    /// Publishes what it uses besides the pages that it was granted.
    pub fn set_besides(&self, besides: Besides) {
        let Besides { unpaged, devices, shared, common, parted } = besides;
        let since = parted.saturating_sub(self.parted.swap(parted, Relaxed)).min(self.can_part());
        self.counted.store(devices, Relaxed);
        self.entry().unpaged.store(unpaged, Relaxed);
        self.entry().common.store(common, SeqCst);
        self.entry().shared.store(shared, SeqCst);
        if self.excess() == 0 {
            self.paid.store(devices, Relaxed);
            self.unpaid.store(0, Relaxed);
        } else {
            self.paid.fetch_min(devices, Relaxed);
            self.unpaid.fetch_add(since, Relaxed);
            self.budget.notify();
        }
    }

    /// Adds to the pages that it uses besides those that it was granted; negative: it uses fewer.
    pub fn add_unpaged(&self, pages: i64) {
        self.entry().add_unpaged(pages);
    }

    /// How often the pages of processes that have no entry were measured.
    pub fn measures(&self) -> u64 {
        self.budget.head().measures.load(SeqCst)
    }

    /// The pages that processes have been granted beyond the room of the budget.
    fn excess(&self) -> u64 {
        self.budget.granted().saturating_sub(self.budget.room())
    }

    /// Takes over the shared pages of this process that forked children hold for it; returns how
    /// many more pages it has in common with others.
    pub fn take_lent(&self) -> u64 {
        self.budget.entries().lent_by(self.index).map(|entry| entry.take_lent()).sum()
    }

    /// Pages that others have taken from its shared ones so far, less those that they have added.
    pub fn taken(&self) -> i64 {
        signed_pages_in(&self.entry().taken)
    }

    /// Whether other processes may have pages in common with this one.
    pub fn has_kin(&self) -> bool {
        self.budget.entries().kin(self.index).next().is_some()
    }

    /// `pages` more of this process's pages count for others than its entry says; negative: fewer.
    /// That many fewer pages of the others count for others, because no page has parted by this.
    pub fn exchange(&self, pages: i64) {
        let kin: Vec<&Entry> = self.budget.entries().kin(self.index).collect();
        let part = pages / kin.len().max(1) as i64;
        kin.iter().for_each(|kin| kin.lose_shared(part));
        self.entry().shared.fetch_add(part * kin.len() as i64, SeqCst);
    }

    /// The pages that this process is to give up, at most those above [`FLOOR`]: for the growth of
    /// its swap devices in RAM, which take `devices` pages now, and for pages that have parted
    /// (`parted` in all) and for which no memory is left.
    pub fn owed(&self, devices: u64, parted: u64) -> u64 {
        self.parted_now.fetch_max(parted, Relaxed);
        let grown = match self.budget.scope() {
            Scope::Everything => devices.saturating_sub(self.paid.load(Relaxed)),
            Scope::Paged => 0,
        };
        let unshared = match self.unshared() {
            few @ 0..PARTED_MIN => few,
            many => self.count_parted(many),
        };
        let unpaid = self.unpaid.load(Relaxed);
        let unpaid = if unpaid > 0 { unpaid.min(self.excess()) } else { 0 };
        (grown + unshared + unpaid).min(self.granted().saturating_sub(FLOOR))
    }

    /// The most pages of memory that its tiers, which take `tiers` now, are to hold: half of the
    /// memory that it has or could borrow, less the excess of all processes, because a tier can
    /// give memory up where processes have few pages. `None`: the limit does not count tiers.
    pub fn tiers_most(&self, tiers: u64) -> Option<u64> {
        match self.budget.scope() {
            Scope::Everything => {
                let half = (self.granted() + tiers + self.left()) / 2;
                Some(half.saturating_sub(self.excess()))
            }
            Scope::Paged => None,
        }
    }

    /// Pages that have parted, but that its entry still counts as shared.
    fn unshared(&self) -> u64 {
        let parted = self.parted_now.load(Relaxed).saturating_sub(self.parted.load(Relaxed));
        parted.min(self.can_part())
    }

    /// Pages that can part, as its entry counts them.
    fn can_part(&self) -> u64 {
        let (shared, common) = (&self.entry().shared, &self.entry().common);
        pages_in(common).saturating_add_signed(signed_pages_in(shared))
    }

    /// Lets its entry no longer count pages that have parted as shared, as far as memory is left
    /// for them; returns the rest.
    fn count_parted(&self, pages: u64) -> u64 {
        self.unshare(pages);
        let rest = self.excess().min(pages);
        self.parted.fetch_sub(rest, Relaxed);
        self.entry().shared.fetch_add(rest.cast_signed(), SeqCst);
        rest
    }

    fn unshare(&self, pages: u64) {
        self.parted.fetch_add(pages, Relaxed);
        self.entry().shared.fetch_sub(pages.cast_signed(), SeqCst);
    }

    /// This process has given up `pages` of the pages that it owed. Until it publishes again, its
    /// entry counts them under the use for which they were given up.
    pub fn pay(&self, pages: u64) {
        let less = |unpaid: u64| Some(unpaid.saturating_sub(pages));
        let unpaid = self.unpaid.fetch_update(Relaxed, Relaxed, less).unwrap_or(0).min(pages);
        self.give_back(unpaid);
        let pages = pages - unpaid;
        let unshared = self.unshared().min(pages);
        self.unshare(unshared);
        let grown = pages - unshared;
        let paid = self.paid.fetch_add(grown, Relaxed) + grown;
        let news = paid.saturating_sub(self.counted.fetch_max(paid, Relaxed));
        self.entry().unpaged.fetch_add(news, Relaxed);
        self.give_back(pages);
    }

    /// Publishes the state of this process, and returns what it is to do. `spare` free pages would
    /// not be missed; `misses` pages per second came in by faults.
    pub fn aim(&self, spare: u64, misses: u64) -> Aim {
        self.look_at_swap();
        self.entry().spare.store(spare, Relaxed);
        self.entry().misses.store(misses, Relaxed);
        let (now, limit) = (self.budget.now(), self.budget.room());
        let is_calm = self.budget.head().short_until.load(Acquire) <= now;
        let aim = if is_calm && self.budget.granted() <= limit {
            Aim::Keep
        } else {
            Aim::Pages(self.target(limit, now))
        };
        self.most.store(if let Aim::Pages(pages) = aim { pages } else { u64::MAX }, Relaxed);
        self.denied.store(0, Relaxed);
        aim
    }

    fn target(&self, limit: u64, now: u64) -> u64 {
        let entries = self.budget.entries().iter().enumerate();
        let taken = entries.filter(|(_, entry)| entry.is_taken());
        let claims: Vec<(u16, Claim)> =
            taken.map(|(index, entry)| (index as u16, entry.claim(now))).collect();
        let own = claims.iter().position(|(index, _)| usize::from(*index) == self.index);
        let first = self.turn(now, &claims).first(&claims);
        let claims: Vec<Claim> = claims.into_iter().map(|(_, claim)| claim).collect();
        match own {
            Some(own) if !self.has_left() => targets(limit, &claims, first)[own],
            _ => FLOOR,
        }
    }

    /// Whose turn it is, after one that has ended.
    fn turn(&self, now: u64, claims: &[(u16, Claim)]) -> Turn {
        let word = &self.budget.head().turn;
        let before = word.load(Acquire);
        let turn = Turn::from_bits(before).at(now, claims);
        match word.compare_exchange(before, turn.to_bits(), AcqRel, Acquire) {
            Ok(_) => turn,
            // Another process has looked at the same time.
            Err(newer) => Turn::from_bits(newer),
        }
    }

    /// Publishes how this process spent its time lately.
    pub fn set_activity(&self, activity: Activity) {
        self.entry().activity.store(activity.to_bits(), Relaxed);
    }

    /// Takes up to `pages` pages of the room of a swap device's level; returns how many.
    pub fn claim_swap(&self, level: usize, pages: u32) -> u32 {
        if self.has_left() {
            return 0;
        }
        let used = self.budget.entries().used;
        let granted = self.budget.words().swap.claim(self.index, used, level, pages);
        self.look_at_swap();
        granted
    }

    /// Whether more than half of a level's room was claimed when this process last looked: when it
    /// claimed some, or at its last [`Share::aim`].
    pub fn swap_is_scarce(&self, level: usize) -> bool {
        self.scarce.load(Relaxed) >> level & 1 != 0
    }

    fn look_at_swap(&self) {
        let rooms = self.budget.swap_rooms().into_iter().enumerate();
        let scarce = rooms.filter(|(_, room)| room.claimed > room.left());
        self.scarce.store(scarce.map(|(level, _)| 1 << level).sum(), Relaxed);
    }

    /// Returns pages of the room of a level that this process no longer uses.
    pub fn give_back_swap(&self, level: usize, pages: u32) {
        if !self.has_left() {
            self.budget.words().swap.give_back(self.index, level, pages);
        }
    }

    /// The swap devices that are used, with their room.
    pub fn swap_in_use(&self) -> Vec<SwapInUse> {
        self.budget.swap_in_use()
    }

    /// The swap devices of the run, and the number of their last change.
    pub fn swap_items(&self) -> (u64, Vec<Option<SwapItem>>) {
        // First the number: a change in between is looked at again.
        let change = self.swap_change();
        (change, self.budget.swap_items())
    }

    /// The number of the last change of the swap devices.
    pub fn swap_change(&self) -> u64 {
        self.budget.words().swap_list.changes()
    }

    /// Whether this process has carried out all changes of the swap devices.
    pub fn has_followed_swap(&self) -> bool {
        self.entry().followed.load(SeqCst) == self.swap_change()
    }

    /// This process has carried out the changes of the swap devices up to this one.
    pub fn follow_swap(&self, change: u64) {
        self.entry().followed.store(change, SeqCst);
    }

    /// This process cannot move its pages off a device: all use it again.
    pub fn fail_swap(&self, place: usize, failure: SwapFailure) {
        self.budget.fail_swap(place, failure);
    }

    /// Notes whether this process could open a device that was added, or why not.
    pub fn note_swap_opening(&self, place: usize, opening: Result<(), &str>) {
        self.budget.words().swap_list.note_opening(place, opening);
    }

    /// Clears entries of processes that have ended.
    pub fn reap(&self) {
        self.budget.reap_after(self.index);
    }

    /// Looks at all entries for processes that have ended: two system calls for each.
    pub fn reap_all(&self) {
        self.budget.entries().others(self.index).for_each(|other| {
            self.budget.reap(other);
        });
    }

    /// The settings that this process's manager is to have.
    pub fn tuning(&self) -> Tuning {
        self.budget.tuning()
    }

    /// The number of the last request to compact; `None`: this process has carried it out.
    pub fn compaction(&self) -> Option<u32> {
        let wanted = self.budget.head().compactions.load(Acquire);
        (self.entry().compaction().request < wanted).then_some(wanted)
    }

    /// This process has carried out a request to compact.
    pub fn has_compacted(&self, request: u32, blocks: u32) {
        self.entry().compacted.store(Compaction { request, blocks }.to_bits(), SeqCst);
    }

    /// Gives everything back. The process uses no page any more; changes that its threads still
    /// report are counted for no process.
    pub fn leave(&self) {
        self.budget.release(self.index, self.image.to_bits());
    }

    /// Sleeps until a process becomes short or the limit changes after `seen`, but no longer than
    /// `most`.
    pub fn wait(&self, seen: u32, most: Duration) {
        sleep(&self.budget.head().changes, seen, most);
    }

    /// A number that changes when [`Share::wait`] is to return.
    pub fn changes(&self) -> u32 {
        self.budget.head().changes.load(Acquire)
    }
}

/// Sleeps until a word changes from `seen`, or for `most`.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, most: Duration) {
    let timeout =
        futex::Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    // An error means that the word has changed, or that the wait is over.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;
