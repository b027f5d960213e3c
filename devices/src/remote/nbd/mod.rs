//! Pages on an export of an NBD server.
//!
//! ```text
//! Nbd  |- Extents   which part of the export each segment has      extents
//!      \- Terms     what the server said of the export             wire, link
//! a run of pages --> one READ or WRITE; freed slots --> TRIM
//! a label in the first page --> whose export it is                 label
//! ```
//! A server that does not promise that connections see each other's writes gets one connection, and
//! one batch at a time. Writes need no flush: the pages are of no use after the server's end.
//!
//! Locks: `trims`, held by a thread while it gives back parts of the export, so that these parts do
//! not pass to another process meanwhile; and the lock of [`extents`].

mod extents;
mod label;
mod link;
mod wire;

use crate::device::Device;
use crate::error::Reason;
use crate::remote::device::Remote;
use crate::remote::endpoint::Endpoint;
use crate::remote::freed::{Group, members};
use crate::remote::links::PLACES;
use crate::remote::login::RemoteOptions;
use crate::remote::server::Server;
use crate::remote::store::{Outcomes, Store, Transfers};
use crate::remote::verdict::{Problem, Refusal};
use crate::remote::window::{PAGES, Piece, SEGMENT};
use crate::spec::Spec;
use crate::uring::members as set_members;
use extents::Extents;
use highwater_platform::{Direction, IoError};
use highwater_units::{Bytes, PAGE_SIZE, RUN_PAGES_MAX};
use label::{Claim, Standing};
use link::{Failure, Link};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use wire::{Command, Terms};

pub(crate) use extents::SIZE_MIN;
pub(crate) use wire::EXPORT_MAX;

/// How long a process that ends waits for others that end, and how often it polls.
const END_MAX: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(1);

// A cookie names a piece.
const _: () = assert!(PAGES <= u64::BITS as usize);

/// Calls `find` until it finds something, for at most `most`.
fn within<T>(most: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = find();
        if found.is_some() || began.elapsed() > most {
            return found;
        }
        std::thread::sleep(LOOK);
    }
}

/// The pages of a device.
struct Nbd {
    endpoint: Endpoint,
    export: String,
    size: Bytes,
    terms: Terms,
    claim: Claim,
    extents: Extents,
    trims: Mutex<()>,
}

/// Connects, and checks that the export can be used for swap.
pub(crate) fn open(
    spec: &Spec,
    server: &Server,
    export: &str,
    options: &RemoteOptions,
) -> Result<Box<dyn Device>, Reason> {
    let endpoint = Endpoint::new(server, options)?;
    let (size, slots, patience) = (spec.size(), spec.pages(), options.patience);
    let (mut link, found) = connect(&endpoint, export, size, patience).map_err(reason)?;
    let name = format!("{}/{export}", endpoint.server);
    let claim = Claim::new(options.run.as_deref(), &name);
    label::check_claim(found, claim).map_err(reason)?;
    if options.run.is_none() {
        label::check(&mut link, found).map_err(reason)?;
    }
    match label::beat(&mut link, claim) {
        // Other processes of the run have used it, and other devices may have room.
        Err(Problem::Refused(_)) if options.run.is_some() => {}
        told => told.map_err(|problem| reason(problem.into()))?,
    }
    let extents = Extents::new(options.run.as_deref(), &name, size, slots);
    let extents = extents.map_err(|errno| Reason::from_errno("share the export", errno))?;
    let (terms, trims) = (link.terms, Mutex::new(()));
    let export = export.to_owned();
    let store = Nbd { endpoint, export, size, terms, claim, extents, trims };
    Remote::open(spec, patience, store, link)
}

/// A connection to an export that holds no data of others, and the state of the export.
fn connect(
    endpoint: &Endpoint,
    export: &str,
    size: Bytes,
    deadline: Duration,
) -> Result<(Link, Standing), Failure> {
    let mut link = Link::open(endpoint, export, size, deadline)?;
    let found = label::look(&mut link)?;
    Ok((link, found))
}

fn reason(failure: Failure) -> Reason {
    match failure {
        Failure::Unfit(reason) => reason,
        Failure::Problem(Problem::Lost(errno)) => Reason::from_lost(errno),
        Failure::Problem(Problem::Malformed) => Reason::NotNbd,
        Failure::Problem(Problem::Tls(fault)) => Reason::Tls(fault),
        Failure::Problem(Problem::Refused(Refusal::Failed(errno))) => match errno {
            libc::EPERM => Reason::ReadOnlyExport,
            libc::ENOSPC => Reason::ServerFull,
            libc::ESHUTDOWN => Reason::Unwilling,
            errno => Reason::Failed { step: "use the export", errno },
        },
        Failure::Problem(Problem::Refused(_) | Problem::Missing | Problem::TurnedAway) => {
            Reason::Unwilling
        }
    }
}

/// The refusal that a request's error number means.
fn refusal(direction: Direction, errno: i32) -> Refusal {
    match (direction, errno) {
        (Direction::Write, libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => Refusal::Full,
        (_, errno) => Refusal::Failed(errno),
    }
}

impl Nbd {
    /// Collects the request for a piece; `false`: there is nothing to ask for.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn collect(
        &self,
        link: &mut Link,
        transfers: Transfers<'_>,
        index: usize,
        piece: &Piece,
    ) -> bool {
        // SAFETY: by contract: frames of this transfer.
        let frames = (0..piece.pages).map(|page| unsafe { transfers.frame(piece, page) });
        let Some(offset) = self.extents.offset(piece.slot) else {
            assert!(transfers.direction == Direction::Read, "placed before it is written");
            frames.for_each(|frame| frame.fill(0));
            return false;
        };
        let length = piece.pages * PAGE_SIZE;
        match transfers.direction {
            Direction::Read => link.collect(Command::Read, index, offset, length),
            Direction::Write => {
                link.collect(Command::Write, index, offset, length);
                frames.for_each(|frame| link.put(frame));
            }
        }
        true
    }

    /// Locks `trims` at the end of the device. The keeper, which ends as well, may hold `trims`
    /// until the patience is over. `None`: the contents stay on the server.
    fn lock_trims(&self) -> Option<MutexGuard<'_, ()>> {
        within(END_MAX, || match self.trims.try_lock() {
            Ok(trims) => Some(trims),
            Err(TryLockError::Poisoned(trims)) => Some(trims.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// Gives all contents back. `trims` is locked.
    fn clear_under(&self, _trims: &MutexGuard<'_, ()>, link: &mut Link) -> Result<(), Problem> {
        link.trim(self.extents.ranges())?;
        self.extents.release_all();
        Ok(())
    }

    /// The parts of the export that hold these slots, one for each run of adjacent slots.
    fn ranges(&self, segment: u32, slots: Group) -> impl Iterator<Item = (u64, usize)> {
        let start = self.extents.offset(segment * SEGMENT);
        let mut slots = members(slots).peekable();
        std::iter::from_fn(move || {
            let (start, first) = (start?, slots.next()?);
            let mut end = first + 1;
            while slots.next_if_eq(&end).is_some() {
                end += 1;
            }
            let bytes = |slots: u32| slots as usize * PAGE_SIZE;
            Some((start + bytes(first) as u64, bytes(end - first)))
        })
    }
}

impl Store for Nbd {
    type Link = Link;

    const REFRESH: Duration = label::BEAT;

    fn deadline(patience: Duration) -> Duration {
        patience
    }

    fn connect(&self, deadline: Duration) -> Result<Link, Problem> {
        let opened = connect(&self.endpoint, &self.export, self.size, deadline);
        opened.map(|(link, _)| link).map_err(|failure| match failure {
            Failure::Problem(problem) => problem,
            // The export is being set up.
            Failure::Unfit(_) => Problem::Refused(Refusal::Busy),
        })
    }

    fn links_max(&self) -> usize {
        if self.terms.is_coherent() { PLACES } else { 1 }
    }

    fn run_max(&self) -> usize {
        self.terms.run_max().unwrap_or(1).min(RUN_PAGES_MAX)
    }

    fn place(&self, slot: u32, pages: u32) -> Result<(), IoError> {
        self.extents.place(slot, pages)
    }

    unsafe fn ask(&self, link: &mut Link, transfers: Transfers<'_>) -> Result<(), Problem> {
        link.pending = 0;
        for (index, piece) in transfers.window.pieces().iter().enumerate() {
            // SAFETY: by contract of this function.
            let is_asked = unsafe { self.collect(link, transfers, index, piece) };
            link.pending |= u64::from(is_asked) << index;
        }
        link.send()
    }

    unsafe fn hear(&self, link: &mut Link, transfers: Transfers<'_>) -> Result<Outcomes, Problem> {
        let mut outcomes = [Ok(()); PAGES];
        while link.pending != 0 {
            let (index, error) = link.reply()?;
            if !set_members(link.pending).any(|pending| pending == index) {
                return Err(Problem::Malformed);
            }
            link.pending &= !(1 << index);
            let piece = &transfers.window.pieces()[index];
            match (transfers.direction, error) {
                (direction, Some(errno)) => {
                    outcomes[index] = Err(Problem::Refused(refusal(direction, errno)));
                }
                (Direction::Write, None) => {}
                (Direction::Read, None) => {
                    for page in 0..piece.pages {
                        // SAFETY: by contract: a frame of this transfer.
                        link.take(unsafe { transfers.frame(piece, page) })?;
                    }
                }
            }
        }
        link.turn();
        Ok(outcomes)
    }

    fn delete(&self, link: &mut Link, segment: u32, slots: Group) -> Result<(), Problem> {
        let _trims = self.trims.lock().unwrap_or_else(PoisonError::into_inner);
        link.trim(self.ranges(segment, slots))
    }

    fn release(&self, segment: u32, is_unused: &dyn Fn() -> bool) {
        let _trims = self.trims.lock().unwrap_or_else(PoisonError::into_inner);
        self.extents.release(segment, is_unused);
    }

    fn refresh(&self, link: &mut Link) -> Result<(), Problem> {
        label::beat(link, self.claim)
    }

    fn clear(&self, link: &mut Link) -> Result<(), Problem> {
        let trims = self.trims.lock().unwrap_or_else(PoisonError::into_inner);
        self.clear_under(&trims, link)
    }

    fn hold(&self, _link: &mut Link) -> Result<(), Problem> {
        self.extents.hold();
        Ok(())
    }

    fn end(&self, link: &mut Link) -> Result<(), Problem> {
        // Waits for children that have just ended: they are about to give up their holds, and know
        // only a part of the contents.
        if within(END_MAX, || self.extents.let_go().then_some(())).is_some()
            && let Some(trims) = self.lock_trims()
        {
            self.clear_under(&trims, link)?;
        }
        match self.extents.leave() {
            true => label::rest(link),
            false => Ok(()),
        }
    }

    fn detach(&self) {
        // Nothing to do: nothing is stored yet, and the description is this process's from now on.
    }

    fn inherit(&self) -> Nbd {
        Nbd {
            endpoint: self.endpoint.clone(),
            export: self.export.clone(),
            size: self.size,
            terms: self.terms,
            claim: self.claim,
            extents: self.extents.inherit(),
            trims: Mutex::new(()),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.extents.descriptor()]
    }
}
