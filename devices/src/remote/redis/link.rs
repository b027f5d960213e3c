//! A connection to a server: requests are collected, sent together, and answered in their order.

use crate::remote::endpoint::Endpoint;
use crate::remote::login::{Login, Secret};
use crate::remote::redis::resp::{Redirection, Requests, Token, redirection, refusal, token};
use crate::remote::server::hash;
use crate::remote::socket::Acks;
use crate::remote::stream::{OUT_BYTES, Stream};
use crate::remote::verdict::{Problem, Refusal};
use std::time::Duration;

/// A connection, logged in.
pub(super) struct Link {
    stream: Stream,
    identity: Identity,
}

/// A connection as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Differs each time the server is started.
    run: u64,
    /// The server's number of the connection.
    id: u64,
}

/// An answer. The caller then takes the bytes of a text, or the items of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Integer(i64),
    Text(usize),
    Array(usize),
    Null,
    Refused(Refusal),
    /// Another server of the cluster has the key.
    Elsewhere(Redirection),
}

impl Link {
    /// Connects and logs in.
    pub(super) fn open(
        endpoint: &Endpoint,
        login: &Login,
        deadline: Duration,
    ) -> Result<Link, Problem> {
        let identity = Identity { run: 0, id: 0 };
        let stream = Stream::connect(endpoint, deadline, Acks::Delayed)?;
        let mut link = Link { stream, identity };
        endpoint.tls.as_ref().map_or(Ok(()), |tls| link.stream.secure(tls))?;
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
        self.text(&[b"INFO", section])
    }

    /// A text. Empty if this user may not see it.
    pub(super) fn text(&mut self, words: &[&[u8]]) -> Result<String, Problem> {
        match self.ask(words)? {
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

    /// Collects requests, behind those collected before.
    pub(super) fn collect(&mut self, write: impl FnOnce(&mut Requests<'_>)) {
        let (room, used) = self.stream.room();
        let mut requests = Requests::after(used, room);
        write(&mut requests);
        let used = requests.len();
        self.stream.collected(used);
    }

    /// Sends the collected requests.
    pub(super) fn send(&mut self) -> Result<(), Problem> {
        self.stream.send()
    }

    /// Makes one request, and waits for the answer.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Answer, Problem> {
        self.collect(|requests| requests.words(words));
        self.send()?;
        self.answer()
    }

    /// Makes one request, which is to be answered by `+OK` or the like.
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
            let found = token(self.stream.waiting()).map_err(|_| Problem::Malformed)?;
            let Some((token, length)) = found else {
                self.stream.receive()?;
                continue;
            };
            let answer = match token {
                Token::Simple(_) => Answer::Done,
                Token::Error(text) => match redirection(text) {
                    Some(to) => Answer::Elsewhere(to),
                    None => Answer::Refused(refusal(text)),
                },
                Token::Integer(number) => Answer::Integer(number),
                Token::Text(length) => Answer::Text(length),
                Token::Array(items) => Answer::Array(items),
                Token::Null => Answer::Null,
            };
            self.stream.skip(length);
            return Ok(answer);
        }
    }

    /// Takes the bytes of a text, of this length.
    pub(super) fn take(&mut self, text: &mut [u8]) -> Result<(), Problem> {
        self.stream.take(text)?;
        let end = self.stream.take_array()?;
        if end == *b"\r\n" { Ok(()) } else { Err(Problem::Malformed) }
    }

    /// The connection as the server knows it.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Makes the server drop an earlier connection, with what it has received there.
    pub(super) fn bury(&mut self, earlier: Identity) -> Result<(), Problem> {
        // The numbers start again when a server is restarted, and could be another client's.
        if earlier.run != self.identity.run || earlier.run == 0 || earlier.id == 0 {
            return Ok(());
        }
        self.collect(|requests| {
            requests.begin(4);
            [&b"CLIENT"[..], b"KILL", b"ID"].iter().for_each(|word| requests.word(word));
            requests.number(earlier.id);
        });
        self.send()?;
        match self.answer()? {
            Answer::Refused(Refusal::Busy) => Err(Problem::Refused(Refusal::Busy)),
            // If the user may not do this, the seal protects the pages.
            _ => Ok(()),
        }
    }

    /// Sets how long an answer may take.
    pub(super) fn set_deadline(&mut self, deadline: Duration) -> Result<(), Problem> {
        self.stream.set_deadline(deadline)
    }

    /// Waits up to `most` for an answer to begin; returns whether it has begun.
    pub(super) fn await_readable(&self, most: Duration) -> bool {
        self.stream.await_readable(most)
    }
}

/// The value of a line `name:value`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
