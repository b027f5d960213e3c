//! The keys of a device on a server: their names, and how they are deleted.
//!
//! ```text
//! highwater:{ID}:holders   a set of processes: the one that writes, and children that read
//! highwater:{ID}:N         a hash: the pages of slots 512 N to 512 N + 511, by slot - 512 N
//! ```
//! ID is random, and the part in braces keeps all keys on one node of a cluster. The last holder
//! that ends deletes all keys. Each key has a lifetime, which its holders extend: what a killed
//! machine leaves goes away by itself.

use crate::remote::redis::link::{Answer, Link};
use crate::remote::verdict::Problem;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt::{self, Write};

/// Lifetime of a key, in seconds, from its last extension.
pub(super) const LIFETIME: u64 = 900;
/// Keys in a request.
const TOGETHER: usize = 256;

/// The session of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session(pub(super) u64);

/// The name of a key.
pub(super) struct Key {
    text: [u8; 48],
    length: usize,
}

impl Key {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl Write for Key {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.text.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl Session {
    /// A new one.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new() -> Result<Session, i32> {
        let mut id = [0; 8];
        match getrandom(&mut id, GetRandomFlags::empty()) {
            Ok(8) => Ok(Session(u64::from_ne_bytes(id))),
            Ok(_) => Err(libc::EIO),
            Err(errno) => Err(errno.raw_os_error()),
        }
    }

    /// The name of a hash.
    pub(super) fn segment(self, segment: u32) -> Key {
        self.key(format_args!("{segment}"))
    }

    fn key(self, what: fmt::Arguments<'_>) -> Key {
        let mut key = Key { text: [0; 48], length: 0 };
        write!(key, "highwater:{{{:016x}}}:{what}", self.0).expect("room for the longest name");
        key
    }

    /// Adds a holder: a number of its own.
    pub(super) fn hold(self, link: &mut Link, holder: u64) -> Result<(), Problem> {
        let key = self.key(format_args!("holders"));
        whole(link.ask(&[b"SADD", key.bytes(), &holder.to_ne_bytes()])?)?;
        self.extend(link, std::iter::empty())
    }

    /// Extends the lifetime of the keys, and of those of `segments`.
    pub(super) fn extend(
        self,
        link: &mut Link,
        segments: impl Iterator<Item = u32>,
    ) -> Result<(), Problem> {
        let holders = std::iter::once(self.key(format_args!("holders")));
        let mut keys = holders.chain(segments.map(|segment| self.segment(segment))).peekable();
        while keys.peek().is_some() {
            let mut sent = 0;
            let mut requests = link.requests();
            for key in keys.by_ref().take(TOGETHER) {
                requests.begin(3);
                requests.word(b"EXPIRE");
                requests.word(key.bytes());
                requests.number(LIFETIME);
                sent += 1;
            }
            let collected = requests.len();
            link.collected(collected);
            link.send()?;
            (0..sent).try_for_each(|_| link.answer().and_then(whole))?;
        }
        Ok(())
    }

    /// Removes a holder. The last one deletes the keys of all `segments`.
    pub(super) fn release(
        self,
        link: &mut Link,
        holder: u64,
        segments: u32,
    ) -> Result<(), Problem> {
        let key = self.key(format_args!("holders"));
        whole(link.ask(&[b"SREM", key.bytes(), &holder.to_ne_bytes()])?)?;
        match link.ask(&[b"SCARD", key.bytes()])? {
            Answer::Integer(0) => self.delete(link, 0..segments),
            _ => Ok(()),
        }
    }

    /// Deletes the keys of segments.
    pub(super) fn delete(
        self,
        link: &mut Link,
        segments: impl Iterator<Item = u32>,
    ) -> Result<(), Problem> {
        let mut segments = segments.peekable();
        while segments.peek().is_some() {
            let mut keys = [0; TOGETHER];
            let count = keys.iter_mut().zip(segments.by_ref()).map(|(to, key)| *to = key).count();
            let mut requests = link.requests();
            requests.begin(1 + count);
            requests.word(b"UNLINK");
            keys[..count].iter().for_each(|key| requests.word(self.segment(*key).bytes()));
            let collected = requests.len();
            link.collected(collected);
            link.send()?;
            whole(link.answer()?)?;
        }
        Ok(())
    }
}

/// An answer that is a number.
fn whole(answer: Answer) -> Result<(), Problem> {
    match answer {
        Answer::Integer(_) => Ok(()),
        Answer::Refused(refusal) => Err(Problem::Refused(refusal)),
        _ => Err(Problem::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let name =
            |id, segment| String::from_utf8(Session(id).segment(segment).bytes().to_vec()).unwrap();
        assert_eq!(name(0xab, 7), "highwater:{00000000000000ab}:7");
        assert_eq!(name(u64::MAX, u32::MAX), "highwater:{ffffffffffffffff}:4294967295");
        assert_ne!(Session::new(), Session::new());
    }
}
