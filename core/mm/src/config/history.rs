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
}
