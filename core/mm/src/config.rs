//! Settings of a manager. Every policy is one; the defaults are the best known.

/// How a manager behaves. Sizes come from the platform: its frames are the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// kswapd threads per node, 1 to 16.
    pub kswapd_threads: usize,
    /// Frames that all zones together keep free at least (min_free_kbytes); `None`: by formula.
    pub min_free: Option<u32>,
    /// Gaps between the watermarks, in 10000ths of a zone (watermark_scale_factor).
    pub watermark_scale: u32,
    /// Pages brought in or mapped at once for a sequential stream, 1 to 16.
    pub window_max: usize,
}

/// Most kswapd threads of a node (the seed's MAX_KSWAPD_THREADS).
pub const KSWAPD_THREADS_MAX: usize = 16;

impl Default for Config {
    fn default() -> Config {
        Config { kswapd_threads: 1, min_free: None, watermark_scale: 10, window_max: 16 }
    }
}
