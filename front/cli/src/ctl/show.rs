//! The state of the managers of a session as text, from the statistics that its processes publish.
//!
//! The formats are those of files in /proc where the kernel has one. Locks: none.

use crate::lock_figures::{LockFigures, Locks};
use crate::session::Process;
use highwater_command::{counted, time};
use highwater_mm::stats::Counter;
use highwater_session::{MallocReport, Parts};
use highwater_units::{Bytes, Nanos};
use std::fmt::Write;

/// The processes that have a manager, with the parts of the manager.
fn served(processes: &[Process]) -> impl Iterator<Item = (&Process, &Parts)> {
    processes.iter().filter_map(|process| Some((process, process.parts.as_ref()?)))
}

/// The kswapd threads of each process now.
pub(super) fn kswapd(processes: &[Process]) -> String {
    let line = |(process, parts): (&Process, &Parts)| {
        let threads = counted(parts.kswapd_threads, "kswapd thread", "kswapd threads");
        format!("process {} = {threads}\n", process.pid)
    };
    served(processes).map(line).collect()
}

/// Free blocks of each process by order, as in /proc/buddyinfo.
pub(super) fn buddyinfo(processes: &[Process]) -> String {
    let line = |(process, parts): (&Process, &Parts)| {
        let blocks: String = parts.free_blocks.iter().map(|it| format!(" {it:>6}")).collect();
        format!("process {}, zone   Normal{blocks}\n", process.pid)
    };
    served(processes).map(line).collect()
}

/// Stalls of each process, as in /proc/pressure/memory.
pub(super) fn pressure(processes: &[Process]) -> String {
    use Counter::*;
    let kinds = [
        ("some", [PsiSome10, PsiSome60, PsiSome300], PsiSomeMicros),
        ("full", [PsiFull10, PsiFull60, PsiFull300], PsiFullMicros),
    ];
    let line = |process: &Process, (kind, averages, total): (&str, [Counter; 3], Counter)| {
        let [ten, sixty, three_hundred] = averages.map(|average| {
            let hundredths = process.snapshot.get(average);
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        });
        let (pid, total) = (process.pid, process.snapshot.get(total));
        format!(
            "process {pid} {kind} avg10={ten} avg60={sixty} avg300={three_hundred} total={total}\n"
        )
    };
    let lines = |(process, _)| kinds.map(|kind| line(process, kind)).concat();
    served(processes).map(lines).collect()
}

/// The swap devices of each process, as in /proc/swaps. `specs`: the specifications of the devices
/// of the session.
pub(crate) fn swap(processes: &[Process], specs: &[String]) -> String {
    let lines = |(process, parts): (&Process, &Parts)| -> String {
        let used = parts.swaps.iter().zip(specs).filter(|(swap, _)| swap.pages > 0);
        let devices = used.map(|(swap, spec)| {
            let [used, size] = [swap.used, swap.pages].map(Bytes::of_pages);
            let priority = swap.priority.map_or("-".to_owned(), |it| it.to_string());
            format!("process {} {spec} = {used} of {size}, priority {priority}\n", process.pid)
        });
        devices.collect()
    };
    served(processes).map(lines).collect()
}

/// The slabs of malloc by size, of all processes together, as in /proc/slabinfo.
pub(super) fn slabinfo(processes: &[Process]) -> String {
    let mut sum = MallocReport::default();
    let reports: Vec<_> = processes.iter().filter_map(|process| process.malloc.as_ref()).collect();
    reports.iter().for_each(|malloc| sum.merge(&malloc.now));
    if reports.is_empty() {
        return String::new();
    }
    let titles = ["# name", "objsize", "pages", "objs", "slabs", "active", "objects", "partial"];
    let [name, size, pages, objects_of_slab, slabs, used, objects, partial] = titles;
    let mut text = format!("{name:20}{size:>8}{pages:>6}{objects_of_slab:>6}{slabs:>9}{used:>11}");
    let _ = writeln!(text, "{objects:>11}{partial:>8}");
    for cache in sum.caches.iter().filter(|cache| cache.slabs > 0) {
        let _ = writeln!(text, "{cache}");
    }
    let large = counted(sum.large_blocks, "block", "blocks");
    let _ = writeln!(text, "large = {large}, {}", Bytes::of_pages(sum.large_pages));
    text
}

/// The locks that were taken, of all processes together.
pub(crate) fn locks(processes: &[Process]) -> String {
    let mut sums = Locks::default();
    served(processes).for_each(|(_, parts)| sums.add(parts));
    let line = |sum: &LockFigures| {
        let LockFigures { name, acquisitions, contended, wait_ns, hold_ns } = sum;
        let [wait, hold] = [wait_ns, hold_ns].map(|it| time(Nanos(*it)));
        format!(
            "{name} = {acquisitions} taken, {contended} contended, {wait} waited, {hold} held\n"
        )
    };
    sums.figures().iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::SwapUse;
    use highwater_mm::stats::Snapshot;
    use highwater_session::MallocStats;

    fn process(pid: u32) -> Process {
        let mut snapshot = Snapshot::empty();
        snapshot.counters[Counter::PsiSome10 as usize] = 1234;
        snapshot.counters[Counter::PsiFullMicros as usize] = 77;
        let swap = |priority| SwapUse { pages: 262_144, used: 256, priority };
        let mut parts = Parts { kswapd_threads: 2, ..Parts::default() };
        parts.free_blocks[1] = 7;
        parts.swaps = vec![swap(None), swap(Some(5))];
        parts.locks[0].acquisitions = 31;
        parts.locks[0].wait = Nanos(1500);
        let malloc = Some(MallocStats::default());
        Process { pid, name: "sort".to_owned(), snapshot, parts: Some(parts), malloc }
    }

    #[test]
    fn each_process_answers_for_itself() {
        let processes = [process(7), process(8)];
        assert_eq!(
            kswapd(&processes),
            "process 7 = 2 kswapd threads\nprocess 8 = 2 kswapd threads\n"
        );
        let blocks = buddyinfo(&processes[..1]);
        assert!(blocks.starts_with("process 7, zone   Normal      0      7      0"), "{blocks}");
        assert_eq!(
            pressure(&processes[..1]),
            "process 7 some avg10=12.34 avg60=0.00 avg300=0.00 total=0\n\
             process 7 full avg10=0.00 avg60=0.00 avg300=0.00 total=77\n"
        );
        let specs = ["ram:1G", "zram:1G"].map(str::to_owned);
        assert_eq!(
            swap(&processes[1..], &specs),
            "process 8 ram:1G = 1 MiB of 1 GiB, priority -\n\
             process 8 zram:1G = 1 MiB of 1 GiB, priority 5\n"
        );
    }

    #[test]
    fn locks_and_slabs_are_sums() {
        let processes = [process(7), process(8)];
        let name = highwater_mm::lock_class::ALL[0].name();
        let expected = format!("{name} = 62 taken, 0 contended, 3.0 us waited, 0 ns held\n");
        assert_eq!(locks(&processes), expected);
        let slabs = slabinfo(&processes);
        assert!(slabs.starts_with("# name ") && slabs.ends_with("large = 0 blocks, 0 B\n"));
    }

    #[test]
    fn a_process_that_is_not_served_has_nothing() {
        let unserved = Process { parts: None, malloc: None, ..process(7) };
        let unserved = [unserved];
        let texts = [kswapd, buddyinfo, pressure, slabinfo, locks].map(|of| of(&unserved));
        assert_eq!(texts, [""; 5].map(str::to_owned));
    }
}
