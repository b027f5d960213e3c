//! How kernels from 2012 to 2024 guarded and found swap slots.

use highwater_units::Prng;

/// Slots and the swap cache of earlier kernels. The default selects none of them: today's code
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapHistory {
    /// The locks of a device's slots.
    pub device_lock: DeviceLock,
    /// Where the search for a slot starts when no cluster is free.
    pub scan_base: ScanBase,
    /// Devices on the CPU's node precede others of equal priority (Linux 4.14). On by default.
    pub node_aware: bool,
    /// Each CPU takes and frees slots in batches of 64 (Linux 4.11 to 6.13).
    pub slot_cache: bool,
    /// The structure and the locks of the swap cache.
    pub cache: CacheSplit,
    /// Nodes of the swap cache's trees are tagged while they are written (to Linux 4.8). Without
    /// effect on [`CacheSplit::Cluster`], which has no nodes.
    pub writeback_tags: bool,
    /// A run of pages enters and leaves a tree of the swap cache under one lock, not under one for
    /// each page. On by default.
    pub cache_batch: bool,
    /// How pages are read.
    pub swap_in: SwapIn,
}

impl SwapHistory {
    /// Draws each setting.
    pub fn draw(random: &mut Prng) -> SwapHistory {
        // A separate generator: settings added later do not change the meaning of older seeds.
        let mut apart = Prng::new(random.clone().below(u64::MAX));
        let (leaf, slots) = (apart.percent(25), apart.percent(33));
        let mut of = |choices: u64| random.below(choices) as usize;
        let device_lock = [DeviceLock::Whole, DeviceLock::Cluster][of(2)];
        let scan_base = [ScanBase::None, ScanBase::Shared, ScanBase::PerCpu][of(3)];
        let (node_aware, slot_cache) = (of(2) == 1, of(2) == 1);
        let cache = [CacheSplit::Whole, CacheSplit::Trunk, CacheSplit::Cluster][of(3)];
        SwapHistory {
            device_lock: if slots { DeviceLock::Slots } else { device_lock },
            scan_base,
            node_aware,
            slot_cache,
            cache: if leaf { CacheSplit::Leaf } else { cache },
            writeback_tags: of(2) == 1,
            cache_batch: of(2) == 1,
            swap_in: [SwapIn::Direct, SwapIn::Cached][of(2)],
        }
    }
}

impl Default for SwapHistory {
    fn default() -> SwapHistory {
        SwapHistory {
            device_lock: DeviceLock::Cluster,
            scan_base: ScanBase::None,
            node_aware: true,
            slot_cache: false,
            cache: CacheSplit::Cluster,
            writeback_tags: false,
            cache_batch: true,
            swap_in: SwapIn::Direct,
        }
    }
}

/// The locks of a device's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceLock {
    /// One for the device, for everything: the kernel's swap_info lock, to Linux 4.10.
    Whole,
    /// One for the device, to take and to free slots; one for each cluster, for the counts of its
    /// slots (Linux 4.11 to 6.13).
    Slots,
    /// One for each cluster, as today; the lists of clusters have one.
    Cluster,
}

/// Where the search for a slot starts when no cluster is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanBase {
    /// No scan: clusters with free slots are on lists, as today (Linux 6.10).
    None,
    /// At one position for all CPUs (to Linux 5.7).
    Shared,
    /// At a position of the CPU. At the end of 64 MiB it moves to another 64 MiB, at random
    /// ("Reduce lock contention on swap cache from swap slots allocation", 2020).
    PerCpu,
}

/// How pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapIn {
    /// Without the swap cache: the reader holds the page's entry, which excludes other threads, as
    /// today.
    Direct,
    /// Through the swap cache: it holds the frames while they are read (to Linux 4.14, and later
    /// for slots with several references).
    Cached,
}

/// The structure and the locks of the swap cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSplit {
    /// A tree with a lock for each device.
    Whole,
    /// A tree with a lock for each 64 MiB (Linux 4.11).
    Trunk,
    /// A tree for each device, with a lock for each leaf of 64 slots. Inner nodes never change.
    Leaf,
    /// A table for each cluster, as today (Linux 6.18): written under the cluster's lock, read
    /// without.
    Cluster,
}
