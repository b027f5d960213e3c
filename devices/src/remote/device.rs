//! A swap device on a server.
//!
//! **Repetition.** A request whose connection is lost is repeated on a new connection. If the
//! protocol can, the server is first made to drop the old connection with all requests it has
//! received there: otherwise a delayed write could be carried out after the next write of its slot.
//!
//! **Forks.** A child makes connections of its own and reads its parent's pages, which stay until
//! the last process that holds them ends.
//!
//! Locks: none but those of the keeper and the store.

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::{Lenders, SlotQuota};
use crate::remote::freed::{Freed, GROUP};
use crate::remote::keeper::{Body, Keeper};
use crate::remote::links::Links;
use crate::remote::shared::{ENDED, Shared};
use crate::remote::silence::Silence;
use crate::remote::socket::DEADLINE;
use crate::remote::store::{Connection, Store, Transfers};
use crate::remote::stream::BYTES as CONNECTION_BYTES;
use crate::remote::verdict::{Problem, Verdict};
use crate::remote::window::{Cursor, SEGMENT, Window};
use crate::slot_set::SlotSet;
use crate::spec::Spec;
use crate::standby::Standby;
use crate::transfer::admit;
use crate::uring::{DEPTH, Set, members as set_members};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
use highwater_units::Bytes;
use std::os::fd::RawFd;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The keeper is woken at this many freed slots.
const FREED_MANY: u32 = 1024;
/// How long a device that ends waits for requests in flight.
const CLOSE_MAX: Duration = Duration::from_millis(500);

const _: () = assert!(GROUP == SEGMENT);

/// A device on a server.
pub(super) struct Remote<S: Store> {
    info: DeviceInfo,
    shared: Arc<Shared<S>>,
    quota: SlotQuota,
    keeper: Keeper,
}

impl<S: Store> Remote<S> {
    /// A device on an empty store, with its first connection.
    pub(super) fn open(
        spec: &Spec,
        patience: Duration,
        store: S,
        link: S::Link,
    ) -> Result<Box<dyn Device>, Reason> {
        let no_memory = |errno| Reason::from_errno("map memory", errno);
        let slots = spec.pages();
        let shared = Shared {
            store,
            patience,
            standby: OnceLock::new(),
            slots,
            links: Links::new(),
            stored: Arc::new(SlotSet::new(slots).map_err(no_memory)?),
            freed: Some(Freed::new(slots).map_err(no_memory)?),
            silence: Silence::new(),
            ended: AtomicBool::new(false),
            owner: AtomicU32::new(std::process::id()),
        };
        if let Some(mut held) = shared.take() {
            held.put(link);
        }
        let info = DeviceInfo {
            name: spec.to_string(),
            pages: slots,
            latency: Latency::Asynchronous,
            medium: Medium::SolidState,
            node: None,
            priority: None,
            role: DeviceRole::Swap,
            read_only: false,
        };
        Ok(Box::new(Remote::of(info, shared)))
    }

    fn of(info: DeviceInfo, shared: Shared<S>) -> Remote<S> {
        let shared = Arc::new(shared);
        let keeper = Keeper::new(&shared);
        Remote { info, shared, quota: SlotQuota::default(), keeper }
    }

    fn admit(&self, direction: Direction, arena: Arena, io: &Io) -> Result<(), IoError> {
        admit(&self.info, direction, arena, io)?;
        match direction {
            Direction::Read => Ok(()),
            Direction::Write => {
                self.quota.take(io)?;
                self.place(io.slot, io.frames.len() as u32)
            }
        }
    }

    /// Prepares slots that are about to be written: they are in use from here on.
    fn place(&self, slot: u32, pages: u32) -> Result<(), IoError> {
        self.shared.freed.iter().for_each(|it| it.keep(slot..slot + pages));
        self.shared.stored.insert(slot, pages);
        self.shared.store.place(slot, pages)
    }

    /// Checks each transfer and sets its result.
    fn admit_all(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        batch.iter_mut().for_each(|io| io.result = self.admit(direction, arena, io));
    }

    fn window(&self, cursor: &mut Cursor, batch: &[Io]) -> Option<Window> {
        cursor.window(batch, self.shared.store.run_max())
    }

    /// Makes transfers that were admitted, and waits for them.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn make_all(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        let mut cursor = Cursor::default();
        let stored = &*self.shared.stored;
        while let Some(window) = self.window(&mut cursor, batch) {
            let held = self.shared.take();
            let transfers = Transfers { direction, arena, batch, window: &window, stored };
            let outcomes = held.ok_or(ENDED).and_then(|mut held| {
                // SAFETY: by contract of this function.
                unsafe { self.shared.exchange(&mut held, transfers) }
            });
            self.shared.report(batch, &window, outcomes);
        }
    }

    /// Deletes the device's pages on the server, if no other process needs them. The device is
    /// unusable afterwards.
    fn end(&self) {
        let shared = &self.shared;
        if shared.owner.load(Relaxed) != std::process::id() {
            // A forked child has copies of the descriptors' numbers, not of the connections: it
            // never closes them.
            return std::mem::forget(shared.clone());
        }
        if shared.ended.swap(true, SeqCst) {
            return;
        }
        self.keeper.end();
        let deadline = shared.deadline().min(DEADLINE);
        let end = |link: &mut S::Link| {
            let ended = link.set_deadline(deadline).and_then(|()| shared.store.end(link));
            link.disconnect();
            ended
        };
        let mut held = shared.links.close(CLOSE_MAX);
        // If the server did not answer, its old connection is not waited for again.
        let open = held.as_mut().filter(|_| !shared.is_lost()).and_then(|held| held.open());
        if open.map(end) != Some(Ok(())) {
            // Pages that cannot be deleted now expire, or are overwritten by others.
            let _ = shared.store.connect(deadline).and_then(|mut link| end(&mut link));
        }
        // The place stays taken.
        let _ = held.map(|held| held.leave());
    }
}

impl<S: Store> Drop for Remote<S> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<S: Store> Device for Remote<S> {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        self.admit_all(Direction::Read, arena, batch);
        // SAFETY: by contract of this function.
        unsafe { self.make_all(Direction::Read, arena, batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        self.admit_all(Direction::Write, arena, batch);
        // SAFETY: by contract of this function.
        unsafe { self.make_all(Direction::Write, arena, batch) };
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        self.admit_all(direction, arena, batch);
        let Shared { store, stored, links, .. } = &*self.shared;
        let mut cursor = Cursor::default();
        let window = self.window(&mut cursor, batch);
        let is_one = batch.len() <= DEPTH && self.window(&mut cursor, batch).is_none();
        let may_start = is_one && !self.shared.is_lost();
        let held = links.take_for_later(store.links_max()).filter(|_| may_start);
        if let (Some(window), Some(mut held)) = (window, held) {
            let asked = Instant::now();
            let transfers = Transfers { direction, arena, batch, window: &window, stored };
            let sent = held.link(store, self.shared.deadline()).and_then(|link| {
                // SAFETY: by contract of this function.
                unsafe { store.ask(link, transfers) }
            });
            match sent {
                Ok(()) => {
                    let sent = |(index, io): (usize, &Io)| Set::from(io.result.is_ok()) << index;
                    let left = batch.iter().enumerate().map(sent).sum();
                    return Some(Started { index: held.leave(), direction, left, bounce: None });
                }
                Err(problem) => {
                    held.hang_up();
                    if let Verdict::Fails(error) = self.shared.decide(problem, asked, asked) {
                        self.shared.report(batch, &window, Err(error));
                        return None;
                    }
                }
            }
        }
        // SAFETY: by contract of this function.
        unsafe { self.make_all(direction, arena, batch) };
        None
    }

    fn is_over(&self, started: &Started) -> bool {
        self.await_over(started, Duration::ZERO)
    }

    fn can_cancel(&self) -> bool {
        true
    }

    fn await_over(&self, started: &Started, most: Duration) -> bool {
        let mut held = self.shared.links.back(started.index);
        let over = held.open().is_none_or(|link| link.await_readable(most));
        // The batch is still in flight.
        let _ = held.leave();
        over
    }

    fn cancel(&self, started: Started) {
        self.shared.links.back(started.index).hang_up();
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let Started { index, direction, left, .. } = started;
        let shared = &*self.shared;
        let mut held = shared.links.back(index);
        set_members(left).for_each(|index| batch[index].result = Ok(()));
        let window = self.window(&mut Cursor::default(), batch).expect("what was started");
        let stored = &*shared.stored;
        let transfers = Transfers { direction, arena, batch, window: &window, stored };
        let asked = Instant::now();
        let link = held.open().filter(|_| !shared.is_lost());
        let heard = link.ok_or(Problem::Malformed).and_then(|link| {
            link.set_deadline(shared.deadline())?;
            // SAFETY: under way since `start`, and the caller vouches for batch and frames.
            unsafe { shared.hear(link, transfers) }
        });
        let outcomes = heard.or_else(|problem| {
            if problem.ends_link() {
                held.hang_up();
            }
            match shared.decide(problem, asked, asked) {
                // SAFETY: as above.
                Verdict::Again => unsafe { shared.exchange(&mut held, transfers) },
                Verdict::Fails(error) => Err(error),
            }
        });
        shared.report(batch, &window, outcomes);
    }

    fn discard(&self, slot: u32, pages: u32) {
        let Some(freed) = &self.shared.freed else { return };
        self.quota.discard(slot, pages);
        let stored = &self.shared.stored;
        for slot in (slot..slot + pages).filter(|slot| stored.missing(*slot, 1) == 0) {
            let count = freed.add(slot);
            stored.remove(slot, 1);
            if count.is_multiple_of(FREED_MANY) {
                self.keeper.wake();
            }
        }
    }

    fn vacate(&self) {
        self.quota.put_spare();
        let shared = &*self.shared;
        let Some(mut held) = shared.take() else { return };
        // The slots are forgotten only after this succeeds: the keeper gives up parts of the store
        // that have no page, and these could not be cleared any more. Pages that cannot be deleted
        // now are deleted at the end.
        if shared.converse(&mut held, |link| shared.store.clear(link)).is_ok() {
            shared.stored.clear();
            shared.freed.iter().for_each(Freed::clear);
        }
    }

    fn is_scarce(&self, _slot: u32) -> bool {
        self.quota.is_scarce()
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        let shared = self.quota.share(self.info.pages, next());
        shared.map_err(|errno| Reason::from_errno("map memory", errno))
    }

    fn thread(&self) -> Option<Body> {
        self.keeper.take_body()
    }

    /// Called in another process than the one that opened the device, after that process dropped
    /// its privileges: gets connections and contents of its own. The device is empty.
    fn resume(&self) {
        let (shared, here) = (&self.shared, std::process::id());
        if shared.owner.swap(here, Relaxed) == here {
            return;
        }
        shared.links.forget();
        shared.store.detach();
        shared.hold();
    }

    fn inherit(&self) -> Box<dyn Device> {
        let old = &*self.shared;
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        let shared = Shared {
            store: old.store.inherit(),
            patience: old.patience,
            standby: old.standby.clone(),
            slots: old.slots,
            links: Links::new(),
            stored: old.stored.clone(),
            freed: None,
            silence: Silence::new(),
            ended: AtomicBool::new(false),
            owner: AtomicU32::new(std::process::id()),
        };
        shared.hold();
        Box::new(Remote::of(info, shared))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn resident(&self) -> Bytes {
        Bytes(0)
    }

    fn tables(&self) -> Bytes {
        let Shared { store, links, .. } = &*self.shared;
        Bytes(store.connections(links.count()) * CONNECTION_BYTES as u64)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.shared.store.descriptors()
    }

    fn stand_by(&self, standby: &Standby) {
        // A device has only one.
        let _ = self.shared.standby.set(standby.clone());
    }

    fn forget(&self) {
        self.end();
    }
}
