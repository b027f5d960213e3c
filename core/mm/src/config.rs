//! Settings of a manager: what a user may choose. The defaults are the best known values.
//!
//! `None` stands for a value that is computed from the machine. Settings that select mechanisms of
//! earlier kernels are in `config/history.rs`.

#[cfg(feature = "history")]
pub mod history;

use highwater_units::{LARGE_PAGES, Nanos, Prng};
use std::fmt;
use std::str::FromStr;

/// The settings of a manager. Its memory is the platform's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// kswapd threads of each node. Default: 1.
    pub kswapd_threads: KswapdThreads,
    /// Frames that all zones together keep free (min_free_kbytes), the min watermark. Default: the
    /// kernel's formula.
    pub min_free: Option<u32>,
    /// Batches of up to 32 pages that a kswapd thread has in flight, 0 to 32; with 0 it waits for
    /// each batch. Default: one for each 2048 frames.
    pub kswapd_writes: Option<usize>,
    /// Distance between the watermarks, in 10000ths of a zone (watermark_scale_factor). Default:
    /// the kernel's, but at least 8 MiB or 1/64 of the zone.
    pub watermark_scale: Option<u32>,
    /// The flusher writes once this many pages of files are dirty, in percent of the memory that
    /// could hold pages of files. It writes expired pages below this limit, too. Default: 10.
    pub dirty_background_ratio: u32,
    /// Writers wait for the flusher once this many pages of files are dirty, in percent of that
    /// memory. Default: 20.
    pub dirty_ratio: u32,
    /// The most pages that a fault of a sequential stream reads or maps, 1 to 16. Default: 16.
    pub window_max: usize,
    /// Readahead threads read the pages that streams and callers of `prefetch` will use. Without
    /// effect on devices that are memory. Default: on.
    pub prefetch: bool,
    /// Pages of a readahead window of a file, 0 to 256 (read_ahead_kb). With 0, a fault reads as
    /// many pages as it would of anonymous memory. Without effect on devices that are memory.
    /// Default: 256.
    pub file_readahead: usize,
    /// Readahead threads of each node, 1 to 16. Default: one for 8 CPUs.
    pub readahead_threads: Option<usize>,
    /// Aligned blocks of 2 MiB are allocated, swapped out and swapped in as a whole where possible
    /// (transparent_hugepage). Default: off, since with a small budget the eviction of 512 pages at
    /// once costs more than it saves.
    pub large_pages: bool,
    /// Which pages khugepaged collapses into large ones, if `large_pages` is on.
    pub khugepaged: KhugepagedConfig,
    /// Preference for anonymous pages over pages of files in reclaim, 0 to 200. 0: anonymous pages
    /// only when hardly any pages of files are left; 100: no preference; 200: anonymous pages only.
    /// Default: 60.
    pub swappiness: u32,
    /// Shards of a node's LRU lists, each with its lock, 1 to 64; the kernel has 1. Default: by the
    /// CPUs and the frames of the node.
    pub lru_shards: Option<u32>,
    /// Parts of a node's free frames, each with its lock, 1 to 64; the kernel has 1. Default: by
    /// the CPUs and the frames of the node.
    pub zone_parts: Option<u32>,
    /// Memory is compacted to make blocks of adjacent frames. Default: on.
    pub compact: bool,
    /// Pages that a fault reads along with the one it needs. Default: by device.
    pub readahead: Readahead,
    /// Objects smaller than pages.
    pub slab: SlabConfig,
    /// Mechanisms of earlier kernels.
    #[cfg(feature = "history")]
    pub history: history::History,
}

/// How khugepaged makes large pages: it collapses an aligned block of 512 pages that meets all
/// limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KhugepagedConfig {
    /// Pages scanned between two sleeps (pages_to_scan); with 0 it does not run. Default: 4096.
    pub pages_to_scan: u32,
    /// Length of a sleep, 1 ms at least (scan_sleep_millisecs). Default: 10 s.
    pub scan_sleep: Nanos,
    /// The most absent pages in a block, for which the collapse allocates frames, 0 to 511.
    /// Default: 64; the kernel's 511 would exceed a budget. On page tables the limit is always 0,
    /// since an absent page there may belong to no mapping. Reclaim uses the limit, too: a cold
    /// large page with more pages of zeros is split, and its pages of zeros are dropped instead of
    /// written.
    pub max_ptes_none: u32,
    /// The most swapped pages in a block, which the collapse reads, 0 to 511. Default: 64.
    pub max_ptes_swap: u32,
    /// Pages of a block that must be resident and in use, 0 to 512. Default: 448. The kernel
    /// requires one, or half of them if others are swapped.
    pub referenced_min: u32,
}

/// Upper bound of [`KhugepagedConfig::max_ptes_none`] and of `max_ptes_swap`.
pub const MAX_PTES: u32 = LARGE_PAGES as u32 - 1;

impl KhugepagedConfig {
    /// Draws random settings, for tests.
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

/// The number of kswapd threads of each node. As text: the number, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KswapdThreads {
    /// A fixed number, 1 to 16.
    Fixed(usize),
    /// As many as allocations need to avoid direct reclaim, while other threads keep their CPUs.
    /// Begins with one, or with the present number.
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

/// Objects smaller than pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabConfig {
    /// CPUs keep arrays of free objects in front of slabs. Default: on with 32 CPUs or more.
    pub sheaves: Option<bool>,
}

impl SlabConfig {
    /// Draws random settings, for tests.
    pub fn draw(random: &mut Prng) -> SlabConfig {
        SlabConfig { sheaves: random.percent(75).then(|| random.below(2) == 1) }
    }
}

/// The pages that a fault reads along with the one it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readahead {
    /// No others.
    Off,
    /// The next pages of the space, while faults are sequential.
    Virtual,
    /// The pages in the slots around it.
    Slot,
    /// `Slot` on rotational devices, `Virtual` on others.
    Auto,
}

impl Readahead {
    /// All policies, in the order of their values.
    pub const ALL: [Readahead; 4] =
        [Readahead::Off, Readahead::Virtual, Readahead::Slot, Readahead::Auto];
}

/// Upper bound of [`Config::swappiness`].
pub const SWAPPINESS_MAX: u32 = 200;

/// Upper bound of [`Config::lru_shards`].
pub const LRU_SHARDS_MAX: u32 = 64;

/// Upper bound of [`Config::zone_parts`].
pub const ZONE_PARTS_MAX: u32 = 64;

/// Upper bound of [`Config::kswapd_writes`]: 4 MiB in some 64 transfers keep fast devices busy.
pub const KSWAPD_WRITES_MAX: usize = 32;

/// Upper bound of [`Config::file_readahead`]: 1 MiB.
pub const FILE_WINDOW_MAX: usize = 256;

/// Upper bound of [`Config::readahead_threads`].
pub const READAHEAD_THREADS_MAX: usize = 16;

/// Upper bound of [`Config::kswapd_threads`] (MAX_KSWAPD_THREADS).
pub const KSWAPD_THREADS_MAX: usize = 16;

/// Settings that may change while a manager runs: [`crate::Manager::tune`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// See [`Config::swappiness`].
    pub swappiness: u32,
    /// See [`Config::window_max`].
    pub window_max: usize,
    /// See [`Config::file_readahead`].
    pub file_readahead: usize,
}

impl Config {
    /// The settings that may change later.
    pub fn tunables(&self) -> Tunables {
        let Config { swappiness, window_max, file_readahead, .. } = *self;
        Tunables { swappiness, window_max, file_readahead }
    }

    /// Draws random settings of slabs, for tests.
    pub fn draw_slab(&mut self, random: &mut Prng) {
        #[cfg(feature = "history")]
        {
            self.history.slab = history::SlabHistory::draw(random);
        }
        self.slab = SlabConfig::draw(random);
    }

    /// Whether threads that allocate may evict in kswapd's place: they do in no kernel.
    #[cfg(feature = "history")]
    pub(crate) fn kswapd_yields(&self) -> bool {
        self.history.reclaim.kswapd_yields
    }

    /// Whether threads that allocate may evict in kswapd's place.
    #[cfg(not(feature = "history"))]
    pub(crate) fn kswapd_yields(&self) -> bool {
        true
    }

    /// Whether refaults are noted: not in some earlier kernels.
    #[cfg(feature = "history")]
    pub(crate) fn notes_refaults(&self) -> bool {
        self.history.reclaim.shadows
    }

    /// Whether refaults are noted.
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
    fn kswapd_threads_are_written_and_parsed() {
        for threads in [KswapdThreads::Fixed(1), KswapdThreads::Fixed(16), KswapdThreads::Auto] {
            assert_eq!(threads.to_string().parse(), Ok(threads));
        }
        for text in ["0", "17", "", "Auto", "-1", "1.5"] {
            assert!(text.parse::<KswapdThreads>().is_err(), "{text}");
        }
    }
}
