//! A connection to each of the servers of a device, made when the first request goes there.
//!
//! ```text
//! Bundle  |- members   by server: its connection, and what is under way there
//!         \- layout    as known when the requests were made
//! requests --> owner of the key --> answers; -MOVED, -ASK --> the server that is named
//! ```
//! Once one connection is lost all are given up: what was under way on them is not needed.

use crate::remote::redis::cluster;
use crate::remote::redis::keys::Key;
use crate::remote::redis::link::{Answer, Identity, Link};
use crate::remote::redis::nodes::{Layout, Nodes, Route};
use crate::remote::redis::resp::{Requests, Tenure};
use crate::remote::store::Connection;
use crate::remote::verdict::{Problem, Refusal};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a request is sent on to another server.
pub(super) const REDIRECTIONS: usize = 8;
/// Keys of requests that are made together.
const TOGETHER: usize = 256;
/// How long a server may take to describe its cluster, when others can be asked.
const DESCRIPTION_MAX: Duration = Duration::from_millis(300);
/// How long a write waits for a replica, in milliseconds.
const COPY_MAX: u64 = 500;

/// Connections to servers.
pub(super) struct Bundle {
    members: Vec<Member>,
    deadline: Duration,
    pub(super) layout: Arc<Layout>,
}

#[derive(Default)]
struct Member {
    link: Option<Link>,
    /// A connection whose requests may be carried out later.
    earlier: Option<Identity>,
    stage: Stage,
}

/// What is under way on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// Requests were collected, or sent.
    Asked,
    /// The last answer is the number of replicas that have the writes.
    AskedForCopy,
}

impl Bundle {
    /// Without connections.
    pub(super) fn new(nodes: &Nodes, deadline: Duration) -> Bundle {
        Bundle { members: Vec::new(), deadline, layout: nodes.layout() }
    }

    fn member(&mut self, server: usize) -> &mut Member {
        let servers = self.members.len().max(server + 1);
        self.members.resize_with(servers, Member::default);
        &mut self.members[server]
    }

    /// The connection to a server; makes one if there is none.
    pub(super) fn link(&mut self, nodes: &Nodes, server: usize) -> Result<&mut Link, Problem> {
        let deadline = nodes.deadline(self.deadline);
        let member = self.member(server);
        if member.link.is_none() {
            let mut link = Link::open(&nodes.server(server), &nodes.login, deadline)?;
            if let Some(earlier) = member.earlier {
                link.bury(earlier)?;
            }
            member.earlier = None;
            member.link = Some(link);
        }
        self.open(nodes, server)
    }

    /// The connection to a server, on which something is under way.
    fn open(&mut self, nodes: &Nodes, server: usize) -> Result<&mut Link, Problem> {
        let deadline = nodes.deadline(self.deadline);
        let link = self.member(server).link.as_mut().ok_or(Problem::Malformed)?;
        link.set_deadline(deadline)?;
        Ok(link)
    }

    /// Before requests are collected: gives up connections on which the last ones failed, and looks
    /// which servers have the keys, if that is in doubt.
    pub(super) fn begin(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        let failed = self.members.iter_mut().filter(|member| member.stage != Stage::Idle);
        failed.for_each(Member::give_up);
        if nodes.take_doubt() {
            let described = self.describe(nodes);
            described.inspect_err(|_| nodes.doubt())?;
        }
        self.layout = nodes.layout();
        Ok(())
    }

    /// Asks one server after the other for the state of the cluster: connected ones first.
    fn describe(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        let mut servers: Vec<usize> = (0..nodes.count()).collect();
        servers.sort_by_key(|server| self.member(*server).link.is_none());
        let mut last = Problem::Refused(Refusal::Busy);
        for server in servers {
            match self.description(nodes, server).map(|text| cluster::masters(&text)) {
                Ok(masters) if !masters.is_empty() => {
                    nodes.adopt(server, &masters);
                    return Ok(());
                }
                // It is not, or not yet, in a cluster.
                Ok(_) => {}
                Err(problem) => {
                    self.member(server).give_up();
                    last = problem;
                }
            }
        }
        Err(last)
    }

    fn description(&mut self, nodes: &Nodes, server: usize) -> Result<String, Problem> {
        let most = self.deadline;
        self.deadline = most.min(DESCRIPTION_MAX);
        let told = self.link(nodes, server).and_then(|link| link.text(&[b"CLUSTER", b"NODES"]));
        self.deadline = most;
        told
    }

    /// Collects a request for a server.
    pub(super) fn collect(
        &mut self,
        nodes: &Nodes,
        route: Route,
        write: impl FnOnce(&mut Requests<'_>),
    ) -> Result<(), Problem> {
        self.link(nodes, route.server)?.collect(|requests| {
            if route.tenure == Tenure::Partial {
                requests.words(&[b"ASKING"]);
            }
            write(requests);
        });
        self.member(route.server).stage = Stage::Asked;
        Ok(())
    }

    /// Sends what was collected.
    pub(super) fn send(&mut self) -> Result<(), Problem> {
        let asked = self.members.iter_mut().filter(|member| member.stage != Stage::Idle);
        asked.filter_map(|member| member.link.as_mut()).try_for_each(Link::send)
    }

    /// Sends writes that were collected, and asks that they are in a replica of each server, too,
    /// where it has one.
    pub(super) fn send_writes(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        for (server, member) in self.members.iter_mut().enumerate() {
            if let (Stage::Asked, Some(link)) = (member.stage, &mut member.link)
                && nodes.awaits_copy(&self.layout, server)
            {
                member.stage = Stage::AskedForCopy;
                link.collect(|requests| {
                    requests.begin(3);
                    requests.word(b"WAIT");
                    requests.number(1);
                    requests.number(COPY_MAX);
                });
            }
        }
        self.send()
    }

    /// Takes the last answers.
    pub(super) fn end(&mut self, nodes: &Nodes) -> Result<(), Problem> {
        for (server, member) in self.members.iter_mut().enumerate() {
            let stage = std::mem::take(&mut member.stage);
            if let (Stage::AskedForCopy, Some(link)) = (stage, &mut member.link)
                && link.answer()? == Answer::Integer(0)
            {
                nodes.no_copy(&self.layout, server);
            }
        }
        Ok(())
    }

    /// The connection with the answer to a request that was made by this route, and that answer.
    pub(super) fn answer(
        &mut self,
        nodes: &Nodes,
        route: Route,
    ) -> Result<(&mut Link, Answer), Problem> {
        let link = self.open(nodes, route.server)?;
        if route.tenure == Tenure::Partial {
            // To ASKING.
            link.answer()?;
        }
        let answer = link.answer()?;
        Ok((link, answer))
    }

    /// Makes a request about a key, where that is.
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
        for _ in 0..REDIRECTIONS {
            self.collect(nodes, route, write)?;
            self.send()?;
            let (_, answer) = self.answer(nodes, route)?;
            self.end(nodes)?;
            match answer {
                Answer::Elsewhere(to) => route = nodes.follow(route.server, to),
                answer => return Ok(answer),
            }
        }
        Err(Problem::Refused(Refusal::Busy))
    }

    /// Makes a request about each of many keys, which is to be answered by a number.
    pub(super) fn ask_all(
        &mut self,
        nodes: &Nodes,
        mut keys: impl Iterator<Item = Key>,
        write: &dyn Fn(&mut Requests<'_>, &Key),
    ) -> Result<(), Problem> {
        loop {
            let together: Vec<Key> = keys.by_ref().take(TOGETHER).collect();
            if together.is_empty() {
                return Ok(());
            }
            self.begin(nodes)?;
            let layout = self.layout.clone();
            for key in &together {
                self.collect(nodes, layout.owner(key)?, |requests| write(requests, key))?;
            }
            self.send()?;
            let mut elsewhere = Vec::new();
            for key in &together {
                let route = layout.owner(key)?;
                match self.answer(nodes, route)?.1 {
                    Answer::Elsewhere(to) => {
                        elsewhere.push((key, nodes.follow(route.server, to)));
                    }
                    answer => whole(answer)?,
                }
            }
            self.end(nodes)?;
            for (key, route) in elsewhere {
                whole(self.ask_by(nodes, route, &|requests| write(requests, key))?)?;
            }
        }
    }
}

impl Member {
    fn give_up(&mut self) {
        self.earlier = self.identity();
        self.link = None;
        self.stage = Stage::Idle;
    }

    fn identity(&self) -> Option<Identity> {
        self.link.as_ref().map(Link::identity).or(self.earlier)
    }
}

/// An answer that is a number.
pub(super) fn whole(answer: Answer) -> Result<(), Problem> {
    match answer {
        Answer::Integer(_) => Ok(()),
        Answer::Refused(refusal) => Err(Problem::Refused(refusal)),
        _ => Err(Problem::Malformed),
    }
}

impl Connection for Bundle {
    type Name = Vec<Option<Identity>>;

    fn name(&self) -> Self::Name {
        self.members.iter().map(Member::identity).collect()
    }

    /// When a server gets its connection.
    fn bury(&mut self, earlier: &Self::Name) -> Result<(), Problem> {
        let member = |earlier: &Option<Identity>| Member { earlier: *earlier, ..Member::default() };
        self.members = earlier.iter().map(member).collect();
        Ok(())
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
