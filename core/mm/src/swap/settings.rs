//! Settings of swap, those of earlier kernels included. On its way out.

use crate::config::history::SwapHistory;
pub(super) use crate::config::history::{CacheSplit, DeviceLock, ScanBase, SwapIn};
use crate::config::{Config, Readahead};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    Off,
    On,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SwapConfig {
    pub(super) device_lock: DeviceLock,
    pub(super) scan_base: ScanBase,
    pub(super) node_aware: Switch,
    pub(super) slot_cache: Switch,
    pub(super) cache: CacheSplit,
    pub(super) writeback_tags: Switch,
    pub(super) cache_batch: Switch,
    pub(super) swap_in: SwapIn,
    pub(super) readahead: Readahead,
}

fn switch(on: bool) -> Switch {
    if on { Switch::On } else { Switch::Off }
}

impl SwapConfig {
    pub(super) fn of(config: &Config) -> SwapConfig {
        #[cfg(feature = "history")]
        let past = config.history.swap;
        #[cfg(not(feature = "history"))]
        let past = SwapHistory::default();
        SwapConfig::new(past, config.readahead)
    }

    fn new(past: SwapHistory, readahead: Readahead) -> SwapConfig {
        SwapConfig {
            device_lock: past.device_lock,
            scan_base: past.scan_base,
            node_aware: switch(past.node_aware),
            slot_cache: switch(past.slot_cache),
            cache: past.cache,
            writeback_tags: switch(past.writeback_tags),
            cache_batch: switch(past.cache_batch),
            swap_in: past.swap_in,
            readahead,
        }
    }
}

impl Default for SwapConfig {
    fn default() -> SwapConfig {
        SwapConfig::new(SwapHistory::default(), Readahead::Auto)
    }
}
