//! The keys of a device, and the numbers of its writes.
//!
//! ```text
//! vault    one page, locked: | alive | key 0 | key 1 | ... |
//! current  the key of new writes          live   slots that were written with each key
//! ```
//! **Nonces.** Each page that is written gets the next number of a counter of the device. No number
//! is used twice, whatever the key: a forked child has a copy of keys and counter, but never writes
//! to its parent's device. Keys are random and differ between devices, so no nonce is used twice
//! with a key.
//!
//! **Forks.** A child has the keys of its parent's pages. After each fork the parent writes with a
//! new key, so a child cannot read later pages. A key whose slots are all freed or rewritten makes
//! room for the next key. If every key in the vault still has slots, the newest key stays in use.
//!
//! The vault is excluded from core files, and is wiped in a child that was forked without
//! [`Keys::pause`].
//!
//! Locks: one for changes of key and for pauses, which are rare. A writer counts its slots as live,
//! and then checks that the key is still current, so no key is replaced while a writer uses it.

use crate::array::Array;
use crate::sys::Inheritance;
use highwater_units::PAGE_SIZE;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::hint::black_box;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

const KEY_BYTES: usize = 32;
const KEY_WORDS: usize = KEY_BYTES / 8;
const VAULT_WORDS: usize = PAGE_SIZE / 8;
/// Word of the vault that is 1 while it holds keys.
const ALIVE: usize = 0;
/// Keys in a vault, beside the word.
const KEYS: usize = (VAULT_WORDS - 1) / KEY_WORDS;

/// A stamp holds the number of a write in its lower bits, and the index of a key above.
const NUMBER_BITS: u32 = 56;
const _: () = assert!(KEYS <= 1 << (u64::BITS - NUMBER_BITS));

/// A copy of a key, wiped when it is dropped.
pub(super) struct Key([u8; KEY_BYTES]);

impl Key {
    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// # Errors
    /// The system's error number.
    fn random() -> Result<Key, i32> {
        let mut key = Key([0; KEY_BYTES]);
        let mut filled = 0;
        while filled < KEY_BYTES {
            match getrandom(&mut key.0[filled..], GetRandomFlags::empty()) {
                Ok(bytes) => filled += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.raw_os_error()),
            }
        }
        Ok(key)
    }

    #[cfg(test)]
    pub(super) fn for_test(byte: u8) -> Key {
        Key([byte; KEY_BYTES])
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.fill(0);
        // Otherwise the compiler would remove the stores.
        black_box(&self.0);
    }
}

/// The key and the number of a write. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(pub(super) u64);

impl Stamp {
    pub(super) fn number(self) -> u64 {
        self.0 & !(u64::MAX << NUMBER_BITS)
    }

    fn key(self) -> usize {
        (self.0 >> NUMBER_BITS) as usize
    }

    /// The stamp of the page `pages` later in the same run.
    pub(super) fn after(self, pages: usize) -> Stamp {
        Stamp(self.0 + pages as u64)
    }
}

/// The keys of a device.
pub(super) struct Keys {
    vault: Array<AtomicU64>,
    current: AtomicUsize,
    live: [AtomicU64; KEYS],
    next: AtomicU64,
    /// Forks in progress.
    pauses: Mutex<u32>,
}

impl Keys {
    /// A vault with one new key.
    ///
    /// # Errors
    /// The system's error number: it grants no memory or no random bytes.
    pub(super) fn new() -> Result<Keys, i32> {
        let keys = Keys {
            vault: Array::new(VAULT_WORDS)?,
            current: AtomicUsize::new(0),
            live: [const { AtomicU64::new(0) }; KEYS],
            next: AtomicU64::new(1),
            pauses: Mutex::new(0),
        };
        keys.vault.mapping().lock();
        keys.vault.mapping().set_inheritance(Inheritance::Zeros);
        keys.put(0, &Key::random()?);
        keys.vault[ALIVE].store(1, Release);
        Ok(keys)
    }

    /// Memory of the vault, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        PAGE_SIZE as u64
    }

    /// The key for a run of `pages` writes, and the stamp of the first; they count as live. `None`:
    /// the keys are wiped.
    pub(super) fn for_writes(&self, pages: usize) -> Option<(Key, Stamp)> {
        let mut at = self.current.load(SeqCst);
        loop {
            self.live[at].fetch_add(pages as u64, SeqCst);
            match self.current.load(SeqCst) {
                same if same == at => break,
                newer => {
                    self.live[at].fetch_sub(pages as u64, SeqCst);
                    at = newer;
                }
            }
        }
        let number = self.next.fetch_add(pages as u64, Relaxed);
        assert!((number + pages as u64) >> NUMBER_BITS == 0, "2^56 writes take centuries");
        Some((self.get(at)?, Stamp((at as u64) << NUMBER_BITS | number)))
    }

    /// The key of a stamp. `None`: the keys are wiped.
    pub(super) fn of(&self, stamp: Stamp) -> Option<Key> {
        self.get(stamp.key())
    }

    /// The slot with this stamp was freed or rewritten.
    pub(super) fn release(&self, stamp: Stamp) {
        let before = self.live[stamp.key()].fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "a slot is released once");
    }

    fn word(at: usize) -> usize {
        ALIVE + 1 + at * KEY_WORDS
    }

    fn get(&self, at: usize) -> Option<Key> {
        let mut key = Key([0; KEY_BYTES]);
        let words = &self.vault[Keys::word(at)..][..KEY_WORDS];
        for (bytes, word) in key.0.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        // If a wiped word of the key was read, `ALIVE` then reads as wiped, too.
        fence(Acquire);
        (self.vault[ALIVE].load(Relaxed) == 1).then_some(key)
    }

    fn put(&self, at: usize, key: &Key) {
        let words = &self.vault[Keys::word(at)..][..KEY_WORDS];
        for (bytes, word) in key.0.as_chunks::<8>().0.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
    }

    fn pauses(&self) -> MutexGuard<'_, u32> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a fork: the child gets the keys.
    pub(super) fn pause(&self) {
        let mut pauses = self.pauses();
        *pauses += 1;
        self.vault.mapping().set_inheritance(Inheritance::Contents);
    }

    /// After a fork, in the parent: later writes get a new key.
    pub(super) fn resume(&self) {
        let mut pauses = self.pauses();
        *pauses -= 1;
        if *pauses == 0 {
            self.vault.mapping().set_inheritance(Inheritance::Zeros);
        }
        let current = self.current.load(SeqCst);
        let free = (0..KEYS).find(|at| *at != current && self.live[*at].load(SeqCst) == 0);
        if let (Some(free), Ok(key)) = (free, Key::random()) {
            self.put(free, &key);
            self.current.store(free, SeqCst);
        }
    }

    /// After a fork, in the child: the keys of its parent are used only for reading.
    pub(super) fn arrive(&self) {
        *self.pauses() = 0;
        self.vault.mapping().lock();
        self.vault.mapping().set_inheritance(Inheritance::Zeros);
    }

    /// Wipes the keys. Pages that were written with them cannot be read again.
    pub(super) fn wipe(&self) {
        self.vault[ALIVE].store(0, Relaxed);
        fence(Release);
        self.vault.iter().for_each(|word| word.store(0, Relaxed));
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    fn fork(keys: &Keys) {
        keys.pause();
        keys.resume();
    }

    fn stamp(keys: &Keys) -> Stamp {
        keys.for_writes(1).unwrap().1
    }

    #[test]
    fn keys_differ_by_device_and_after_each_fork() {
        let [keys, other] = [(); 2].map(|()| Keys::new().unwrap());
        let mut seen: BTreeSet<[u8; KEY_BYTES]> = BTreeSet::new();
        for _ in 0..KEYS {
            let (key, stamp) = keys.for_writes(1).unwrap();
            assert_eq!(keys.of(stamp).unwrap().bytes(), key.bytes());
            assert!(seen.insert(*key.bytes()));
            fork(&keys);
        }
        assert!(!seen.contains(other.for_writes(1).unwrap().0.bytes()));
    }

    #[test]
    fn a_key_makes_room_when_its_slots_are_gone() {
        let keys = Keys::new().unwrap();
        let mut stamps: Vec<Stamp> = Vec::new();
        for _ in 1..KEYS {
            stamps.push(stamp(&keys));
            fork(&keys);
        }
        let last = stamp(&keys);
        let kept = *keys.of(stamps[5]).unwrap().bytes();
        fork(&keys);
        assert_eq!(stamp(&keys).key(), last.key(), "all places have slots");
        keys.release(stamps[7]);
        fork(&keys);
        assert_eq!(stamp(&keys).key(), stamps[7].key());
        assert_eq!(*keys.of(stamps[5]).unwrap().bytes(), kept);
    }

    #[test]
    fn numbers_never_repeat_and_wiped_keys_are_gone() {
        let keys = Keys::new().unwrap();
        let runs: Vec<Stamp> = [3, 1, 16, 64].map(|pages| keys.for_writes(pages).unwrap().1).into();
        assert_eq!(runs.iter().map(|stamp| stamp.number()).collect::<Vec<_>>(), [1, 4, 5, 21]);
        keys.wipe();
        assert!(keys.for_writes(1).is_none() && keys.of(runs[0]).is_none());
        assert!(keys.vault.iter().all(|word| word.load(Relaxed) == 0));
    }

    /// A page is always opened with the key that sealed it, while keys are replaced.
    #[test]
    fn writers_and_forks_agree_on_keys() {
        let (keys, ended) = (Keys::new().unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut held: Vec<(Stamp, [u8; KEY_BYTES])> = Vec::new();
                        for round in 0..40_000usize {
                            let (key, stamp) = keys.for_writes(1).unwrap();
                            held.push((stamp, *key.bytes()));
                            if held.len() > 20 {
                                let (stamp, key) = held.swap_remove(round % 20);
                                assert_eq!(*keys.of(stamp).unwrap().bytes(), key);
                                keys.release(stamp);
                            }
                        }
                        held.iter().for_each(|(stamp, _)| keys.release(*stamp));
                    })
                })
                .collect();
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    fork(&keys);
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            ended.store(true, Relaxed);
        });
        assert!(keys.live.iter().all(|live| live.load(Relaxed) == 0));
    }
}
