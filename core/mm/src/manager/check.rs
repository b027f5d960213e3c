//! Checks the ranges of settings.

use super::StartError;
#[cfg(feature = "history")]
use crate::config::history::PCP_BATCH_MAX;
use crate::config::{
    Config, FILE_WINDOW_MAX, KSWAPD_WRITES_MAX, KhugepagedConfig, LRU_SHARDS_MAX, MAX_PTES,
    READAHEAD_THREADS_MAX, SWAPPINESS_MAX, Tunables, ZONE_PARTS_MAX,
};
use highwater_units::{Nanos, RUN_PAGES_MAX};

/// Returns [`StartError::Config`] for the first setting that is out of range.
pub(super) fn check(config: &Config) -> Result<(), StartError> {
    check_tunables(config.tunables())?;
    if config.kswapd_writes.is_some_and(|batches| batches > KSWAPD_WRITES_MAX) {
        return Err(StartError::Config("batches of writes of a kswapd thread are 0 to 32"));
    }
    if config.lru_shards.is_some_and(|shards| !(1..=LRU_SHARDS_MAX).contains(&shards)) {
        return Err(StartError::Config("shards of the LRU lists are 1 to 64"));
    }
    #[cfg(feature = "history")]
    if !config.history.reclaim.is_valid() {
        return Err(StartError::Config("pages of a direct reclaim are 32 to 1048576"));
    }
    #[cfg(feature = "history")]
    if config.history.pcp_batch.is_some_and(|batch| !(1..=PCP_BATCH_MAX).contains(&batch)) {
        return Err(StartError::Config("frames of a batch of a CPU's list are 1 to 512"));
    }
    if config.zone_parts.is_some_and(|parts| !(1..=ZONE_PARTS_MAX).contains(&parts)) {
        return Err(StartError::Config("parts of a node's free frames are 1 to 64"));
    }
    let KhugepagedConfig { max_ptes_none, max_ptes_swap, referenced_min, scan_sleep, .. } =
        config.khugepaged;
    if max_ptes_none.max(max_ptes_swap) > MAX_PTES || referenced_min > MAX_PTES + 1 {
        return Err(StartError::Config("limits of khugepaged are 0 to 511 pages, or 512 in use"));
    }
    if scan_sleep < Nanos(1_000_000) {
        return Err(StartError::Config("khugepaged sleeps for 1 ms at least"));
    }
    let readers = config.readahead_threads;
    if readers.is_some_and(|threads| !(1..=READAHEAD_THREADS_MAX).contains(&threads)) {
        return Err(StartError::Config("threads of a node that read ahead are 1 to 16"));
    }
    if config.dirty_background_ratio.max(config.dirty_ratio) > 100 {
        return Err(StartError::Config("parts of memory that may be dirty are 0 to 100 percent"));
    }
    Ok(())
}

/// Checks the settings that may change.
pub(super) fn check_tunables(tunables: Tunables) -> Result<(), StartError> {
    if tunables.swappiness > SWAPPINESS_MAX {
        return Err(StartError::Config("swappiness is 0 to 200"));
    }
    if !(1..=RUN_PAGES_MAX).contains(&tunables.window_max) {
        return Err(StartError::Config("pages that a fault of a stream reads are 1 to 16"));
    }
    if tunables.file_readahead > FILE_WINDOW_MAX {
        return Err(StartError::Config("pages read ahead of a file's readers are 0 to 256"));
    }
    Ok(())
}
