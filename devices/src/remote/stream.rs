//! A socket, with or without TLS, with memory for requests that are sent together, and for answers.

use crate::remote::endpoint::Endpoint;
use crate::remote::socket::{Acks, Socket};
use crate::remote::tls::{Session, Tls};
use crate::remote::verdict::Problem;
use crate::sys::Mapping;
use highwater_units::PAGE_SIZE;
use std::slice;
use std::time::Duration;

/// Bytes of requests that are sent together: 64 pages, and the protocol's bytes around them.
pub(super) const OUT_BYTES: usize = 72 * PAGE_SIZE;
/// Bytes of answers that are received at once.
const IN_BYTES: usize = 32 * PAGE_SIZE;
/// Memory of a connection.
pub(super) const BYTES: usize = OUT_BYTES + IN_BYTES;

/// A connected socket with its memory.
pub(super) struct Stream {
    socket: Socket,
    /// `None`: no TLS, or not yet. In a box, because streams are moved on the small stacks of the
    /// manager's threads.
    session: Option<Box<Session>>,
    memory: Mapping,
    /// Bytes of requests that are not sent.
    out: usize,
    /// The bytes of answers that were received and not taken: start and end.
    input: (usize, usize),
}

impl Stream {
    /// Connects; TLS begins with [`Stream::secure`].
    pub(super) fn connect(
        endpoint: &Endpoint,
        deadline: Duration,
        acks: Acks,
    ) -> Result<Stream, Problem> {
        let memory = Mapping::new(BYTES).map_err(Problem::Lost)?;
        let socket = Socket::connect(&endpoint.server, deadline, acks).map_err(Problem::Lost)?;
        Ok(Stream { socket, session: None, memory, out: 0, input: (0, 0) })
    }

    /// Switches to TLS.
    pub(super) fn secure(&mut self, tls: &Tls) -> Result<(), Problem> {
        // Bytes received before TLS could otherwise be taken for bytes that came through it.
        if !self.waiting().is_empty() {
            return Err(Problem::Malformed);
        }
        self.session = Some(Box::new(Session::begin(tls, &self.socket)?));
        Ok(())
    }

    /// Sets how long an answer may take.
    pub(super) fn set_deadline(&mut self, deadline: Duration) -> Result<(), Problem> {
        self.socket.set_deadline(deadline).map_err(Problem::Lost)
    }

    /// The memory for requests, and how much of it is used.
    pub(super) fn room(&mut self) -> (&mut [u8], usize) {
        // SAFETY: the first part of the mapping, which only this value reaches.
        (unsafe { slice::from_raw_parts_mut(self.memory.at(0), OUT_BYTES) }, self.out)
    }

    /// Requests were collected: this many bytes of the room are used.
    pub(super) fn collected(&mut self, bytes: usize) {
        self.out = bytes;
    }

    /// Sends the collected requests.
    pub(super) fn send(&mut self) -> Result<(), Problem> {
        // SAFETY: as in `room`.
        let bytes = unsafe { slice::from_raw_parts(self.memory.at(0), self.out) };
        self.out = 0;
        match &mut self.session {
            Some(session) => session.send(&self.socket, bytes),
            None => self.socket.send(bytes).map_err(Problem::Lost),
        }
    }

    /// The bytes that were received and not taken.
    pub(super) fn waiting(&self) -> &[u8] {
        let (from, to) = self.input;
        // SAFETY: the second part of the mapping, which only this value reaches.
        let all = unsafe { slice::from_raw_parts(self.memory.at(OUT_BYTES), IN_BYTES) };
        &all[from..to]
    }

    /// Drops the first waiting bytes.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.input.0 += bytes;
    }

    /// Takes the next bytes, and waits for them.
    pub(super) fn take(&mut self, mut to: &mut [u8]) -> Result<(), Problem> {
        while !to.is_empty() {
            if self.waiting().is_empty() {
                self.receive()?;
            }
            let length = to.len().min(self.waiting().len());
            to[..length].copy_from_slice(&self.waiting()[..length]);
            to = &mut to[length..];
            self.skip(length);
        }
        Ok(())
    }

    /// Takes a number of bytes that the caller knows, and waits for them.
    pub(super) fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut bytes = [0; N];
        self.take(&mut bytes).map(|()| bytes)
    }

    /// Waits up to `most`; returns whether [`Stream::take`] would find a byte.
    pub(super) fn await_readable(&self, most: Duration) -> bool {
        !self.waiting().is_empty()
            || self.session.as_ref().is_some_and(|session| session.has_waiting())
            || self.socket.await_readable(most)
    }

    /// Receives more bytes, behind the waiting ones, which are less than a line, or none.
    pub(super) fn receive(&mut self) -> Result<(), Problem> {
        // SAFETY: as in `waiting`; nothing else is borrowed.
        let all = unsafe { slice::from_raw_parts_mut(self.memory.at(OUT_BYTES), IN_BYTES) };
        let (from, to) = self.input;
        all.copy_within(from..to, 0);
        self.input = (0, to - from);
        let room = &mut all[to - from..];
        let more = match &mut self.session {
            Some(session) => session.receive(&self.socket, room)?,
            None => self.socket.receive(room).map_err(Problem::Lost)?,
        };
        self.input.1 += more;
        Ok(())
    }
}
