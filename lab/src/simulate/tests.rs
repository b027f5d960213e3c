//! Small runs on a small machine.

use super::*;
use crate::machines;
use crate::report::simulation::SimulationFigures;
use highwater_sim::Traced;
use highwater_sim::machine::{Answer, Role};
use highwater_units::Nanos;

/// 4 CPUs of 2020 with 32 MiB and two RAM disks.
fn small(tasks: usize, set: &[&str]) -> Experiment {
    let mut machine = machines::find("xeon-48c-2-ramdisks").expect("listed");
    machine.cores_per_socket = 2;
    machine.node_mib = vec![16, 16];
    machine.devices.iter_mut().for_each(|device| device.mib = 64);
    let mut settings = Settings::default();
    ["scale=1"].iter().chain(set).for_each(|text| settings.set(text).expect("a setting"));
    let (workload, time) = (Workload::Pmbench, Some(Nanos(20_000_000)));
    Experiment { machine, workload, tasks, seed: 7, time, settings, traced: Traced::Off }
}

fn figures(experiment: &Experiment) -> SimulationFigures {
    let done = run(experiment).unwrap_or_else(|error| panic!("{error:?}"));
    done.figures
}

#[test]
fn a_run_swaps_and_keeps_its_contents() {
    for set in
        [["processes=per_task", "recency=accessed_bit"], ["processes=one", "recency=unmapping"]]
    {
        let run = figures(&small(3, &set));
        assert!(run.figures.checked_reads > 1000, "{run:?}");
        assert!(run.counters["pswpin"] > 100 && run.counters["pswpout"] > 100, "{run:?}");
        assert!((0.020..0.030).contains(&run.figures.seconds), "{}", run.figures.seconds);
        let task = run.roles.iter().find(|role| role.name == "task").expect("tasks worked");
        assert_eq!(task.threads, 3);
        assert!((2.0..=3.01).contains(&task.cpus), "RAM disks keep CPUs busy: {}", task.cpus);
        assert!(run.cpus_busy() <= 4.0, "{}", run.cpus_busy());
        let (phases, roles) =
            (run.phases.iter().map(|p| p.busy_ns), run.roles.iter().map(|r| r.busy_ns));
        assert_eq!(phases.sum::<u64>(), roles.sum::<u64>());
        let timed: u64 = run.latency.iter().map(|bucket| bucket.count).sum();
        assert_eq!(timed * 7, run.figures.accesses_per_s.mul_add(run.figures.seconds, 0.5) as u64);
    }
}

#[test]
fn equal_experiments_are_equal_runs() {
    let (mut first, mut again) = (figures(&small(4, &[])), figures(&small(4, &[])));
    assert_eq!(first.cost.hash, again.cost.hash);
    for run in [&mut first, &mut again] {
        (run.cost.real_seconds, run.cost.events_per_real_s) = (0.0, 0.0);
    }
    assert_eq!(first, again);
    let other = figures(&Experiment { seed: 8, ..small(4, &[]) });
    assert_ne!(other.cost.hash, first.cost.hash);
}

#[test]
fn the_largest_set_that_is_allowed_is_served() {
    let run = figures(&small(2, &["set=4.75"]));
    assert_eq!(run.conditions.set_bytes, 152 << 20);
}

#[test]
fn a_trace_is_kept_where_it_is_asked_for() {
    let traced = Experiment { traced: Traced::On, ..small(1, &[]) };
    let done = run(&traced).unwrap_or_else(|error| panic!("{error:?}"));
    let mut text = Vec::new();
    done.trace.expect("asked for").write(&mut text).expect("memory");
    let events: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert!(events["traceEvents"].as_array().expect("bars").len() > 1000);
    assert!(run(&small(1, &[])).is_ok_and(|done| done.trace.is_none()));
}

#[test]
fn a_report_has_all_its_parts() {
    let run = figures(&small(2, &["kswapd_threads=2"]));
    let text = run.text();
    for part in [
        "pmbench on xeon-48c-2-ramdisks: 2 tasks on 4 CPUs, seed 7\n",
        "swap 128 MiB (pmem0, pmem1), scale 1",
        "\naccesses/s ",
        "\ntask                            2 ",
        "\nkswapd0:0 ",
        "\nkswapd1:1 ",
        "\nlock.phase ",
        "\npgmajfault ",
        "\naccess latency\n",
        &run.cost.hash,
        "contents checked: ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json = serde_json::to_string(&run).expect("figures have text keys");
    let again: SimulationFigures = serde_json::from_str(&json).expect("JSON");
    assert_eq!((again.counters, again.latency), (run.counters, run.latency));
    assert_eq!((again.settings, again.cost.hash), (run.settings, run.cost.hash));
}

#[test]
fn usemem_swaps_out_what_it_writes_and_reads_nothing_back() {
    let whole = small(3, &["set=4"]);
    let run = figures(&Experiment { workload: Workload::UsememSeq, time: None, ..whole.clone() });
    let pages = run.conditions.set_bytes / 4096;
    assert_eq!(run.figures.accesses_per_s.mul_add(run.figures.seconds, 0.5) as u64, pages * 512);
    assert!(run.counters["pswpout"] >= pages * 3 / 4, "{run:?}");
    assert_eq!((run.counters["pswpin"], run.figures.fill_gb_per_s), (0, None));
    let tasks = run.figures.tasks.expect("a pass of each");
    let kib_per_s = run.conditions.set_bytes as f64 / 1024.0 / run.figures.seconds;
    assert!((1.0..1.3).contains(&(tasks.sum_kib_per_s / kib_per_s)), "{tasks:?}, {kib_per_s}");
    assert!(run.text().contains("\ntasks' KB/s, sum "), "{}", run.text());
    let (workload, time) = (Workload::UsememRand, Some(Nanos(100_000_000)));
    let random = figures(&Experiment { workload, time, ..whole });
    assert!(random.counters["pswpin"] > 100 && random.counters["pswpout"] > 100, "{random:?}");
}

#[test]
fn what_was_pushed_out_is_read_from_swap() {
    for (pattern, least) in [("pattern=sequential", 0.9), ("pattern=uniform", 0.3)] {
        let run = figures(&Experiment {
            workload: Workload::SwapIn,
            ..small(2, &["set=3", "window_max=1", pattern])
        });
        let pages = match pattern {
            "pattern=sequential" => run.figures.checked_reads / 512,
            _ => run.figures.checked_reads,
        };
        let share = run.figures.major_faults_per_s * run.figures.seconds / pages as f64;
        assert!((least..1.01).contains(&share), "{pattern}: {share} of {pages}");
    }
}

/// The slowest possible settings against the best.
#[test]
fn settings_of_old_wait_for_locks() {
    let old = ["swap_cache=whole", "device_lock=whole", "scan_base=shared", "writeback_tags=on"];
    let share = |set: &[&str]| figures(&small(4, set)).lock_share().expect("CPU time");
    let (old, new) = (share(&old), share(&[]));
    assert!(old > 2.0 * new, "{old} {new}");
}

/// How often locks of a class were taken and waited for in a run.
fn locked(set: &[&str], class: &str) -> (u64, u64) {
    let run = figures(&small(4, &[&["set=3", "cache_batch=off"], set].concat()));
    let rows = run.figures.locks.iter().flatten().filter(|row| row.class == class);
    rows.fold((0, 0), |sum, row| (sum.0 + row.acquisitions, sum.1 + row.contended))
}

/// Four CPUs on two devices; each CPU has clusters, and so leaves, of its own.
#[test]
fn a_lock_for_each_leaf_is_waited_for_less_than_one_for_the_tree() {
    let [whole, leaf] = ["swap_cache=whole", "swap_cache=leaf"].map(|cache| {
        let (taken, waited) = locked(&[cache], "swap_cache");
        waited as f64 / taken as f64
    });
    assert!(whole > 0.02 && leaf < whole / 10.0, "{whole} {leaf}");
}

#[test]
fn a_devices_lock_is_taken_for_counts_for_slots_or_not_at_all() {
    let taken = |lock, cache| locked(&[lock, cache], "swap_info").0;
    let each = ["whole", "slots", "cluster"].map(|lock| format!("device_lock={lock}"));
    let [whole, slots, cluster] = each.each_ref().map(|lock| taken(lock, "slot_cache=off"));
    assert!(whole > slots && slots > 0 && cluster == 0, "{whole} {slots} {cluster}");
    let batches = taken(&each[1], "slot_cache=on");
    assert!(batches > 0 && batches < slots / 4, "{batches} {slots}");
}

/// Where reads go through the swap cache, pages keep their slots on devices of memory too.
#[test]
fn pages_that_were_read_through_the_cache_are_dropped_clean() {
    let dropped = |swap_in| {
        let set = ["read_percent=100", "set=1.5", "warm_up=0.01", swap_in];
        figures(&small(2, &set)).counters["pgdrop_clean"]
    };
    let (direct, cached) = (dropped("swap_in=direct"), dropped("swap_in=cached"));
    assert!(direct == 0 && cached > 100, "{direct} {cached}");
}

/// Without the swap cache, each page enters the cache and leaves it once.
#[test]
fn reads_through_the_swap_cache_take_its_lock_twice() {
    let taken = |set: &[&str]| {
        let base = ["swap_cache=trunk", "cache_batch=off", "set=3"];
        let run = figures(&small(2, &[&base[..], set].concat()));
        let rows = run.figures.locks.iter().flatten().filter(|row| row.class == "swap_cache");
        let taken: u64 = rows.filter(|row| row.phase == "swap_in").map(|r| r.acquisitions).sum();
        taken as f64 / run.counters["pswpin"] as f64
    };
    assert_eq!(taken(&["swap_in=direct"]), 0.0);
    assert_eq!(taken(&["swap_in=cached"]), 2.0);
}

/// Pages are read along by their slots, and used or not.
#[test]
fn readahead_is_counted() {
    for (readahead, least) in [("readahead=off", 0), ("readahead=slot", 1000)] {
        let set = ["set=3", "recency=unmapping", readahead, "pattern=sequential"];
        let run = figures(&Experiment { workload: Workload::SwapIn, ..small(2, &set) });
        let [ahead, hits, wasted] =
            ["swap_ra", "swap_ra_hit", "swap_ra_wasted"].map(|name| run.counters[name]);
        assert!(ahead >= least && (ahead == 0) == (least == 0), "{readahead}: {ahead}");
        assert!(hits + wasted <= ahead, "{readahead}: {hits} and {wasted} of {ahead}");
        assert!(hits >= ahead / 2, "{readahead}: {hits} of {ahead}");
    }
}

/// A run of streams, with files on the first device of the machine.
fn files(tasks: usize, set: &[&str]) -> SimulationFigures {
    let mut experiment = small(tasks, set);
    let device = &mut experiment.machine.devices[0];
    (device.role, device.answer) = (Role::File, Answer::Asynchronous);
    (device.read_latency, device.write_latency) = (20_000, 20_000);
    figures(&Experiment { workload: Workload::Streams, ..experiment })
}

#[test]
fn streams_are_measured_before_or_after_memory_is_full() {
    let full = files(3, &["warm_up=0.005"]);
    assert!(full.counters["pgscan_kswapd"] > 1000, "{full:?}");
    let filling = files(3, &["span=filling"]);
    let scanned = filling.counters["pgscan_kswapd"] + filling.counters["pgscan_direct"];
    assert!((1..5000).contains(&scanned), "{scanned}: it ends where reclaim begins");
    for run in [full, filling] {
        let bytes = run.figures.tasks.expect("a pass of each").sum_kib_per_s * 1024.0;
        let read = run.counters["pgfile_in"] as f64 * 4096.0 / run.figures.seconds;
        assert!((0.85..1.15).contains(&(bytes / read)), "{bytes} and {read}");
        assert!(run.figures.checked_reads > 10_000);
    }
}

#[test]
fn a_direct_stream_leaves_memory_alone() {
    let run = files(2, &["way=direct", "set=1"]);
    assert!(run.figures.tasks.expect("a pass of each").sum_kib_per_s > 1e6, "{run:?}");
    assert_eq!([run.counters["pgfile_in"], run.counters["pgfault"]], [0, 0]);
}

#[test]
fn what_is_in_use_stays_while_streams_go_by() {
    let run = files(3, &["anon=0.25", "set=2", "small=on", "warm_up=0.02"]);
    assert!(run.counters["pgsteal_file"] > 1000, "{run:?}");
    assert_eq!(run.counters["pswpin"], 0, "an anonymous page was pushed out and missed");
    assert_eq!(run.figures.swept_words, 2048 * 512);
    let small = run.figures.small.expect("a small task");
    assert!(small.pages >= 50 && small.p50_ns <= small.p99_ns, "{small:?}");
    assert!(run.text().contains("\nsmall task's pages, p99 "));
}

/// 4 CPUs with 64 MiB, for objects.
fn of_objects(workload: Workload, tasks: usize, set: &[&str]) -> SimulationFigures {
    let mut experiment = small(tasks, set);
    experiment.machine.node_mib = vec![32, 32];
    experiment.workload = workload;
    experiment.time = Some(Nanos(3_000_000));
    experiment.settings.warm_up = 0.002;
    figures(&experiment)
}

#[test]
fn objects_of_mmap1_and_hackbench_all_come_back() {
    let run = of_objects(Workload::Mmap1, 4, &["grace=1"]);
    let caches = run.figures.slabs.as_ref().expect("it has caches");
    let names: Vec<_> = caches.iter().map(|cache| cache.name.as_str()).collect();
    assert_eq!(names, ["maple_node", "vm_area_struct", "vma_lock"]);
    // A leaf for each task, and no area: unmapped memory has none.
    assert_eq!(caches.iter().map(|cache| cache.used).collect::<Vec<_>>(), [4, 0, 0]);
    let ops = run.figures.accesses_per_s * run.figures.seconds;
    assert!(ops > 1000.0, "{ops}");
    let run = of_objects(Workload::Hackbench, 1, &[]);
    let caches = run.figures.slabs.as_ref().expect("it has caches");
    assert!(caches.iter().all(|cache| cache.used == 0), "{caches:?}");
    assert!(run.figures.accesses > 1000, "{}", run.figures.accesses);
}

#[test]
fn small_machines_have_the_slabs_of_the_base() {
    let base = [
        "grace=1",
        "slab_order=base",
        "slab_cpu_partial=1x",
        "slab_node_partial=fixed",
        "slab_sheaves=off",
    ];
    let [ours, before] = [&["grace=1"][..], &base].map(|set| of_objects(Workload::Mmap1, 4, set));
    assert_eq!(ours.cost.hash, before.cost.hash, "to the event");
    assert_eq!(ours.figures.slabs, before.figures.slabs);
    let large = of_objects(Workload::Mmap1, 4, &["grace=1", "slab_order=large", "slab_sheaves=on"]);
    assert_ne!(large.figures.slabs, before.figures.slabs, "settings count");
}

/// 64 MiB of a machine of 2012, on which three kernels are built.
fn builds() -> SimulationFigures {
    let mut experiment = small(3, &["scale=128", "compilers=0.3"]);
    experiment.machine = machines::find("desktop-2012-kvm").expect("listed");
    figures(&Experiment { workload: Workload::Highalloc, ..experiment })
}

#[test]
fn large_blocks_are_asked_for_in_three_passes() {
    let [mut first, again] = [builds(), builds()];
    assert_eq!(first.cost.hash, again.cost.hash);
    assert_eq!(first.figures.highalloc, again.figures.highalloc);
    let text = first.text();
    assert!(text.contains("\nwhile rested ") && text.contains("\nmigrate "), "{text}");
    let passes = first.figures.highalloc.take().expect("passes").passes;
    assert!(passes.iter().all(|pass| pass.attempts == 30), "95 % of 64 MiB: {passes:?}");
    assert!(first.counters["pgfile_in"] > 100 && first.counters["pgdiscard"] > 10_000);
    assert!(first.figures.checked_reads > 10_000);
}
