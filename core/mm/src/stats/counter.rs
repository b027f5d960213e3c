//! The table of counters: one line each.

/// FNV-1a over the names, each ended by a byte that no name has.
const fn hash(names: &[&str]) -> u64 {
    let (mut hash, mut name) = (0xcbf2_9ce4_8422_2325, 0);
    while name < names.len() {
        let (bytes, mut at) = (names[name].as_bytes(), 0);
        while at <= bytes.len() {
            let byte = if at < bytes.len() { bytes[at] } else { b'\n' };
            hash = (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
            at += 1;
        }
        name += 1;
    }
    hash
}

/// Declares [`Counter`]: variant, name in reports, how it sums over processes, what it counts.
macro_rules! counters {
    ($($variant:ident $name:literal $kind:ident $doc:literal)*) => {
        /// A counter. Names are those of /proc/vmstat where the kernel counts the same.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $(#[doc = $doc] $variant,)* }

        impl Counter {
            /// All of them, in the order of their values.
            pub const ALL: [Counter; COUNTERS] = [$(Counter::$variant,)*];

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// Whether processes' values combine by maximum instead of sum.
            pub fn is_peak(self) -> bool {
                match self { $(Counter::$variant => stringify!($kind) == "peak",)* }
            }
        }

        /// Number of counters.
        pub const COUNTERS: usize = [$($name,)*].len();

        /// A hash of the names in their order: differs whenever counters are added, removed,
        /// renamed or moved.
        pub(super) const NAMES_HASH: u64 = hash(&[$($name,)*]);
    };
}

counters! {
    PgFault "pgfault" sum "Faults served, minor and major."
    PgMajFault "pgmajfault" sum "Faults that waited for a device read."
    PgDiscard "pgdiscard" sum "Pages whose contents were dropped: unmapped, freed, advised away."
    PgInherited "pginherited" sum "Pages with contents that a forked child began with."
    PgZero "pgzero" sum "Pages given out zeroed, at first touch."
    PgRefault "pgrefault_soft" sum "Pages mapped again from memory: unmapped, but not yet freed."
    PswpIn "pswpin" sum "Pages read from swap."
    PswpOut "pswpout" sum "Pages written to swap."
    SwapInIos "swpin_ios" sum "Device reads; one may carry 16 pages."
    SwapOutIos "swpout_ios" sum "Device writes; one may carry 16 pages."
    SwapInNanos "swpin_ns" sum "Time spent waiting for device reads."
    SwapOutNanos "swpout_ns" sum "Time spent waiting for device writes."
    PgFileIn "pgfile_in" sum "Pages read from files."
    PgFileOut "pgfile_out" sum "Pages written to files."
    FileInIos "file_in_ios" sum "Reads of files; one may carry 16 pages."
    FileOutIos "file_out_ios" sum "Writes of files; one may carry 16 pages."
    FileInNanos "file_in_ns" sum "Time spent waiting for reads of files."
    FileOutNanos "file_out_ns" sum "Time spent waiting for writes of files."
    Flushed "nr_flushed" sum "Changed pages of files that the flusher has written."
    DirtyThrottle "balance_dirty_throttle" sum "Waits for it: too many pages were changed."
    Dirty "nr_dirty" sum "Changed pages of files in memory, now."
    FileRa "file_ra" sum "Pages of files read ahead, or beside the one that faulted."
    FileRaHit "file_ra_hit" sum "Those of them that were used, as far as that can be seen."
    FileRaWasted "file_ra_wasted" sum "Those of them evicted unused, as far as that can be seen."
    SwapRa "swap_ra" sum "Pages brought in by readahead beside the one that faulted."
    SwapRaHit "swap_ra_hit" sum "Those of them that were used, as far as that can be seen."
    SwapRaWasted "swap_ra_wasted" sum "Those of them evicted unused, as far as that can be seen."
    SwapIoErrors "swap_io_errors" sum "Transfers that failed, but for writes without room."
    SwapWriteErrors "swap_write_errors" sum "Those of them that were writes, also of files."
    SwapRefused "swap_refused" sum "Pages that a device had slots for, but no room."
    PgDropClean "pgdrop_clean" sum "Pages freed without a write: clean, in their slot or file."
    PgShrunk "pgshrunk" sum "Pages that caches of objects gave back because memory was short."
    PgScanAnon "pgscan_anon" sum "Anonymous pages looked at for eviction."
    PgScanFile "pgscan_file" sum "Pages of files looked at for eviction."
    PgStealAnon "pgsteal_anon" sum "Anonymous pages freed."
    PgStealFile "pgsteal_file" sum "Pages of files freed."
    RefaultAnon "workingset_refault_anon" sum "Anonymous pages read again after eviction."
    RefaultFile "workingset_refault_file" sum "Pages of files read again after eviction."
    ActivateFile "workingset_activate_file" sum "Those of them that should have stayed."
    RestoreFile "workingset_restore_file" sum "Those of these that were active when evicted."
    PgScanKswapd "pgscan_kswapd" sum "Pages looked at by kswapd."
    PgScanDirect "pgscan_direct" sum "Pages looked at in direct reclaim."
    PgStealKswapd "pgsteal_kswapd" sum "Pages freed by kswapd."
    PgStealDirect "pgsteal_direct" sum "Pages freed in direct reclaim."
    PgActivate "pgactivate" sum "Pages moved to the active list because they were used again."
    PgDeactivate "pgdeactivate" sum "Pages moved from the active to the inactive list."
    PgRotated "pgrotated" sum "Pages put back because they could not be evicted then."
    CompactMigrateScanned "compact_migrate_scanned" sum "Frames looked at for pages to move."
    CompactFreeScanned "compact_free_scanned" sum "Frames looked at for free ones to move to."
    CompactIsolated "compact_isolated" sum "Pages, and free frames, taken by compaction."
    CompactMigrateIsolated "compact_migrate_isolated" sum "Pages of these."
    CompactFreeIsolated "compact_free_isolated" sum "Free frames of these."
    CompactStall "compact_stall" sum "Times an allocation compacted memory itself."
    CompactFail "compact_fail" sum "Times it had no block after that."
    CompactSuccess "compact_success" sum "Times it had one."
    CompactCapture "compact_capture" sum "Blocks that went to who made them, past the free lists."
    CompactDaemonWake "compact_daemon_wake" sum "Times kcompactd was asked for a block."
    CompactDaemonMigrateScanned "compact_daemon_migrate_scanned" sum "Frames kcompactd looked at."
    CompactDaemonFreeScanned "compact_daemon_free_scanned" sum "The same, for free ones."
    PgMigrateSuccess "pgmigrate_success" sum "Pages moved from one frame to another."
    PgMigrateFail "pgmigrate_fail" sum "Pages that were to be moved, but were in use."
    ThpMigrationSuccess "thp_migration_success" sum "Pages of an order moved, each whole."
    ThpMigrationFail "thp_migration_fail" sum "Those that were in use, or found no block."
    AllocStall "allocstall" sum "Direct reclaims: an allocation had to free pages itself."
    ThrottleDirect "pgscan_direct_throttle" sum "Direct reclaims that waited for kswapd first."
    ThrottleIsolated "pgscan_isolated_throttle" sum "Waits for pages in other threads' hands."
    AllocOom "alloc_oom" sum "Allocations that failed after everything was tried."
    KswapdHopeless "kswapd_hopeless" sum "Times a kswapd gave a node up: it could free nothing."
    PageOutRun "pageoutrun" sum "Times a kswapd was woken and balanced its node."
    KswapdNanos "kswapd_cpu_ns" sum "CPU time of all kswapd threads."
    KswapdGrown "kswapd_grown" sum "kswapd threads added because one node's were not enough."
    KswapdShrunk "kswapd_shrunk" sum "kswapd threads taken away: too many, or CPUs too few."
    KswapdPeak "kswapd_threads_peak" peak "Most kswapd threads of a node, in one process."
    HandlerNanos "handler_cpu_ns" sum "CPU time of the threads that serve faults."
    FaultWait "fault_waits" sum "Faults that waited for another thread at work on the page."
    MapRefused "map_refused" sum "Pages the platform could not map: dropped or protected meanwhile."
    ThpFaultAlloc "thp_fault_alloc" sum "Large pages given out zeroed, at first touch."
    ThpFaultFallback "thp_fault_fallback" sum "First touches that found no large block free."
    ThpSwpOut "thp_swpout" sum "Large pages swapped out whole."
    ThpSwpOutFallback "thp_swpout_fallback" sum "Large pages split because no cluster was free."
    FolioSwpOutFallback "folio_swpout_fallback" sum "Pages of many frames kept: no run of slots."
    ThpSwpIn "thp_swpin" sum "Large pages swapped in whole."
    ThpSwpInFallback "thp_swpin_fallback" sum "Pages of large ones swapped in without the others."
    ThpSplitPage "thp_split_page" sum "Large pages split."
    ThpColdSplit "thp_cold_split_page" sum "Those of them of which fewer than half were in use."
    ThpUnderusedSplit "thp_underused_split_page" sum "Those of them that were largely zeros."
    ThpCollapseAlloc "thp_collapse_alloc" sum "Blocks for pages to be made a large one of."
    ThpCollapseAllocFailed "thp_collapse_alloc_failed" sum "Times there was none."
    ThpScanExceedNone "thp_scan_exceed_none_pte" sum "Blocks with too many absent pages."
    ThpScanExceedSwap "thp_scan_exceed_swap_pte" sum "Blocks with too many swapped pages."
    KhugepagedCollapsed "khugepaged_pages_collapsed" sum "Large pages made of single ones."
    KhugepagedFullScans "khugepaged_full_scans" sum "Times khugepaged has been through all spaces."
    PsiSome10 "psi_some_avg10" peak "Part of 10 s in which threads stalled, in 0.01 %."
    PsiSome60 "psi_some_avg60" peak "Part of 60 s in which threads stalled, in 0.01 %."
    PsiSome300 "psi_some_avg300" peak "Part of 300 s in which threads stalled, in 0.01 %."
    PsiSomeMicros "psi_some_total_us" sum "Time in which threads stalled."
    PsiFull10 "psi_full_avg10" peak "Part of 10 s in which nothing else ran, in 0.01 %."
    PsiFull60 "psi_full_avg60" peak "Part of 60 s in which nothing else ran, in 0.01 %."
    PsiFull300 "psi_full_avg300" peak "Part of 300 s in which nothing else ran, in 0.01 %."
    PsiFullMicros "psi_full_total_us" sum "Time in which threads stalled and nothing else ran."
    Resident "nr_resident" sum "Frames in use, now."
    ResidentPeak "nr_resident_peak" peak "Most frames in use or at hand on a CPU, of each node."
    Frames "nr_frames" peak "Frames of the budget of one process."
    SlotsUsed "nr_swap_used" sum "Swap slots in use, now."
    SlotsTotal "nr_swap_total" peak "Swap slots of one process."
    PagedPeak "paged_peak_pages" peak "Most pages of spaces with contents, in one process."
    MetaBytes "meta_bytes" peak "Memory of the manager itself, in one process."
    ElsewhereBytes "elsewhere_bytes" peak "Resident memory of one process not paged by the manager."
    ElsewhereBrk "elsewhere_brk_bytes" peak "Of these: the break, with the C library's malloc."
    ElsewhereStacks "elsewhere_stacks_bytes" peak "Of these: stacks of threads."
    ElsewhereStatic "elsewhere_static_bytes" peak "Of these: variables of programs and libraries."
    ElsewhereFiles "elsewhere_files_bytes" peak "Of these: programs, libraries, mapped files."
    ElsewhereShared "elsewhere_shared_bytes" peak "Of these: MAP_SHARED, memfd, tmpfs, System V."
    ElsewhereHuge "elsewhere_huge_bytes" peak "Of these: pages of hugetlbfs."
    ElsewhereExecutable "elsewhere_executable_bytes" peak "Of these: anonymous and executable."
    ElsewhereOther "elsewhere_other_bytes" peak "Of these: everything else that is anonymous."
    HighWaterBytes "vm_hwm_bytes" peak "Peak resident set (VmHWM) of one process."
    ArenaBytes "arena_bytes" peak "Memory of the arena that was ever used, in one process."
    RamDeviceBytes "ram_device_bytes" peak "Memory held by RAM swap devices, in one process."
    ZramPages "zram_pages" sum "Pages held compressed, when they were most, of each process."
    ZramSameFilled "zram_same_filled" sum "Those of them that were one word over and over."
    ZramIncompressible "zram_incompressible" sum "Those of them stored as they are."
    ZramBytes "zram_bytes" sum "Memory that they took."
    TierFast "tier_fast" sum "Pages in fast levels, when tiers held most, of each process."
    TierSlow "tier_slow" sum "Pages in slow levels, at that moment."
    TierWriteback "tier_writeback" sum "Pages moved to a slow level because they were cold."
    TierWritebackIos "tier_writeback_ios" sum "Device writes that did so."
    TierWritebackFailures "tier_writeback_failures" sum "Pages that such a write failed for."
    TierSlowReads "tier_slow_reads" sum "Pages read from a slow level."
    TierSlowWrites "tier_slow_writes" sum "Pages written there at once: the fast level was full."
    Processes "processes" sum "Processes that were served."
    OutOfMemory "oom" sum "Processes ended because memory and swap were full."
    HelperNanos "helper_nanos" sum "CPU time of the processes that have the manager's threads."
    ProcessEnded "processes_ended" sum "Processes whose last figures these are."
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_different_and_can_be_keys() {
        let names: BTreeSet<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), COUNTERS);
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        assert!(names.iter().all(|name| name.bytes().all(plain)), "{names:?}");
    }

    #[test]
    fn the_hash_notices_what_changes_the_layout() {
        let hashes = [
            hash(&["ab", "c"]),
            hash(&["c", "ab"]),
            hash(&["a", "bc"]),
            hash(&["ab"]),
            hash(&["ab", "c", "d"]),
        ];
        assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), hashes.len());
    }
}
