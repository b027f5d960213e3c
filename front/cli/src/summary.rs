//! The summary that a run prints.

use crate::malloc_figures::MallocFigures;
use crate::report::{Compressed, Elsewhere, Latency, Report, Sealing, Tiers, Transfer};
use highwater_command::{count, counted, time};
use highwater_units::{Bytes, Nanos};

/// The text of the summary.
pub(crate) fn text(report: &Report) -> String {
    let mut lines: Vec<String> =
        problems(report).iter().map(|problem| format!("highwater: {problem}")).collect();
    match (report.processes, report.processes_unpublished) {
        (0, 0) => lines.extend(nothing_paged(report)),
        (0, _) => lines.push(headline(report)),
        _ => lines.extend(table(report)),
    }
    lines.join("\n") + "\n"
}

/// What went wrong, a line each.
pub(crate) fn problems(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if report.oom_kills > 0 {
        lines.push(format!(
            "the kernel's OOM killer ended {} of this container, which was out of memory; give \
             less with --memory, so that what it does not count fits beside it",
            processes(report.oom_kills),
        ));
    }
    if report.out_of_memory > 0 {
        lines.push(format!(
            "memory and swap were full: {} ended; give more with --swap or --memory",
            processes(report.out_of_memory),
        ));
    }
    if report.requests_refused > 0 {
        let refused = counted(report.requests_refused, "request", "requests");
        lines.push(format!(
            "memory and swap could not hold what was asked for: {refused} refused; give more with \
             --swap or --memory"
        ));
    }
    if report.swap_io_errors > 0 {
        let errors = count(report.swap_io_errors);
        lines.push(format!("{errors} swap transfers failed; check the device"));
    }
    if report.swap_refused_bytes > 0 {
        let refused = Bytes(report.swap_refused_bytes);
        lines.push(format!(
            "a swap device had no room for {refused}, because a disk or server was full, or the \
             data compresses too little; other devices took it, or memory"
        ));
    }
    if report.replicas_lost > 0 {
        let replicas = counted(report.replicas_lost, "replica", "replicas");
        lines.push(format!(
            "{replicas} of swap did not answer: pages were on the other one only; check the servers"
        ));
    }
    if let Some(failures) = report.tiers.as_ref().map(|it| it.writeback_failures).filter(|n| *n > 0)
    {
        let failures = count(failures);
        lines.push(format!("{failures} pages could not be written back; check the slow device"));
    }
    if report.processes_unpublished > 0 {
        let missing = processes(report.processes_unpublished as u64);
        lines.push(format!(
            "{missing} found no room for statistics, which are missing here; in docker add \
             --shm-size 64m, and after ulimit -f allow files of 64 KiB"
        ));
    }
    lines
}

fn processes(count: u64) -> String {
    counted(count, "process", "processes")
}

/// The summary of a run without paged memory. If the run needed more than the budget, it says why
/// nothing was paged, and lists the kinds of its memory.
fn nothing_paged(report: &Report) -> Vec<String> {
    let peak = Bytes(report.peak_resident.bytes);
    let (verdict, most) = (&report.verdict, larger_budget(report));
    let nothing = format!("highwater: nothing was paged; peak RAM {peak}");
    let what = elsewhere(&report.peak_resident.elsewhere).map(|what| row("not paged", &what));
    match (&verdict.shortage, verdict.is_of_all_memory()) {
        (Some(_), _) => {
            let verdict = row("verdict", &verdict.to_string());
            [nothing].into_iter().chain(what).chain([verdict]).collect()
        }
        (None, false) if peak > most => {
            let reason = why_nothing(report);
            let first = format!(
                "highwater: no process had memory to page: {reason}; peak RAM {peak}, above the \
                 budget of {most}, which is for pages alone"
            );
            [first].into_iter().chain(what).collect()
        }
        (None, _) => vec![nothing],
    }
}

/// Why no process had memory to page.
fn why_nothing(report: &Report) -> &'static str {
    let found = &report.peak_resident.elsewhere;
    let asked = found.shared_bytes + found.huge_bytes + found.executable_bytes + found.other_bytes;
    if asked > report.peak_resident.bytes / 2 {
        "most of it is of kinds that cannot be paged (docs/limits.md)"
    } else {
        "none asked for 64 KiB at once, or for 1 MiB in small blocks, or it cannot be served (a \
         static program, or one in Go; or a line above says why), or maps memory past the C \
         library (docs/limits.md)"
    }
}

fn row(name: &str, value: &str) -> String {
    format!("  {name:<16}  {value}")
}

/// Memory that is not paged, by kind: the largest first, without those below one percent.
fn elsewhere(found: &Elsewhere) -> Option<String> {
    let mut kinds = [
        ("brk", found.brk_bytes),
        ("stacks", found.stacks_bytes),
        ("zeroed variables", found.static_bytes),
        ("mapped files", found.files_bytes),
        ("shared memory", found.shared_bytes),
        ("hugetlbfs", found.huge_bytes),
        ("generated code", found.executable_bytes),
        ("other", found.other_bytes),
    ];
    let all: u64 = kinds.iter().map(|(_, bytes)| bytes).sum();
    kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let shown = kinds.iter().filter(|(_, bytes)| *bytes > all / 100);
    let shown: Vec<_> = shown.map(|(kind, bytes)| format!("{kind} {}", Bytes(*bytes))).collect();
    (all > 0).then(|| format!("{}: {}", Bytes(all), shown.join(", ")))
}

fn table(report: &Report) -> Vec<String> {
    let compressed = report.compression.as_ref().map(|it| ("compressed", compressed(it)));
    let swap = report.swap.join(" and ");
    let rows = [("budget", budget(report)), ("swap", swap), ("peak RAM", peak(report))];
    let elsewhere = elsewhere(&report.peak_resident.elsewhere).map(|what| ("  not paged", what));
    let demand = ("peak demand", format!("{} in RAM and swap", Bytes(report.paged_peak_bytes)));
    let malloc = report.malloc.as_ref().map(|it| ("  malloc", malloc(it)));
    let rows = rows.into_iter().chain(elsewhere).chain([demand]).chain(malloc).chain([
        ("page faults", faults(report)),
        ("swapped in", transfer(&report.swap_in, "read")),
        ("swapped out", transfer(&report.swap_out, "write")),
        ("direct reclaims", direct_reclaims(report)),
        ("time stalled", stalled(report)),
        ("fault latency", latency(&report.fault_latency)),
        ("  major faults", latency(&report.fault_latency_major)),
    ]);
    let tiers = report.tiers.iter().flat_map(tiers);
    let seal = report.seal.as_ref().map(|it| ("swap sealed", seal(it)));
    let cpu = [("Highwater CPU", highwater_cpu(report)), ("program CPU", program_cpu(report))];
    let rest = cpu.into_iter().chain(seal).chain(compressed).chain(tiers);
    let [rows, rest]: [Vec<String>; 2] = [
        rows.map(|(name, value)| row(name, &value)).collect(),
        rest.map(|(name, value)| row(name, &value)).collect(),
    ];
    let verdict = vec![row("verdict", &report.verdict.to_string())];
    [vec![headline(report)], rows, report.by_process.table(), rest, verdict].concat()
}

fn malloc(malloc: &MallocFigures) -> String {
    let (most, left) = (&malloc.at_most, &malloc.at_end);
    let parts = [most.active_bytes, most.slab_bytes, most.large_bytes, left.active_bytes];
    let [objects, slabs, large, left_bytes] = parts.map(Bytes);
    let sizes = counted(malloc.classes.len() as u64, "size", "sizes");
    let left = counted(left.active_objs, "object", "objects");
    let most = format!("objects {objects} in slabs of {slabs} ({sizes}), large {large}");
    format!("{most}; left: {left}, {left_bytes}")
}

fn compressed(compressed: &Compressed) -> String {
    let Compressed { bytes, used_bytes, same_filled_bytes, incompressible_bytes } = *compressed;
    let parts = [bytes, used_bytes, same_filled_bytes, incompressible_bytes];
    let [all, used, same, raw] = parts.map(Bytes);
    format!("{all} in {used}, same-filled {same}, incompressible {raw}")
}

fn seal(seal: &Sealing) -> String {
    format!("{}, keys and tags {}", seal.algorithm, Bytes(seal.table_bytes))
}

fn tiers(tiers: &Tiers) -> [(&'static str, String); 2] {
    let held = format!("fast {}, slow {}", Bytes(tiers.fast_bytes), Bytes(tiers.slow_bytes));
    let moved = format!(
        "written back {} in {} writes, written at once {}, read {}",
        Bytes(tiers.written_back_bytes),
        count(tiers.writeback_ios),
        Bytes(tiers.slow_write_bytes),
        Bytes(tiers.slow_read_bytes),
    );
    [("tiers", held), ("  slow level", moved)]
}

/// How the program ended.
pub(crate) fn ending(report: &Report) -> String {
    match (report.exit_status, report.signal) {
        (Some(status), _) => format!("exit status {status}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

fn headline(report: &Report) -> String {
    let end = ending(report);
    let seconds = report.elapsed_seconds;
    if report.processes == 0 {
        return format!("highwater: {end} after {seconds:.1} s");
    }
    let served = processes(report.processes as u64);
    let by_handlers = match report.processes_by_handlers {
        0 => String::new(),
        all if all == report.processes => " by handler threads".to_owned(),
        some => format!(", {some} of them by handler threads"),
    };
    format!("highwater: {end} after {seconds:.1} s, {served} served{by_handlers}")
}

fn budget(report: &Report) -> String {
    let of = match (report.processes > 1, report.budget_is_shared) {
        (false, _) => "",
        (true, true) => " for all processes together",
        (true, false) => " for each process",
    };
    let (start, end) = (Bytes(report.budget_bytes), Bytes(report.budget_end_bytes));
    match start == end {
        true => format!("{start}{of}"),
        false => format!("{start} at the start, {end} at the end{of}"),
    }
}

/// The budget at the start or at the end.
fn larger_budget(report: &Report) -> Bytes {
    Bytes(report.budget_bytes.max(report.budget_end_bytes))
}

fn peak(report: &Report) -> String {
    let peak = &report.peak_resident;
    let bytes = [
        peak.bytes,
        peak.arena_bytes,
        peak.manager_bytes,
        peak.ram_swap_bytes,
        peak.elsewhere_bytes,
    ];
    let [all, arena, manager, ram, elsewhere] = bytes.map(Bytes);
    let most = larger_budget(report).0;
    let is_above = report.verdict.is_of_all_memory() && all.0 > most;
    let above = if is_above { ", above the budget" } else { "" };
    let of_one = if report.processes > 1 { " in one process" } else { "" };
    format!(
        "{all}{of_one}{above}: paged {arena}, Highwater {manager}, swap in RAM {ram}, not paged \
         {elsewhere}"
    )
}

fn direct_reclaims(report: &Report) -> String {
    let stalls = &report.direct_reclaim_stall;
    let count = count(report.direct_reclaims);
    if stalls.count == 0 { count } else { format!("{count}, {}", latency(stalls)) }
}

fn stalled(report: &Report) -> String {
    let [some, full] = [&report.pressure.some, &report.pressure.full];
    format!("a thread {:.2} s, all threads {:.2} s", some.total_seconds, full.total_seconds)
}

fn faults(report: &Report) -> String {
    let all = report.faults_minor + report.faults_major;
    let rate = all as f64 / report.elapsed_seconds.max(f64::MIN_POSITIVE);
    let [minor, major, rate] = [report.faults_minor, report.faults_major, rate as u64];
    let [minor, major, rate] = [minor, major, rate].map(count);
    format!("{minor} minor, {major} major (waited for swap), {rate}/s")
}

/// Traffic in one direction; `io` is the word for one transfer.
fn transfer(transfer: &Transfer, io: &str) -> String {
    let bytes = Bytes(transfer.bytes).to_string();
    let per_io = transfer.pages_per_io.map(|pages| format!("{pages:.1} pages per {io}"));
    let rate = transfer.bytes_per_second.map(|rate| format!("{}/s", Bytes(rate as u64)));
    [Some(bytes), per_io, rate].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn latency(latency: &Latency) -> String {
    match latency.count {
        0 => "none".to_owned(),
        _ => format!("p50 {}, p99 {}", time(Nanos(latency.p50_ns)), time(Nanos(latency.p99_ns))),
    }
}

fn highwater_cpu(report: &Report) -> String {
    let (kswapd, handlers) = (report.kswapd_cpu_seconds, report.handler_cpu_seconds);
    let all = report.manager_cpu_seconds;
    format!("{all:.2} s: freeing memory {kswapd:.2} s, serving faults {handlers:.2} s")
}

fn program_cpu(report: &Report) -> String {
    let (user, system) = (report.program.user_seconds, report.program.system_seconds);
    format!("user {user:.2} s, system {system:.2} s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::malloc_figures::tests::process;
    use crate::report::tests::{
        report, report_of, two_compressing, two_processes, two_tiered, unserved,
    };
    use crate::verdict::{LimitedBy, Shortage};

    #[test]
    fn a_summary_is_aligned_and_complete() {
        let report = Report { swap: vec!["ram:1G".to_owned()], ..report(&two_processes()) };
        let text = text(&report);
        let expected = [
            "highwater: exit status 3 after 12.3 s, 2 processes served, 1 of them by handler \
               threads",
            "  budget            128 MiB for each process",
            "  swap              ram:1G",
            "  peak RAM          160 MiB in one process: paged 128 MiB, Highwater 0 B, \
               swap in RAM 0 B, not paged 0 B",
            "  peak demand       1 GiB in RAM and swap",
            "  page faults       1,500 minor, 2,500 major (waited for swap), 324/s",
            "  swapped in        16 MiB, 8.0 pages per read, 16 MiB/s",
            "  swapped out       0 B",
            "  direct reclaims   0",
            "  time stalled      a thread 0.00 s, all threads 0.00 s",
        ];
        assert_eq!(text.lines().take(expected.len()).collect::<Vec<_>>(), expected);
        assert!(text.contains("  Highwater CPU     0.00 s: freeing memory 0.31 s"));
        let by_process = [
            "  by process        peak paged  minor  major  swapped in  swapped out  stalled",
            "    program8 (8)       128 MiB    500  2,500      16 MiB          0 B   0.00 s",
            "    program7 (7)           0 B  1,000      0         0 B          0 B   0.00 s",
            "    sum of all               -  1,500  2,500      16 MiB          0 B   0.00 s",
        ];
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[12..16], by_process);
        assert_eq!(lines.len(), 15 + by_process.len());
        assert_eq!(lines.last(), Some(&"  verdict           memory did not slow the program"));
    }

    #[test]
    fn a_peak_above_a_budget_of_all_memory_is_said() {
        let mut report = report(&two_processes());
        report.verdict.option = "--memory";
        assert!(text(&report).contains("160 MiB in one process, above the budget: paged 128 MiB"));
        report.budget_end_bytes = 160 << 20;
        assert!(!text(&report).contains("above"));
    }

    #[test]
    fn compression_is_shown_if_there_was_any() {
        let text = text(&report(&two_compressing()));
        let line = "  compressed        48 MiB in 16 MiB, same-filled 4 MiB, incompressible 8 MiB";
        assert_eq!(text.lines().nth_back(1), Some(line));
    }

    #[test]
    fn malloc_is_shown_if_there_was_a_heap() {
        let heap = process(1600, 3);
        let text = text(&report_of(&two_processes(), Some(&heap)));
        let line = "    malloc          objects 100 KiB in slabs of 128 KiB (1 size), large 1 MiB\
                    ; left: 3 objects, 192 B";
        assert_eq!(text.lines().nth(5), Some(line));
    }

    #[test]
    fn a_seal_is_shown_if_there_is_one() {
        let mut report = report(&two_processes());
        assert!(!text(&report).contains("swap sealed"));
        report.seal = Some(Sealing { algorithm: "AEGIS-128X2", table_bytes: 3 << 20 });
        let text = text(&report);
        let line = "  swap sealed       AEGIS-128X2, keys and tags 3 MiB";
        assert_eq!(text.lines().nth_back(1), Some(line));
    }

    #[test]
    fn tiers_are_shown_if_there_were_any() {
        let text = text(&report(&two_tiered(0)));
        let lines: Vec<_> = text.lines().rev().skip(1).take(2).collect();
        let moved = "written back 6 MiB in 96 writes, written at once 1 MiB, read 2 MiB";
        assert_eq!(lines[1], "  tiers             fast 8 MiB, slow 4 MiB");
        assert_eq!(lines[0], format!("    slow level      {moved}"));
    }

    #[test]
    fn failed_write_back_comes_first() {
        let text = text(&report(&two_tiered(3)));
        assert!(text.starts_with("highwater: 6 pages could not be written back"), "{text}");
    }

    #[test]
    fn the_threads_that_serve_are_named_where_they_are_handlers() {
        let mut report = report(&two_processes());
        for (by_handlers, end) in
            [(0, "2 processes served"), (2, "2 processes served by handler threads")]
        {
            report.processes_by_handlers = by_handlers;
            let text = text(&report);
            assert!(text.lines().next().is_some_and(|line| line.ends_with(end)), "{text}");
        }
    }

    #[test]
    fn a_budget_that_was_changed_is_shown_twice() {
        let mut report = report(&two_processes());
        let first = Bytes(report.budget_bytes);
        report.budget_end_bytes = 2 * first.0;
        let expected =
            format!("{first} at the start, {} at the end for each process", Bytes(2 * first.0));
        assert_eq!(budget(&report), expected);
    }

    #[test]
    fn a_lack_of_memory_is_named() {
        let mut report = report(&two_processes());
        (report.oom_kills, report.requests_refused) = (1, 2);
        let text = text(&report);
        let [killed, refused] = [0, 1].map(|line| text.lines().nth(line).unwrap_or_default());
        assert!(killed.contains("OOM killer ended 1 process of this container"), "{text}");
        assert!(refused.contains("2 requests refused; give more with --swap"), "{text}");
    }

    #[test]
    fn full_memory_comes_first() {
        let mut report = report(&two_processes());
        report.out_of_memory = 1;
        let text = text(&report);
        assert!(
            text.starts_with("highwater: memory and swap were full: 1 process ended"),
            "{text}"
        );
    }

    #[test]
    fn missing_statistics_are_shown() {
        let mut report = report(&[]);
        report.processes_unpublished = 2;
        let text = text(&report);
        assert!(text.starts_with("highwater: 2 processes found no room for statistics"), "{text}");
        assert_eq!(text.lines().count(), 2, "nothing is known about what was paged: {text}");
    }

    #[test]
    fn a_device_without_room_is_shown() {
        let mut report = report(&two_processes());
        report.swap_refused_bytes = 3 << 20;
        let text = text(&report);
        assert!(text.contains("a swap device had no room for 3 MiB, because"), "{text}");
    }

    #[test]
    fn a_lost_replica_is_shown() {
        let mut report = report(&two_processes());
        report.replicas_lost = 2;
        let text = text(&report);
        assert!(text.contains("2 replicas of swap did not answer: pages"), "{text}");
    }

    #[test]
    fn nothing_to_page_is_one_line() {
        let text = text(&report(&[]));
        assert_eq!(text.lines().count(), 1);
        let end = "; peak RAM 150 MiB, above the budget of 128 MiB, which is for pages alone\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn without_pages_the_verdict_says_what_a_limit_on_all_memory_must_hold() {
        let mut report = report(&unserved());
        report.verdict.option = "--memory";
        report.verdict.limited_by = LimitedBy::Unpaged;
        report.verdict.budget_bytes = Some(144 << 20);
        report.verdict.shortage = Some(Shortage {
            excess_bytes: 11 << 20,
            unpaged_bytes: 139 << 20,
            pages_bytes: 0,
            why: Some("most of it is shared memory".to_owned()),
        });
        let expected = [
            "highwater: nothing was paged; peak RAM 150 MiB",
            "  not paged         139 MiB: shared memory 120 MiB, brk 18 MiB",
            "  verdict           the run needed 11 MiB more than --memory: 139 MiB cannot be paged \
             (most of it is shared memory); give --memory 144M",
        ];
        assert_eq!(text(&report).lines().collect::<Vec<_>>(), expected);
        report.verdict.shortage = None;
        assert_eq!(text(&report).trim_end(), expected[0]);
    }

    #[test]
    fn a_run_within_its_budget_needed_no_paging() {
        let mut report = report(&unserved());
        report.budget_end_bytes = 150 << 20;
        let line = "highwater: nothing was paged; peak RAM 150 MiB\n";
        assert_eq!(text(&report), line);
    }

    #[test]
    fn memory_that_is_not_paged_is_shown_by_kind() {
        let text = text(&report(&unserved()));
        let line = "  not paged         139 MiB: shared memory 120 MiB, brk 18 MiB";
        assert_eq!(text.lines().last(), Some(line));
    }
}
