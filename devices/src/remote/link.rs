//! A connection to a server: requests are collected, sent together, and answered in their order.

use crate::remote::login::{Login, Secret};
use crate::remote::resp::{Refusal, Requests, Token, token};
use crate::remote::server::Server;
use crate::remote::socket::Socket;
use crate::remote::verdict::Problem;
use crate::sys::Mapping;
use highwater_units::PAGE_SIZE;
use std::slice;

/// Bytes of requests that are sent together: 64 pages, and what is around them.
const OUT_BYTES: usize = 72 * PAGE_SIZE;
/// Bytes of answers that are received at once.
const IN_BYTES: usize = 32 * PAGE_SIZE;
/// Memory of a connection.
pub(super) const BYTES: usize = OUT_BYTES + IN_BYTES;

/// A connection, logged in.
pub(super) struct Link {
    socket: Socket,
    memory: Mapping,
    /// Bytes of requests that are not sent.
    out: usize,
    /// The bytes of answers that were received and not taken: from, and to.
    input: (usize, usize),
    pub(super) identity: Identity,
}

/// A connection as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Differs by start of a server.
    run: u64,
    /// The server's number of the connection.
    id: u64,
}

/// An answer. The bytes of a text, and the items of an array, are taken next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Integer(i64),
    Text(usize),
    Array(usize),
    Null,
    Refused(Refusal),
}

impl Link {
    /// Connects and logs in.
    pub(super) fn open(server: &Server, login: &Login) -> Result<Link, Problem> {
        let memory = Mapping::new(BYTES).map_err(Problem::Lost)?;
        let socket = Socket::connect(server).map_err(Problem::Lost)?;
        let identity = Identity { run: 0, id: 0 };
        let mut link = Link { socket, memory, out: 0, input: (0, 0), identity };
        link.log_in(login)?;
        link.expect_done(&[b"PING"])?;
        let id = match link.ask(&[b"CLIENT", b"ID"])? {
            Answer::Integer(id) => id.unsigned_abs(),
            _ => 0,
        };
        let info = link.info(b"server")?;
        link.identity = Identity { run: field(&info, "run_id").map_or(0, hash), id };
        Ok(link)
    }

    fn log_in(&mut self, login: &Login) -> Result<(), Problem> {
        let words = login.user.iter().chain(login.password.iter().map(|Secret(text)| text));
        if words.map(String::len).sum::<usize>() > OUT_BYTES / 2 {
            return Err(Problem::Refused(Refusal::Denied));
        }
        match (&login.user, &login.password) {
            (Some(user), Some(Secret(password))) => {
                self.expect_done(&[b"AUTH", user.as_bytes(), password.as_bytes()])
            }
            (None, Some(Secret(password))) => self.expect_done(&[b"AUTH", password.as_bytes()]),
            (Some(user), None) => self.expect_done(&[b"AUTH", user.as_bytes(), b""]),
            (None, None) => Ok(()),
        }
    }

    /// A section of the server's state, as lines `name:value`. Empty if this user may not see it.
    pub(super) fn info(&mut self, section: &[u8]) -> Result<String, Problem> {
        match self.ask(&[b"INFO", section])? {
            Answer::Text(length) => {
                let mut text = vec![0; length];
                self.take(&mut text)?;
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            Answer::Refused(Refusal::Denied | Refusal::Other) => Ok(String::new()),
            Answer::Refused(refusal) => Err(Problem::Refused(refusal)),
            _ => Err(Problem::Malformed),
        }
    }

    /// Makes the server drop an earlier connection, and what it has received there and not carried
    /// out yet: it could overwrite what is written from now on.
    pub(super) fn bury(&mut self, earlier: Identity) -> Result<(), Problem> {
        // The numbers begin anew when a server is started anew, and could be another client's.
        if earlier.run != self.identity.run || earlier.run == 0 || earlier.id == 0 {
            return Ok(());
        }
        let mut requests = self.requests();
        requests.begin(4);
        requests.word(b"CLIENT");
        requests.word(b"KILL");
        requests.word(b"ID");
        requests.number(earlier.id);
        self.out = requests.len();
        self.send()?;
        // A user that may not do this relies on the seal.
        self.answer().map(drop)
    }

    /// The place for requests to collect, behind those that are there. The caller tells the new
    /// length by [`Link::collected`].
    pub(super) fn requests(&mut self) -> Requests<'_> {
        // SAFETY: the first part of the mapping, which only this value reaches.
        let room = unsafe { slice::from_raw_parts_mut(self.memory.at(0), OUT_BYTES) };
        Requests::after(self.out, room)
    }

    pub(super) fn collected(&mut self, bytes: usize) {
        self.out = bytes;
    }

    /// Sends the collected requests.
    pub(super) fn send(&mut self) -> Result<(), Problem> {
        // SAFETY: as in `requests`.
        let bytes = unsafe { slice::from_raw_parts(self.memory.at(0), self.out) };
        self.out = 0;
        self.socket.send(bytes).map_err(Problem::Lost)
    }

    /// Makes one request, and waits for the answer.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Answer, Problem> {
        let mut requests = self.requests();
        requests.begin(words.len());
        words.iter().for_each(|word| requests.word(word));
        self.out = requests.len();
        self.send()?;
        self.answer()
    }

    fn expect_done(&mut self, words: &[&[u8]]) -> Result<(), Problem> {
        match self.ask(words)? {
            Answer::Done => Ok(()),
            Answer::Refused(refusal) => Err(Problem::Refused(refusal)),
            _ => Err(Problem::Malformed),
        }
    }

    /// Waits for the next answer, or item of an array.
    pub(super) fn answer(&mut self) -> Result<Answer, Problem> {
        loop {
            let (from, to) = self.input;
            let found = token(&self.received()[from..to]).map_err(|_| Problem::Malformed)?;
            let Some((token, length)) = found else {
                self.receive()?;
                continue;
            };
            let answer = match token {
                Token::Simple(_) => Answer::Done,
                Token::Error(text) => Answer::Refused(Refusal::of(text)),
                Token::Integer(number) => Answer::Integer(number),
                Token::Text(length) => Answer::Text(length),
                Token::Array(items) => Answer::Array(items),
                Token::Null => Answer::Null,
            };
            self.input = (from + length, to);
            return Ok(answer);
        }
    }

    /// Takes the bytes of a text, of this length.
    pub(super) fn take(&mut self, text: &mut [u8]) -> Result<(), Problem> {
        self.take_some(text)?;
        let mut end = [0; 2];
        self.take_some(&mut end)?;
        if end == *b"\r\n" { Ok(()) } else { Err(Problem::Malformed) }
    }

    fn take_some(&mut self, mut to: &mut [u8]) -> Result<(), Problem> {
        while !to.is_empty() {
            let (from, end) = self.input;
            if from == end {
                self.receive()?;
                continue;
            }
            let length = to.len().min(end - from);
            to[..length].copy_from_slice(&self.received()[from..from + length]);
            to = &mut to[length..];
            self.input = (from + length, end);
        }
        Ok(())
    }

    /// Whether an answer has begun to come.
    pub(super) fn is_readable(&self) -> bool {
        self.input.0 < self.input.1 || self.socket.is_readable()
    }

    fn received(&mut self) -> &mut [u8] {
        // SAFETY: the second part of the mapping, which only this value reaches.
        unsafe { slice::from_raw_parts_mut(self.memory.at(OUT_BYTES), IN_BYTES) }
    }

    /// Receives more, at the end of what is there. That is less than a line, or nothing.
    fn receive(&mut self) -> Result<(), Problem> {
        let (from, to) = self.input;
        self.received().copy_within(from..to, 0);
        self.input = (0, to - from);
        // SAFETY: as in `received`; apart from it, since the socket is borrowed, too.
        let room = unsafe { slice::from_raw_parts_mut(self.memory.at(OUT_BYTES), IN_BYTES) };
        let more = self.socket.receive(&mut room[to - from..]).map_err(Problem::Lost)?;
        self.input.1 += more;
        Ok(())
    }
}

/// The value of a line `name:value`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// A number of a text that is not 0 (FNV-1a).
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}
