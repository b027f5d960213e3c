//! The table of counters: one line each. Pages are of 4 KiB; a name in a description is that of
//! another counter. `Elsewhere:` marks a part of elsewhere_bytes.

/// FNV-1a over the names, with a newline after each.
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

/// Declares [`Counter`]: variant, name in reports, how processes combine (sum, peak), meaning.
macro_rules! counters {
    ($($variant:ident $name:literal $kind:ident $doc:literal)*) => {
        /// A counter. Where the kernel has the counter, the name is that of /proc/vmstat.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $(#[doc = $doc] $variant,)* }

        impl Counter {
            /// All counters, in the order of their values.
            pub const ALL: [Counter; COUNTERS] = [$(Counter::$variant,)*];

            /// A hash of the names in their order: differs whenever counters are added, removed,
            /// renamed or moved. For layouts that are made of counters.
            pub const NAMES_HASH: u64 = hash(&[$($name,)*]);

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// What it counts, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Counter::$variant => $doc,)* }
            }

            /// Whether processes' values combine by maximum instead of sum.
            pub fn is_peak(self) -> bool {
                match self { $(Counter::$variant => stringify!($kind) == "peak",)* }
            }
        }

        /// Number of counters.
        pub const COUNTERS: usize = [$($name,)*].len();
    };
}

counters! {
    PgFault "pgfault" sum "Faults served, minor and major."
    PgMajFault "pgmajfault" sum "Faults that waited for a device read."
    PgDiscard "pgdiscard" sum "Pages dropped with their contents: unmapped, freed, MADV_DONTNEED."
    PgInherited "pginherited" sum "Pages with contents that forked children inherited."
    PgZero "pgzero" sum "Pages zeroed at their first touch."
    PgRefault "pgrefault_soft" sum "Pages mapped again from memory: unmapped, but not evicted."
    PswpIn "pswpin" sum "Pages read from swap."
    PswpOut "pswpout" sum "Pages written to swap."
    SwapInIos "swpin_ios" sum "Reads from swap devices, each of up to 16 pages or a block."
    SwapOutIos "swpout_ios" sum "Writes to swap devices, each of up to 16 pages or a block."
    SwapInNanos "swpin_ns" sum "Time waited for reads from swap devices, ns."
    SwapOutNanos "swpout_ns" sum "Time waited for writes to swap devices, ns."
    PgFileIn "pgfile_in" sum "Pages read from files."
    PgFileOut "pgfile_out" sum "Pages written to files."
    FileInIos "file_in_ios" sum "Reads of files, each of up to 16 pages."
    FileOutIos "file_out_ios" sum "Writes of files, each of up to 16 pages."
    FileInNanos "file_in_ns" sum "Time waited for reads of files, ns."
    FileOutNanos "file_out_ns" sum "Time waited for writes of files, ns."
    Flushed "nr_flushed" sum "Dirty pages of files written by the flusher."
    DirtyThrottle "balance_dirty_throttle" sum "Writers throttled: too many dirty pages."
    Dirty "nr_dirty" sum "Dirty pages of files in memory, now."
    FileRa "file_ra" sum "Pages of files read by readahead or around a fault."
    FileRaHit "file_ra_hit" sum "Pages of file_ra known to have been used."
    FileRaWasted "file_ra_wasted" sum "Pages of file_ra evicted and not known to have been used."
    SwapRa "swap_ra" sum "Pages swapped in by readahead or around a fault."
    SwapRaHit "swap_ra_hit" sum "Pages of swap_ra known to have been used."
    SwapRaWasted "swap_ra_wasted" sum "Pages of swap_ra evicted and not known to have been used."
    SwapRaPointers "swap_ra_pointers" sum "Pages requested because a page of a stream names them."
    SwapIoErrors "swap_io_errors" sum "Failed transfers, without writes refused for lack of room."
    SwapWriteErrors "swap_write_errors" sum "Failed writes among swap_io_errors, swap and files."
    PgPoisoned "pgpoisoned" sum "Pages lost because they could not be read; accesses raise SIGBUS."
    SwapRefused "swap_refused" sum "Pages that a device with free slots refused for lack of room."
    SwapBusy "swap_busy" sum "Pages turned away at their slots: one of several servers was silent."
    PgDropClean "pgdrop_clean" sum "Pages evicted without a write: clean, in their slot or file."
    PgShrunk "pgshrunk" sum "Pages that caches of objects freed because memory was short."
    PgScanAnon "pgscan_anon" sum "Anonymous pages scanned for eviction."
    PgScanFile "pgscan_file" sum "Pages of files scanned for eviction."
    PgStealAnon "pgsteal_anon" sum "Anonymous pages reclaimed."
    PgStealFile "pgsteal_file" sum "Pages of files reclaimed."
    RefaultAnon "workingset_refault_anon" sum "Anonymous pages read again after their eviction."
    RefaultFile "workingset_refault_file" sum "Pages of files read again after their eviction."
    ActivateAnon "workingset_activate_anon" sum "Pages read from swap that went to the active list \
        because they were evicted not long ago."
    KeepAnon "workingset_keep_anon" sum "Pages that a fault read from swap and that \
        displaced no active page, because pages are used in a loop longer than memory."
    ActivateFile "workingset_activate_file" sum "Refaults of files that went to the active list."
    RestoreFile "workingset_restore_file" sum "Activated refaults of pages evicted when active."
    PgScanKswapd "pgscan_kswapd" sum "Pages scanned by kswapd."
    PgScanDirect "pgscan_direct" sum "Pages scanned by direct reclaim."
    PgStealKswapd "pgsteal_kswapd" sum "Pages reclaimed by kswapd."
    PgStealDirect "pgsteal_direct" sum "Pages reclaimed by direct reclaim."
    PgActivate "pgactivate" sum "Pages moved to the active list because they were used again."
    PgDeactivate "pgdeactivate" sum "Pages moved from the active to the inactive list."
    PgRotated "pgrotated" sum "Pages put back on a list because their eviction failed."
    CompactMigrateScanned "compact_migrate_scanned" sum "Frames scanned for pages to migrate."
    CompactFreeScanned "compact_free_scanned" sum "Frames scanned for free ones to migrate to."
    CompactIsolated "compact_isolated" sum "Pages and free frames isolated by compaction."
    CompactMigrateIsolated "compact_migrate_isolated" sum "Pages isolated by compaction."
    CompactFreeIsolated "compact_free_isolated" sum "Free frames isolated by compaction."
    CompactStall "compact_stall" sum "Allocations that compacted memory themselves."
    CompactFail "compact_fail" sum "Direct compactions after which the allocation got no block."
    CompactSuccess "compact_success" sum "Direct compactions after which the allocation got one."
    CompactCapture "compact_capture" sum "Blocks that went directly to the compacting allocation."
    CompactDaemonWake "compact_daemon_wake" sum "Wake-ups of kcompactd for a block."
    CompactDaemonMigrateScanned "compact_daemon_migrate_scanned" sum "Frames kcompactd looked at."
    CompactDaemonFreeScanned "compact_daemon_free_scanned" sum "Free frames kcompactd scanned for."
    PgMigrateSuccess "pgmigrate_success" sum "Pages migrated to other frames."
    PgMigrateFail "pgmigrate_fail" sum "Pages that could not be migrated because they were in use."
    ThpMigrationSuccess "thp_migration_success" sum "Pages of several frames migrated whole."
    ThpMigrationFail "thp_migration_fail" sum "Pages of several frames that could not be migrated."
    AllocStall "allocstall" sum "Direct reclaims: an allocation reclaimed pages itself."
    ThrottleDirect "pgscan_direct_throttle" sum "Direct reclaims that waited for kswapd first."
    ThrottleIsolated "pgscan_isolated_throttle" sum "Reclaimers throttled: too many isolated pages."
    AllocOom "alloc_oom" sum "Allocations that failed after all retries."
    KswapdHopeless "kswapd_hopeless" sum "Times a kswapd gave up on its node: it freed nothing."
    PageOutRun "pageoutrun" sum "Times a kswapd thread was woken and balanced its node."
    KswapdNanos "kswapd_cpu_ns" sum "CPU time of all kswapd threads, ns."
    KswapdGrown "kswapd_grown" sum "kswapd threads added because a node's were not enough."
    KswapdShrunk "kswapd_shrunk" sum "kswapd threads stopped: too many, or too few idle CPUs."
    KswapdYields "kswapd_yields" sum "Times that allocating threads began to evict for kswapd."
    KswapdPeak "kswapd_threads_peak" peak "Most kswapd threads of one node, in one process."
    HandlerNanos "handler_cpu_ns" sum "CPU time of the threads that serve faults, ns."
    FaultWait "fault_waits" sum "Faults that waited for another thread to release the page's entry."
    MapRefused "map_refused" sum "Pages the platform could not map: dropped or protected meanwhile."
    ThpFaultAlloc "thp_fault_alloc" sum "Large pages zeroed at their first touch."
    ThpFaultFallback "thp_fault_fallback" sum "First touches for which no large block was free."
    ThpSwpOut "thp_swpout" sum "Large pages swapped out whole."
    ThpSwpOutFallback "thp_swpout_fallback" sum "Large pages split because no cluster was free."
    FolioSwpOutFallback "folio_swpout_fallback" sum "Pages of several frames kept: no run of slots."
    ThpSwpIn "thp_swpin" sum "Large pages swapped in whole."
    ThpSwpInFallback "thp_swpin_fallback" sum "Faults on swapped large pages that read one page."
    ThpSplitPage "thp_split_page" sum "Large pages split."
    ThpColdSplit "thp_cold_split_page" sum "Large pages split: less than half was in use."
    ThpUnderusedSplit "thp_underused_split_page" sum "Large pages split: largely zeros."
    ThpCollapseAlloc "thp_collapse_alloc" sum "Blocks of frames allocated for a collapse."
    ThpCollapseAllocFailed "thp_collapse_alloc_failed" sum "Collapses for which no block was free."
    ThpScanExceedNone "thp_scan_exceed_none_pte" sum "Blocks not collapsed: too many absent pages."
    ThpScanExceedSwap "thp_scan_exceed_swap_pte" sum "Blocks not collapsed: too many swapped pages."
    KhugepagedCollapsed "khugepaged_pages_collapsed" sum "Blocks collapsed into large pages."
    KhugepagedFullScans "khugepaged_full_scans" sum "Times khugepaged has scanned all spaces."
    PsiSome10 "psi_some_avg10" peak "Share of 10 s in which a thread stalled, in 0.01 %."
    PsiSome60 "psi_some_avg60" peak "Share of 60 s in which a thread stalled, in 0.01 %."
    PsiSome300 "psi_some_avg300" peak "Share of 300 s in which a thread stalled, in 0.01 %."
    PsiSomeMicros "psi_some_total_us" sum "Time in which a thread stalled, us."
    PsiFull10 "psi_full_avg10" peak "Share of 10 s in which all threads stalled, in 0.01 %."
    PsiFull60 "psi_full_avg60" peak "Share of 60 s in which all threads stalled, in 0.01 %."
    PsiFull300 "psi_full_avg300" peak "Share of 300 s in which all threads stalled, in 0.01 %."
    PsiFullMicros "psi_full_total_us" sum "Time in which all threads stalled, us."
    Resident "nr_resident" sum "Frames in use, now."
    ResidentPeak "nr_resident_peak" peak "Most frames in use or on per-CPU lists, of each node."
    Frames "nr_frames" peak "Frames in the memory budget of one process."
    Free "nr_free_pages" sum "Free frames of all nodes, without those on per-CPU lists, now."
    WatermarkMin "wmark_min" peak "Free frames below which allocations reclaim, of one process."
    WatermarkLow "wmark_low" peak "Free frames below which kswapd wakes, of one process."
    WatermarkHigh "wmark_high" peak "Free frames at which kswapd sleeps, of one process."
    SlotsUsed "nr_swap_used" sum "Swap slots in use, now."
    SlotsTotal "nr_swap_total" peak "Swap slots of one process."
    PagedPeak "paged_peak_pages" peak "Most pages with contents in all spaces, in one process."
    MetaBytes "meta_bytes" peak "Memory of the manager's own data, in one process."
    ElsewhereBytes "elsewhere_bytes" peak "Memory of one process (Pss) not paged by the manager."
    ElsewhereBrk "elsewhere_brk_bytes" peak "Elsewhere: the break, with malloc's heap."
    ElsewhereStacks "elsewhere_stacks_bytes" peak "Elsewhere: stacks of threads."
    ElsewhereStatic "elsewhere_static_bytes" peak "Elsewhere: variables of binaries and libraries."
    ElsewhereFiles "elsewhere_files_bytes" peak "Elsewhere: binaries, libraries, mapped files."
    ElsewhereShared "elsewhere_shared_bytes" peak "Elsewhere: MAP_SHARED, memfd, tmpfs, System V."
    ElsewhereHuge "elsewhere_huge_bytes" peak "Elsewhere: pages of hugetlbfs."
    ElsewhereExecutable "elsewhere_executable_bytes" peak "Elsewhere: anonymous and executable."
    ElsewhereOther "elsewhere_other_bytes" peak "Elsewhere: all other anonymous memory."
    CodeUnmapped "code_unmapped_bytes" sum "Code and constants unmapped while memory was short."
    FilesUnmapped "files_unmapped_bytes" sum "Pages of large files unmapped for the limit."
    HighWaterBytes "vm_hwm_bytes" peak "Peak resident set (VmHWM) of one process."
    CountedPeak "counted_peak_bytes" peak "Peak memory of one process; each page counts once (Pss)."
    ArenaBytes "arena_bytes" peak "Memory of the frames that was in use at once, in one process."
    RamDeviceBytes "ram_device_bytes" peak "Memory of RAM swap devices, in one process."
    SealBytes "seal_bytes" peak "Memory for keys and tags of sealed swap, in one process."
    InjectedFaults "injected_faults" sum "Transfers struck by faults of flaky: swap, in tests."
    ZramPages "zram_pages" sum "Most pages held compressed, by each process."
    ZramSameFilled "zram_same_filled" sum "Pages of zram_pages that repeated one word."
    ZramIncompressible "zram_incompressible" sum "Pages of zram_pages stored uncompressed."
    ZramBytes "zram_bytes" sum "Memory that zram_pages took."
    SampledPages "sampled_pages" sum "Pages written to swap that were compressed to see the gain."
    SampledBytes "sampled_bytes" sum "Memory that sampled_pages would take on zram:."
    SampledNanos "sampled_ns" sum "Time that decompressing sampled_pages took, ns."
    TierFast "tier_fast" sum "Pages on fast levels when the tiers held most, of each process."
    TierSlow "tier_slow" sum "Pages on slow levels when the tiers held most, of each process."
    TierWriteback "tier_writeback" sum "Pages moved to a slow level because they were cold."
    TierWritebackIos "tier_writeback_ios" sum "Device writes for tier_writeback."
    TierWritebackFailures "tier_writeback_failures" sum "Pages whose write to a slow level failed."
    TierSlowReads "tier_slow_reads" sum "Pages read from a slow level."
    TierSlowWrites "tier_slow_writes" sum "Pages that a fast level did not take."
    ReplicasLost "replicas_lost" peak "Most replicas that a process gave up or started without."
    ReplicaSingleWrites "replica_single_writes" sum "Pages written to one of two replicas only."
    ReplicaSecondReads "replica_second_reads" sum "Reads that failed on one replica, not on both."
    ReplicaHedgedReads "replica_hedged_reads" sum "Slow reads that the other was asked, too."
    Processes "processes" sum "Processes served."
    ByHandlers "processes_by_handlers" sum "Processes whose faults handler threads serve."
    OutOfMemory "oom" sum "Processes killed because memory and swap were full."
    CommitRefused "commit_refused" sum "Requests that memory and swap could not hold."
    HelperNanos "helper_nanos" sum "CPU time of the helper processes, which serve faults, ns."
    ProcessEnded "processes_ended" sum "Processes that have ended, with final figures."
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
            hash(&["abc"]),
            hash(&["ab", "c", "d"]),
        ];
        assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), hashes.len());
    }
}
