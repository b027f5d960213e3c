//! Settings that select mechanisms of earlier kernels, to reproduce published experiments.
//!
//! Compiled with the feature `history` only. The code that they select is beside each mechanism of
//! today (`swap/history`, `compact/history`, ...), so that it obeys the same layers and lock order.

mod swap;

pub use swap::{CacheSplit, DeviceLock, ScanBase, SwapHistory, SwapIn};

/// Mechanisms of earlier kernels; the default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Swap slots and the swap cache.
    pub swap: SwapHistory,
    /// The kernel whose compaction runs instead of today's; `None`: today's.
    pub compact: Option<CompactHistory>,
}

/// Compaction of 2012: the patches of "Reduce compaction scanning and lock contention" (Mel
/// Gorman), each on top of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactHistory {
    /// Linux 3.6-rc5: scanners take their locks early and retry contended ones; the free scanner
    /// starts near where it last found free frames, and wraps around.
    Vanilla,
    /// Asynchronous compaction aborts on a contended lock; locks are taken late.
    LessLock,
    /// The free scanner starts at the end of the zone again.
    Revert,
    /// Pageblocks where nothing could be isolated are skipped for some time.
    CacheFail,
    /// Scanners start behind the skipped pageblocks (Linux 3.7).
    SkipUseless,
}

impl CompactHistory {
    /// All kernels, oldest first.
    pub const ALL: [CompactHistory; 5] = [
        CompactHistory::Vanilla,
        CompactHistory::LessLock,
        CompactHistory::Revert,
        CompactHistory::CacheFail,
        CompactHistory::SkipUseless,
    ];
}
