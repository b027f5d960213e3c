//! The state of one run, which builds and passes share.

use super::config::Config;
use super::kernel::Kernel;
use crate::workload::workers::Workers;
use crate::workload::{Service, WORDS, Words, streams};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// One run on one service.
pub(super) struct Bench<'a, S: Service> {
    pub(super) service: &'a S,
    pub(super) workers: Workers<'a, S::Target, S::World>,
    pub(super) config: &'a Config,
    /// Of each build.
    pub(super) kernels: Vec<Mutex<Kernel>>,
    /// Builds are to end.
    pub(super) ending: AtomicBool,
    /// How many have not.
    pub(super) running: AtomicUsize,
}

/// A kernel tree; each thread has its own.
pub(super) fn lock(kernel: &Mutex<Kernel>) -> MutexGuard<'_, Kernel> {
    kernel.try_lock().expect("only its thread locks it")
}

/// The kind of a page of the files, before it is written.
pub fn kind_of(page: u64) -> u64 {
    streams::kind_of(page)
}

/// Checks one word of a page of sources.
pub(super) fn source_word(page: u64, words: &Words) -> (usize, u64) {
    let word = (page * 7 % WORDS as u64) as usize;
    (word, words[word].load(Relaxed))
}
