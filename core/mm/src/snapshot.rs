//! A snapshot of a space for a forked child: every page in a slot that the child can read.
//!
//! The child shares the parent's swap devices, not its frames. So dirty pages are written to slots,
//! and stay in memory, clean. Every slot of the snapshot gets one more reference, which the parent
//! drops when the child and its descendants have ended. Until then the slot is not reused, and the
//! child reads it from the inherited device.
//!
//! The snapshot is taken page by page, as the kernel's fork copies page tables: of stores that
//! another thread makes meanwhile to two pages, the child may see one.

use crate::alloc::{self, OutOfMemory};
use crate::error::FaultError;
use crate::frame::Owner;
use crate::machine::Machine;
use crate::phase;
use crate::range::{Large, drop_pages, each_present, settled};
use crate::space::{Backing, Entry, Held, Page, Range, Space};
use crate::stats::Counter;
use crate::swap::first_error;
use highwater_platform::{Io, Platform, Progress, Stop};
use highwater_units::{FrameList, Order, Pfn, RUN_PAGES_MAX, Slot, Vpn};

/// Failed writes of a stretch before the snapshot fails. Several devices may have free slots but no
/// room, and each may fail some writes.
const REFUSALS_MAX: u32 = 32;

/// Consecutive pages in consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// The first page.
    pub vpn: Vpn,
    /// Its slot.
    pub slot: Slot,
    /// The number of pages.
    pub pages: u32,
}

/// The contents of a space, in slots.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(Vec<SlotRun>);

impl Snapshot {
    /// Pages and their slots, in ascending order of pages.
    pub fn runs(&self) -> &[SlotRun] {
        &self.0
    }

    /// The snapshot for a child without the first `devices` devices; `None` if some of its pages
    /// are on these.
    pub fn without_devices(&self, devices: u8) -> Option<Snapshot> {
        let renumbered = |run: &SlotRun| {
            let device = run.slot.device.checked_sub(devices)?;
            Some(SlotRun { slot: Slot { device, ..run.slot }, ..*run })
        };
        self.0.iter().map(renumbered).collect::<Option<_>>().map(Snapshot)
    }

    fn push(&mut self, vpn: Vpn, slot: Slot) {
        match self.0.last_mut() {
            Some(last)
                if last.vpn.offset(u64::from(last.pages)) == vpn
                    && last.slot.device == slot.device
                    && last.slot.index + last.pages == slot.index =>
            {
                last.pages += 1;
            }
            _ => self.0.push(SlotRun { vpn, slot, pages: 1 }),
        }
    }
}

/// Takes a snapshot of a space.
///
/// # Errors
/// Swap is full or cannot be written. No slot stays referenced, and the space keeps its contents.
pub fn take<P: Platform>(m: &Machine<P>, space: &Space<P>) -> Result<Snapshot, FaultError> {
    let _phase = m.enter(phase::RANGE);
    assert_eq!(space.backing(), Backing::Anonymous, "a file's pages have no slots");
    assert_eq!(space.order(), Order(0), "pages of several frames have no snapshot");
    let mut snapshot = Snapshot::default();
    let mut failed = None;
    each_present(space, Range::whole(space), Large::Split(m), |held| {
        if failed.is_none() {
            failed = save(m, held, &mut snapshot).err();
        }
    });
    match failed {
        None => Ok(snapshot),
        Some(error) => {
            release(m, &snapshot);
            Err(error)
        }
    }
}

/// The ranges of pages whose current contents are in a slot on one of the first `devices` devices.
pub fn kept_on<P: Platform>(m: &Machine<P>, space: &Space<P>, devices: u8) -> Vec<Range> {
    let mut found: Vec<Range> = Vec::new();
    let mut at = Vpn(0);
    while let Some(vpn) = space.next_made(at, Range::whole(space).end) {
        at = vpn.offset(1);
        match home(m, space.entry(vpn)) {
            Home::Slot(slot) if slot.device < devices => match found.last_mut() {
                Some(last) if last.end == vpn => last.end = at,
                _ => found.push(Range { first: vpn, end: at }),
            },
            Home::Slot(_) | Home::Nowhere | Home::Frame(_) => {}
        }
    }
    found
}

/// Drops a snapshot's references: its readers have ended.
pub fn release<P: Platform>(m: &Machine<P>, snapshot: &Snapshot) {
    let _phase = m.enter(phase::RANGE);
    for run in snapshot.runs() {
        let slots = (0..run.pages).map(|i| Slot { index: run.slot.index + i, ..run.slot });
        slots.for_each(|slot| m.release_slot(slot));
    }
}

/// Fills an empty space with a snapshot, in the child.
pub fn restore<P: Platform>(m: &Machine<P>, space: &Space<P>, snapshot: &Snapshot) {
    let _phase = m.enter(phase::RANGE);
    for run in snapshot.runs() {
        m.count(Counter::PgInherited, u64::from(run.pages));
        for index in 0..run.pages {
            let slot = Slot { index: run.slot.index + index, ..run.slot };
            let held = Large::Split(m).hold(space, run.vpn.offset(u64::from(index)));
            // khugepaged may have filled this absent page.
            drop_pages(m, &held);
            held.release(|_, _| Entry::swapped(slot));
        }
    }
}

/// Makes every page of a run clean and adds a reference to its slot.
fn save<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    snapshot: &mut Snapshot,
) -> Result<(), FaultError> {
    let mut entries = [Entry::ABSENT; RUN_PAGES_MAX];
    for (index, entry) in held.entries().iter().enumerate() {
        entries[index] = settled(m, *entry);
    }
    let entries = &mut entries[..held.len()];
    let mut result = Ok(());
    let mut at = 0;
    while at < entries.len() && result.is_ok() {
        match save_next(m, &held, at, entries, snapshot) {
            Ok(pages) => at += pages,
            Err(error) => result = Err(error),
        }
    }
    held.release(|index, _| entries[index]);
    result
}

/// Saves one page or more from `at` on; returns how many.
fn save_next<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    at: usize,
    entries: &mut [Entry],
    snapshot: &mut Snapshot,
) -> Result<usize, FaultError> {
    match home(m, entries[at]) {
        Home::Nowhere => Ok(1),
        Home::Slot(slot) => {
            m.swap.duplicate(m.cpu(), slot);
            snapshot.push(held.owner(at).vpn, slot);
            Ok(1)
        }
        Home::Frame(_) => save_stretch(m, held, at, entries, snapshot),
    }
}

/// Where a page's current contents are.
enum Home {
    Nowhere,
    Slot(Slot),
    Frame(Pfn),
}

fn home<P: Platform>(m: &Machine<P>, entry: Entry) -> Home {
    match entry.page() {
        Page::Absent => Home::Nowhere,
        Page::Swapped(slot) => Home::Slot(slot),
        Page::Resident(pfn) => match m.frames.slot(pfn) {
            Some(slot) if !entry.is_dirty() => Home::Slot(slot),
            _ => Home::Frame(pfn),
        },
    }
}

/// Writes a stretch of resident pages, all mapped or all unmapped; returns how many were saved.
fn save_stretch<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    at: usize,
    entries: &mut [Entry],
    snapshot: &mut Snapshot,
) -> Result<usize, FaultError> {
    let mapped = entries[at].is_mapped();
    let alike = entries[at..].iter().take_while(|entry| entry.is_mapped() == mapped);
    let frame = |entry: &Entry| match home(m, *entry) {
        Home::Frame(pfn) => Some(pfn),
        Home::Nowhere | Home::Slot(_) => None,
    };
    let frames: FrameList = alike.map_while(frame).collect();
    let owner = held.owner(at);
    let progress = if mapped {
        m.platform.unmap(owner.space, owner.vpn, &frames)
    } else {
        Progress::all(frames.len())
    };
    for (index, pfn) in frames[..progress.done].iter().enumerate() {
        entries[at + index] = Entry::resident(*pfn).dirty();
    }
    write(m, &frames[..progress.done], |index, slot| {
        m.swap.duplicate(m.cpu(), slot);
        m.frames.set_slot(frames[index], Some(slot));
        entries[at + index] = Entry::resident(frames[index]);
        snapshot.push(held.owner(at + index).vpn, slot);
        Ok(())
    })?;
    let stopped = at + progress.done;
    match progress.stop {
        None => return Ok(frames.len()),
        Some(Stop::Vanished) => {
            m.abandon(frames[progress.done]);
            entries[stopped] = Entry::ABSENT;
        }
        Some(_) => save_copy(m, held.owner(stopped), frames[progress.done], snapshot)?,
    }
    Ok(progress.done + 1)
}

/// Writes a copy of a page that cannot be unmapped. The slot belongs to the snapshot alone.
fn save_copy<P: Platform>(
    m: &Machine<P>,
    owner: Owner,
    pfn: Pfn,
    snapshot: &mut Snapshot,
) -> Result<(), FaultError> {
    let copy = alloc::frames(m, 1)?;
    m.platform.copy(owner.space, owner.vpn, pfn, copy[0]);
    let written = write(m, &copy, |_, slot| {
        snapshot.push(owner.vpn, slot);
        Ok(())
    });
    m.free(&copy);
    written
}

/// Writes unmapped frames to new slots, in as few transfers as the slots allow; calls `saved` with
/// each slot, which has one reference.
fn write<P: Platform>(
    m: &Machine<P>,
    frames: &[Pfn],
    mut saved: impl FnMut(usize, Slot) -> Result<(), FaultError>,
) -> Result<(), FaultError> {
    let _phase = m.enter(phase::SWAP_OUT);
    let (mut at, mut refusals) = (0, 0);
    while at < frames.len() {
        let (first, taken) = m.swap.alloc(m.cpu(), &frames[at..]).ok_or(OutOfMemory)?;
        let written = frames[at..at + taken].iter().copied().collect();
        let mut io = [Io::new(first.index, written)];
        m.swap.write(&m.platform, &m.stats, first.device, &mut io);
        let error = first_error(&io);
        m.swap.uncache(&m.platform, first, &frames[at..at + taken], |_, _| {});
        for index in 0..taken {
            let slot = Slot { index: first.index + index as u32, ..first };
            match error {
                None => saved(at + index, slot)?,
                Some(_) => m.release_slot(slot),
            }
        }
        match error {
            None => at += taken,
            // The device is now skipped, or gets fewer pages.
            Some(_) if refusals < REFUSALS_MAX => refusals += 1,
            Some(error) => return Err(FaultError::Write(error)),
        }
    }
    Ok(())
}
