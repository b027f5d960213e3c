//! What `--set key=value` can change, as one table.
//!
//! ```text
//! "kswapd_threads=4" ── Settings::set ──> KEYS: the key's Kind ──> the field
//!                       its text again <── Settings::shown
//! ```
//! A key has a name, a kind, a field and a help text; parsing, printing and the text about accepted
//! values follow from the kind (`kinds.rs`).

use super::kinds::{Auto, Kind, Mapped, Names, Number, Text, Words, number};
use super::settings::{BadSetting, Scale, Settings};
use super::words::*;
use highwater_mm::config::history::{DIRECT_RECLAIM_MAX, DIRECT_RECLAIM_MIN, PCP_BATCH_MAX};
use highwater_mm::config::{
    FILE_WINDOW_MAX, KSWAPD_WRITES_MAX, LRU_SHARDS_MAX, MAX_PTES, READAHEAD_THREADS_MAX,
    SWAPPINESS_MAX, ZONE_PARTS_MAX,
};
use highwater_units::{Nanos, RUN_PAGES_MAX};

/// A key of `--set`.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it is, on one line.
    pub help: &'static str,
    value: &'static dyn Value,
}

/// A kind of value in a field of the settings.
struct Setting<K, T> {
    kind: K,
    get: fn(&Settings) -> T,
    set: fn(&mut Settings, T),
}

/// [`Setting`] without its types.
trait Value {
    fn accepts(&self) -> Vec<String>;
    fn take(&self, settings: &mut Settings, text: &str) -> Option<()>;
    fn show(&self, settings: &Settings) -> String;
}

impl<K: Kind<T>, T> Value for Setting<K, T> {
    fn accepts(&self) -> Vec<String> {
        self.kind.accepts()
    }

    fn take(&self, settings: &mut Settings, text: &str) -> Option<()> {
        (self.set)(settings, self.kind.parse(text)?);
        Some(())
    }

    fn show(&self, settings: &Settings) -> String {
        self.kind.show(&(self.get)(settings))
    }
}

/// A key of one field: name, kind, field, help.
macro_rules! key {
    ($name:literal, $kind:expr, $($field:ident).+, $help:literal) => {
        Key {
            name: $name,
            help: $help,
            value: &Setting {
                kind: $kind,
                get: |settings| settings.$($field).+.clone(),
                set: |settings, value| settings.$($field).+ = value,
            },
        }
    };
}

/// Whole milliseconds.
const MILLIS: Mapped<Number<u64>, u64, Nanos> = Mapped {
    kind: number(1, 1_000_000).of(" ms"),
    to: |millis| Nanos(millis * 1_000_000),
    from: |nanos| nanos.0 / 1_000_000,
};

const NANOS: Mapped<Number<u64>, u64, Nanos> =
    Mapped { kind: number(0, 1_000_000).of(" ns"), to: Nanos, from: |nanos| nanos.0 };

const SCALE: Mapped<Auto<Number<u64>>, Option<u64>, Scale> = Mapped {
    kind: Auto(number(1, u64::MAX)),
    to: |by| by.map_or(Scale::Auto, Scale::By),
    from: |scale| match scale {
        Scale::Auto => None,
        Scale::By(by) => Some(*by),
    },
};

/// Two fields.
const COMPACT: Setting<Words<Compaction>, Compaction> = Setting {
    kind: COMPACTS,
    get: |s| (s.config.compact, s.config.history.compact),
    set: |s, method| (s.config.compact, s.config.history.compact) = method,
};

/// All keys.
pub const KEYS: &[Key] = &[
    key!(
        "kswapd_threads",
        Text("1 to 16, or auto"),
        config.kswapd_threads,
        "kswapd threads of each node; auto: more are added as needed while CPUs idle"
    ),
    key!(
        "min_free",
        Auto(number(1, u32::MAX).of(" pages")),
        min_free,
        "pages kept free on all nodes; auto: as many as on the unscaled machine"
    ),
    key!(
        "watermark_scale",
        Auto(number(1, 3000)),
        watermark_scale,
        "gaps between watermarks, in 10000ths of a node; auto: the unscaled machine's gaps"
    ),
    key!(
        "dirty_background_ratio",
        number(0, 100),
        config.dirty_background_ratio,
        "dirty pages of files, in percent of memory, at which the flusher starts"
    ),
    key!(
        "dirty_ratio",
        number(0, 100),
        config.dirty_ratio,
        "dirty pages of files, in percent of memory, at which writers are throttled"
    ),
    key!(
        "window_max",
        number(1, RUN_PAGES_MAX),
        config.window_max,
        "most pages that are read or mapped at once for a stream"
    ),
    key!(
        "large_pages",
        SWITCHES,
        config.large_pages,
        "whether blocks of 2 MiB are allocated, and swapped out and in as a whole"
    ),
    key!(
        "khugepaged_pages_to_scan",
        number(0, 1_000_000),
        config.khugepaged.pages_to_scan,
        "with large_pages: pages that khugepaged scans before it sleeps; 0: it does not run"
    ),
    key!("khugepaged_scan_sleep", MILLIS, config.khugepaged.scan_sleep, "time khugepaged sleeps"),
    key!(
        "khugepaged_max_ptes_none",
        number(0, MAX_PTES),
        config.khugepaged.max_ptes_none,
        "most absent pages of a block that khugepaged collapses (guards)"
    ),
    key!(
        "khugepaged_max_ptes_swap",
        number(0, MAX_PTES),
        config.khugepaged.max_ptes_swap,
        "most swapped-out pages, which are read in, of a block that khugepaged collapses"
    ),
    key!(
        "khugepaged_referenced_min",
        number(0, MAX_PTES + 1),
        config.khugepaged.referenced_min,
        "fewest resident and recently used pages of a block that khugepaged collapses"
    ),
    key!(
        "swappiness",
        number(0, SWAPPINESS_MAX),
        config.swappiness,
        "preference for swapping anonymous pages over evicting pages of files; 100: equal"
    ),
    key!(
        "shadows",
        SWITCHES,
        config.history.reclaim.shadows,
        "whether refaults of file pages are detected, and count as a cost of evicting file pages"
    ),
    key!(
        "kswapd_yields",
        SWITCHES,
        config.history.reclaim.kswapd_yields,
        "whether allocating threads evict pages while no CPU idles and swap is in memory"
    ),
    key!(
        "kswapd_writes",
        Auto(number(0, KSWAPD_WRITES_MAX)),
        config.kswapd_writes,
        "batches that a kswapd thread has in flight at once; 0: it waits for each"
    ),
    key!(
        "prefetch",
        SWITCHES,
        config.prefetch,
        "whether a thread reads ahead of streams, and reads pages that callers announce"
    ),
    key!(
        "file_readahead",
        number(0, FILE_WINDOW_MAX),
        config.file_readahead,
        "most pages of a readahead window of a file; 0: none"
    ),
    key!(
        "readahead_by",
        READAHEAD_BYS,
        config.history.readahead_by,
        "which thread reads windows of files ahead: a readahead thread, or the reader itself"
    ),
    key!(
        "readahead_threads",
        Auto(number(1, READAHEAD_THREADS_MAX)),
        config.readahead_threads,
        "readahead threads of each node; auto: one for 8 CPUs, up to 8"
    ),
    key!(
        "lru_shards",
        Auto(number(1, LRU_SHARDS_MAX)),
        config.lru_shards,
        "shards of a node's LRU lists, each with its own lock"
    ),
    key!(
        "direct_reclaim",
        number(DIRECT_RECLAIM_MIN, DIRECT_RECLAIM_MAX),
        config.history.reclaim.direct_reclaim,
        "pages that a direct reclaim frees of a node before it retries its allocation"
    ),
    key!(
        "direct_nodes",
        DIRECT_NODES,
        config.history.reclaim.direct_nodes,
        "nodes that a direct reclaim scans: nearest with reclaimable pages, or all, as in Linux"
    ),
    key!(
        "pcp_batch",
        Auto(number(1, PCP_BATCH_MAX)),
        config.history.pcp_batch,
        "frames that a CPU's free list gets or gives at a time, as up to Linux 4.18 (it holds six \
         times as many); auto: today's lists"
    ),
    key!(
        "zone_parts",
        Auto(number(1, ZONE_PARTS_MAX)),
        config.zone_parts,
        "parts of a node's free frames, each with its own lock"
    ),
    Key {
        name: "compact",
        help: "compaction for large blocks: off, as in a kernel of 2012, or today's (fast)",
        value: &COMPACT,
    },
    key!(
        "swap_cache",
        SWAP_CACHES,
        config.history.swap.cache,
        "locks of the swap cache: one per device, per 64 MiB, per 64 slots, or the cluster's lock"
    ),
    key!(
        "device_lock",
        DEVICE_LOCKS,
        config.history.swap.device_lock,
        "locks of a device's slots; slots: one lock for allocating and freeing slots"
    ),
    key!(
        "slot_cache",
        SWITCHES,
        config.history.swap.slot_cache,
        "whether CPUs allocate and free slots 64 at a time"
    ),
    key!(
        "scan_base",
        SCAN_BASES,
        config.history.swap.scan_base,
        "where the search for a slot starts when no cluster is free; none: there is no search"
    ),
    key!(
        "node_aware",
        SWITCHES,
        config.history.swap.node_aware,
        "whether devices of the CPU's node are used first among those of equal priority"
    ),
    key!(
        "writeback_tags",
        SWITCHES,
        config.history.swap.writeback_tags,
        "whether the swap cache's trees are tagged when writes begin and end"
    ),
    key!(
        "cache_batch",
        SWITCHES,
        config.history.swap.cache_batch,
        "whether a run of pages enters and leaves the swap cache under one lock"
    ),
    key!(
        "swap_in",
        SWAP_INS,
        config.history.swap.swap_in,
        "whether frames are in the swap cache while they are read"
    ),
    key!(
        "readahead",
        READAHEADS,
        config.readahead,
        "swap readahead: none, the next pages, the slots around; auto: by the device"
    ),
    key!("read_percent", number(0, 100), read_percent, "reads among 100 accesses"),
    key!("pattern", PATTERNS, pattern, "the order in which pages are visited"),
    key!("set", number(0.01, 16.0), set, "memory that all tasks use together, in parts of memory"),
    key!("ahead", number(0, 256), ahead, "accesses that pmbench announces in advance (prefetch)"),
    key!(
        "warm_up",
        number(0.0, 60.0),
        warm_up,
        "virtual seconds that pmbench runs before it is measured"
    ),
    key!(
        "way",
        READ_PATHS,
        read_path,
        "how streams read: through the page cache, or past it in blocks of 4 MiB"
    ),
    key!("span", SPANS, span, "when streams are measured: before the first reclaim, or after it"),
    key!(
        "anon",
        number(0.0, 16.0).of(", in parts of memory"),
        anon,
        "anonymous pages that four tasks use all the time beside streams"
    ),
    key!(
        "small",
        SWITCHES,
        small,
        "whether a small task beside streams needs a page each 200 us, and is timed"
    ),
    key!(
        "slab_order",
        Auto(SLAB_ORDERS),
        config.history.slab.order,
        "pages of a slab: up to 8, or up to 16; auto: by the number of CPUs"
    ),
    key!(
        "slab_cpu_partial",
        Auto(CPU_PARTIALS),
        config.history.slab.cpu_partial,
        "objects in a CPU's partial slabs: a multiple of 6 to 120, by object size"
    ),
    key!(
        "slab_node_partial",
        Auto(NODE_PARTIALS),
        config.history.slab.node_partial,
        "empty slabs that a node keeps: 5 to 10, or as many as it has CPUs"
    ),
    key!(
        "slab_sheaves",
        Auto(SWITCHES),
        config.slab.sheaves,
        "whether CPUs keep arrays of objects in front of slabs"
    ),
    key!(
        "work",
        Auto(NANOS),
        work,
        "time of an operation of mmap1 or hackbench, apart from its objects"
    ),
    key!(
        "grace",
        number(0.01, 1000.0).of(" ms"),
        grace,
        "length of the grace periods by which mmap1 defers its frees"
    ),
    key!(
        "compilers",
        number(0.01, 16.0).of(", in parts of memory"),
        compilers,
        "most anonymous memory of all compilers of highalloc together"
    ),
    key!(
        "kernel",
        number(0.0, 0.5).of(", in parts of memory"),
        kernel,
        "unmovable memory that the kernel keeps for the builds of highalloc"
    ),
    key!("kernel_left", number(0, 100), kernel_left, "percent of kernel left after the builds"),
    key!(
        "processes",
        PROCESSES,
        processes,
        "one process whose threads share the set, or a process with its own part for each task"
    ),
    key!(
        "scale",
        SCALE,
        scale,
        "divides memory and devices, not speeds; auto: 64, or more so that memory is at most 1 GiB"
    ),
    key!(
        "policy",
        POLICIES,
        policy,
        "which CPU runs next: by virtual time, or so as to find races (times then mean nothing)"
    ),
    key!(
        "recency",
        RECENCIES,
        recency,
        "how accesses are noticed: an accessed bit (guards), or unmapping of pages (page tables)"
    ),
    key!(
        "devices",
        Auto(Names("names of the machine's devices between commas")),
        devices,
        "swap devices; auto: all that the machine has for swap"
    ),
];

impl Key {
    /// What it accepts: "a, b or c".
    pub fn accepts(&self) -> String {
        let all = self.value.accepts();
        match &all[..] {
            [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => all.concat(),
        }
    }
}

impl Settings {
    /// Changes a setting, given as `key=value`.
    ///
    /// # Errors
    /// There is no such key, or it does not accept the value.
    pub fn set(&mut self, text: &str) -> Result<(), BadSetting> {
        let bad = |what: String, remedy: String| BadSetting { what, remedy };
        let parts = text.split_once('=');
        let (name, value) = parts
            .ok_or_else(|| bad(format!("'{text}' is not a setting"), "give KEY=VALUE".into()))?;
        let key = KEYS.iter().find(|key| key.name == name).ok_or_else(|| {
            let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            bad(format!("no setting is called '{name}'"), format!("use {}", names.join(", ")))
        })?;
        key.value.take(self, value).ok_or_else(|| {
            bad(format!("{name}: '{value}' is not accepted"), format!("give {}", key.accepts()))
        })
    }

    /// All keys and their values, as [`Settings::set`] accepts them.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        KEYS.iter().map(|key| (key.name, key.value.show(self))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::config::KswapdThreads;

    /// A value for every key that is not its default.
    const CHANGED: &[&str] = &[
        "kswapd_threads=4",
        "min_free=1000",
        "watermark_scale=50",
        "dirty_background_ratio=5",
        "dirty_ratio=50",
        "window_max=8",
        "large_pages=on",
        "khugepaged_pages_to_scan=512",
        "khugepaged_scan_sleep=20",
        "khugepaged_max_ptes_none=5",
        "khugepaged_max_ptes_swap=6",
        "khugepaged_referenced_min=256",
        "lru_shards=3",
        "direct_reclaim=24192",
        "direct_nodes=all",
        "pcp_batch=31",
        "zone_parts=5",
        "compact=skipuseless",
        "prefetch=off",
        "file_readahead=64",
        "readahead_by=reader",
        "readahead_threads=2",
        "kswapd_writes=3",
        "swappiness=100",
        "shadows=off",
        "kswapd_yields=off",
        "swap_cache=whole",
        "device_lock=whole",
        "slot_cache=on",
        "scan_base=per_cpu",
        "node_aware=off",
        "writeback_tags=on",
        "cache_batch=off",
        "swap_in=cached",
        "readahead=slot",
        "read_percent=0",
        "pattern=sequential",
        "set=0.5",
        "warm_up=1.5",
        "ahead=16",
        "way=direct",
        "span=filling",
        "anon=0.25",
        "small=on",
        "slab_order=large",
        "slab_cpu_partial=4x",
        "slab_node_partial=cpus",
        "slab_sheaves=on",
        "work=1000",
        "grace=2.5",
        "compilers=0.5",
        "kernel=0.2",
        "kernel_left=30",
        "processes=one",
        "scale=8",
        "policy=pct",
        "recency=unmapping",
        "devices=pmem0,pmem1",
    ];

    #[test]
    fn every_key_takes_what_it_shows() {
        let mut changed = Settings::default();
        for &text in CHANGED {
            let before = changed.shown();
            changed.set(text).expect(text);
            let new: Vec<_> = changed.shown().into_iter().filter(|p| !before.contains(p)).collect();
            let [(key, value)] = &new[..] else { panic!("{text} changed {new:?}") };
            assert_eq!(format!("{key}={value}"), text);
        }
        assert_eq!(changed.config.kswapd_threads, KswapdThreads::Fixed(4));
        let mut again = Settings::default();
        for (key, value) in changed.shown() {
            again.set(&format!("{key}={value}")).expect(key);
        }
        assert_eq!(again, changed);
        for (key, value) in Settings::default().shown() {
            again.set(&format!("{key}={value}")).expect(key);
        }
        assert_eq!(again, Settings::default());
    }

    #[test]
    fn what_cannot_be_says_what_can() {
        for (text, expected) in [
            ("kswapd_threads", "give KEY=VALUE"),
            ("kswapd=4", "use kswapd_threads, min_free"),
            ("kswapd_threads=17", "give 1 to 16, or auto"),
            ("kswapd_threads=many", "give 1 to 16, or auto"),
            ("swappiness=201", "give 0 to 200"),
            ("min_free=0", "give auto or 1 to"),
            ("set=NaN", "0.01 to 16"),
            ("scan_base=own", "none, shared or per_cpu"),
            ("warm_up=-1", "0 to 60"),
            ("pattern=zigzag", "uniform, normal, sequential or zipf"),
            ("scale=0", "auto or 1 to"),
            ("devices=", "names of the machine's devices"),
            ("=1", "use kswapd_threads"),
        ] {
            let mut settings = Settings::default();
            let bad = settings.set(text).expect_err(text).to_string();
            assert!(bad.contains(expected), "{text}: {bad}");
        }
    }
}
