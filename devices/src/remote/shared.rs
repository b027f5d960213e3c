//! The state that a device on a server shares with its keeper; making and repeating requests.
//!
//! Locks: none.

use crate::arena::Arena;
use crate::remote::freed::{Freed, Group, members};
use crate::remote::link::{Answer, Link};
use crate::remote::links::{Held, Links};
use crate::remote::login::Login;
use crate::remote::resp::Refusal;
use crate::remote::server::Server;
use crate::remote::session::{LIFETIME, SEGMENT, Session};
use crate::remote::silence::Silence;
use crate::remote::verdict::{Problem, Stage, Verdict, decide};
use crate::remote::window::{PAGES, Piece, Window};
use crate::slot_set::SlotSet;
use highwater_platform::{Direction, Io, IoError};
use highwater_units::PAGE_SIZE;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

/// The first pause before a request is repeated, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The device's process ends.
pub(super) const ENDED: IoError = IoError::Failed(libc::ESHUTDOWN);

/// The state of a device that its keeper uses, too.
pub(super) struct Shared {
    pub(super) server: Server,
    pub(super) login: Login,
    pub(super) patience: Duration,
    pub(super) slots: u32,
    pub(super) session: AtomicU64,
    /// Its number among the holders of the session.
    pub(super) holder: u64,
    pub(super) links: Links,
    pub(super) stored: Arc<SlotSet>,
    pub(super) written: Arc<SlotSet>,
    /// `None`: the device is read-only.
    pub(super) freed: Option<Freed>,
    pub(super) silence: Silence,
    pub(super) ended: AtomicBool,
    /// The process that has the connections.
    pub(super) owner: AtomicU32,
}

/// Transfers of a window, which were admitted.
#[derive(Clone, Copy)]
pub(super) struct Transfers<'a> {
    pub(super) direction: Direction,
    pub(super) arena: Arena,
    pub(super) batch: &'a [Io],
    pub(super) window: &'a Window,
}

/// The outcome of each piece of a window.
pub(super) type Outcomes = [Result<(), Problem>; PAGES];

impl Shared {
    pub(super) fn session(&self) -> Session {
        Session(self.session.load(Relaxed))
    }

    fn stage(&self) -> Stage {
        if self.ended.load(SeqCst) { Stage::Ending } else { Stage::Used }
    }

    fn decide(&self, problem: Problem) -> Verdict {
        let silent = match problem.may_pass() {
            true => self.silence.lasts(),
            false => Duration::ZERO,
        };
        decide(problem, self.stage(), silent, self.patience)
    }

    /// Talks with the server until that succeeds, or fails for good.
    pub(super) fn converse<T>(
        &self,
        held: &mut Held<'_>,
        mut talk: impl FnMut(&mut Link) -> Result<T, Problem>,
    ) -> Result<T, IoError> {
        let mut pause = PAUSE_MIN;
        loop {
            let problem = match held.link(&self.server, &self.login).and_then(&mut talk) {
                Ok(said) => {
                    self.silence.end();
                    return Ok(said);
                }
                Err(problem) => problem,
            };
            if problem.ends_link() {
                held.hang_up();
            }
            match self.decide(problem) {
                Verdict::Again => std::thread::sleep(pause),
                Verdict::Fails(error) => return Err(error),
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Makes the transfers of a window.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    pub(super) unsafe fn exchange(
        &self,
        held: &mut Held<'_>,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, IoError> {
        self.converse(held, |link| {
            // SAFETY: by contract of this function.
            unsafe { self.ask(link, transfers) }?;
            // SAFETY: as above.
            unsafe { self.hear(link, transfers) }
        })
    }

    /// Sends the requests of a window.
    ///
    /// # Safety
    /// As for [`Shared::exchange`].
    pub(super) unsafe fn ask(
        &self,
        link: &mut Link,
        transfers: Transfers<'_>,
    ) -> Result<(), Problem> {
        let mut requests = link.requests();
        for piece in transfers.window.pieces() {
            let segment = piece.slot / SEGMENT;
            let key = self.session().segment(segment);
            let fields = (0..piece.pages).map(|page| u64::from(piece.slot % SEGMENT) + page as u64);
            match transfers.direction {
                Direction::Read => {
                    requests.begin(2 + piece.pages);
                    requests.word(b"HMGET");
                    requests.word(key.bytes());
                    fields.for_each(|field| requests.number(field));
                }
                Direction::Write => {
                    self.written.insert(segment, 1);
                    requests.begin(2 + 2 * piece.pages);
                    requests.word(b"HSET");
                    requests.word(key.bytes());
                    for (page, field) in fields.enumerate() {
                        requests.number(field);
                        // SAFETY: by contract: a frame of this transfer.
                        let from = unsafe { transfers.frame(piece, page) };
                        requests.text(PAGE_SIZE).copy_from_slice(from);
                        requests.end_text();
                    }
                    requests.begin(3);
                    requests.word(b"EXPIRE");
                    requests.word(key.bytes());
                    requests.number(LIFETIME);
                }
            }
        }
        let collected = requests.len();
        link.collected(collected);
        link.send()
    }

    /// Receives the answers of a window: all of them, also behind a refusal.
    ///
    /// # Safety
    /// As for [`Shared::exchange`].
    pub(super) unsafe fn hear(
        &self,
        link: &mut Link,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, Problem> {
        let Transfers { direction, window, .. } = transfers;
        let mut outcomes = [Ok(()); PAGES];
        let busy = Problem::Refused(Refusal::Busy);
        for (piece, outcome) in window.pieces().iter().zip(&mut outcomes) {
            *outcome = match (direction, link.answer()?) {
                (_, Answer::Refused(refusal)) => Err(Problem::Refused(refusal)),
                (Direction::Write, Answer::Integer(_)) => Ok(()),
                (Direction::Read, Answer::Array(items)) if items == piece.pages => {
                    // SAFETY: by contract of this function.
                    unsafe { self.take_pages(link, transfers, piece) }?
                }
                _ => return Err(Problem::Malformed),
            };
            if direction == Direction::Write {
                link.answer()?;
            }
        }
        if outcomes.contains(&Err(busy)) {
            return Err(busy);
        }
        self.silence.end();
        Ok(outcomes)
    }

    /// Receives the pages of a piece.
    ///
    /// # Safety
    /// As for [`Shared::exchange`].
    unsafe fn take_pages(
        &self,
        link: &mut Link,
        transfers: Transfers<'_>,
        piece: &Piece,
    ) -> Result<Result<(), Problem>, Problem> {
        let mut found = Ok(());
        for page in 0..piece.pages {
            let slot = piece.slot + page as u32;
            // SAFETY: by contract: a frame of this transfer.
            let to = unsafe { transfers.frame(piece, page) };
            match link.answer()? {
                Answer::Text(PAGE_SIZE) => link.take(to)?,
                // It was never written, or freed.
                Answer::Null if self.stored.missing(slot, 1) == 1 => to.fill(0),
                Answer::Null => found = Err(Problem::Missing),
                _ => return Err(Problem::Malformed),
            }
        }
        Ok(found)
    }

    /// Passes outcomes on to the batch.
    pub(super) fn report(
        &self,
        batch: &mut [Io],
        window: &Window,
        outcomes: Result<Outcomes, IoError>,
    ) {
        for (index, piece) in window.pieces().iter().enumerate() {
            let outcome = match outcomes.map(|outcomes| outcomes[index]) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(problem)) => match self.decide(problem) {
                    Verdict::Fails(error) => Err(error),
                    Verdict::Again => unreachable!("the window was not repeated"),
                },
                Err(error) => Err(error),
            };
            let result = &mut batch[piece.io].result;
            *result = result.and(outcome);
        }
    }

    /// In the keeper: deletes the pages of freed slots.
    pub(super) fn delete_freed(&self) {
        let Some(freed) = self.freed.as_ref().filter(|freed| freed.count() > 0) else { return };
        freed.begin();
        for segment in 0..self.slots.div_ceil(SEGMENT) {
            let group = freed.take(segment);
            if members(group).next().is_some() {
                // What cannot be deleted now is deleted at the end.
                let _ = self.links.take().ok_or(ENDED).and_then(|mut held| {
                    self.converse(&mut held, |link| self.delete_fields(link, segment, group))
                });
                freed.gone(segment);
            }
        }
    }

    fn delete_fields(&self, link: &mut Link, segment: u32, group: Group) -> Result<(), Problem> {
        let mut requests = link.requests();
        requests.begin(2 + members(group).count());
        requests.word(b"HDEL");
        requests.word(self.session().segment(segment).bytes());
        members(group).for_each(|field| requests.number(field.into()));
        let collected = requests.len();
        link.collected(collected);
        link.send()?;
        link.answer().map(drop)
    }

    /// In the keeper: extends the lifetime of all keys.
    pub(super) fn extend(&self) {
        let Some(mut held) = self.links.take() else { return };
        // The next time is long before their end.
        let _ =
            self.converse(&mut held, |link| self.session().extend(link, self.written.members()));
    }

    /// Becomes a holder of the session.
    pub(super) fn hold(&self) {
        let Some(mut held) = self.links.take() else { return };
        // Without it reads find the pages as long as another holder lives.
        let _ = self.converse(&mut held, |link| self.session().hold(link, self.holder));
    }
}

impl Transfers<'_> {
    /// The memory of a page of a piece.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    unsafe fn frame<'a>(self, piece: &Piece, page: usize) -> &'a mut [u8] {
        let pfn = self.batch[piece.io].frames.at(piece.offset + page);
        // SAFETY: an admitted transfer, for whose frames the caller vouches.
        unsafe { slice::from_raw_parts_mut(self.arena.address(pfn), PAGE_SIZE) }
    }
}
