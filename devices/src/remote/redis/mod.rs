//! Pages on a Redis or Valkey server.
//!
//! ```text
//! Redis  |- Session    names of keys                            session
//!        \- written    hashes that exist
//! a run of pages --> one HSET or HMGET                          link, resp
//! ```
//! **Layout.** A hash holds the pages of a segment. A key for each page would take 130 bytes of the
//! server's memory beside the page, for its entry, its name and its lifetime; a field takes 50. And
//! the lifetime of 2 MiB is extended by one request.
//!
//! Locks: none.

mod link;
mod resp;
mod session;

use crate::device::Device;
use crate::error::Reason;
use crate::remote::device::Remote;
use crate::remote::endpoint::Endpoint;
use crate::remote::freed::{Group, members};
use crate::remote::links::PLACES;
use crate::remote::login::{Login, RemoteOptions};
use crate::remote::server::Server;
use crate::remote::socket::DEADLINE;
use crate::remote::store::{Outcomes, Store, Transfers};
use crate::remote::verdict::{Problem, Refusal};
use crate::remote::window::{PAGES, Piece, SEGMENT};
use crate::slot_set::SlotSet;
use crate::spec::Spec;
use highwater_platform::Direction;
use highwater_units::{PAGE_SIZE, RUN_PAGES_MAX};
use link::{Answer, Link, field};
use session::{LIFETIME, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The pages of a device.
struct Redis {
    endpoint: Endpoint,
    login: Login,
    session: AtomicU64,
    /// Its number among the holders of the session.
    holder: u64,
    /// Segments that have a hash.
    written: Arc<SlotSet>,
    segments: u32,
}

/// Connects, and looks whether the server keeps what it is given.
pub(crate) fn open(
    spec: &Spec,
    server: &Server,
    options: &RemoteOptions,
) -> Result<Box<dyn Device>, Reason> {
    let login = options.login()?;
    let endpoint = Endpoint::new(server, options)?;
    let mut link =
        Link::open(&endpoint, &login, Redis::deadline(options.patience)).map_err(reason)?;
    if evicts(&link.info(b"memory").map_err(reason)?) {
        return Err(Reason::Evicts);
    }
    let draw = || Session::new().map_err(|errno| Reason::from_errno("draw a name", errno));
    let (session, Session(holder)) = (draw()?, draw()?);
    let segments = spec.pages().div_ceil(SEGMENT);
    let written = SlotSet::new(segments);
    let written = written.map_err(|errno| Reason::from_errno("map memory", errno))?;
    match session.hold(&mut link, holder) {
        // Other processes of the run have used it, and other devices may have room.
        Err(Problem::Refused(Refusal::Full)) if options.run.is_some() => {}
        held => held.map_err(reason)?,
    }
    let (session, written) = (AtomicU64::new(session.0), Arc::new(written));
    let store = Redis { endpoint, login, session, holder, written, segments };
    Remote::open(spec, options.patience, store, link)
}

/// Whether a server with this state drops keys when it is full.
fn evicts(info: &str) -> bool {
    let limited = field(info, "maxmemory").is_some_and(|most| most != "0");
    limited && field(info, "maxmemory_policy").is_some_and(|policy| policy != "noeviction")
}

fn reason(problem: Problem) -> Reason {
    match problem {
        // It waits for something else, such as TLS.
        Problem::Lost(libc::ECONNRESET) => Reason::NotRedis,
        Problem::Lost(errno) => Reason::Unreachable { errno },
        Problem::Malformed => Reason::NotRedis,
        Problem::Tls(fault) => Reason::Tls(fault),
        Problem::Refused(Refusal::Denied) => Reason::Denied,
        Problem::Refused(Refusal::Full) => Reason::ServerFull,
        Problem::Refused(Refusal::Busy | Refusal::Failed(_) | Refusal::Other)
        | Problem::Missing => Reason::Unwilling,
    }
}

impl Redis {
    fn session(&self) -> Session {
        Session(self.session.load(Relaxed))
    }

    /// Receives the pages of a piece.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn take_pages(
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
                Answer::Null if transfers.stored.missing(slot, 1) == 1 => to.fill(0),
                Answer::Null => found = Err(Problem::Missing),
                _ => return Err(Problem::Malformed),
            }
        }
        Ok(found)
    }
}

impl Store for Redis {
    type Link = Link;

    /// Well before the end of a lifetime.
    const REFRESH: Duration = Duration::from_secs(200);

    /// A slow server is asked again on a new connection.
    fn deadline(patience: Duration) -> Duration {
        patience.min(DEADLINE)
    }

    fn connect(&self, deadline: Duration) -> Result<Link, Problem> {
        Link::open(&self.endpoint, &self.login, deadline)
    }

    fn links_max(&self) -> usize {
        PLACES
    }

    fn run_max(&self) -> usize {
        RUN_PAGES_MAX
    }

    unsafe fn ask(&self, link: &mut Link, transfers: Transfers<'_>) -> Result<(), Problem> {
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

    unsafe fn hear(&self, link: &mut Link, transfers: Transfers<'_>) -> Result<Outcomes, Problem> {
        let Transfers { direction, window, .. } = transfers;
        let mut outcomes = [Ok(()); PAGES];
        for (piece, outcome) in window.pieces().iter().zip(&mut outcomes) {
            *outcome = match (direction, link.answer()?) {
                (_, Answer::Refused(refusal)) => Err(Problem::Refused(refusal)),
                (Direction::Write, Answer::Integer(_)) => Ok(()),
                (Direction::Read, Answer::Array(items)) if items == piece.pages => {
                    // SAFETY: by contract of this function.
                    unsafe { Redis::take_pages(link, transfers, piece) }?
                }
                _ => return Err(Problem::Malformed),
            };
            if direction == Direction::Write {
                link.answer()?;
            }
        }
        Ok(outcomes)
    }

    fn delete(&self, link: &mut Link, segment: u32, slots: Group) -> Result<(), Problem> {
        let mut requests = link.requests();
        requests.begin(2 + members(slots).count());
        requests.word(b"HDEL");
        requests.word(self.session().segment(segment).bytes());
        members(slots).for_each(|field| requests.number(field.into()));
        let collected = requests.len();
        link.collected(collected);
        link.send()?;
        link.answer().map(drop)
    }

    fn refresh(&self, link: &mut Link) -> Result<(), Problem> {
        self.session().extend(link, self.written.members())
    }

    fn clear(&self, link: &mut Link) -> Result<(), Problem> {
        self.session().delete(link, self.written.members())?;
        self.written.clear();
        Ok(())
    }

    fn hold(&self, link: &mut Link) -> Result<(), Problem> {
        self.session().hold(link, self.holder)
    }

    fn end(&self, link: &mut Link) -> Result<(), Problem> {
        self.session().release(link, self.holder, self.segments)
    }

    fn detach(&self) {
        // Without random bytes it stays with the name that its parent gives up.
        let Session(session) = Session::new().unwrap_or(self.session());
        self.session.store(session, Relaxed);
    }

    fn inherit(&self) -> Redis {
        let here = std::process::id();
        Redis {
            endpoint: self.endpoint.clone(),
            login: self.login.clone(),
            session: AtomicU64::new(self.session().0),
            holder: Session::new().map_or(here.into(), |Session(holder)| holder),
            written: self.written.clone(),
            segments: self.segments,
        }
    }
}
