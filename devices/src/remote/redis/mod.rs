//! Pages on Redis or Valkey servers: one, several, or a cluster.
//!
//! ```text
//! Redis  |- Nodes      which server has which key               nodes, node, layout, cluster
//!        |- Session    names and lifetimes of keys              keys, session
//!        \- written    hashes that exist
//! a run of pages --> one HSET or HMGET                          bundle, link, resp
//! ```
//! **Layout.** A hash holds the pages of a segment. A key for each page would take 130 bytes of the
//! server's memory beside the page, for its entry, its name and its lifetime; a field takes 50.
//! With hashes one request extends the lifetime of 2 MiB.
//!
//! **Clusters.** A write succeeds once a replica of its master has it, too (WAIT): a write that
//! only the master has is lost when the master dies. Replicas are waited for no longer than half a
//! second.
//!
//! Locks: only the one of [`nodes`].

mod bundle;
mod cluster;
mod keys;
mod layout;
mod link;
mod node;
mod nodes;
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
use bundle::{Bundle, REDIRECTIONS, Routes};
use highwater_platform::Direction;
use highwater_units::{PAGE_SIZE, RUN_PAGES_MAX};
use keys::{Key, Session, expire};
use layout::Route;
use link::{Answer, Link, field};
use nodes::{Kind, Nodes};
use resp::{Redirection, Tenure};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The pages of a device.
struct Redis {
    nodes: Nodes,
    session: AtomicU64,
    /// Its number among the holders of the session.
    holder: u64,
    /// Segments that have a hash.
    written: Arc<SlotSet>,
    segments: u32,
}

/// Connects, and checks that the servers do not evict keys.
pub(crate) fn open(
    spec: &Spec,
    servers: &[Server],
    options: &RemoteOptions,
) -> Result<Box<dyn Device>, Reason> {
    let login = options.login()?;
    let named = servers.iter().map(|server| Endpoint::new(server, options));
    let named = named.collect::<Result<Arc<[Endpoint]>, Reason>>()?;
    let deadline = Redis::deadline(options.patience);
    let (nodes, mut bundle) = meet(named, login, deadline)?;
    let draw = || Session::new().map_err(|errno| Reason::from_errno("draw a name", errno));
    let (session, Session(holder)) = (draw()?, draw()?);
    let segments = spec.pages().div_ceil(SEGMENT);
    let written = SlotSet::new(segments);
    let written = written.map_err(|errno| Reason::from_errno("map memory", errno))?;
    let mut held = session.hold(&mut bundle, &nodes, holder);
    if held == Err(Problem::Refused(Refusal::Busy)) {
        // No replica had it in time.
        held = session.hold(&mut bundle, &nodes, holder);
    }
    match held {
        // Other processes of the run have used it, and other devices may have room.
        Err(Problem::Refused(Refusal::Full)) if options.run.is_some() => {}
        held => held.map_err(reason)?,
    }
    let (session, written) = (AtomicU64::new(session.0), Arc::new(written));
    let store = Redis { nodes, session, holder, written, segments };
    Remote::open(spec, options.patience, store, bundle)
}

/// Asks the servers that the user names whether they are a cluster, and whether they evict keys.
/// One server of a cluster is enough.
fn meet(
    named: Arc<[Endpoint]>,
    login: Login,
    deadline: Duration,
) -> Result<(Nodes, Bundle), Reason> {
    let apart = Nodes::new(named.clone(), login.clone(), Kind::Apart);
    let mut bundle = Bundle::new(&apart, deadline);
    let nodes = match kind_of_all(&apart, &mut bundle).map_err(reason)? {
        Kind::Cluster => {
            let nodes = Nodes::new(named, login, Kind::Cluster);
            bundle = Bundle::new(&nodes, deadline);
            nodes
        }
        Kind::Apart => apart,
    };
    bundle.begin(&nodes).map_err(reason)?;
    for server in bundle.layout.owners() {
        let link = bundle.link(&nodes, server).map_err(reason)?;
        if evicts(&link.info(b"memory").map_err(reason)?) {
            return Err(Reason::Evicts);
        }
    }
    Ok((nodes, bundle))
}

/// Asks the servers whether they are in a cluster, up to the first that is.
fn kind_of_all(nodes: &Nodes, bundle: &mut Bundle) -> Result<Kind, Problem> {
    let mut apart = Ok(Kind::Apart);
    for server in 0..nodes.count() {
        match bundle.link(nodes, server).and_then(kind) {
            Ok(Kind::Cluster) => return Ok(Kind::Cluster),
            found => apart = apart.and(found),
        }
    }
    apart
}

fn kind(link: &mut Link) -> Result<Kind, Problem> {
    Ok(match field(&link.info(b"cluster")?, "cluster_enabled") {
        Some("1") => Kind::Cluster,
        _ => Kind::Apart,
    })
}

/// Whether a server with this state drops keys when it is full.
fn evicts(info: &str) -> bool {
    let limited = field(info, "maxmemory").is_some_and(|most| most != "0");
    limited && field(info, "maxmemory_policy").is_some_and(|policy| policy != "noeviction")
}

fn reason(problem: Problem) -> Reason {
    match problem {
        Problem::Lost(errno) => Reason::from_lost(errno),
        Problem::Malformed => Reason::NotRedis,
        Problem::Tls(fault) => Reason::Tls(fault),
        Problem::Refused(Refusal::Denied) => Reason::Denied,
        Problem::Refused(Refusal::Full) => Reason::ServerFull,
        Problem::Refused(Refusal::Busy | Refusal::Failed(_) | Refusal::Other)
        | Problem::Missing
        | Problem::TurnedAway => Reason::Unwilling,
    }
}

/// A server's answer for a piece.
enum Heard {
    Outcome(Result<(), Problem>),
    Elsewhere(Redirection),
}

impl Redis {
    fn session(&self) -> Session {
        Session(self.session.load(Relaxed))
    }

    /// Whether the server of a key answers, or must be waited for because no other answers.
    fn reaches_key(&self, key: &Key) -> bool {
        let layout = self.nodes.layout();
        layout.owner(key).is_ok_and(|owner| !self.nodes.turns_away(&layout, owner))
    }

    /// Returns the result unchanged. After a temporary failure, another server may have the keys.
    fn noted<T>(&self, result: Result<T, Problem>) -> Result<T, Problem> {
        result.inspect_err(|problem| {
            if problem.may_pass() {
                self.nodes.doubt();
            }
        })
    }

    /// Collects the request for a piece.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn collect(
        &self,
        bundle: &mut Bundle,
        transfers: Transfers<'_>,
        piece: &Piece,
        route: Route,
    ) -> Result<(), Problem> {
        let segment = piece.slot / SEGMENT;
        let key = self.session().segment(segment);
        let fields = (0..piece.pages).map(|page| u64::from(piece.slot % SEGMENT) + page as u64);
        match transfers.direction {
            Direction::Read => bundle.collect(&self.nodes, route, |requests| {
                requests.begin(2 + piece.pages);
                requests.word(b"HMGET");
                requests.word(key.bytes());
                fields.for_each(|field| requests.number(field));
            }),
            Direction::Write => {
                self.written.insert(segment, 1);
                bundle.collect(&self.nodes, route, |requests| {
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
                })?;
                bundle.collect(&self.nodes, route, |requests| expire(requests, &key))
            }
        }
    }

    /// Receives the answer for a piece.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn hear_piece(
        &self,
        bundle: &mut Bundle,
        transfers: Transfers<'_>,
        piece: &Piece,
        route: Route,
    ) -> Result<Heard, Problem> {
        let direction = transfers.direction;
        let (link, answer) = bundle.answer(&self.nodes, route)?;
        let heard = match (direction, answer) {
            (_, Answer::Refused(refusal)) => {
                if direction == Direction::Write {
                    self.nodes.note_lack(route.server);
                }
                Heard::Outcome(Err(Problem::Refused(refusal)))
            }
            (_, Answer::Elsewhere(to)) => Heard::Elsewhere(to),
            (Direction::Write, Answer::Integer(_)) => Heard::Outcome(Ok(())),
            (Direction::Read, Answer::Array(items)) if items == piece.pages => {
                // SAFETY: by contract of this function.
                let taken = unsafe { Redis::take_pages(link, transfers, piece) }?;
                Heard::Outcome(self.unless_behind(taken, route))
            }
            _ => return Err(Problem::Malformed),
        };
        if direction == Direction::Write {
            // The answer to EXPIRE.
            bundle.answer(&self.nodes, route)?;
        }
        bundle.end_answer(&self.nodes, route)?;
        Ok(heard)
    }

    /// A replica that lacks a page may lack others: the next request is made to another server.
    fn unless_behind(&self, found: Result<(), Problem>, route: Route) -> Result<(), Problem> {
        match (found, route.tenure) {
            (Err(Problem::Missing), Tenure::Copy) => {
                self.nodes.fails(route.server);
                Err(Problem::Refused(Refusal::Busy))
            }
            (found, _) => found,
        }
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
                // The slot was never written, or was freed.
                Answer::Null if transfers.stored.missing(slot, 1) == 1 => to.fill(0),
                Answer::Null => found = Err(Problem::Missing),
                _ => return Err(Problem::Malformed),
            }
        }
        Ok(found)
    }

    /// The server of each piece; `None`: the piece cannot be written now.
    fn routes(&self, bundle: &Bundle, transfers: Transfers<'_>) -> Result<Routes, Problem> {
        let (mut routes, layout) = ([None; PAGES], &bundle.layout);
        for (route, piece) in routes.iter_mut().zip(transfers.window.pieces()) {
            let key = self.session().segment(piece.slot / SEGMENT);
            *route = match transfers.direction {
                Direction::Read => Some(self.nodes.source(layout, &key)?),
                Direction::Write => self.nodes.destination(layout, &key)?,
            };
        }
        Ok(routes)
    }

    /// Asks the servers of these pieces.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn ask_by(
        &self,
        bundle: &mut Bundle,
        transfers: Transfers<'_>,
        routes: &Routes,
    ) -> Result<(), Problem> {
        for (piece, route) in transfers.window.pieces().iter().zip(routes) {
            if let Some(route) = *route {
                // SAFETY: by contract of this function.
                unsafe { self.collect(bundle, transfers, piece, route) }?;
            }
        }
        bundle.routes = *routes;
        match transfers.direction {
            Direction::Read => bundle.send(&self.nodes),
            Direction::Write => bundle.send_writes(&self.nodes),
        }
    }

    /// Receives the answers of these pieces; returns the routes of pieces that are on other
    /// servers.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn hear_by(
        &self,
        bundle: &mut Bundle,
        transfers: Transfers<'_>,
        routes: &Routes,
        outcomes: &mut Outcomes,
    ) -> Result<Routes, Problem> {
        let mut elsewhere = [None; PAGES];
        for (index, piece) in transfers.window.pieces().iter().enumerate() {
            let Some(route) = routes[index] else { continue };
            // SAFETY: by contract of this function.
            match unsafe { self.hear_piece(bundle, transfers, piece, route) }? {
                Heard::Outcome(outcome) => outcomes[index] = outcome,
                Heard::Elsewhere(to) => {
                    // This holds until that server has answered.
                    outcomes[index] = Err(Problem::Refused(Refusal::Busy));
                    let to = self.nodes.follow(route.server, to)?;
                    // Whether that server has replicas is not known until the cluster is described
                    // again.
                    let waits = transfers.direction == Direction::Write;
                    elsewhere[index] = Some(to).filter(|to| !waits || to.tenure == Tenure::Partial);
                }
            }
        }
        bundle.end(&self.nodes)?;
        Ok(elsewhere)
    }

    /// Receives the answers of a window, also from the servers to which the first ones redirect.
    ///
    /// # Safety
    /// As for [`Store::ask`].
    unsafe fn hear_all(
        &self,
        bundle: &mut Bundle,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, Problem> {
        let asked = bundle.routes;
        let mut outcomes = asked.map(|route| route.map_or(Err(Problem::TurnedAway), |_| Ok(())));
        for round in 0.. {
            let asked = bundle.routes;
            // SAFETY: by contract of this function.
            let routes = unsafe { self.hear_by(bundle, transfers, &asked, &mut outcomes) }?;
            if round == REDIRECTIONS || routes.iter().all(Option::is_none) {
                break;
            }
            // SAFETY: as above.
            unsafe { self.ask_by(bundle, transfers, &routes) }?;
        }
        if outcomes.contains(&Err(Problem::Refused(Refusal::Busy))) {
            self.nodes.doubt();
        } else if transfers.direction == Direction::Write && outcomes.contains(&Ok(())) {
            self.nodes.note_written();
        }
        Ok(outcomes)
    }
}

impl Store for Redis {
    type Link = Bundle;

    /// Well within a lifetime.
    const REFRESH: Duration = Duration::from_secs(200);

    /// A slow server is asked again on a new connection.
    fn deadline(patience: Duration) -> Duration {
        patience.min(DEADLINE)
    }

    fn connect(&self, deadline: Duration) -> Result<Bundle, Problem> {
        Ok(Bundle::new(&self.nodes, deadline))
    }

    fn links_max(&self) -> usize {
        PLACES
    }

    fn connections(&self, _links: u64) -> u64 {
        self.nodes.connections()
    }

    fn run_max(&self) -> usize {
        RUN_PAGES_MAX
    }

    unsafe fn ask(&self, bundle: &mut Bundle, transfers: Transfers<'_>) -> Result<(), Problem> {
        let asked = bundle.begin(&self.nodes).and_then(|()| {
            let routes = self.routes(bundle, transfers)?;
            // SAFETY: by contract of this function.
            unsafe { self.ask_by(bundle, transfers, &routes) }
        });
        self.noted(asked)
    }

    unsafe fn hear(
        &self,
        bundle: &mut Bundle,
        transfers: Transfers<'_>,
    ) -> Result<Outcomes, Problem> {
        // SAFETY: by contract of this function.
        self.noted(unsafe { self.hear_all(bundle, transfers) })
    }

    fn delete(&self, bundle: &mut Bundle, segment: u32, slots: Group) -> Result<(), Problem> {
        if !self.reaches(segment) {
            return Err(Problem::TurnedAway);
        }
        let key = self.session().segment(segment);
        let deleted = bundle.ask(&self.nodes, &key, &|requests| {
            requests.begin(2 + members(slots).count());
            requests.word(b"HDEL");
            requests.word(key.bytes());
            members(slots).for_each(|field| requests.number(field.into()));
        });
        self.noted(deleted.map(drop))
    }

    fn reaches(&self, segment: u32) -> bool {
        self.reaches_key(&self.session().segment(segment))
    }

    fn is_impaired(&self) -> bool {
        let layout = self.nodes.layout();
        !self.nodes.failing(&layout).is_empty() || !self.nodes.lacking(&layout).is_empty()
    }

    fn look_again(&self, bundle: &mut Bundle) -> Result<(), Problem> {
        let key = |segment| self.session().segment(segment);
        bundle.look_again(&self.nodes, || self.written.members().map(key))
    }

    fn refresh(&self, bundle: &mut Bundle) -> Result<(), Problem> {
        // Replicas may have been added.
        self.nodes.doubt();
        let extended = self.session().extend(bundle, &self.nodes, self.written.members());
        if !self.reaches_key(&self.session().holders()) {
            return self.noted(extended);
        }
        // A server that has taken over may not have heard of this holder.
        match self.hold(bundle) {
            Err(Problem::Refused(Refusal::Full)) => self.noted(extended),
            held => self.noted(extended.and(held)),
        }
    }

    fn clear(&self, bundle: &mut Bundle) -> Result<(), Problem> {
        let deleted = self.session().delete(bundle, &self.nodes, self.written.members());
        self.noted(deleted)?;
        self.written.clear();
        Ok(())
    }

    fn hold(&self, bundle: &mut Bundle) -> Result<(), Problem> {
        self.noted(self.session().hold(bundle, &self.nodes, self.holder))
    }

    fn end(&self, bundle: &mut Bundle) -> Result<(), Problem> {
        self.noted(self.session().release(bundle, &self.nodes, self.holder, self.segments))
    }

    fn detach(&self) {
        // Without random bytes it keeps the name that its parent gives up.
        let Session(session) = Session::new().unwrap_or(self.session());
        self.session.store(session, Relaxed);
    }

    fn inherit(&self) -> Redis {
        let here = std::process::id();
        Redis {
            nodes: self.nodes.inherit(),
            session: AtomicU64::new(self.session().0),
            holder: Session::new().map_or(here.into(), |Session(holder)| holder),
            written: self.written.clone(),
            segments: self.segments,
        }
    }
}
