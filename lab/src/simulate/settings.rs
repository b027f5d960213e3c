//! What `--set key=value` can change, as one table.
//!
//! ```text
//! "kswapd_threads=4" ── Settings::set ──> KEYS: the key's parser ──> Settings
//!                                               its text again  <── Settings::shown
//! ```

mod builds;
mod large;
mod objects;
mod streams;
mod words;

use crate::workload::pattern::Pattern;
use crate::workload::streams::{Span, Way};
use highwater_mm::Config;
use highwater_mm::config::history::{DIRECT_RECLAIM_MAX, DIRECT_RECLAIM_MIN};
use highwater_mm::config::{
    FILE_WINDOW_MAX, KSWAPD_WRITES_MAX, LRU_SHARDS_MAX, READAHEAD_THREADS_MAX, SWAPPINESS_MAX,
    ZONE_PARTS_MAX,
};
use highwater_platform::Recency;
use highwater_sim::Policy;
use highwater_units::{Nanos, RUN_PAGES_MAX};
use std::fmt;
use words::*;

/// How much of a machine's memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A 64th, or less: at most a GiB, as far as the machine can be made that small.
    Auto,
    /// One part in so many.
    By(u64),
}

/// Whose memory the tasks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// All tasks are threads of one process, and use all of its memory.
    One,
    /// Each task is a process and has an equal part of the set.
    PerTask,
}

/// All settings of a simulated workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The manager's; `min_free` and `watermark_scale` are those below.
    pub config: Config,
    /// Frames kept free; none for those of the whole machine (`Machine::watermarks`).
    pub min_free: Option<u32>,
    /// Gaps between the watermarks, in 10000ths of a node; none likewise.
    pub watermark_scale: Option<u32>,
    /// Of 100 accesses, how many are loads.
    pub read_percent: u32,
    /// The order of pages.
    pub pattern: Pattern,
    /// The set, in parts of memory.
    pub set: f64,
    /// Seconds that pmbench runs before it is measured.
    pub warm_up: f64,
    /// How many accesses before it is made pmbench says which page it will use.
    pub ahead: usize,
    /// How streams read files.
    pub way: Way,
    /// What of streams is measured.
    pub span: Span,
    /// Anonymous pages that are in use beside streams, in parts of memory.
    pub anon: f64,
    /// Whether a small task beside streams needs pages.
    pub small: bool,
    /// What an operation of workloads of objects takes beside them; none for their own.
    pub work: Option<Nanos>,
    /// Milliseconds from one end of a grace period to the next.
    pub grace: f64,
    /// Memory of all compilers beside large blocks, at most, in parts of memory.
    pub compilers: f64,
    /// The kernel's memory for their builds, in parts of memory.
    pub kernel: f64,
    /// Percent of it that stays when the builds have ended.
    pub kernel_left: u64,
    /// Whose it is.
    pub processes: Processes,
    /// How much memory.
    pub scale: Scale,
    /// Who runs next.
    pub policy: Policy,
    /// How accesses are noticed, and how pages are reached: through guards, or through page tables.
    pub recency: Recency,
    /// Names of swap devices; none for all that the machine has for swap.
    pub devices: Option<Vec<String>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            config: Config::default(),
            min_free: None,
            watermark_scale: None,
            read_percent: 80,
            pattern: Pattern::Uniform,
            set: 2.0,
            warm_up: 0.0,
            ahead: 0,
            way: Way::Cached,
            span: Span::Full,
            anon: 0.0,
            small: false,
            work: None,
            grace: 10.0,
            compilers: 0.2,
            kernel: 0.1,
            kernel_left: 10,
            processes: Processes::PerTask,
            scale: Scale::Auto,
            policy: Policy::SmallestClock,
            recency: Recency::AccessedBit,
            devices: None,
        }
    }
}

/// A setting that cannot be: what is wrong, and what to do. Each is part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// A key of `--set`.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub values: &'static str,
    /// What it is, on one line.
    pub help: &'static str,
    /// Takes a value; `None` if it is none of `values`.
    take: fn(&mut Settings, &str) -> Option<()>,
    /// The value as one would set it.
    show: fn(&Settings) -> String,
}

/// All keys.
pub const KEYS: &[Key] = &[
    Key {
        name: "kswapd_threads",
        values: "1 to 16, or auto",
        help: "kswapd threads of each node; auto: as many as it takes, while CPUs idle",
        take: |s, text| {
            s.config.kswapd_threads = text.parse().ok()?;
            Some(())
        },
        show: |s| s.config.kswapd_threads.to_string(),
    },
    Key {
        name: "min_free",
        values: "auto, or a number of pages",
        help: "pages kept free in all; auto: those of the whole machine",
        take: |s, text| {
            s.min_free = auto_or(text, 1..=u32::MAX)?;
            Some(())
        },
        show: |s| auto(s.min_free),
    },
    Key {
        name: "watermark_scale",
        values: "auto, or 1 to 3000",
        help: "gaps between watermarks, in 10000ths of a node; auto: of the whole machine",
        take: |s, text| {
            s.watermark_scale = auto_or(text, 1..=3000)?;
            Some(())
        },
        show: |s| auto(s.watermark_scale),
    },
    Key {
        name: "dirty_background_ratio",
        values: "0 to 100",
        help: "percent of memory for files' pages that may be changed before they are written",
        take: |s, text| {
            s.config.dirty_background_ratio = number(text, 0..=100)?;
            Some(())
        },
        show: |s| s.config.dirty_background_ratio.to_string(),
    },
    Key {
        name: "dirty_ratio",
        values: "0 to 100",
        help: "percent of it beyond which who changes more waits",
        take: |s, text| {
            s.config.dirty_ratio = number(text, 0..=100)?;
            Some(())
        },
        show: |s| s.config.dirty_ratio.to_string(),
    },
    Key {
        name: "window_max",
        values: "1 to 16",
        help: "pages brought in or mapped at once for a stream",
        take: |s, text| {
            s.config.window_max = number(text, 1..=RUN_PAGES_MAX)?;
            Some(())
        },
        show: |s| s.config.window_max.to_string(),
    },
    large::LARGE_PAGES,
    large::PAGES_TO_SCAN,
    large::SCAN_SLEEP,
    large::MAX_PTES_NONE,
    large::MAX_PTES_SWAP,
    large::REFERENCED_MIN,
    Key {
        name: "swappiness",
        values: "0 to 200",
        help: "how willingly anonymous pages are swapped beside files' pages; 100: as willingly",
        take: |s, text| {
            s.config.swappiness = number(text, 0..=SWAPPINESS_MAX)?;
            Some(())
        },
        show: |s| s.config.swappiness.to_string(),
    },
    Key {
        name: "shadows",
        values: "off or on",
        help: "whether pages that come back after eviction are noted, and cost their kind",
        take: |s, text| {
            s.config.history.reclaim.shadows = choice(text, &SWITCHES)?;
            Some(())
        },
        show: |s| name_in(&SWITCHES, s.config.history.reclaim.shadows),
    },
    Key {
        name: "kswapd_writes",
        values: "auto, or 0 to 32",
        help: "batches that a kswapd thread has under write at once; 0: it waits for each",
        take: |s, text| {
            s.config.kswapd_writes = auto_or(text, 0..=KSWAPD_WRITES_MAX)?;
            Some(())
        },
        show: |s| auto(s.config.kswapd_writes),
    },
    Key {
        name: "prefetch",
        values: "off or on",
        help: "whether a thread reads what streams and callers are about to use",
        take: |s, text| {
            s.config.prefetch = choice(text, &SWITCHES)?;
            Some(())
        },
        show: |s| name_in(&SWITCHES, s.config.prefetch),
    },
    Key {
        name: "file_readahead",
        values: "0 to 256",
        help: "most pages of a window read ahead of a file's readers; 0: none",
        take: |s, text| {
            s.config.file_readahead = number(text, 0..=FILE_WINDOW_MAX)?;
            Some(())
        },
        show: |s| s.config.file_readahead.to_string(),
    },
    Key {
        name: "readahead_by",
        values: "threads or reader",
        help: "who reads ahead of a file's readers: threads, or they themselves",
        take: |s, text| {
            s.config.history.readahead_by = choice(text, &READAHEAD_BYS)?;
            Some(())
        },
        show: |s| name_in(&READAHEAD_BYS, s.config.history.readahead_by),
    },
    Key {
        name: "readahead_threads",
        values: "auto, or 1 to 16",
        help: "threads of each node that read ahead; auto: one for 8 CPUs, up to 8",
        take: |s, text| {
            s.config.readahead_threads = auto_or(text, 1..=READAHEAD_THREADS_MAX)?;
            Some(())
        },
        show: |s| auto(s.config.readahead_threads),
    },
    Key {
        name: "lru_lanes",
        values: "auto, or 1 to 64",
        help: "into how many lanes, with a lock each, a node's LRU lists are divided",
        take: |s, text| {
            s.config.lru_shards = auto_or(text, 1..=LRU_SHARDS_MAX)?;
            Some(())
        },
        show: |s| auto(s.config.lru_shards),
    },
    Key {
        name: "direct_reclaim",
        values: "32 to 1048576",
        help: "pages that a direct reclaim frees before it goes back to its allocation",
        take: |s, text| {
            s.config.history.reclaim.direct_reclaim =
                number(text, DIRECT_RECLAIM_MIN..=DIRECT_RECLAIM_MAX)?;
            Some(())
        },
        show: |s| s.config.history.reclaim.direct_reclaim.to_string(),
    },
    Key {
        name: "zone_parts",
        values: "auto, or 1 to 64",
        help: "into how many parts, with a lock each, a node's free frames are divided",
        take: |s, text| {
            s.config.zone_parts = auto_or(text, 1..=ZONE_PARTS_MAX)?;
            Some(())
        },
        show: |s| auto(s.config.zone_parts),
    },
    Key {
        name: "compact",
        values: "off, vanilla, lesslock, revert, cachefail, skipuseless or fast",
        help: "how memory is compacted for large blocks: the kernels of 2012, or the best known",
        take: |s, text| {
            (s.config.compact, s.config.history.compact) = choice(text, &COMPACTS)?;
            Some(())
        },
        show: |s| name_in(&COMPACTS, (s.config.compact, s.config.history.compact)),
    },
    Key {
        name: "swap_cache",
        values: "whole, trunk, leaf or cluster",
        help: "the swap cache: a lock for a device, for 64 MiB, for 64 slots, or the cluster's",
        take: |s, text| {
            s.config.history.swap.cache = choice(text, &SWAP_CACHES)?;
            Some(())
        },
        show: |s| name_in(&SWAP_CACHES, s.config.history.swap.cache),
    },
    Key {
        name: "device_lock",
        values: "whole, slots or cluster",
        help: "what guards the slots of a device; slots: a lock to take and give back",
        take: |s, text| {
            s.config.history.swap.device_lock = choice(text, &DEVICE_LOCKS)?;
            Some(())
        },
        show: |s| name_in(&DEVICE_LOCKS, s.config.history.swap.device_lock),
    },
    Key {
        name: "slot_cache",
        values: "off or on",
        help: "whether CPUs take and give back slots 64 at a time",
        take: |s, text| {
            s.config.history.swap.slot_cache = choice(text, &SWITCHES)?;
            Some(())
        },
        show: |s| name_in(&SWITCHES, s.config.history.swap.slot_cache),
    },
    Key {
        name: "scan_base",
        values: "none, shared or per_cpu",
        help: "where slots are looked for when no cluster is free; none: lists know",
        take: |s, text| {
            s.config.history.swap.scan_base = choice(text, &SCAN_BASES)?;
            Some(())
        },
        show: |s| name_in(&SCAN_BASES, s.config.history.swap.scan_base),
    },
    Key {
        name: "node_aware",
        values: "off or on",
        help: "whether devices of the CPU's node come first among those of equal priority",
        take: |s, text| {
            s.config.history.swap.node_aware = choice(text, &SWITCHES)?;
            Some(())
        },
        show: |s| name_in(&SWITCHES, s.config.history.swap.node_aware),
    },
    Key {
        name: "writeback_tags",
        values: "off or on",
        help: "whether trees of the swap cache are told of writes as they begin and end",
        take: |s, text| {
            s.config.history.swap.writeback_tags = choice(text, &SWITCHES)?;
            Some(())
        },
        show: |s| name_in(&SWITCHES, s.config.history.swap.writeback_tags),
    },
    Key {
        name: "cache_batch",
        values: "off or on",
        help: "whether a run of pages enters and leaves the swap cache under one lock",
        take: |s, text| {
            s.config.history.swap.cache_batch = choice(text, &SWITCHES)?;
            Some(())
        },
        show: |s| name_in(&SWITCHES, s.config.history.swap.cache_batch),
    },
    Key {
        name: "swap_in",
        values: "direct or cached",
        help: "whether frames that are read are in the swap cache meanwhile",
        take: |s, text| {
            s.config.history.swap.swap_in = choice(text, &SWAP_INS)?;
            Some(())
        },
        show: |s| name_in(&SWAP_INS, s.config.history.swap.swap_in),
    },
    Key {
        name: "readahead",
        values: "off, virtual, slot or auto",
        help: "pages read along: none, those after it, in slots around it; auto: by the device",
        take: |s, text| {
            s.config.readahead = choice(text, &READAHEADS)?;
            Some(())
        },
        show: |s| name_in(&READAHEADS, s.config.readahead),
    },
    Key {
        name: "read_percent",
        values: "0 to 100",
        help: "of 100 accesses, how many read",
        take: |s, text| {
            s.read_percent = number(text, 0..=100)?;
            Some(())
        },
        show: |s| s.read_percent.to_string(),
    },
    Key {
        name: "pattern",
        values: "uniform, normal or sequential",
        help: "the order in which pages are visited",
        take: |s, text| {
            s.pattern = choice(text, &PATTERNS)?;
            Some(())
        },
        show: |s| name_in(&PATTERNS, s.pattern),
    },
    Key {
        name: "set",
        values: "a number from 0.01 to 16",
        help: "memory the tasks use together, in parts of the machine's",
        take: |s, text| {
            s.set = number(text, 0.01..=16.0)?;
            Some(())
        },
        show: |s| s.set.to_string(),
    },
    Key {
        name: "ahead",
        values: "0 to 256",
        help: "how many accesses before it is made pmbench says which page it will use",
        take: |s, text| {
            s.ahead = number(text, 0..=256)?;
            Some(())
        },
        show: |s| s.ahead.to_string(),
    },
    Key {
        name: "warm_up",
        values: "a number from 0 to 60",
        help: "virtual seconds that pmbench runs before it is measured",
        take: |s, text| {
            s.warm_up = number(text, 0.0..=60.0)?;
            Some(())
        },
        show: |s| s.warm_up.to_string(),
    },
    streams::WAY,
    streams::SPAN,
    streams::ANON,
    streams::SMALL,
    objects::SLAB_ORDER,
    objects::SLAB_CPU_PARTIAL,
    objects::SLAB_NODE_PARTIAL,
    objects::SLAB_SHEAVES,
    objects::WORK,
    objects::GRACE,
    builds::COMPILERS,
    builds::KERNEL,
    builds::KERNEL_LEFT,
    Key {
        name: "processes",
        values: "one or per_task",
        help: "one process of threads that share the set, or a process and a part for each task",
        take: |s, text| {
            s.processes = choice(text, &PROCESSES)?;
            Some(())
        },
        show: |s| name_in(&PROCESSES, s.processes),
    },
    Key {
        name: "scale",
        values: "auto, or a number from 1",
        help: "divides memory and devices, not speeds; auto: 64, or more for at most 1 GiB",
        take: |s, text| {
            s.scale = auto_or(text, 1..=u64::MAX)?.map_or(Scale::Auto, Scale::By);
            Some(())
        },
        show: |s| match s.scale {
            Scale::Auto => AUTO.into(),
            Scale::By(by) => by.to_string(),
        },
    },
    Key {
        name: "policy",
        values: "clock, random, round_robin or pct",
        help: "who runs next: by virtual time, or to find races (figures then mean nothing)",
        take: |s, text| {
            s.policy = choice(text, &POLICIES)?;
            Some(())
        },
        show: |s| match s.policy {
            Policy::SmallestClock => "clock".into(),
            Policy::Random { .. } => "random".into(),
            Policy::RoundRobin { .. } => "round_robin".into(),
            Policy::Pct { .. } => "pct".into(),
        },
    },
    Key {
        name: "recency",
        values: "accessed_bit or unmapping",
        help: "pages are reached through guards, or page tables that keep no accessed bits",
        take: |s, text| {
            s.recency = choice(text, &RECENCIES)?;
            Some(())
        },
        show: |s| name_in(&RECENCIES, s.recency),
    },
    Key {
        name: "devices",
        values: "auto, or names of the machine's devices between commas",
        help: "where pages are swapped to; auto: all that the machine has for swap",
        take: |s, text| {
            let names: Vec<String> = text.split(',').map(str::to_owned).collect();
            let sound = names.iter().all(|name| !name.is_empty());
            s.devices = (text != AUTO).then_some(names);
            sound.then_some(())
        },
        show: |s| s.devices.as_ref().map_or(AUTO.into(), |names| names.join(",")),
    },
];

impl Settings {
    /// Changes a setting, given as `key=value`.
    ///
    /// # Errors
    /// No such key, or no such value.
    pub fn set(&mut self, text: &str) -> Result<(), BadSetting> {
        let bad = |what: String, remedy: String| Err(BadSetting { what, remedy });
        let Some((name, value)) = text.split_once('=') else {
            return bad(format!("'{text}' is no setting"), "give KEY=VALUE".into());
        };
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            return bad(
                format!("no setting is called '{name}'"),
                format!("use {}", names.join(", ")),
            );
        };
        match (key.take)(self, value) {
            Some(()) => Ok(()),
            None => bad(format!("{name}: '{value}' cannot be"), format!("give {}", key.values)),
        }
    }

    /// All keys and their values, as one would set them.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        KEYS.iter().map(|key| (key.name, (key.show)(self))).collect()
    }
}

#[cfg(test)]
mod tests;
