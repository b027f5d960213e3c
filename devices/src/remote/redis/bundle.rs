//! A connection to each of the servers of a device, made when the first request goes there.
//!
//! ```text
//! Bundle  |- members   by server: its connection, and what is under way there
//!         |- layout    as known when the requests were made
//!         \- routes    the servers that were asked for the pieces of a window
//! requests --> owner of the key --> answers; -MOVED, -ASK --> the server that is named
//! ```
//! Once one connection is lost, all connections with requests in flight are given up. Before
//! anything else is sent to the server of such a connection, by this bundle or another, the server
//! is made to drop the connection: a write that it has received there must not be carried out after
//! the next write of the same slot.

use crate::remote::redis::cluster;
use crate::remote::redis::keys::{Key, expire};
use crate::remote::redis::layout::{Layout, Route};
use crate::remote::redis::link::{Answer, Link};
use crate::remote::redis::node::{Copying, Node};
use crate::remote::redis::nodes::Nodes;
use crate::remote::redis::resp::{Requests, Tenure};
use crate::remote::store::Connection;
use crate::remote::verdict::{Problem, Refusal};
use crate::remote::window::PAGES;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a request is sent on to another server.
pub(super) const REDIRECTIONS: usize = 8;
/// Keys of requests that are made together.
const TOGETHER: usize = 256;
/// How long a server may take to describe its cluster, when others can be asked.
const DESCRIPTION_MAX: Duration = Duration::from_millis(300);
/// How long a server may take to answer a probe.
const PROBE_MAX: Duration = Duration::from_millis(500);
/// How many keys are tried to find one that exists.
const KEYS_MAX: usize = 16;
/// A write waits for replicas for one part in this many of the time that an answer may take.
const COPY_PART: u32 = 2;

/// Connections to servers.
pub(super) struct Bundle {
    members: Vec<Member>,
    deadline: Duration,
    pub(super) layout: Arc<Layout>,
    /// A stamp from before the layout was read; 0: the requests may turn out to change nothing.
    since: u64,
    pub(super) routes: Routes,
}

/// The server of each piece of a window in flight.
pub(super) type Routes = [Option<Route>; PAGES];

#[derive(Default)]
struct Member {
    link: Option<Link>,
    /// Its server, once a connection was made.
    node: Option<Arc<Node>>,
    stage: Stage,
}

/// The state of the requests on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Requests were collected, or sent.
    Asked,
    /// The requests are writes, to a server of a cluster. If replicas are waited for, the last
    /// answer is the number of replicas that have the writes.
    Copied(Copying),
}

impl Bundle {
    /// Without connections.
    pub(super) fn new(nodes: &Nodes, deadline: Duration) -> Bundle {
        let (members, layout, routes) = (Vec::new(), nodes.layout(), [None; PAGES]);
        Bundle { members, deadline, layout, since: 0, routes }
    }

    fn member(&mut self, server: usize) -> &mut Member {
        let servers = self.members.len().max(server + 1);
        self.members.resize_with(servers, Member::default);
        &mut self.members[server]
    }

    /// Gives up the connections with requests in flight.
    fn give_up_failed(&mut self) {
        let failed = self.members.iter_mut().filter(|member| member.stage != Stage::Idle);
        failed.for_each(Member::give_up);
    }

    /// The connection to a server; makes one if there is none.
    pub(super) fn link(&mut self, nodes: &Nodes, server: usize) -> Result<&mut Link, Problem> {
        if self.member(server).link.is_none() {
            self.connect(nodes, server)?;
        }
        let buried = self.member(server).bury();
        buried.inspect_err(|problem| nodes.note_problem(server, *problem))?;
        self.made(nodes, server)
    }

    fn connect(&mut self, nodes: &Nodes, server: usize) -> Result<(), Problem> {
        let deadline = nodes.deadline(&self.layout, server, self.deadline);
        let node = nodes.node(server);
        let link = Link::open(&node.endpoint, &nodes.login, deadline);
        nodes.note_connection(server, &link);
        let member = self.member(server);
        member.link = Some(link?);
        if member.node.replace(node).is_none() {
            nodes.connected();
        }
        Ok(())
    }

    /// The existing connection to a server.
    fn made(&mut self, nodes: &Nodes, server: usize) -> Result<&mut Link, Problem> {
        let deadline = nodes.deadline(&self.layout, server, self.deadline);
        let link = self.member(server).link.as_mut().ok_or(Problem::Malformed)?;
        link.set_deadline(deadline)?;
        Ok(link)
    }

    /// Before requests are collected: gives up connections on which the last requests failed, and
    /// asks which servers have the keys, if that is in doubt.
    pub(super) fn begin(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        self.give_up_failed();
        if nodes.take_doubt() {
            let described = self.describe(nodes);
            described.inspect_err(|_| nodes.doubt())?;
        }
        self.since = nodes.stamp();
        self.layout = nodes.layout();
        Ok(())
    }

    /// Asks one server after the other for the state of the cluster: connected ones that answer
    /// come first. If none answers soon, it asks again with more time.
    fn describe(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        let mut servers: Vec<usize> = (0..nodes.count()).collect();
        let last = nodes.described_by();
        servers.sort_by_key(|server| {
            let is_open = self.member(*server).link.is_some();
            (!nodes.node(*server).answers(), !is_open, *server != last)
        });
        let most = self.deadline;
        let mut described = Err(Problem::Refused(Refusal::Busy));
        for deadline in [most.min(DESCRIPTION_MAX), most] {
            for server in &servers {
                self.deadline = deadline;
                described = self.describe_by(nodes, *server);
                self.deadline = most;
                if described.is_ok() {
                    return described;
                }
            }
            if nodes.has_owners() {
                // The known owners may be right.
                nodes.doubt();
                return Ok(());
            }
        }
        described
    }

    fn describe_by(&mut self, nodes: &Nodes, server: usize) -> Result<(), Problem> {
        let described = self.link(nodes, server).and_then(|link| {
            let masters = cluster::masters(&link.text(&[b"CLUSTER", b"NODES"])?);
            match masters.is_empty() {
                // The server is not, or not yet, in a cluster.
                true => Err(Problem::Refused(Refusal::Busy)),
                false => nodes.adopt(server, masters),
            }
        });
        described.inspect_err(|_| self.member(server).give_up())
    }

    /// Collects a request for a server.
    pub(super) fn collect(
        &mut self,
        nodes: &Nodes,
        route: Route,
        write: impl FnOnce(&mut Requests<'_>),
    ) -> Result<(), Problem> {
        self.link(nodes, route.server)?.collect(|requests| match route.tenure {
            Tenure::Whole => write(requests),
            Tenure::Partial => {
                requests.words(&[b"ASKING"]);
                write(requests);
            }
            Tenure::Copy => {
                requests.words(&[b"READONLY"]);
                write(requests);
                requests.words(&[b"READWRITE"]);
            }
        });
        self.member(route.server).stage = Stage::Asked;
        Ok(())
    }

    /// Sends what was collected.
    pub(super) fn send(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        for (server, member) in self.members.iter_mut().enumerate() {
            member.send().inspect_err(|problem| nodes.note_problem(server, *problem))?;
        }
        Ok(())
    }

    /// Sends the collected writes, and asks each server to wait until its replicas have them, too.
    pub(super) fn send_writes(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        for (server, member) in self.members.iter_mut().enumerate() {
            if let (Stage::Asked, Some(link)) = (member.stage, &mut member.link)
                && let Some(copying) = nodes.copying(&self.layout, server, self.since)
            {
                member.stage = Stage::Copied(copying);
                if copying.enough > 0 {
                    let deadline = nodes.deadline(&self.layout, server, self.deadline);
                    link.collect(|requests| wait(requests, copying.enough, deadline));
                }
            }
        }
        self.send(nodes)
    }

    /// Takes the last answers. If no replica has the writes in time, they must be repeated.
    pub(super) fn end(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        let mut copied = Ok(());
        for (server, member) in self.members.iter_mut().enumerate() {
            if let (Stage::Copied(copying), Some(link)) = (member.stage, &mut member.link) {
                let copies = match copying.enough {
                    0 => Ok(Answer::Integer(0)),
                    _ => link.answer(),
                };
                nodes.note_answer(server, &copies);
                let enough = match copies? {
                    Answer::Integer(copies) => {
                        nodes.note_copies(server, copying, copies.max(0) as usize)
                    }
                    Answer::Refused(refusal) => Err(Problem::Refused(refusal)),
                    _ => return Err(Problem::Malformed),
                };
                copied = copied.and(enough);
            }
            member.stage = Stage::Idle;
        }
        copied
    }

    /// Takes the answer to a request that was made by this route; returns the connection and the
    /// answer.
    pub(super) fn answer(
        &mut self,
        nodes: &Nodes,
        route: Route,
    ) -> Result<(&mut Link, Answer), Problem> {
        let link = self.made(nodes, route.server)?;
        let mut take = || {
            if route.tenure != Tenure::Whole {
                // The answer to ASKING or READONLY.
                link.answer()?;
            }
            link.answer()
        };
        let answer = take();
        nodes.note_answer(route.server, &answer);
        Ok((link, answer?))
    }

    /// Takes the answer to the READWRITE that was collected behind a request to a replica.
    pub(super) fn end_answer(&mut self, nodes: &Nodes, route: Route) -> Result<(), Problem> {
        if route.tenure == Tenure::Copy {
            // The answer to READWRITE.
            let answer = self.made(nodes, route.server)?.answer();
            nodes.note_answer(route.server, &answer);
            answer?;
        }
        Ok(())
    }

    /// Checks servers that did not answer: whether they do now, and whether others have their keys.
    /// Also checks whether replicas have caught up with changes of these keys that they may lack.
    pub(super) fn look_again<Keys: Iterator<Item = Key>>(
        &mut self,
        nodes: &Nodes,
        keys: impl Fn() -> Keys,
    ) -> Result<(), Problem> {
        if !nodes.failing(&self.layout).is_empty() {
            nodes.doubt();
        }
        self.begin(nodes)?;
        let most = std::mem::replace(&mut self.deadline, PROBE_MAX);
        for server in nodes.failing(&self.layout) {
            let answer = self.link(nodes, server).and_then(|link| link.ask(&[b"PING"]));
            nodes.note_answer(server, &answer);
            if answer.is_err() {
                self.member(server).give_up();
            }
        }
        self.deadline = most;
        for server in nodes.lacking(&self.layout) {
            let layout = self.layout.clone();
            let is_there = |key: &Key| layout.owner(key).is_ok_and(|owner| owner.server == server);
            let keys = keys().filter(is_there).take(KEYS_MAX);
            if self.look_for_copies(nodes, server, keys).is_err() {
                self.member(server).give_up();
            }
        }
        Ok(())
    }

    /// Waits, for a while, until all replicas of a server have all earlier writes. WAIT refers to
    /// the connection's last change, so it first extends the lifetime of a key.
    fn look_for_copies(
        &mut self,
        nodes: &Nodes,
        server: usize,
        mut keys: impl Iterator<Item = Key>,
    ) -> Result<(), Problem> {
        let Some(copying) = nodes.copying(&self.layout, server, self.since) else { return Ok(()) };
        let copying = Copying { enough: copying.live, ..copying };
        let deadline = nodes.deadline(&self.layout, server, self.deadline);
        let link = self.link(nodes, server)?;
        let mut changed = false;
        while let (false, Some(key)) = (changed, keys.next()) {
            link.collect(|requests| expire(requests, &key));
            link.send()?;
            changed = link.answer()? == Answer::Integer(1);
        }
        if !changed {
            return Ok(());
        }
        link.collect(|requests| wait(requests, copying.live, deadline));
        link.send()?;
        match link.answer()? {
            // If there are fewer copies, `note_copies` records this for the next writes.
            Answer::Integer(copies) => {
                let _ = nodes.note_copies(server, copying, copies.max(0) as usize);
                Ok(())
            }
            _ => Err(Problem::Malformed),
        }
    }

    /// Makes a request about a key, to the server that has the key.
    pub(super) fn ask(
        &mut self,
        nodes: &Nodes,
        key: &Key,
        write: &dyn Fn(&mut Requests<'_>),
    ) -> Result<Answer, Problem> {
        self.begin(nodes)?;
        let route = self.layout.owner(key)?;
        self.ask_by(nodes, route, write)
    }

    fn ask_by(
        &mut self,
        nodes: &Nodes,
        mut route: Route,
        write: &dyn Fn(&mut Requests<'_>),
    ) -> Result<Answer, Problem> {
        // The request may change nothing, for example if it deletes a key that does not exist.
        self.since = 0;
        for _ in 0..REDIRECTIONS {
            self.collect(nodes, route, write)?;
            self.send_writes(nodes)?;
            let (_, answer) = self.answer(nodes, route)?;
            self.end(nodes)?;
            match answer {
                Answer::Elsewhere(to) => route = nodes.follow(route.server, to)?,
                answer => return Ok(answer),
            }
        }
        Err(Problem::Refused(Refusal::Busy))
    }

    /// Makes a request about each of many keys, which is to be answered by a number. After a
    /// failure of one server the others are still asked.
    pub(super) fn ask_all(
        &mut self,
        nodes: &Nodes,
        mut keys: impl Iterator<Item = Key>,
        write: &dyn Fn(&mut Requests<'_>, &Key),
    ) -> Result<(), Problem> {
        let mut failures = Failures::default();
        loop {
            let together: Vec<Key> = keys.by_ref().take(TOGETHER).collect();
            if together.is_empty() {
                return failures.last.map_or(Ok(()), Err);
            }
            self.begin(nodes)?;
            self.ask_together(nodes, &together, write, &mut failures);
        }
    }

    fn ask_together(
        &mut self,
        nodes: &Nodes,
        keys: &[Key],
        write: &dyn Fn(&mut Requests<'_>, &Key),
        failures: &mut Failures,
    ) {
        let layout = self.layout.clone();
        // A silent server is skipped, so that others do not lose time.
        let reached = |route: &Route| !nodes.turns_away(&layout, *route);
        let route = |key| failures.note(None, layout.owner(key)).filter(reached);
        let routes: Vec<Option<Route>> = keys.iter().map(route).collect();
        for (key, route) in keys.iter().zip(&routes) {
            if let Some(route) = failures.spared(*route) {
                let collected = self.collect(nodes, route, |requests| write(requests, key));
                failures.note(Some(route), collected);
            }
        }
        for (server, member) in self.members.iter_mut().enumerate() {
            failures.note(Some(Route { server, tenure: Tenure::Whole }), member.send());
        }
        let mut elsewhere = Vec::new();
        for (key, route) in keys.iter().zip(&routes) {
            let Some(route) = failures.spared(*route) else { continue };
            let answer = self.answer(nodes, route).map(|(_, answer)| answer);
            match failures.note(Some(route), answer) {
                Some(Answer::Elsewhere(to)) => elsewhere.push((key, route.server, to)),
                Some(answer) => drop(failures.note(None, whole(answer))),
                None => {}
            }
        }
        // The other answers of the failed servers are not taken.
        failures.servers.iter().for_each(|server| self.member(*server).give_up());
        failures.note(None, self.end(nodes));
        for (key, from, to) in elsewhere {
            let asked = nodes.follow(from, to).and_then(|route| {
                whole(self.ask_by(nodes, route, &|requests| write(requests, key))?)
            });
            failures.note(None, asked);
        }
    }
}

/// The failures among many requests.
#[derive(Default)]
struct Failures {
    last: Option<Problem>,
    /// Servers that are not asked any more.
    servers: Vec<usize>,
}

impl Failures {
    /// The route, if its server has not failed.
    fn spared(&self, route: Option<Route>) -> Option<Route> {
        route.filter(|route| !self.servers.contains(&route.server))
    }

    /// Returns a result's value and records a failure. After a failure on a `route`, its server is
    /// not asked any more.
    fn note<T>(&mut self, route: Option<Route>, result: Result<T, Problem>) -> Option<T> {
        match result {
            Ok(result) => Some(result),
            Err(problem) => {
                self.last = Some(problem);
                self.servers.extend(route.map(|route| route.server));
                None
            }
        }
    }
}

impl Member {
    fn send(&mut self) -> Result<(), Problem> {
        match (self.stage, &mut self.link) {
            (Stage::Asked | Stage::Copied(_), Some(link)) => link.send(),
            _ => Ok(()),
        }
    }

    /// Before the first request on the connection: makes the server drop connections that were
    /// given up.
    fn bury(&mut self) -> Result<(), Problem> {
        match (self.stage, &mut self.link, &self.node) {
            (Stage::Idle, Some(link), Some(node)) => {
                let buried = node.bury(link);
                if buried.is_err_and(Problem::ends_link) {
                    self.give_up();
                }
                buried
            }
            _ => Ok(()),
        }
    }

    fn give_up(&mut self) {
        if let (Some(link), Some(node)) = (self.link.take(), &self.node) {
            node.give_up(link.identity());
        }
        self.stage = Stage::Idle;
    }
}

/// Adds the request that waits for copies, for a fraction of the time that an answer may take.
fn wait(requests: &mut Requests<'_>, copies: usize, deadline: Duration) {
    requests.begin(3);
    requests.word(b"WAIT");
    requests.number(copies as u64);
    requests.number((deadline / COPY_PART).as_millis() as u64);
}

/// Checks that an answer is a number.
pub(super) fn whole(answer: Answer) -> Result<(), Problem> {
    match answer {
        Answer::Integer(_) => Ok(()),
        Answer::Refused(refusal) => Err(Problem::Refused(refusal)),
        _ => Err(Problem::Malformed),
    }
}

impl Connection for Bundle {
    fn hang_up(mut self) -> Option<Bundle> {
        self.give_up_failed();
        Some(self)
    }

    fn set_deadline(&mut self, deadline: Duration) -> Result<(), Problem> {
        self.deadline = deadline;
        Ok(())
    }

    fn await_readable(&self, most: Duration) -> bool {
        let began = Instant::now();
        let asked = self.members.iter().filter(|member| member.stage != Stage::Idle);
        let mut links = asked.filter_map(|member| member.link.as_ref());
        links.all(|link| link.await_readable(most.saturating_sub(began.elapsed())))
    }
}
