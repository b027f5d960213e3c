//! The protocol of Redis and Valkey (RESP, version 2): writes requests into a buffer, and parses
//! answers from one.
//!
//! ```text
//! request   *2 $4 HDEL $1 7           an array of strings; each item ends with CR LF
//! answer    +OK  -ERR text  :12  $5 hello  $-1  *2 item item
//! ```
//! Nothing here reads, writes or allocates.

use crate::remote::verdict::Refusal;
use std::fmt::{self, Write};
use std::net::IpAddr;

/// The longest line of an answer. A longer one is malformed.
const LINE_MAX: usize = 1024;
/// The longest string of an answer, and the most items of an array.
const LENGTH_MAX: i64 = 1 << 24;

/// The start of an answer. The bytes of a string follow it, with CR LF behind them, or the items of
/// an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Simple(&'a [u8]),
    Error(&'a [u8]),
    Integer(i64),
    /// A string of this many bytes.
    Text(usize),
    /// An array of this many items.
    Array(usize),
    /// Nothing in place of a string or an array.
    Null,
}

/// The bytes do not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The token at the start of `bytes`, and its length with CR LF; `None`: it is not complete yet.
pub(super) fn token(bytes: &[u8]) -> Result<Option<(Token<'_>, usize)>, Malformed> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) {
        return Err(Malformed);
    }
    let head = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE_MAX { Ok(None) } else { Err(Malformed) };
    };
    let line = head[1..end].strip_suffix(b"\r").ok_or(Malformed)?;
    let token = match kind {
        b'+' => Token::Simple(line),
        b'-' => Token::Error(line),
        b':' => Token::Integer(number(line)?),
        kind => match (kind, number(line)?) {
            (_, -1) => Token::Null,
            (_, length) if !(0..=LENGTH_MAX).contains(&length) => return Err(Malformed),
            (b'$', length) => Token::Text(length as usize),
            (_, length) => Token::Array(length as usize),
        },
    };
    Ok(Some((token, end + 1)))
}

fn number(line: &[u8]) -> Result<i64, Malformed> {
    let text = std::str::from_utf8(line).map_err(|_| Malformed)?;
    // Rust also accepts a plus sign.
    let plain = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or(Malformed)
}

/// The kind of an error, by its text.
pub(super) fn refusal(text: &[u8]) -> Refusal {
    let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    match code {
        b"OOM" => Refusal::Full,
        // The server is starting, or runs a script, or is not the master at present.
        b"LOADING" | b"BUSY" | b"TRYAGAIN" | b"MASTERDOWN" | b"READONLY" => Refusal::Busy,
        // A hash slot has no master; or it is on another server, which the answer does not name.
        b"CLUSTERDOWN" | b"MOVED" | b"ASK" => Refusal::Busy,
        // The server wants more replicas; or it has just become a replica, and does not wait for
        // any itself.
        b"NOREPLICAS" | b"UNBLOCKED" => Refusal::Busy,
        b"NOAUTH" | b"WRONGPASS" | b"NOPERM" => Refusal::Denied,
        // The password is wrong (before version 6), or the server has none.
        b"ERR" if text.starts_with(b"ERR invalid password") => Refusal::Denied,
        b"ERR" if text.starts_with(b"ERR AUTH") => Refusal::Denied,
        _ => Refusal::Other,
    }
}

/// A server of a cluster that has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    /// `None`: the host that answered.
    pub(super) host: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) tenure: Tenure,
}

/// How a server has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenure {
    /// All keys of the hash slot are there.
    Whole,
    /// The hash slot is being moved there. ASKING before each request says that the client knows
    /// that.
    Partial,
    /// The server is a replica. READONLY before each request says that a replica may answer.
    Copy,
}

/// Reads `MOVED SLOT HOST:PORT` and `ASK SLOT HOST:PORT`. `None`: another error, or a host given by
/// name.
pub(super) fn redirection(text: &[u8]) -> Option<Redirection> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let tenure = match words.next()? {
        "MOVED" => Tenure::Whole,
        "ASK" => Tenure::Partial,
        _ => return None,
    };
    let (host, port) = words.nth(1)?.rsplit_once(':')?;
    let host = if host.is_empty() { None } else { Some(host.parse().ok()?) };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some(Redirection { host, port, tenure })
}

/// Requests, one after the other, in memory that must have room for them.
pub(super) struct Requests<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl<'a> Requests<'a> {
    /// No requests yet; the first `used` bytes of the room hold other requests.
    pub(super) fn after(used: usize, room: &'a mut [u8]) -> Requests<'a> {
        Requests { room, used }
    }

    /// The bytes that are used.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Begins a request of this many words.
    pub(super) fn begin(&mut self, words: usize) {
        self.line(format_args!("*{words}"));
    }

    /// Adds a request of these words.
    pub(super) fn words(&mut self, words: &[&[u8]]) {
        self.begin(words.len());
        words.iter().for_each(|word| self.word(word));
    }

    /// Adds a word.
    pub(super) fn word(&mut self, word: &[u8]) {
        self.text(word.len()).copy_from_slice(word);
        self.end_text();
    }

    /// Adds a number as a word.
    pub(super) fn number(&mut self, number: u64) {
        let digits = number.checked_ilog10().unwrap_or(0) + 1;
        self.line(format_args!("${digits}"));
        self.line(format_args!("{number}"));
    }

    /// Begins a word of this many bytes, which are returned to be filled. The caller then calls
    /// [`Requests::end_text`].
    pub(super) fn text(&mut self, length: usize) -> &mut [u8] {
        self.line(format_args!("${length}"));
        let at = self.used;
        self.used += length;
        &mut self.room[at..at + length]
    }

    pub(super) fn end_text(&mut self) {
        self.line(format_args!(""));
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        let fits = self.write_fmt(text).and_then(|()| self.write_str("\r\n"));
        fits.expect("room for all requests");
    }
}

impl Write for Requests<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.room.get_mut(self.used..self.used + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.used += text.len();
        Ok(())
    }
}

#[cfg(test)]
#[path = "resp_fuzz.rs"]
mod fuzz;
