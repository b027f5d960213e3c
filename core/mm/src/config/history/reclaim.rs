//! Reclaim of earlier kernels.

use highwater_units::{BATCH_PAGES_MAX, Prng};

/// How reclaim differs from today's; the default selects no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimHistory {
    /// The least number of frames that a direct reclaim frees in its first round,
    /// [`DIRECT_RECLAIM_MIN`] to [`DIRECT_RECLAIM_MAX`]. The kernel scans 1/4096 of the lists even
    /// if it has freed a batch sooner: 24,192 pages of 378 GiB.
    pub direct_reclaim: u32,
    /// The nodes that a round of direct reclaim scans.
    pub direct_nodes: DirectNodes,
    /// Whether refaults are noted: evicted files' pages leave shadow entries, and refaults add to
    /// the cost of their kind.
    pub shadows: bool,
    /// Whether threads that allocate evict while no CPU idles and swap is in memory. In the kernel,
    /// these threads wake kswapd.
    pub kswapd_yields: bool,
}

/// The nodes that a round of direct reclaim scans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectNodes {
    /// The nearest one from which something can be freed.
    #[default]
    Nearest,
    /// Each node, as the kernel's shrink_zones.
    All,
}

/// Lower bound of [`ReclaimHistory::direct_reclaim`].
pub const DIRECT_RECLAIM_MIN: u32 = BATCH_PAGES_MAX as u32;
/// Upper bound of [`ReclaimHistory::direct_reclaim`].
pub const DIRECT_RECLAIM_MAX: u32 = 1 << 20;

impl ReclaimHistory {
    /// Whether the settings are within their bounds.
    pub fn is_valid(&self) -> bool {
        (DIRECT_RECLAIM_MIN..=DIRECT_RECLAIM_MAX).contains(&self.direct_reclaim)
    }

    /// Draws a number of frames for direct reclaim, for randomized tests.
    pub fn draw_direct_reclaim(random: &mut Prng) -> u32 {
        if random.percent(20) { 32 << random.below(6) } else { 32 }
    }
}

impl Default for ReclaimHistory {
    fn default() -> ReclaimHistory {
        ReclaimHistory {
            direct_reclaim: DIRECT_RECLAIM_MIN,
            direct_nodes: DirectNodes::Nearest,
            shadows: true,
            kswapd_yields: true,
        }
    }
}
