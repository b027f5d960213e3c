//! C programs that check every byte of their memory.

use crate::common::binary;
use crate::place::{Limits, Mode, Place, Swap, note, program};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// MiB that each section of the programs needs.
const NEED: &str = "24";
/// Sections of `buffers` in which the kernel holds pages (O_DIRECT, registered buffers), which
/// `--mapping copy` cannot serve.
const UNPINNED: [&str; 9] =
    ["read", "pread", "readv", "preadv", "write", "socketpair", "tcp", "uring", "uring_write"];

#[test]
fn memory_calls_keep_contents() {
    let place = Place::beside_others();
    place.compare("mixed", &place.c_program("mixed", &[NEED]));
}

#[test]
fn memory_calls_keep_contents_on_disk() {
    let place = Place::beside_others();
    let program = place.c_program("mixed", &["20"]);
    let unlimited = place.run(&program).expect_success("mixed");
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(&unlimited) };
    place.compare_with("mixed, swap on disk", &unlimited, &limits, &program);
}

#[test]
fn memory_calls_keep_contents_when_copied() {
    let place = Place::beside_others();
    let program = place.c_program("mixed", &["32"]);
    let unlimited = place.run(&program).expect_success("mixed");
    let limits = Limits { mapping: "copy", ..Limits::quarter(&unlimited) };
    place.compare_with("mixed, copied", &unlimited, &limits, &program);
}

/// Runs a C program in each mode: it swaps, and its output is as without Highwater.
fn compare_in_each_mode(place: &Place, name: &str, argument: &str, memory: u64) {
    let program = place.c_program(name, &[argument]);
    let unlimited = place.run(&program).expect_success(name);
    for mode in Mode::ALL {
        let limits = Limits { mode: Some(mode), ..Limits::of(memory) };
        place.compare_output(name, &unlimited, &limits, &program).expect_swapping();
    }
}

/// Regression: mlock of paged memory failed, and libgcrypt said "using insecure memory". While
/// pages are locked, stores by other threads, protections and advice about forks are kept.
#[test]
fn locked_pages_stay_in_memory() {
    let place = Place::beside_others();
    compare_in_each_mode(&place, "locked", "16", 6 * MIB);
}

/// Regression: with handlers, kswapd copied a page that was just dropped, and waited for a handler,
/// which waited for kswapd. The program stood still for ever.
#[test]
fn pages_may_be_dropped_by_raw_calls_while_others_are_evicted() {
    let place = Place::beside_others();
    compare_in_each_mode(&place, "raw_drops", "3000", 4 * MIB);
}

/// Regression: the kernel found pages of the other process missing. MPI printed errors and copied
/// by other means.
#[test]
fn processes_read_and_write_each_others_pages() {
    let place = Place::beside_others();
    for (name, arguments) in [("peers", &["16"][..]), ("transfers", &["16", "150"])] {
        let program = place.c_program(name, arguments);
        let unlimited = place.run(&program).expect_success(name);
        for mode in [Mode::InThread, Mode::Copies] {
            let limits = Limits { mode: Some(mode), ..Limits::of(12 * MIB) };
            place.compare_output(name, &unlimited, &limits, &program).expect_swapping();
        }
    }
}

/// The two runs are started as `mpirun highwater run PROGRAM` starts them.
#[test]
fn processes_of_two_runs_read_and_write_each_others_pages() {
    let place = Place::beside_others();
    let expected = place.run(&place.c_program("peers", &["16"])).expect_success("peers").text();
    let pipes = ["0", "1"].map(|side| place.path(side));
    assert!(Command::new("mkfifo").args(&pipes).status().expect("mkfifo").success());
    let run = |side: usize| {
        // If one side fails, the other waits.
        let mut command = Command::new("timeout");
        command.arg("60").arg(binary());
        command.args(["run", "--quiet", "--memory", "10M", "--swap", "ram:64M", "--"]);
        command.arg(place.path("peers")).args(["16", &side.to_string()]);
        command.args([&pipes[side], &pipes[1 - side]]);
        command.stdout(Stdio::piped()).spawn().expect("a run")
    };
    let outputs = [run(0), run(1)].map(|run| run.wait_with_output().expect("its end"));
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    assert_eq!(String::from_utf8_lossy(&outputs[0].stdout), expected);
}

/// A program can lock only a small part of the budget.
#[test]
fn a_budget_is_not_locked() {
    let place = Place::beside_others();
    let program = place.c_program("locked", &["more", "6"]);
    for (memory, expected) in [(64 * MIB, "locked\n"), (8 * MIB, "Cannot allocate memory\n")] {
        let run = place.run_within(&Limits::of(memory), &program).expect_success("more");
        assert_eq!(run.text(), expected);
    }
}

/// Pages that pointers refer to are read before their use, one step ahead of the program: far fewer
/// accesses wait for the disk than with a fault for each page.
#[test]
fn pages_that_pointers_name_are_read_ahead() {
    let place = Place::new();
    let program = place.c_program("pointers", &["16384", "4"]);
    let unlimited = place.run(&program).expect_success("pointers");
    let limits = Limits { swap: Swap::Dir, ..Limits::quarter(&unlimited) };
    let report = place.compare_with("pointers", &unlimited, &limits, &program);
    let of = |counter: &str| report.number(&format!("/vmstat/{counter}"));
    let (named, major) = (of("swap_ra_pointers"), of("pgmajfault"));
    // Without readahead there are 55,000 major faults. A readahead thread that gets no CPU leaves
    // some of the pages to the program.
    assert!(named > 20_000 && major < 45_000, "{named} pages were named, {major} major faults");
}

/// Blocks of 2 MiB are swapped in and out as a whole, and are split when the program unmaps,
/// protects or moves parts of them, or forks.
#[test]
fn memory_calls_keep_contents_with_large_pages() {
    let place = Place::beside_others();
    for (name, need) in [("mixed", NEED), ("forks", "20")] {
        let program = place.c_program(name, &[need]);
        let unlimited = place.run(&program).expect_success(name);
        let limits = Limits { large_pages: "on", ..Limits::quarter(&unlimited) };
        let report = place.compare_with(&format!("{name}, large"), &unlimited, &limits, &program);
        assert!(report.number("/vmstat/thp_swpout") > 0, "{name}: no block went out as a whole");
    }
}

#[test]
fn parents_and_children_keep_their_contents() {
    let place = Place::beside_others();
    place.compare("forks", &place.c_program("forks", &["24"]));
}

#[test]
fn parents_and_children_share_memory_until_they_write() {
    let place = Place::beside_others();
    for (need, mapping) in [("12", "copy"), ("24", "auto")] {
        let program = place.c_program("shared", &[need]);
        let unlimited = place.run(&program).expect_success("shared");
        let limits = Limits { mapping, ..Limits::quarter(&unlimited) };
        place.compare_with(&format!("shared, {mapping}"), &unlimited, &limits, &program);
    }
}

/// If all pages fit into memory, a fork writes none to swap: here the pages of four processes of
/// 10 MiB, and of one that has just ended.
#[test]
fn a_fork_writes_no_page_that_is_in_memory() {
    let place = Place::beside_others();
    let program = place.c_program("forks", &["10", "turns", "nested"]);
    let unlimited = place.run(&program).expect_success("forks");
    for mode in [Mode::InThread, Mode::Handlers] {
        let limits = Limits { mode: Some(mode), ..Limits::of(50 * MIB) };
        let report = place.compare_output("forks", &unlimited, &limits, &program);
        assert_eq!(report.number("/vmstat/pswpout"), 0);
        // In-thread, a child whose pages are all there may need no manager.
        if matches!(mode, Mode::Handlers) {
            let inherited = report.number("/vmstat/pginherited");
            assert!(inherited > 4 * 10 * 256, "four children inherit all");
        }
    }
}

#[test]
fn children_inherit_exactly_their_memory() {
    let place = Place::beside_others();
    let program = place.c_program("inherits", &["24"]);
    let unlimited = place.run(&program).expect_success("inherits");
    for (mapping, map_files) in [("auto", "read"), ("copy", "read"), ("auto", "off")] {
        let limits = Limits { mapping, map_files, ..Limits::quarter(&unlimited) };
        let what = format!("inherits, {mapping}, {map_files}");
        place.compare_with(&what, &unlimited, &limits, &program);
    }
}

/// `highwater run` makes no large pages, so madvise answers as on a kernel without them.
#[test]
fn madvise_reports_no_large_pages() {
    let place = Place::beside_others();
    let program = place.c_program("collapse", &["16"]);
    let run = place.run_within(&Limits::of(4 * MIB), &program).expect_success("collapse");
    let answers = "hugepage: done\ncollapse: EINVAL\nnohugepage: done\n\
                   unaligned: EINVAL\nwith a gap: ENOMEM\n";
    assert_eq!(run.text(), answers);
}

#[test]
fn parents_and_children_keep_their_contents_compressed() {
    let place = Place::beside_others();
    let program = place.c_program("forks", &["12"]);
    let unlimited = place.run(&program).expect_success("forks");
    for algorithm in ["lz4", "zstd"] {
        let limits = Limits { swap: Swap::Zram(algorithm), ..Limits::quarter(&unlimited) };
        let what = format!("forks, {algorithm}");
        place.compare_with(&what, &unlimited, &limits, &program).expect_compression();
    }
}

#[test]
fn parents_and_children_keep_their_contents_in_tiers() {
    let place = Place::beside_others();
    let program = place.c_program("forks", &["16"]);
    let unlimited = place.run(&program).expect_success("forks");
    let limits = Limits { swap: Swap::Tier(4 * MIB), ..Limits::quarter(&unlimited) };
    place.compare_with("forks, two levels", &unlimited, &limits, &program).expect_tiers();
}

#[test]
fn memory_calls_keep_contents_in_tiers() {
    let place = Place::beside_others();
    let program = place.c_program("mixed", &["20"]);
    let unlimited = place.run(&program).expect_success("mixed");
    let limits = Limits { swap: Swap::Tier(5 * MIB), ..Limits::quarter(&unlimited) };
    place.compare_with("mixed, two levels", &unlimited, &limits, &program).expect_tiers();
}

#[test]
fn malloc_keeps_contents() {
    let place = Place::beside_others();
    let program = place.c_program("heap", &["64"]);
    let unlimited = place.run(&program).expect_success("heap");
    // Not compared with the peak without Highwater, where malloc keeps freed memory.
    let limits = Limits::of(24 * MIB);
    place.compare_with("heap", &unlimited, &limits, &program);
}

#[test]
fn system_calls_reach_swapped_out_buffers() {
    let place = Place::beside_others();
    let program = place.c_program("buffers", &["40"]);
    let unlimited = place.run(&program).expect_success("buffers");
    let limits = Limits::quarter(&unlimited).by_handlers();
    place.compare_with("buffers", &unlimited, &limits, &program);
}

#[test]
fn system_calls_reach_swapped_out_buffers_when_copied() {
    let place = Place::beside_others();
    let program = place.c_program("buffers", &[&["32"], &UNPINNED[..]].concat());
    let unlimited = place.run(&program).expect_success("buffers");
    let limits = Limits { mapping: "copy", ..Limits::quarter(&unlimited).by_handlers() };
    place.compare_with("buffers, copied", &unlimited, &limits, &program);
}

#[test]
fn structures_locks_and_stacks_may_be_swapped_out() {
    let place = Place::beside_others();
    let program = place.c_program("structs", &["40"]);
    let unlimited = place.run(&program).expect_success("structs");
    let limits = Limits::quarter(&unlimited);
    place.compare_with("structs", &unlimited, &limits.by_handlers(), &program);
    // Where system calls get copies, threads get the C library's stacks, which the budget excludes.
    place.compare_output("structs", &unlimited, &limits, &program).expect_swapping();
}

/// Regressions (deadlocks). A fork waited for the lock of the C library's malloc; its holder, in a
/// signal handler, waited for a page that the fork had frozen. And a thread looked for mappings of
/// files while it held the lock of the regions; its signal handler faulted, took this lock again,
/// and waited behind a writer.
#[test]
fn threads_that_fork_and_take_signals_keep_their_contents() {
    let place = Place::beside_others();
    let storm = place.c_program("storm", &["7", "3", "8", "24"]);
    let unlimited = place.run(&storm).expect_success("storm");
    // Children and grandchildren may each need all of it again.
    let ordinary = Limits { swap_size: 1024 * MIB, ..Limits::of(12 * MIB) };
    let other = Limits { map_files: "read", malloc: "large", ..ordinary };
    for limits in [ordinary, other] {
        place.compare_output("storm", &unlimited, &limits, &storm).expect_swapping();
    }
}

/// The library allocates first in its constructor, so the manager's threads start under the lock of
/// the dynamic loader.
#[test]
fn a_library_may_allocate_in_its_constructor() {
    let place = Place::beside_others();
    let library = place.compile("loads", "libloads.so", &["-DLIBRARY", "-shared", "-fPIC"]);
    let library = library.to_str().expect("a path in UTF-8");
    let program = place.c_program("loads", &[library]);
    place.compare("a library's constructor", &program);
}

/// The library registers its fork handlers when it is loaded, before the program begins.
#[test]
fn a_library_may_read_memory_in_its_fork_handlers() {
    let place = Place::beside_others();
    let library = place.compile("handlers", "libhandlers.so", &["-DLIBRARY", "-shared", "-fPIC"]);
    let library = library.to_str().expect("a path in UTF-8");
    let executable = place.compile("handlers", "handlers", &["-Wl,--no-as-needed", library]);
    place.compare("a library's fork handlers", &program(executable, &["32"]));
}

/// Regression: the manager's memory was mapped into holes that the program was about to fill.
#[test]
fn the_manager_maps_nothing_where_the_program_has_unmapped() {
    let place = Place::beside_others();
    let program = place.c_program("holes", &["32"]);
    let unlimited = place.run(&program).expect_success("holes");
    for swap in [Swap::Dir, Swap::Zram("lz4"), Swap::Tier(4 * MIB)] {
        for mode in [Mode::InThread, Mode::Handlers] {
            let limits = Limits { swap, mode: Some(mode), ..Limits::of(12 * MIB) };
            place.compare_output(&format!("holes, {swap:?}"), &unlimited, &limits, &program);
        }
    }
}

#[test]
fn many_regions_end_in_random_order() {
    let place = Place::beside_others();
    place.compare("20,000 regions", &place.c_program("regions", &["20000"]));
}

/// Has more mappings than the kernel allows; without Highwater, only another order of unmapping
/// works.
#[test]
fn regions_need_no_kernel_mappings() {
    let place = Place::beside_others();
    let unlimited = place.run(&place.c_program("regions", &["140000"])).expect_success("regions");
    let limits = Limits::of(256 * MIB);
    let program = place.c_program("regions", &["140000", "alternate"]);
    place.compare_with("70,000 separate regions", &unlimited, &limits, &program);
}

/// One of three rounds is enough, because the machine is shared.
#[test]
fn many_threads_are_as_fast_as_two() {
    let place = Place::new();
    let need = "64";
    let two = place.c_program("threads", &["2", "2", need]);
    let many = place.c_program("threads", &["32", "2", need]);
    let limits = Limits::quarter(&place.run(&two).expect_success("threads"));
    let rate = |program| {
        let run = place.run_within(&limits, program).expect_success("threads");
        place.report().expect_swapping();
        let text = run.text();
        text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("accesses/s")
    };
    let is_as_fast = |_| {
        let (two, many) = (rate(&two), rate(&many));
        note(&format!("random accesses/s: 2 threads {two:.0}, 32 threads {many:.0}"));
        many >= 0.8 * two
    };
    assert!((0..3).any(is_as_fast), "32 threads against 2");
}
