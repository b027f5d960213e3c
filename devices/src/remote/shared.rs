//! The state that a device on a server shares with its keeper. Makes requests and repeats them.
//!
//! Locks: none.

use crate::remote::freed::{Freed, members};
use crate::remote::links::{Held, Links};
use crate::remote::silence::Silence;
use crate::remote::store::{Outcomes, Store, Transfers};
use crate::remote::verdict::{Problem, Stage, Verdict, decide};
use crate::remote::window::{SEGMENT, Window};
use crate::slot_set::SlotSet;
use crate::standby::{Standby, Standing};
use highwater_platform::{Io, IoError};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The first pause before a request is repeated, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long the keeper deletes freed pages before it again tells the server that others are in use.
const PASS_MAX: Duration = Duration::from_secs(1);
/// The error of transfers while the device's process ends.
pub(super) const ENDED: IoError = IoError::Failed(libc::ESHUTDOWN);

/// The error of a lost device: another device has the pages.
pub(crate) const LOST: IoError = IoError::Failed(libc::ENOLINK);

/// The state of a device, which its keeper uses, too.
pub(super) struct Shared<S: Store> {
    pub(super) store: S,
    /// How long a silent server is waited for; for the last of two replicas the standby's patience
    /// applies.
    pub(super) patience: Duration,
    pub(super) standby: OnceLock<Standby>,
    pub(super) slots: u32,
    pub(super) links: Links<S::Link>,
    pub(super) stored: Arc<SlotSet>,
    /// `None`: the device is read-only.
    pub(super) freed: Option<Freed>,
    pub(super) silence: Silence,
    pub(super) ended: AtomicBool,
    /// The process that has the connections.
    pub(super) owner: AtomicU32,
}

impl<S: Store> Shared<S> {
    pub(super) fn take(&self) -> Option<Held<'_, S::Link>> {
        self.links.take(self.store.links_max())
    }

    fn stage(&self) -> Stage {
        if self.ended.load(SeqCst) { Stage::Ending } else { Stage::Used }
    }

    /// Whether another device has its pages, and this one is not used any more.
    pub(super) fn is_lost(&self) -> bool {
        self.standing() == Standing::Lost
    }

    fn standing(&self) -> Standing {
        self.standby.get().map_or(Standing::Both, Standby::standing)
    }

    fn patience(&self, standing: Standing) -> Duration {
        match (standing, self.standby.get()) {
            (Standing::Last, Some(standby)) => standby.patience(),
            _ => self.patience,
        }
    }

    /// How long an answer may take now.
    pub(super) fn deadline(&self) -> Duration {
        S::deadline(self.patience(self.standing()))
    }

    /// Decides about a request that was made at `asked`, and for the first time at `first`. If
    /// another device has the pages, a server that is not waited for any more is lost.
    pub(super) fn decide(&self, problem: Problem, first: Instant, asked: Instant) -> Verdict {
        let silent = match problem.may_pass() {
            // If there are several servers, others may answer.
            true => self.silence.lasts(asked).max(first.elapsed()),
            false => Duration::ZERO,
        };
        let (stage, standing) = (self.stage(), self.standing());
        let by = |standing| decide(problem, stage, silent, self.patience(standing));
        match (by(standing), stage, self.standby.get()) {
            (Verdict::Fails(_), Stage::Used, Some(standby)) if problem.may_pass() => {
                by(standby.give_up())
            }
            (verdict, ..) => verdict,
        }
    }

    /// Calls `talk` with a connection until it succeeds or fails for good.
    pub(super) fn converse<T>(
        &self,
        held: &mut Held<'_, S::Link>,
        mut talk: impl FnMut(&mut S::Link) -> Result<T, Problem>,
    ) -> Result<T, IoError> {
        let mut pause = PAUSE_MIN;
        let first = Instant::now();
        loop {
            let asked = Instant::now();
            if self.is_lost() {
                return Err(LOST);
            }
            let problem = match held.link(&self.store, self.deadline()).and_then(&mut talk) {
                Ok(said) => {
                    self.silence.end();
                    return Ok(said);
                }
                Err(problem) => problem,
            };
            if problem.ends_link() {
                held.hang_up();
            }
            match self.decide(problem, first, asked) {
                Verdict::Again => std::thread::sleep(pause),
                Verdict::Fails(error) => return Err(error),
            }
            // Short pauses, so that a short patience is not overslept.
            let most = self.patience(self.standing()) / 8;
            pause = (2 * pause).min(PAUSE_MAX).min(most);
        }
    }

    /// Makes the transfers of a window.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    pub(super) unsafe fn exchange(
        &self,
        held: &mut Held<'_, S::Link>,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, IoError> {
        self.converse(held, |link| {
            // SAFETY: by contract of this function.
            unsafe { self.store.ask(link, transfers) }?;
            // SAFETY: as above.
            unsafe { self.hear(link, transfers) }
        })
    }

    /// Receives the answers of a window.
    ///
    /// # Safety
    /// As for [`crate::Device::read`].
    pub(super) unsafe fn hear(
        &self,
        link: &mut S::Link,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, Problem> {
        // SAFETY: by contract of this function.
        let outcomes = unsafe { self.store.hear(link, transfers) }?;
        match outcomes.iter().find_map(|outcome| outcome.err().filter(|it| it.may_pass())) {
            Some(problem) => Err(problem),
            None => {
                if outcomes.iter().any(|outcome| *outcome != Err(Problem::TurnedAway)) {
                    self.silence.end();
                }
                Ok(outcomes)
            }
        }
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
                Ok(Err(problem)) => match self.decide(problem, Instant::now(), Instant::now()) {
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
        let began = Instant::now();
        for segment in 0..self.slots.div_ceil(SEGMENT) {
            if began.elapsed() > PASS_MAX {
                return freed.again();
            }
            if !freed.is_empty(segment) && !self.store.reaches(segment) {
                freed.again();
                continue;
            }
            let group = freed.take(segment);
            if members(group).next().is_some() {
                let deleted = self.take().ok_or(ENDED).and_then(|mut held| {
                    self.converse(&mut held, |link| self.store.delete(link, segment, group))
                });
                freed.gone(segment);
                match deleted {
                    // After an error the pages are deleted at the end, or overwritten.
                    Ok(()) | Err(IoError::Busy) => {}
                    // No server answers.
                    Err(_) => return,
                }
            }
            let pages = SEGMENT.min(self.slots - segment * SEGMENT);
            // A slot that is being freed enters one set before it leaves the other. A slot that is
            // being written may be in neither for a moment, and gets its place after that.
            let is_unused = || {
                self.stored.missing(segment * SEGMENT, pages) == pages && freed.is_empty(segment)
            };
            self.store.release(segment, &is_unused);
        }
    }

    /// In the keeper: checks whether servers that did not answer do so again.
    pub(super) fn look_again(&self) {
        if !self.store.is_impaired() {
            return;
        }
        let Some(mut held) = self.take() else { return };
        let link = held.link(&self.store, self.deadline());
        if link.and_then(|link| self.store.look_again(link)).is_err() {
            held.hang_up();
        }
    }

    /// In the keeper: tells the server that the pages are in use.
    pub(super) fn refresh(&self) {
        let Some(mut held) = self.take() else { return };
        // After a failure the next round is soon enough.
        let _ = self.converse(&mut held, |link| self.store.refresh(link));
    }

    /// Registers this process as a holder of the pages.
    pub(super) fn hold(&self) {
        let Some(mut held) = self.take() else { return };
        // If this fails, reads find the pages as long as another holder lives.
        let _ = self.converse(&mut held, |link| self.store.hold(link));
    }
}
