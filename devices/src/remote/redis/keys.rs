//! Names of keys, their hash slots in a cluster, and their lifetime.
//!
//! ```text
//! highwater:ID:holders   a set of processes: the one that writes, and children that read
//! highwater:ID:N         a hash: the pages of slots 512 N to 512 N + 511, by slot - 512 N
//! ```
//! ID is random. The names have no braces, so a cluster spreads the segments over its servers, and
//! a run of pages within a segment is on one server.

use crate::remote::redis::resp::Requests;
use crc::{CRC_16_XMODEM, Crc};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt::{self, Write};

/// Hash slots of a cluster.
pub(super) const HASH_SLOTS: usize = 16_384;

/// Lifetime of a key, in seconds, from its last extension.
const LIFETIME: u64 = 900;

/// The device that has the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session(pub(super) u64);

/// Adds the request that extends the lifetime of a key.
pub(super) fn expire(requests: &mut Requests<'_>, key: &Key) {
    requests.begin(3);
    requests.word(b"EXPIRE");
    requests.word(key.bytes());
    requests.number(LIFETIME);
}

/// The name of a key.
pub(super) struct Key {
    text: [u8; 48],
    length: usize,
    /// The segment; the key of the holders counts as the first segment's.
    pub(super) segment: u32,
}

impl Key {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }

    /// The hash slot as the Redis Cluster Specification computes it.
    pub(super) fn hash_slot(&self) -> usize {
        const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
        usize::from(CRC.checksum(self.bytes())) % HASH_SLOTS
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
    /// A new session.
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
        self.key(segment, format_args!("{segment}"))
    }

    /// The name of the set of holders.
    pub(super) fn holders(self) -> Key {
        self.key(0, format_args!("holders"))
    }

    fn key(self, segment: u32, what: fmt::Arguments<'_>) -> Key {
        let mut key = Key { text: [0; 48], length: 0, segment };
        write!(key, "highwater:{:016x}:{what}", self.0).expect("room for the longest name");
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let name =
            |id, segment| String::from_utf8(Session(id).segment(segment).bytes().to_vec()).unwrap();
        assert_eq!(name(0xab, 7), "highwater:00000000000000ab:7");
        assert_eq!(name(u64::MAX, u32::MAX), "highwater:ffffffffffffffff:4294967295");
        assert_ne!(Session::new(), Session::new());
    }

    /// Slots as `CLUSTER KEYSLOT` reports them.
    #[test]
    fn hash_slots_are_those_of_the_specification() {
        let slot = |text: &str| {
            let mut key = Key { text: [0; 48], length: 0, segment: 0 };
            key.write_str(text).unwrap();
            key.hash_slot()
        };
        assert_eq!([slot("123456789"), slot("foo"), slot("")], [0x31c3, 12_182, 0]);
    }
}
