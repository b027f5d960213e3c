//! A connection to an export.
//!
//! Answers come in any order. A cookie names the request: the number of its group, the requests
//! that were sent together, and its number within the group.

use crate::error::{Reason, TlsFault};
use crate::remote::endpoint::Endpoint;
use crate::remote::nbd::wire::{
    self, Command, GoRefusal, Greeting, Malformed, OPTION_GO, OPTION_START_TLS, OptionReply, Reply,
    Terms,
};
use crate::remote::socket::{Acks, DEADLINE};
use crate::remote::store::Connection;
use crate::remote::stream::Stream;
use crate::remote::tls::Tls;
use crate::remote::verdict::{Problem, Refusal};
use highwater_units::{Bytes, PAGE_SIZE};
use std::time::Duration;

/// How soon an NBD server usually greets. Servers of other protocols wait for the client to begin.
const SOON: Duration = Duration::from_millis(500);
/// A line that servers of Redis and HTTP answer.
const LINE: &[u8] = b"PING\r\n\r\n";
/// Requests to trim that are sent together.
const TOGETHER: usize = 256;
/// Bits of a cookie for the number of a request among those that are sent together.
const INDEX_BITS: u32 = 16;

/// A connection.
pub(super) struct Link {
    stream: Stream,
    pub(super) terms: Terms,
    /// How many groups of requests were sent.
    sent: u64,
    /// Requests without an answer, by their numbers.
    pub(super) pending: u64,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There may be one later.
    Problem(Problem),
    /// The server or the export cannot be used for swap.
    Unfit(Reason),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Problem(problem)
    }
}

impl From<Malformed> for Problem {
    fn from(_: Malformed) -> Problem {
        Problem::Malformed
    }
}

impl Link {
    /// Connects to an export that is to hold `size`.
    pub(super) fn open(
        endpoint: &Endpoint,
        export: &str,
        size: Bytes,
        deadline: Duration,
    ) -> Result<Link, Failure> {
        let mut stream = Stream::connect(endpoint, deadline.min(DEADLINE), Acks::Prompt)?;
        if deadline > SOON && !stream.await_readable(SOON) && is_of_another_kind(endpoint) {
            return Err(Failure::Problem(Problem::Malformed));
        }
        greet(&mut stream)?;
        endpoint.tls.as_ref().map_or(Ok(()), |tls| start_tls(&mut stream, tls))?;
        let terms = go(&mut stream, export)?;
        if let Some(reason) = unfit(&terms, size) {
            return Err(Failure::Unfit(reason));
        }
        // The server cannot be made to drop an old connection, so requests on a slow one are not
        // repeated on another.
        stream.set_deadline(deadline)?;
        Ok(Link { stream, terms, sent: 0, pending: 0 })
    }

    /// Collects the header of a request, which gets the number `index`.
    pub(super) fn collect(&mut self, command: Command, index: usize, offset: u64, length: usize) {
        let cookie = self.sent << INDEX_BITS | index as u64;
        self.put(&wire::request(command, cookie, offset, length as u32));
    }

    /// Collects the data of a write, behind the header.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let (room, used) = self.stream.room();
        room[used..used + bytes.len()].copy_from_slice(bytes);
        self.stream.collected(used + bytes.len());
    }

    /// Sends the collected requests.
    pub(super) fn send(&mut self) -> Result<(), Problem> {
        self.stream.send()
    }

    /// Waits for the next answer to what was sent last; returns the number of its request, and its
    /// error.
    pub(super) fn reply(&mut self) -> Result<(usize, Option<i32>), Problem> {
        let Reply { cookie, error } = wire::reply(&self.stream.take_array()?)?;
        match error {
            _ if cookie >> INDEX_BITS != self.sent => Err(Problem::Malformed),
            // The server is shutting down, and another one may follow.
            Some(libc::ESHUTDOWN) => Err(Problem::Lost(libc::ESHUTDOWN)),
            error => Ok(((cookie & ((1 << INDEX_BITS) - 1)) as usize, error)),
        }
    }

    /// All requests were answered.
    pub(super) fn turn(&mut self) {
        self.sent += 1;
    }

    /// Takes the data of a read.
    pub(super) fn take(&mut self, bytes: &mut [u8]) -> Result<(), Problem> {
        self.stream.take(bytes)
    }

    /// Sends one request, and waits until it is fulfilled.
    fn ask(&mut self) -> Result<(), Problem> {
        self.send()?;
        let (_, error) = self.reply()?;
        self.turn();
        error.map_or(Ok(()), |errno| Err(Problem::Refused(Refusal::Failed(errno))))
    }

    /// Reads a page at an offset.
    pub(super) fn read(&mut self, offset: u64) -> Result<[u8; PAGE_SIZE], Problem> {
        self.collect(Command::Read, 0, offset, PAGE_SIZE);
        self.ask()?;
        self.stream.take_array()
    }

    /// Writes a page at an offset.
    pub(super) fn write(&mut self, offset: u64, page: &[u8; PAGE_SIZE]) -> Result<(), Problem> {
        self.collect(Command::Write, 0, offset, PAGE_SIZE);
        self.put(page);
        self.ask()
    }

    /// Gives back ranges of the export: offsets and lengths in bytes.
    pub(super) fn trim(
        &mut self,
        ranges: impl Iterator<Item = (u64, usize)>,
    ) -> Result<(), Problem> {
        let can_trim = self.terms.can_trim();
        let mut ranges = ranges.filter(|_| can_trim).peekable();
        while ranges.peek().is_some() {
            let mut count = 0;
            for (offset, length) in ranges.by_ref().take(TOGETHER) {
                self.collect(Command::Trim, count, offset, length);
                count += 1;
            }
            self.send()?;
            // If the server refuses, contents stay that nobody can read.
            (0..count).try_for_each(|_| self.reply().map(drop))?;
            self.turn();
        }
        Ok(())
    }
}

/// Whether a server answers a line by something that is no NBD greeting. The line goes over a
/// second connection, because an NBD server would close one that begins so.
fn is_of_another_kind(endpoint: &Endpoint) -> bool {
    let answer = || {
        let mut stream = Stream::connect(endpoint, SOON, Acks::Delayed)?;
        collect(&mut stream, |room| wire::put(room, &[LINE]));
        stream.send()?;
        stream.receive()?;
        Ok::<_, Problem>(wire::may_greet(stream.waiting()))
    };
    answer() == Ok(false)
}

/// Receives the server's greeting, and collects the client's.
fn greet(stream: &mut Stream) -> Result<(), Failure> {
    let greeting = wire::greeting(&stream.take_array()?).map_err(Problem::from)?;
    if greeting == Greeting::Old {
        return Err(Failure::Unfit(Reason::OldNbd));
    }
    collect(stream, |room| wire::put(room, &[&wire::client_flags()]));
    Ok(())
}

/// Switches to TLS, or fails.
fn start_tls(stream: &mut Stream, tls: &Tls) -> Result<(), Failure> {
    collect(stream, wire::start_tls);
    stream.send()?;
    let (kind, _) = answer(stream, OPTION_START_TLS)?;
    match kind {
        OptionReply::Ack => Ok(stream.secure(tls)?),
        OptionReply::Info => Err(Failure::Problem(Problem::Malformed)),
        OptionReply::Refused(_) => Err(Failure::Unfit(Reason::Tls(TlsFault::NotSpoken))),
    }
}

/// Collects the bytes that `put` writes into the room it is given; `put` returns their number.
fn collect(stream: &mut Stream, put: impl FnOnce(&mut [u8]) -> usize) {
    let (room, used) = stream.room();
    let more = put(&mut room[used..]);
    stream.collected(used + more);
}

/// Waits for the next answer to an option, and its data.
fn answer(stream: &mut Stream, option: u32) -> Result<(OptionReply, Vec<u8>), Problem> {
    let (kind, length) = wire::option_reply(option, &stream.take_array()?)?;
    let mut data = vec![0; length];
    stream.take(&mut data)?;
    Ok((kind, data))
}

/// Asks for an export.
fn go(stream: &mut Stream, export: &str) -> Result<Terms, Failure> {
    collect(stream, |room| wire::go(export, room));
    stream.send()?;
    let mut terms = Terms::new();
    loop {
        let (kind, data) = answer(stream, OPTION_GO)?;
        match kind {
            OptionReply::Info => terms.note(&data).map_err(Problem::from)?,
            OptionReply::Ack => return Ok(terms),
            OptionReply::Refused(refusal) => {
                return Err(Failure::Unfit(match refusal {
                    GoRefusal::TooOld => Reason::OldNbd,
                    GoRefusal::NoSuchExport => Reason::NoExport,
                    GoRefusal::WantsTls => Reason::WantsTls,
                    GoRefusal::Unwilling => Reason::Unwilling,
                }));
            }
        }
    }
}

/// Why an export cannot hold `size` of swap.
fn unfit(terms: &Terms, size: Bytes) -> Option<Reason> {
    match terms.size.map(Bytes) {
        None => Some(Reason::NotNbd),
        Some(_) if terms.is_read_only() => Some(Reason::ReadOnlyExport),
        Some(export) if export < size => Some(Reason::SmallExport { size: export }),
        Some(_) if terms.run_max().is_none() => Some(Reason::BlockSize),
        Some(_) => None,
    }
}

impl Connection for Link {
    /// A connection is given up only when the other side is gone, when the other replica has
    /// answered a read, or after all patience. If the server carries out a write later, when its
    /// slot has a newer page, the seal detects this: no number of a write is given twice.
    fn hang_up(self) -> Option<Link> {
        None
    }

    fn set_deadline(&mut self, deadline: Duration) -> Result<(), Problem> {
        self.stream.set_deadline(deadline)
    }

    fn await_readable(&self, most: Duration) -> bool {
        self.pending == 0 || self.stream.await_readable(most)
    }

    fn disconnect(&mut self) {
        self.collect(Command::Disconnect, 0, 0, 0);
        // The connection is closed in any case.
        let _ = self.send();
    }
}
