//! Keys of large pages, and of khugepaged.

use super::Key;
use super::words::*;
use highwater_mm::config::MAX_PTES;
use highwater_units::Nanos;

/// Nanoseconds of a millisecond.
const MILLI: u64 = 1_000_000;

pub(super) const LARGE_PAGES: Key = Key {
    name: "large_pages",
    values: "off or on",
    help: "whether blocks of 2 MiB are given out, swapped out and in whole",
    take: |s, text| {
        s.config.large_pages = choice(text, &SWITCHES)?;
        Some(())
    },
    show: |s| name_in(&SWITCHES, s.config.large_pages),
};

pub(super) const PAGES_TO_SCAN: Key = Key {
    name: "khugepaged_pages_to_scan",
    values: "0 to 1000000",
    help: "with large_pages: pages that khugepaged looks at before it sleeps; 0: it does not run",
    take: |s, text| {
        s.config.khugepaged.pages_to_scan = number(text, 0..=1_000_000)?;
        Some(())
    },
    show: |s| s.config.khugepaged.pages_to_scan.to_string(),
};

pub(super) const SCAN_SLEEP: Key = Key {
    name: "khugepaged_scan_sleep",
    values: "1 to 1000000 ms",
    help: "for how long it sleeps then",
    take: |s, text| {
        s.config.khugepaged.scan_sleep = Nanos(number(text, 1..=1_000_000)? * MILLI);
        Some(())
    },
    show: |s| (s.config.khugepaged.scan_sleep.0 / MILLI).to_string(),
};

pub(super) const MAX_PTES_NONE: Key = Key {
    name: "khugepaged_max_ptes_none",
    values: "0 to 511",
    help: "absent pages of a block that it collapses, at most (guards)",
    take: |s, text| {
        s.config.khugepaged.max_ptes_none = number(text, 0..=MAX_PTES)?;
        Some(())
    },
    show: |s| s.config.khugepaged.max_ptes_none.to_string(),
};

pub(super) const MAX_PTES_SWAP: Key = Key {
    name: "khugepaged_max_ptes_swap",
    values: "0 to 511",
    help: "swapped pages of it, at most: they are read",
    take: |s, text| {
        s.config.khugepaged.max_ptes_swap = number(text, 0..=MAX_PTES)?;
        Some(())
    },
    show: |s| s.config.khugepaged.max_ptes_swap.to_string(),
};

pub(super) const REFERENCED_MIN: Key = Key {
    name: "khugepaged_referenced_min",
    values: "0 to 512",
    help: "pages of it that are in use, at least",
    take: |s, text| {
        s.config.khugepaged.referenced_min = number(text, 0..=MAX_PTES + 1)?;
        Some(())
    },
    show: |s| s.config.khugepaged.referenced_min.to_string(),
};
