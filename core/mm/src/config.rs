//! Settings of a manager. Every policy is one; the defaults are the best known.

pub mod history;

use highwater_units::{LARGE_PAGES, Nanos, Prng};
use std::fmt;
use std::str::FromStr;

/// How a manager behaves. Sizes come from the platform: its frames are the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// kswapd threads of each node.
    pub kswapd_threads: KswapdThreads,
    /// Frames that all zones together keep free at least (min_free_kbytes); `None`: by formula.
    pub min_free: Option<u32>,
    /// Batches of up to 32 pages that a kswapd thread has under write at once, 0 to 32; 0: it waits
    /// for each. `None`: by the number of frames.
    pub kswapd_writes: Option<usize>,
    /// Gaps between the watermarks, in 10000ths of a zone (watermark_scale_factor); `None`: as the
    /// kernel's, but 8 MiB or 1/64 of the zone at least.
    pub watermark_scale: Option<u32>,
    /// Percent of the memory that could hold files' pages that are changed before the flusher
    /// writes them, but for those that expire.
    pub dirty_background_ratio: u32,
    /// Percent of it beyond which who changes more waits for the flusher.
    pub dirty_ratio: u32,
    /// Pages brought in or mapped at once for a sequential stream, 1 to 16.
    pub window_max: usize,
    /// Whether a thread reads what streams, and callers of `prefetch`, are about to use. On devices
    /// that are memory there is nothing to gain.
    pub prefetch: bool,
    /// Most pages of a window that is read ahead of who reads a file sequentially, 0 to 256
    /// (read_ahead_kb). 0: what a fault reads itself is all, as for anonymous memory. Files on
    /// devices that are memory have nothing to gain.
    pub file_readahead: usize,
    /// Threads of each node that read ahead, 1 to 16; `None`: by the node's CPUs.
    pub readahead_threads: Option<usize>,
    /// Whether an aligned block of 2 MiB is given out, swapped out and in whole where it can be
    /// (transparent_hugepage). Off: a small budget loses more by evicting 512 pages at once.
    pub large_pages: bool,
    /// Where `large_pages` is on: what khugepaged makes large pages of.
    pub khugepaged: KhugepagedConfig,
    /// How willingly anonymous pages are swapped, beside files' pages: 0 to 200. 0: only when
    /// hardly a file's page is left; 100: as willingly; 200: files' pages stay.
    pub swappiness: u32,
    /// Shards in which a node's LRU lists are divided, each with its lock, 1 to 64; 1: as in the
    /// kernel. `None`: by the node's CPUs and frames.
    pub lru_shards: Option<u32>,
    /// Parts in which a node's free frames are divided, each with its lock, 1 to 64; 1: as in the
    /// kernel. `None`: by the node's CPUs and frames.
    pub zone_parts: Option<u32>,
    /// Whether memory is compacted for blocks of adjacent frames.
    pub compact: bool,
    /// Pages that a fault reads along with the one it needs.
    pub readahead: Readahead,
    /// Objects smaller than pages.
    pub slab: SlabConfig,
    /// Mechanisms of earlier kernels.
    #[cfg(feature = "history")]
    pub history: history::History,
}

/// What khugepaged makes large pages of, and how fast it looks for it. An aligned block of 512
/// pages is collapsed if all limits allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KhugepagedConfig {
    /// Pages that it looks at before it sleeps (pages_to_scan); 0: it does not run.
    pub pages_to_scan: u32,
    /// For how long it sleeps, from 1 ms on (scan_sleep_millisecs).
    pub scan_sleep: Nanos,
    /// Pages of a block that may be absent, and get memory: 0 to 511. The kernel allows 511; here
    /// memory is a budget. On page tables it is 0 whatever this says: what is absent there may
    /// belong to nothing. Of a large page on its way out, more pages of zeros than this are dropped
    /// instead of written.
    pub max_ptes_none: u32,
    /// Pages of a block that may be swapped, and are read: 0 to 511.
    pub max_ptes_swap: u32,
    /// Pages of a block that must be in memory and in use: 0 to 512. The kernel is content with
    /// one, or with half if others are swapped.
    pub referenced_min: u32,
}

/// The most of the limits of [`KhugepagedConfig`] that are for pages not in memory.
pub const MAX_PTES: u32 = LARGE_PAGES as u32 - 1;

impl KhugepagedConfig {
    /// Any settings: for tests that draw what they run.
    pub fn draw(random: &mut Prng) -> KhugepagedConfig {
        KhugepagedConfig {
            pages_to_scan: if random.percent(20) { 0 } else { 512 << random.below(5) },
            scan_sleep: Nanos(1_000_000 << random.below(8)),
            max_ptes_none: random.below(u64::from(MAX_PTES) + 1) as u32,
            max_ptes_swap: random.below(u64::from(MAX_PTES) + 1) as u32,
            referenced_min: random.below(64) as u32,
        }
    }
}

impl Default for KhugepagedConfig {
    fn default() -> KhugepagedConfig {
        KhugepagedConfig {
            pages_to_scan: 4096,
            scan_sleep: Nanos(10_000_000_000),
            max_ptes_none: 64,
            max_ptes_swap: 64,
            referenced_min: 448,
        }
    }
}

/// How many kswapd threads each node has. As text: the number, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KswapdThreads {
    /// So many: 1 to 16.
    Fixed(usize),
    /// As many as it takes to spare allocations direct reclaim, and as leaves other threads their
    /// CPUs: begins with one, or with those that there are.
    Auto,
}

impl fmt::Display for KswapdThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KswapdThreads::Fixed(threads) => threads.fmt(f),
            KswapdThreads::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for KswapdThreads {
    type Err = String;

    fn from_str(text: &str) -> Result<KswapdThreads, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(KswapdThreads::Auto),
            (_, Ok(threads)) if (1..=KSWAPD_THREADS_MAX).contains(&threads) => {
                Ok(KswapdThreads::Fixed(threads))
            }
            _ => Err(format!("'{text}' is neither 1 to {KSWAPD_THREADS_MAX} nor auto")),
        }
    }
}

/// Objects smaller than pages. What is not given follows from the number of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabConfig {
    /// Whether CPUs keep arrays of free objects in front of slabs.
    pub sheaves: Option<bool>,
}

impl SlabConfig {
    /// Draws random settings, for tests.
    pub fn draw(random: &mut Prng) -> SlabConfig {
        SlabConfig { sheaves: random.percent(75).then(|| random.below(2) == 1) }
    }
}

impl Readahead {
    /// Every policy, in the order of their values.
    pub const ALL: [Readahead; 4] =
        [Readahead::Off, Readahead::Virtual, Readahead::Slot, Readahead::Auto];
}

/// Which pages are read along with one that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readahead {
    /// None.
    Off,
    /// Those after it in the space, while a stream goes on.
    Virtual,
    /// Those in the slots around it.
    Slot,
    /// By what is behind the device: slots where it turns, else virtual.
    Auto,
}

/// The largest [`Config::swappiness`].
pub const SWAPPINESS_MAX: u32 = 200;

/// Most shards of a node's LRU lists.
pub const LRU_SHARDS_MAX: u32 = 64;

/// Most parts of a node's free frames.
pub const ZONE_PARTS_MAX: u32 = 64;

/// Most of [`Config::kswapd_writes`]: 4 MiB, some 64 transfers, what fast devices need to be busy.
pub const KSWAPD_WRITES_MAX: usize = 32;

/// Most of [`Config::file_readahead`]: 1 MiB.
pub const FILE_WINDOW_MAX: usize = 256;

/// Most of [`Config::readahead_threads`].
pub const READAHEAD_THREADS_MAX: usize = 16;

/// Most kswapd threads of a node (the seed's MAX_KSWAPD_THREADS).
pub const KSWAPD_THREADS_MAX: usize = 16;

impl Config {
    /// Draws random settings of slabs, for tests.
    pub fn draw_slab(&mut self, random: &mut Prng) {
        #[cfg(feature = "history")]
        {
            self.history.slab = history::SlabHistory::draw(random);
        }
        self.slab = SlabConfig::draw(random);
    }
}

impl Config {
    /// Whether refaults are noted. Only to reproduce an earlier kernel are they not.
    #[cfg(feature = "history")]
    pub(crate) fn notes_refaults(&self) -> bool {
        self.history.reclaim.shadows
    }

    /// Refaults are noted.
    #[cfg(not(feature = "history"))]
    pub(crate) fn notes_refaults(&self) -> bool {
        true
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            kswapd_threads: KswapdThreads::Fixed(1),
            kswapd_writes: None,
            min_free: None,
            watermark_scale: None,
            dirty_background_ratio: 10,
            dirty_ratio: 20,
            window_max: 16,
            prefetch: true,
            file_readahead: FILE_WINDOW_MAX,
            readahead_threads: None,
            large_pages: false,
            khugepaged: KhugepagedConfig::default(),
            swappiness: 60,
            lru_shards: None,
            zone_parts: None,
            compact: true,
            readahead: Readahead::Auto,
            slab: SlabConfig::default(),
            #[cfg(feature = "history")]
            history: history::History::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_kswapd_threads_survive_their_text() {
        for threads in [KswapdThreads::Fixed(1), KswapdThreads::Fixed(16), KswapdThreads::Auto] {
            assert_eq!(threads.to_string().parse(), Ok(threads));
        }
        for text in ["0", "17", "", "Auto", "-1", "1.5"] {
            assert!(text.parse::<KswapdThreads>().is_err(), "{text}");
        }
    }
}
