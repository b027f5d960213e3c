//! A swap device on a Redis or Valkey server.
//!
//! ```text
//! Redis -- Arc<Shared> -- Links      up to 32 connections                      links, link, resp
//!       |              |- Session    names of keys                            session
//!       |              |- stored     slots with a page    written   hashes that exist
//!       |              |- Freed      slots to be deleted                      freed
//!       |              \- Silence    since when the server has not answered
//!       \- Keeper        thread: deletes freed pages, extends lifetimes       keeper
//! batch --> windows of 64 pages (window) --> one HSET or HMGET for each run, all sent at once
//!                                       \--> answers; verdict decides what becomes of failures
//! ```
//! **Layout.** A hash holds the pages of 512 adjacent slots. A key for each page would take 130
//! bytes of the server's memory beside the page, for its entry, its name and its lifetime; a field
//! takes 50. And the lifetime of 2 MiB is extended by one request.
//!
//! **Repetition.** A request whose connection is lost is made again on a new one, after the server
//! was made to drop the old one with all that it had received there: else a write that was held up
//! could come after the next write of its slot.
//!
//! **Forks.** A child makes connections of its own, and reads its parent's keys. Keys live as long
//! as one of their holders.
//!
//! Locks: none but that of the keeper.

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::{Lenders, SlotQuota};
use crate::remote::freed::{Freed, GROUP};
use crate::remote::keeper::{Body, Keeper};
use crate::remote::link::{Link, field};
use crate::remote::links::Links;
use crate::remote::login::RemoteOptions;
use crate::remote::resp::Refusal;
use crate::remote::server::Server;
use crate::remote::session::{SEGMENT, Session};
use crate::remote::shared::{ENDED, Shared, Transfers};
use crate::remote::silence::Silence;
use crate::remote::verdict::Problem;
use crate::remote::window::Cursor;
use crate::slot_set::SlotSet;
use crate::spec::Spec;
use crate::transfer::admit;
use crate::uring::{DEPTH, Set, members as set_members};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
use highwater_units::Bytes;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

/// So many freed slots wake the keeper.
const FREED_MANY: u32 = 1024;
/// How long the end of a device waits for requests under way.
const CLOSE_MAX: Duration = Duration::from_millis(500);

const _: () = assert!(GROUP == SEGMENT);

/// A device on a server.
pub(crate) struct Redis {
    info: DeviceInfo,
    shared: Arc<Shared>,
    quota: SlotQuota,
    keeper: Keeper,
}

impl Redis {
    /// Connects, and looks whether the server keeps what it is given.
    pub(crate) fn open(
        spec: &Spec,
        server: &Server,
        options: &RemoteOptions,
    ) -> Result<Redis, Reason> {
        let no_memory = |errno| Reason::from_errno("map memory", errno);
        let login = options.login()?;
        let server = server.clone().resolve().map_err(|_| Reason::UnknownHost)?;
        let mut link = Link::open(&server, &login).map_err(reason)?;
        if evicts(&link.info(b"memory").map_err(reason)?) {
            return Err(Reason::Evicts);
        }
        let slots = spec.pages();
        let draw = || Session::new().map_err(|errno| Reason::from_errno("draw a name", errno));
        let (session, Session(holder)) = (draw()?, draw()?);
        let shared = Shared {
            server,
            login,
            patience: options.patience,
            slots,
            session: AtomicU64::new(session.0),
            holder,
            links: Links::new(),
            stored: Arc::new(SlotSet::new(slots).map_err(no_memory)?),
            written: Arc::new(SlotSet::new(slots.div_ceil(SEGMENT)).map_err(no_memory)?),
            freed: Some(Freed::new(slots).map_err(no_memory)?),
            silence: Silence::new(),
            ended: AtomicBool::new(false),
            owner: AtomicU32::new(std::process::id()),
        };
        session.hold(&mut link, holder).map_err(reason)?;
        if let Some(mut held) = shared.links.take() {
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
        Ok(Redis::of(info, shared))
    }

    fn of(info: DeviceInfo, shared: Shared) -> Redis {
        let shared = Arc::new(shared);
        let keeper = Keeper::new(&shared);
        Redis { info, shared, quota: SlotQuota::default(), keeper }
    }

    fn admit(&self, direction: Direction, arena: Arena, io: &Io) -> Result<(), IoError> {
        admit(&self.info, direction, arena, io)?;
        match direction {
            Direction::Read => Ok(()),
            Direction::Write => self.quota.take(io),
        }
    }

    /// Checks each transfer and sets its result. Slots that are written are used from here on.
    fn admit_all(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        for io in batch {
            io.result = self.admit(direction, arena, io);
            if io.result.is_ok() && direction == Direction::Write {
                let pages = io.frames.len() as u32;
                self.shared.freed.iter().for_each(|it| it.keep(io.slot..io.slot + pages));
                self.shared.stored.insert(io.slot, pages);
            }
        }
    }

    /// Makes transfers that were admitted, and waits for them.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn make_all(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        let mut cursor = Cursor::default();
        while let Some(window) = cursor.window(batch) {
            let held = self.shared.links.take();
            let transfers = Transfers { direction, arena, batch, window: &window };
            let outcomes = held.ok_or(ENDED).and_then(|mut held| {
                // SAFETY: by contract of this function.
                unsafe { self.shared.exchange(&mut held, transfers) }
            });
            self.shared.report(batch, &window, outcomes);
        }
    }

    /// Deletes what it has on the server, if no other process needs it. Nothing works afterwards.
    fn end(&self) {
        let shared = &self.shared;
        if shared.owner.load(Relaxed) != std::process::id() {
            // A forked child has copies of numbers, not of connections: they are never closed here.
            return std::mem::forget(shared.clone());
        }
        if shared.ended.swap(true, SeqCst) {
            return;
        }
        self.keeper.end();
        shared.links.close(CLOSE_MAX);
        // Keys that cannot be deleted expire.
        let _ = Link::open(&shared.server, &shared.login).and_then(|mut link| {
            shared.session().release(&mut link, shared.holder, shared.slots.div_ceil(SEGMENT))
        });
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a server with this state drops keys when it is full.
fn evicts(info: &str) -> bool {
    let limited = field(info, "maxmemory").is_some_and(|most| most != "0");
    limited && field(info, "maxmemory_policy").is_some_and(|policy| policy != "noeviction")
}

fn reason(problem: Problem) -> Reason {
    match problem {
        Problem::Lost(errno) => Reason::Unreachable { errno },
        Problem::Malformed => Reason::NotRedis,
        Problem::Refused(Refusal::Denied) => Reason::Denied,
        Problem::Refused(Refusal::Full) => Reason::ServerFull,
        Problem::Refused(Refusal::Busy | Refusal::Other) | Problem::Missing => Reason::Unwilling,
    }
}

impl Device for Redis {
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
        let mut cursor = Cursor::default();
        let window = cursor.window(batch);
        let is_one = batch.len() <= DEPTH && cursor.window(batch).is_none();
        let held = self.shared.links.take_for_later().filter(|_| is_one);
        if let (Some(window), Some(mut held)) = (window, held) {
            let Shared { server, login, .. } = &*self.shared;
            let transfers = Transfers { direction, arena, batch, window: &window };
            let sent = held.link(server, login).and_then(|link| {
                // SAFETY: by contract of this function.
                unsafe { self.shared.ask(link, transfers) }
            });
            match sent {
                Ok(()) => {
                    let sent = |(index, io): (usize, &Io)| Set::from(io.result.is_ok()) << index;
                    let left = batch.iter().enumerate().map(sent).sum();
                    return Some(Started { index: held.leave(), direction, left, bounce: None });
                }
                Err(_) => held.hang_up(),
            }
        }
        // SAFETY: by contract of this function.
        unsafe { self.make_all(direction, arena, batch) };
        None
    }

    fn is_over(&self, started: &Started) -> bool {
        let mut held = self.shared.links.back(started.index);
        let over = held.open().is_none_or(|link| link.is_readable());
        // The batch is still in flight.
        let _ = held.leave();
        over
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let Started { index, direction, left, .. } = started;
        let shared = &*self.shared;
        let mut held = shared.links.back(index);
        set_members(left).for_each(|index| batch[index].result = Ok(()));
        let window = Cursor::default().window(batch).expect("what was started");
        let transfers = Transfers { direction, arena, batch, window: &window };
        let heard = held.open().ok_or(Problem::Malformed).and_then(|link| {
            // SAFETY: under way since `start`, and the caller vouches for batch and frames.
            unsafe { shared.hear(link, transfers) }
        });
        let outcomes = heard.or_else(|problem| {
            if problem.ends_link() {
                held.hang_up();
            }
            // SAFETY: as above.
            unsafe { shared.exchange(&mut held, transfers) }
        });
        shared.report(batch, &window, outcomes);
    }

    fn discard(&self, slot: u32, pages: u32) {
        let Some(freed) = &self.shared.freed else { return };
        self.quota.discard(slot, pages);
        for slot in slot..slot + pages {
            if self.shared.stored.remove(slot, 1) == 1 && freed.add(slot).is_multiple_of(FREED_MANY)
            {
                self.keeper.wake();
            }
        }
    }

    fn vacate(&self) {
        self.quota.put_spare();
        let shared = &*self.shared;
        shared.stored.clear();
        shared.freed.iter().for_each(Freed::clear);
        if let Some(mut held) = shared.links.take() {
            // Keys that cannot be deleted now are deleted at the end.
            let _ = shared.converse(&mut held, |link| {
                shared.session().delete(link, shared.written.members())
            });
        }
        shared.written.clear();
    }

    fn is_scarce(&self) -> bool {
        self.quota.is_scarce()
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        let shared = self.quota.share(self.info.pages, next());
        shared.map_err(|errno| Reason::from_errno("map memory", errno))
    }

    fn thread(&self) -> Option<Body> {
        self.keeper.take_body()
    }

    /// In another process than the one that opened it, which has lost its privileges since: gets
    /// connections and a session of its own. It is empty.
    fn resume(&self) {
        let (shared, here) = (&self.shared, std::process::id());
        if shared.owner.swap(here, Relaxed) == here {
            return;
        }
        shared.links.forget();
        // Without random bytes it stays with the name that its parent gives up.
        let session = Session::new().unwrap_or(shared.session());
        shared.session.store(session.0, Relaxed);
        shared.hold();
    }

    fn inherit(&self) -> Box<dyn Device> {
        let (old, here) = (&*self.shared, std::process::id());
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        let shared = Shared {
            server: old.server.clone(),
            login: old.login.clone(),
            patience: old.patience,
            slots: old.slots,
            session: AtomicU64::new(old.session().0),
            holder: Session::new().map_or(here.into(), |Session(holder)| holder),
            links: Links::new(),
            stored: old.stored.clone(),
            written: old.written.clone(),
            freed: None,
            silence: Silence::new(),
            ended: AtomicBool::new(false),
            owner: AtomicU32::new(here),
        };
        shared.hold();
        Box::new(Redis::of(info, shared))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn resident(&self) -> Bytes {
        Bytes(0)
    }

    fn tables(&self) -> Bytes {
        Bytes(self.shared.links.bytes())
    }

    fn forget(&self) {
        self.end();
    }
}
