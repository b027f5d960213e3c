//! Keys of `--set` and their values.

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
    "lru_lanes=3",
    "direct_reclaim=24192",
    "zone_parts=5",
    "compact=skipuseless",
    "prefetch=off",
    "file_readahead=64",
    "readahead_by=reader",
    "readahead_threads=2",
    "kswapd_writes=3",
    "swappiness=100",
    "shadows=off",
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
    for (text, told) in [
        ("kswapd_threads", "give KEY=VALUE"),
        ("kswapd=4", "use kswapd_threads, min_free"),
        ("kswapd_threads=17", "give 1 to 16, or auto"),
        ("kswapd_threads=many", "give 1 to 16, or auto"),
        ("swappiness=201", "give 0 to 200"),
        ("min_free=0", "give auto, or"),
        ("set=NaN", "from 0.01 to 16"),
        ("scan_base=own", "none, shared or per_cpu"),
        ("warm_up=-1", "from 0 to 60"),
        ("pattern=zigzag", "uniform, normal or sequential"),
        ("scale=0", "a number from 1"),
        ("devices=", "names of the machine's devices"),
        ("=1", "use kswapd_threads"),
    ] {
        let mut settings = Settings::default();
        let bad = settings.set(text).expect_err(text).to_string();
        assert!(bad.contains(told), "{text}: {bad}");
    }
}
