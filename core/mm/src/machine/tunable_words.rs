//! The settings that may change while the manager runs.
//!
//! Locking: none. The words are not the platform's atomics, because they hardly ever change. A
//! reader during a change may see some new and some old values.

use crate::config::Tunables;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The present [`Tunables`].
pub struct TunableWords {
    swappiness: AtomicU32,
    window_max: AtomicU32,
    file_readahead: AtomicU32,
}

impl TunableWords {
    pub(super) fn new(tunables: Tunables) -> TunableWords {
        let Tunables { swappiness, window_max, file_readahead } = tunables;
        TunableWords {
            swappiness: AtomicU32::new(swappiness),
            window_max: AtomicU32::new(window_max as u32),
            file_readahead: AtomicU32::new(file_readahead as u32),
        }
    }

    /// Changes all settings.
    pub fn set(&self, tunables: Tunables) {
        let Tunables { swappiness, window_max, file_readahead } = tunables;
        self.swappiness.store(swappiness, Relaxed);
        self.window_max.store(window_max as u32, Relaxed);
        self.file_readahead.store(file_readahead as u32, Relaxed);
    }

    /// Returns all settings.
    pub fn get(&self) -> Tunables {
        Tunables {
            swappiness: self.swappiness(),
            window_max: self.window_max(),
            file_readahead: self.file_readahead(),
        }
    }

    /// See [`crate::Config::swappiness`].
    pub fn swappiness(&self) -> u32 {
        self.swappiness.load(Relaxed)
    }

    /// See [`crate::Config::window_max`].
    pub fn window_max(&self) -> usize {
        self.window_max.load(Relaxed) as usize
    }

    /// See [`crate::Config::file_readahead`].
    pub fn file_readahead(&self) -> usize {
        self.file_readahead.load(Relaxed) as usize
    }
}
