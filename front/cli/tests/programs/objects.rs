//! Blocks of malloc below 64 KiB: contents, threads, forks, and misuse.

use crate::place::{Limits, Place, Swap, note, program};
use crate::report::Report;

const MIB: u64 = 1 << 20;

/// Runs sections of `objects`, which need MIB each, with much less memory.
fn compare(limits: Limits, sections: &[&str]) {
    let place = Place::beside_others();
    let program = place.c_program("objects", &[&["32"], sections].concat());
    let unlimited = place.run(&program).expect_success("objects");
    let what = format!("objects {}", sections.join(" "));
    place.compare_with(&what, &unlimited, &limits, &program);
}

/// Runs one section, which need not use swap. Returns its report.
fn bounded(limits: &Limits, section: &str) -> Report {
    let place = Place::beside_others();
    let program = place.c_program("objects", &["32", section]);
    let what = format!("objects {section}");
    let unlimited = place.run(&program).expect_success(&what);
    place.compare_bounds(&what, &unlimited, limits, &program)
}

#[test]
fn small_blocks_keep_contents() {
    compare(Limits::of(8 * MIB), &["family", "threads"]);
}

#[test]
fn small_blocks_keep_contents_when_copied() {
    compare(Limits { mapping: "copy", ..Limits::of(8 * MIB) }, &["family", "handover"]);
}

#[test]
fn small_blocks_keep_contents_compressed() {
    compare(Limits { swap: Swap::Zram("lz4"), ..Limits::of(8 * MIB) }, &["family", "handover"]);
}

#[test]
fn small_blocks_may_be_freed_by_other_threads() {
    compare(Limits::of(4 * MIB), &["handover"]);
}

/// The C library's data about a thread must not be paged: the threads that serve faults access it.
#[test]
fn threads_may_come_and_go_while_memory_is_short() {
    compare(Limits::of(5 * MIB), &["short_threads"]);
}

#[test]
fn parents_and_children_have_small_blocks_of_their_own() {
    compare(Limits::of(8 * MIB), &["forks"]);
}

/// Objects cached by threads are not lost to a forked child.
#[test]
fn a_forked_child_keeps_objects_cached_by_other_threads() {
    let place = Place::beside_others();
    let program = place.c_program("objects", &["8", "orphans"]);
    place.run_within(&Limits::of(8 * MIB), &program).expect_success("objects orphans");
}

/// Threads that allocate while another starts the manager wait for it: all but the first MiB is
/// paged.
#[test]
fn threads_that_start_together_are_paged() {
    let report = bounded(&Limits::of(64 * MIB), "together");
    let paged = report.number("/vmstat/pgzero") * 4096;
    assert!(paged >= 28 * MIB, "{paged} bytes were paged of 32 MiB");
}

/// A string must be freed by the malloc that allocated it.
#[test]
fn a_program_with_its_own_malloc_keeps_it() {
    let place = Place::beside_others();
    place.compare("own malloc", &place.c_program("own_malloc", &["32"]));
}

/// Thousands of pages are swapped out, and freeing their blocks reads none of them.
#[test]
fn freeing_reads_no_page() {
    let report = bounded(&Limits::of(8 * MIB), "unread");
    let [out, major] = ["/vmstat/pswpout", "/faults_major"].map(|name| report.number(name));
    assert!(out > 4000 && major < 16, "{out} pages out, {major} major faults");
}

/// getline, getdelim and vasprintf return paged blocks of malloc.
#[test]
fn lines_are_paged() {
    let place = Place::beside_others();
    let program = place.c_program("getlines", &["20000"]);
    let unlimited = place.run(&program).expect_success("getlines");
    let report = place.compare_output("getlines", &unlimited, &Limits::of(4 * MIB), &program);
    report.expect_swapping();
    let left = report.number("/malloc/at_end/active_objs");
    assert!(left >= 21_000, "{left} lines and texts were paged of 22,000");
}

/// fork and _exit may be called in signal handlers that interrupted malloc.
#[test]
fn handlers_that_interrupted_malloc_may_fork_and_exit() {
    let place = Place::beside_others();
    let program = place.c_program("objects", &["4", "interrupted"]);
    let unlimited = place.run(&program).expect_success("objects interrupted");
    place.compare_output("interrupted", &unlimited, &Limits::of(8 * MIB), &program);
}

/// The report lists what a program never freed, by size, however the program ends.
#[test]
fn the_report_lists_blocks_that_were_never_freed() {
    for arguments in
        [&["8", "leaks"][..], &["8", "abuse", "leaks_and_leaves"], &["8", "abuse", "killed"]]
    {
        let (place, what) = (Place::beside_others(), arguments.join(" "));
        let run = place.run_within(&Limits::of(8 * MIB), &place.c_program("objects", arguments));
        let status = if what.ends_with("killed") { 128 + libc::SIGKILL } else { 0 };
        assert_eq!(run.status.code(), Some(status), "{what}: {}", run.errors);
        let report = place.report();
        let of = |name: &str, part: &str| report.of_malloc(name, part);
        for (name, left) in [("malloc-1792", 1000), ("malloc-30720", 37)] {
            assert_eq!(of(name, "/at_end/active_objs"), left, "{what}: {name}");
            let [objects, at_hand] =
                ["num", "at_hand"].map(|it| of(name, &format!("/at_end/{it}_objs")));
            assert!(objects >= left + at_hand, "{what}: {left} and {at_hand} of {objects}");
            let [slabs, bytes] =
                ["num_slabs", "slab_bytes"].map(|it| of(name, &format!("/at_end/{it}")));
            assert_eq!(bytes, slabs * of(name, "/pagesperslab") * 4096, "{what}");
            let [made, given] =
                ["alloc_slab", "free_slab"].map(|it| of(name, &format!("/events/{it}")));
            assert_eq!(made - given, slabs, "{what}");
        }
        let (objects, bytes) = (1037, 1000 * 1792 + 37 * 30_720);
        assert_eq!(report.number("/malloc/at_end/active_objs"), objects, "{what}");
        assert_eq!(report.number("/malloc/at_end/active_bytes"), bytes, "{what}");
        assert!(report.number("/malloc/at_most/active_bytes") >= bytes, "{what}");
        assert!(report.number("/malloc/at_most/slab_bytes") >= bytes, "{what}");
    }
}

#[test]
fn an_invalid_free_ends_the_program() {
    let place = Place::beside_others();
    for (abuse, reason) in [
        ("twice", "a block was freed twice: 0x"),
        ("twice_elsewhere", "a block was freed twice: 0x"),
        ("foreign", "pointer that malloc did not return, or that was freed before: 0x"),
        ("large_twice", "pointer that malloc did not return, or that was freed before: 0x"),
    ] {
        let arguments = ["8", "abuse", abuse];
        let run = place.run_within(&Limits::of(8 * MIB), &place.c_program("objects", &arguments));
        let errors = run.errors.trim_end();
        note(&format!("{abuse}: {}, \"{errors}\"", run.status));
        assert_eq!(run.status.code(), Some(128 + libc::SIGABRT), "{abuse}: {errors}");
        assert!(errors.lines().count() == 1 && errors.contains(reason), "{abuse}: {errors}");
    }
}

/// Small objects only: tens of thousands of strings in a hash, also read by a forked child.
#[test]
fn perl_hashes() {
    let script = "my %h; $h{$_} = \"x$_\" x 3 for 1..80000; sub sum { my $s = 0; \
                  $s += length $h{$_} for sort keys %h; $s } print sum(), \"\\n\"; \
                  my $child = fork(); if (!$child) { delete $h{$_} for 1..1000; \
                  print sum(), \"\\n\"; exit 0 } waitpid $child, 0; print \"$? \", sum(), \"\\n\";";
    let place = Place::beside_others();
    place.compare("perl hashes", &program("perl", &["-e", script]));
}

/// A compiler: short-lived processes with many libraries.
#[test]
fn gcc() {
    let place = Place::beside_others();
    let mut source = String::from("int f0(int x) { return x; }\n");
    for i in 1..400 {
        let body = format!("int s = {i}; for (int i = 0; i < x; i++) s += f{}(i ^ s);", i - 1);
        source += &format!("int f{i}(int x) {{ {body} return s; }}\n");
    }
    std::fs::write(place.path("long.c"), source).expect("a source");
    place.compare("gcc -O1", &program("gcc", &["-O1", "-S", "-o", "/dev/stdout", "long.c"]));
}
