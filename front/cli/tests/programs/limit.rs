//! `--memory` is a limit on all memory of a run. Samples from outside show the resident memory of
//! the whole tree, including `highwater run` and swap in RAM.

use crate::common::{binary, highwater};
use crate::gate::compare_in_all_modes;
use crate::inputs::random_lines;
use crate::place::{Place, note, program};
use crate::python::PYTHON;
use crate::remote::expect_as_in_memory;
use crate::report::Report;
use highwater_platform::testing::skip_or_fail;
use procfs::process::{MMPermissions, MMapPath, Process, all_processes};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Time between samples.
const PERIOD: Duration = Duration::from_millis(10);

/// The memory of a process and its descendants, in bytes. A page that several processes map counts
/// in parts, one for each. Helpers are left out: they map the memory of the process that they help.
fn resident(root: i32) -> u64 {
    let stats: Vec<_> =
        all_processes().unwrap().flatten().filter_map(|it| it.stat().ok()).collect();
    let (mut tree, mut at) = (vec![root], 0);
    while let Some(parent) = tree.get(at).copied() {
        tree.extend(stats.iter().filter(|stat| stat.ppid == parent).map(|stat| stat.pid));
        at += 1;
    }
    let is_helper = |pid: &i32| {
        *pid != root && stats.iter().any(|stat| stat.pid == *pid && stat.comm == "highwater-mm")
    };
    tree.iter().filter(|pid| !is_helper(pid)).map(|pid| counted(*pid)).sum()
}

fn counted(pid: i32) -> u64 {
    let rollup = Process::new(pid).and_then(|process| process.smaps_rollup());
    let maps = rollup.map(|rollup| rollup.memory_map_rollup.0).unwrap_or_default();
    maps.iter().filter_map(|map| map.extension.map.get("Pss")).sum()
}

/// A run that has ended, and the resident memory at each sample.
struct Sampled {
    output: Output,
    samples: Vec<u64>,
}

impl Sampled {
    /// The most memory that was resident. The kernel reads page table after page table, so a page
    /// that is compressed meanwhile counts twice: use only what three samples in a row show. In one
    /// of ten runs, two samples in a row were wrong.
    fn most(&self) -> u64 {
        self.shown().max().unwrap_or(0)
    }

    fn shown(&self) -> impl Iterator<Item = u64> {
        self.samples.windows(3).map(|row| row[0].min(row[1]).min(row[2]))
    }
}

fn sample(mut command: Command) -> Sampled {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().cast_signed();
    let ended = std::thread::spawn(move || child.wait_with_output().unwrap());
    let mut samples = Vec::new();
    while !ended.is_finished() {
        samples.push(resident(pid));
        std::thread::sleep(PERIOD);
    }
    Sampled { output: ended.join().unwrap(), samples }
}

fn run(
    place: &Place,
    memory: &str,
    swap: &str,
    program: &[PathBuf],
    arguments: &[&str],
) -> Command {
    let mut command = highwater();
    command.args(["run", "--quiet", "--memory", memory, "--swap", swap]);
    command.arg("--report").arg(place.path("report.json"));
    command.arg("--").args(program).args(arguments);
    command
}

fn disk(place: &Place) -> String {
    format!("dir:{}:1G", place.path(".").display())
}

/// Samples a run that is to succeed, and to last for more than a few samples.
fn sample_well(command: Command) -> Sampled {
    let sampled = sample(command);
    let errors = String::from_utf8_lossy(&sampled.output.stderr);
    assert!(sampled.output.status.success(), "{errors}");
    assert!(sampled.samples.len() > 20, "{} samples", sampled.samples.len());
    sampled
}

/// Runs a program that fills the limit, and returns the most resident memory, in bytes.
fn most_resident(what: &str, limit: u64, command: Command, place: &Place) -> u64 {
    let most = sample_well(command).most();
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    note(&format!("{what}: at most {:.1} MiB of {} resident", mib(most), limit / MIB));
    assert!(most >= limit * 3 / 4, "{what}: only {:.1} MiB", mib(most));
    Report::read(&place.path("report.json")).expect_swapping();
    most
}

/// Checks that a tree stays within the limit, up to 3 %.
fn expect_within(what: &str, limit: u64, command: Command, place: &Place) {
    let most = most_resident(what, limit, command, place);
    assert!(most <= limit + limit * 3 / 100, "{what}: {most} bytes");
}

#[test]
fn a_tree_stays_within_its_limit() {
    let place = Place::new();
    let program = [place.compile("shares", "shares", &[])];
    let command = run(&place, "96M", &disk(&place), &program, &["work", "6", "32"]);
    expect_within("six processes of 32 MiB", 96 * MIB, command, &place);
}

/// A container's root starts its program as another user. Regression: each of three processes was
/// given the whole limit for its own pages.
#[test]
fn processes_of_another_user_share_the_limit_of_root() {
    if !rustix::process::geteuid().is_root() {
        return skip_or_fail("only root can become another user");
    }
    let place = Place::new();
    let open = tempfile::tempdir_in("/tmp").unwrap();
    set_permissions(open.path(), Permissions::from_mode(0o1777)).unwrap();
    let shares = place.compile("shares", "shares", &[]);
    let files = [&binary(), &binary().with_file_name("libhighwater_preload.so"), &shares];
    assert!(Command::new("cp").args(files).arg(open.path()).status().unwrap().success());
    let swap = format!("dir:{}:1G", open.path().display());
    let mut command = Command::new(open.path().join("highwater"));
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    command.args(["run", "--quiet", "--memory", "96M", "--swap", &swap]);
    command.arg("--report").arg(place.path("report.json"));
    command.args(["--", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(open.path().join("shares")).args(["work", "3", "64"]);
    expect_within("three processes of another user", 96 * MIB, command, &place);
}

#[test]
fn compressed_pages_count_towards_the_limit() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let command = run(&place, "96M", "zram:1G", &program, &["compressible", "160"]);
    expect_within("160 MiB, zram", 96 * MIB, command, &place);
}

/// Regression: in a run of the soak with such a tier, 9 MiB of 63 were left for pages.
#[test]
fn a_tier_leaves_half_of_the_limit_to_pages() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let tier = format!("tier:zram:192M+{}", disk(&place));
    let command = run(&place, "96M", &tier, &program, &["compressible", "240"]);
    expect_within("240 MiB, tier", 96 * MIB, command, &place);
    let report = Report::read(&place.path("report.json"));
    report.expect_tiers();
    let fast = report.number("/peak_resident/ram_swap_bytes");
    note(&format!("at most {} MiB of it on the fast level", fast / MIB));
    assert!(fast <= 52 * MIB, "{} MiB", fast / MIB);
}

#[test]
fn pages_that_do_not_compress_take_no_memory_of_a_tier() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let tier = format!("tier:zram:192M+{}", disk(&place));
    let command = run(&place, "96M", &tier, &program, &["beside", "200", "1"]);
    expect_within("200 MiB, tier", 96 * MIB, command, &place);
    let report = Report::read(&place.path("report.json"));
    let fast = report.number("/peak_resident/ram_swap_bytes");
    note(&format!("at most {} KiB of it compressed", fast >> 10));
    assert!(fast < 2 * MIB, "{} MiB", fast / MIB);
    assert!(report.number("/tiers/slow_write_bytes") > 100 * MIB);
}

#[test]
fn without_a_device_pages_are_compressed_before_they_go_to_a_disk() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let arguments = ["compressible", "160"];
    let mut command = highwater();
    command.args(["run", "--quiet", "--memory", "96M", "--report"]);
    command.arg(place.path("report.json")).arg("--").args(program).args(arguments);
    expect_within("160 MiB, no device given", 96 * MIB, command, &place);
    let report = Report::read(&place.path("report.json"));
    assert!(report.number("/tiers/fast_bytes") > 60 * MIB, "{}", report.figures());
    assert_eq!(report.number("/tiers/slow_write_bytes"), 0, "{}", report.figures());
}

/// Shared memory counts even if the program maps it over addresses that it has reserved.
/// Regression: Java and Emacs map files in this way, and these mappings did not count: with a limit
/// of 59 MiB, Java took 71.
#[test]
fn shared_memory_counts_towards_the_limit() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    for way in ["beside", "over"] {
        let command = run(&place, "72M", &disk(&place), &program, &[way, "56", "40"]);
        let what = format!("56 MiB, and 40 {way} that cannot be paged");
        expect_within(&what, 72 * MIB, command, &place);
    }
}

/// Regression: pages of mapped files stayed mapped: 1.0 GiB of a file of 1 GiB was resident in
/// 100 MiB. A sample may be torn, and other programs may take the CPUs, so one good run of three is
/// enough.
#[test]
fn large_files_that_are_mapped_stay_within_the_limit() {
    let place = Place::new();
    let program = [place.compile("file_maps", "file_maps", &[])];
    let limit = 64 * MIB;
    let run = |_| {
        let mut command = run(&place, "64M", &disk(&place), &program, &["256", "scans"]);
        command.current_dir(place.path("."));
        let most = most_resident("256 MiB of a file, beside 64 MiB", limit, command, &place);
        let report = Report::read(&place.path("report.json"));
        let unmapped = report.number("/vmstat/files_unmapped_bytes");
        assert!(unmapped > 1024 * MIB, "{unmapped} bytes");
        most
    };
    assert!((0..3).map(run).any(|most| most <= limit + limit * 3 / 100));
}

/// Stores, changes of mappings and forks while pages of files are unmapped.
#[test]
fn large_files_that_are_mapped_keep_their_contents() {
    let place = Place::new();
    let program = [place.compile("file_maps", "file_maps", &[])];
    for options in [&[][..], &["--faults", "handlers"], &["--map-files", "read"]] {
        let mut command = highwater();
        command.args(["run", "--quiet", "--memory", "24M", "--swap", &disk(&place)]).args(options);
        command.arg("--report").arg(place.path("report.json"));
        command.current_dir(place.path("."));
        let output = command.arg("--").args(&program).arg("64").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report = Report::read(&place.path("report.json"));
        let unmapped = report.number("/vmstat/files_unmapped_bytes");
        assert!(unmapped > 256 * MIB, "{options:?}: {unmapped} bytes");
    }
}

/// Regression: a child counted the pages that it shares with its parent as memory that cannot be
/// paged, so each fork made the parent swap out as much.
#[test]
fn pages_that_a_fork_shares_leave_room_for_others() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let output = run(&place, "128M", &disk(&place), &program, &["forks", "80"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = Report::read(&place.path("report.json"));
    assert_eq!(report.number("/swap_out/bytes"), 0, "{}", report.figures());
}

/// The child reads pages that are swapped out, while the parent changes others. Before stores to
/// shared pages were counted, 9 to 16 of 100 samples were more than 3 % above the limit, the
/// highest at 128 MiB; now 0 to 9 are (3 in the median), the highest at 110. On a busy machine,
/// samples may take long and count pages twice, so the best of five runs counts.
#[test]
fn a_fork_whose_pages_part_soon_is_seldom_above_the_limit() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    assert!((0..5).any(|_| share_above_limit(&place, &program) <= 0.05));
}

/// The share of samples more than 3 % above the limit.
fn share_above_limit(place: &Place, program: &[PathBuf]) -> f64 {
    let command = run(place, "96M", &disk(place), program, &["saves", "160"]);
    let sampled = sample_well(command);
    let (limit, samples) = (96 * MIB, sampled.samples.len());
    let over = sampled.shown().filter(|bytes| *bytes > limit + limit * 3 / 100).count();
    note(&format!("{over} of {samples} samples above the limit, {} MiB", sampled.most() / MIB));
    Report::read(&place.path("report.json")).expect_swapping();
    over as f64 / samples as f64
}

/// Regressions. Of the pages that parent and child copied after the fork ("parted" pages), half
/// were not counted, the others 40 ms late, and nothing slowed the process that wrote: 152 MiB were
/// resident. Beside other load, up to 110 MiB were resident: pages copied after `highwater run` had
/// measured the child and before the parent had measured itself were counted nowhere. Now 91 to 95
/// MiB are resident. As a sample may be torn, one good run of three is enough.
#[test]
fn pages_that_part_after_a_fork_stay_within_the_limit() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let limit = 96 * MIB;
    for writer in ["parent", "child"] {
        let run = |_| {
            let command = run(&place, "96M", &disk(&place), &program, &["parts", "72", writer]);
            most_resident(&format!("72 MiB that a {writer} changes"), limit, command, &place)
        };
        assert!((0..3).map(run).any(|most| most <= limit + limit * 3 / 100), "by a {writer}");
    }
}

/// Of 42 MiB that node has mapped after its start, it uses 5. Before, all of it stayed mapped and
/// left less memory to pages: a program that needs 240 MiB took 140 s in 128 MiB; now it takes 55.
#[test]
fn code_and_constants_are_unmapped_while_memory_is_short() {
    let place = Place::new();
    let program = [place.compile("constants", "constants", &[])];
    for faults in ["auto", "handlers"] {
        let mut command = highwater();
        command.args(["run", "--quiet", "--memory", "32M", "--swap", &disk(&place)]);
        command.args(["--faults", faults]).arg("--report").arg(place.path("report.json"));
        let output = command.arg("--").args(&program).arg("48").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report = Report::read(&place.path("report.json"));
        report.expect_swapping();
        let unmapped = report.number("/vmstat/code_unmapped_bytes");
        assert!(unmapped >= 7 * MIB, "{unmapped} bytes");
    }
}

/// The first write to a guarded page (write-protected after a fork, to count its copy) is a store,
/// a system call, or a change of mappings, in three generations at once.
#[test]
fn pages_under_guard_keep_their_contents() {
    let place = Place::new();
    let program = [place.compile("guarded", "guarded", &[])];
    for options in [&[][..], &["--faults", "handlers"]] {
        let mut command = highwater();
        command.args(["run", "--quiet", "--memory", "32M", "--swap", &disk(&place)]).args(options);
        command.arg("--report").arg(place.path("report.json"));
        let output = command.arg("--").args(&program).args(["16", "2"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Report::read(&place.path("report.json")).expect_swapping();
    }
}

/// The memory of `highwater run` itself counts, too. Regression: 3.3 to 4.0 MiB of its executable
/// stayed mapped, most of it used only once, at the start. Now 0.7 to 1.5 MiB are mapped, because
/// the kernel maps large folios as a whole.
#[test]
fn code_that_highwater_run_does_not_use_takes_no_memory() {
    let mut command = highwater();
    command.args(["run", "--quiet", "--memory", "64M", "--swap", "ram:64M", "--", "sleep", "2"]);
    let mut running = command.spawn().unwrap();
    let process = Process::new(running.id().cast_signed()).unwrap();
    let mut samples = Vec::new();
    while running.try_wait().unwrap().is_none() {
        std::thread::sleep(PERIOD);
        samples.extend(mapped_code(&process));
    }
    samples.sort_unstable();
    let median = samples[samples.len() / 2];
    note(&format!("{} KiB of highwater's code are mapped", median >> 10));
    assert!(median > 0 && median < 5 * MIB / 2, "{median} bytes");
}

/// Memory of the mappings of a process's executable that it does not write to.
fn mapped_code(process: &Process) -> Option<u64> {
    let executable = MMapPath::Path(process.exe().ok()?);
    let maps = process.smaps().ok()?;
    let code = maps
        .iter()
        .filter(|map| map.pathname == executable && !map.perms.contains(MMPermissions::WRITE));
    Some(code.filter_map(|map| map.extension.map.get("Rss")).sum())
}

#[test]
fn a_limit_that_cannot_be_kept_is_named() {
    let place = Place::new();
    let program = [place.compile("limit", "limit", &[])];
    let mut command = run(&place, "16M", &disk(&place), &program, &["beside", "20", "40"]);
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout == b"ok\n", "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for part in ["--memory 16 MiB is too little", "are needed", "give more"] {
        assert!(errors.contains(part), "{errors}");
    }
}

/// A sandbox may have a /dev of its own, without the directory of the run. Regression: nothing said
/// that each of its processes had the whole limit.
#[test]
fn a_process_that_cannot_find_the_budget_says_so() {
    let place = Place::beside_others();
    let sandbox = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
    let hide = "mount -t tmpfs none /dev/shm &&";
    let mut may_hide = Command::new(sandbox[0]);
    may_hide.args(&sandbox[1..]).arg(format!("{hide} true"));
    if !may_hide.status().is_ok_and(|status| status.success()) {
        return skip_or_fail("this system has no user namespaces");
    }
    let limit = place.compile("limit", "limit", &[]);
    let hidden = format!("{hide} exec {} beside 20 4", limit.display());
    let program = [sandbox.map(PathBuf::from).to_vec(), vec![hidden.into()]].concat();
    let output = run(&place, "64M", &disk(&place), &program, &[]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout == b"ok\n", "{errors}");
    assert!(errors.contains("has a budget of its own, 64 MiB: the directory of"), "{errors}");
}

/// Regression: the kernel's figure for a child of vfork includes its parent's memory before exec.
/// The summary showed a small child as the process with the most memory.
#[test]
fn memory_before_exec_is_not_the_childs() {
    let place = Place::beside_others();
    let report = place.path("report.json");
    let script = "import subprocess; a = b'x' * (64 << 20); subprocess.run(['/bin/true'])";
    let mut command = Command::new(binary());
    command.args(["run", "--paged", "16M", "--swap", "ram:256M", "--report"]).arg(&report);
    let output = command.args(["--", PYTHON, "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let paged = Report::read(&report).number("/peak_resident/arena_bytes");
    assert!(paged > 8 * MIB, "{paged} bytes");
}

/// RLIMIT_AS and RLIMIT_DATA count the range of paged memory. Regression: no more threads and
/// children could be created, and the library had no memory for itself; with RLIMIT_DATA, programs
/// were not paged.
#[test]
fn a_limit_of_addresses_or_data_is_the_programs() {
    compare_in_all_modes("address_limit");
}

/// `fossil` sets such a limit itself. Regression: its processes ran unpaged, and each printed a
/// line.
#[test]
fn a_program_with_a_limit_of_data_is_paged() {
    let place = Place::new();
    random_lines(&place.path("text"), 8 * MIB);
    let sort = "ulimit -d 800000; ulimit -v 900000; exec sort -S 64M --parallel=2 text";
    let sort = program("bash", &["-c", sort]);
    expect_as_in_memory(&place, "sort with limits", &sort, &disk(&place), &[]);
}

/// Regression: the heap that Java 25 and later reserve with MAP_FIXED_NOREPLACE was not paged, and
/// 319 MiB were used with a limit of 192.
#[test]
fn a_heap_that_prefers_low_addresses_is_paged() {
    compare_in_all_modes("reserves");
}

/// Regression: after one munmap of memory that was not at its hint, mappings with hints were not
/// paged. Chromium's heap was not, either: its pools must be aligned to their length.
#[test]
fn memory_with_hints_is_paged() {
    compare_in_all_modes("hints");
}
