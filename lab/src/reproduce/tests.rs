//! Experiments are sound, and a tiny one runs.

use super::*;
use crate::simulate::KEYS;

/// pmbench with one and with four kswapd threads, published as 10 % better.
const TINY: Experiment = Experiment {
    name: "tiny",
    about: "kswapd threads on a machine of 2012",
    parts: &[PART],
    tables: &[],
    matrix: None,
    published: "quantity,unit,base,improved\none,1,1,2\nanother,1,0,1\ngain,percent,0,10\n",
};

const PART: Part = Part {
    machine: "desktop-2012-kvm",
    workload: Workload::Pmbench,
    tasks: 2,
    time: Some(Nanos(2_000_000)),
    scales: &[1 << 40, 256],
    settings: &["read_percent=50", "set=0.5", "kswapd_threads=2"],
    variants: &[
        BASE,
        Variant { role: Role::Improved, settings: &[&["kswapd_threads=4"]], ..BASE },
        Variant {
            name: "tiny-unknown",
            role: Role::Improved,
            known: Known::Beyond,
            settings: &[&["kswapd_threads=1"], &["kswapd_threads=8"]],
            curve: &[],
        },
    ],
    distribution: Distribution::Shown,
    quantities: &[
        Quantity {
            name: "threads",
            unit: "1",
            published: &["one", "another"],
            change: Change::Percent,
            take: |run| run.settings["kswapd_threads"].parse().expect("a number"),
        },
        Quantity {
            name: "throughput",
            unit: "1/s",
            published: &[],
            change: Change::Row("gain"),
            take: |run| run.figures.accesses_per_s,
        },
        Quantity {
            name: "tasks",
            unit: "1",
            published: &["one"],
            change: Change::None,
            take: |run| run.tasks as f64,
        },
    ],
};

const BASE: Variant = Variant {
    name: "tiny",
    role: Role::Base,
    known: Known::Published,
    settings: &[&["kswapd_threads=1"]],
    curve: &[1, 2],
};

fn asked(scale: Option<u64>, seeds: u64, curves: Curves) -> Asked {
    Asked { scale, seeds, curves }
}

fn drawn(tasks: usize, scale: u64) -> Drawn {
    Drawn { tasks, scale, seed: 1 }
}

#[test]
fn rows_are_base_then_improved_and_change_of_each_variant() {
    let reproduced = TINY.reproduce(asked(None, 1, Curves::No), |_, _| ()).expect("a small run");
    assert_eq!(reproduced.plots, []);
    let rows: Vec<_> = reproduced
        .rows
        .iter()
        .filter(|row| row.quantity != "throughput")
        .map(|row| {
            let Row { experiment, quantity, role, published, measured, .. } = row;
            (experiment.as_str(), quantity.as_str(), role.name(), *published, *measured)
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("tiny", "threads", "base", Some(1.0), 1.0),
            ("tiny", "tasks", "base", Some(1.0), 2.0),
            ("tiny", "threads", "improved", Some(3.0), 4.0),
            ("tiny", "threads", "change", Some(200.0), 300.0),
            ("tiny", "tasks", "improved", Some(2.0), 2.0),
            ("tiny-unknown", "threads", "improved", None, 8.0),
            ("tiny-unknown", "threads", "change", None, 700.0),
            ("tiny-unknown", "tasks", "improved", None, 2.0),
        ]
    );
    let gain = |experiment| {
        let of = |row: &&Row| row.experiment == experiment && row.role == Role::Change;
        let mut rows = reproduced.rows.iter().filter(of);
        rows.find(|row| row.quantity == "throughput").expect("a change").published
    };
    assert_eq!((gain("tiny"), gain("tiny-unknown")), (Some(10.0), None));
}

#[test]
fn curves_are_of_variants_that_have_one_and_of_the_first_quantity() {
    let reproduced =
        TINY.reproduce(asked(Some(256), 1, Curves::Yes), |_, _| ()).expect("small runs");
    let (_, plot) = reproduced.plots.first().expect("asked for");
    assert_eq!(plot.y_label, "threads, 1");
    let series: Vec<_> = plot.series.iter().map(|s| (s.name.as_str(), &s.points[..])).collect();
    assert_eq!(
        series,
        [
            ("tiny, base", &[(1.0, 1.0), (2.0, 1.0)][..]),
            ("tiny, improved", &[(1.0, 4.0), (2.0, 4.0)]),
        ]
    );
    let points = reproduced.rows.iter().filter(|row| row.quantity.contains("process"));
    let points: Vec<_> = points.map(|row| (row.quantity.as_str(), row.measured)).collect();
    let (one, two) = ("threads, 1 process", "threads, 2 processes");
    assert_eq!(points, [(one, 1.0), (two, 1.0), (one, 4.0), (two, 4.0)]);
}

#[test]
fn every_part_says_what_it_took_place_in() {
    let reproduced =
        TINY.reproduce(asked(Some(256), 2, Curves::No), |_, _| ()).expect("small runs");
    let [conditions] = &reproduced.conditions[..] else { panic!("one part") };
    let inside =
        |row: &Row| row.spread.is_some_and(|[a, b]| a <= row.measured && row.measured <= b);
    assert!(reproduced.rows.iter().all(inside), "two seeds were run");
    assert!(conditions.contains("desktop-2012-kvm") && conditions.contains("scale 256"));
    let of: Vec<_> = reproduced.latency.iter().map(|(title, _)| title.as_str()).collect();
    assert_eq!(of, ["tiny, base", "tiny, improved", "tiny-unknown, improved"]);
    assert!(reproduced.latency.iter().all(|(_, buckets)| !buckets.is_empty()));
}

/// Their machines, settings and published rows exist, and they fit at their smallest scale.
#[test]
fn every_experiment_fits_together() {
    for experiment in ALL {
        assert_eq!(find(experiment.name).map(|found| found.name), Some(experiment.name));
        let rows = published::rows(experiment.published);
        for part in experiment.parts {
            assert_runs(part);
            assert_known(part, &rows);
        }
        experiment.tables.iter().for_each(assert_tables);
        experiment.matrix.iter().for_each(assert_matrix);
    }
}

fn assert_runs(part: &Part) {
    let smallest = *part.scales.last().expect("a scale");
    for variant in part.variants {
        for tasks in variant.curve.iter().chain([&part.tasks]) {
            let made = part.at(variant, drawn(*tasks, smallest)).expect("settings");
            simulate::check(&made).expect("it fits");
        }
        let set = |text: &&str| KEYS.iter().any(|key| text.starts_with(key.name));
        assert!(variant.settings.iter().copied().flatten().all(set), "{}", variant.name);
    }
}

fn assert_known(part: &Part, rows: &[published::Published]) {
    for quantity in part.quantities {
        let of = |name: &&str| rows.iter().any(|row| row.quantity == **name);
        assert!(quantity.published.iter().all(of), "{}", quantity.name);
        let Change::Row(name) = quantity.change else { continue };
        assert!(of(&name), "{name}");
    }
}

/// A quantity of a part's base and of a variant, on a small part of the machine.
fn measured(part: &Part, variant: &str, quantity: &str) -> [f64; 2] {
    let take = part.quantities.iter().find(|q| q.name == quantity).expect(quantity).take;
    let by_name = |name: &str| part.variants.iter().find(|v| v.name == name).expect("a variant");
    let small = drawn(part.tasks, 256);
    let run = |variant| part.figures(variant, small, &|_, _| ()).expect("a small run");
    [&part.variants[0], by_name(variant)].map(|variant| take(&run(variant)))
}

#[test]
fn swapping_out_is_faster_with_divided_locks() {
    let out = &swap_2016::EXPERIMENT.parts[0];
    for variant in ["swap-2016-tags", "swap-2016-all"] {
        let [base, improved] = measured(out, variant, "swap-out throughput");
        assert!(improved > base, "{variant}: {base} -> {improved} GB/s");
    }
}

#[test]
fn a_page_is_back_sooner_with_divided_locks() {
    let settings = &["set=2", "read_percent=100", "pattern=uniform", "warm_up=0.1"];
    let part = Part { time: Some(Nanos(50_000_000)), settings, ..swap_2016::IN };
    let [base, improved] = measured(&part, "swap-2016-all", "fault latency, median");
    assert!(improved < base, "{base} -> {improved} us");
}

#[test]
fn no_experiment_is_called_by_another_name() {
    assert!(find("swap").is_none());
}

/// They run at their smallest scale, with every number of tasks; published headings are found.
fn assert_tables(tables: &Tables) {
    let scale = *tables.scales.last().expect("a scale");
    for table in tables.tables {
        for tasks in tables::rows_of(table) {
            let made = tables.at(table, drawn(tasks, scale)).expect("settings");
            simulate::check(&made).expect("it fits");
            let known = |column: &Column| tables::published(table, tasks, column).is_some();
            let first = tables.columns.first().expect("something is measured");
            assert_eq!(known(first), table.known == Known::Published, "{} {tasks}", table.name);
        }
    }
}

#[test]
fn tables_have_their_published_values_beside_them() {
    let csv = "dd,throughput,stalls\n2,10,0\n4,30,7\n";
    let (role, known) = (Role::Base, Known::Published);
    let base = Table { name: "one", role, settings: &[], csv, known, heading: None };
    let tables = Tables {
        machine: "desktop-2012-kvm",
        workload: Workload::Pmbench,
        time: Nanos(2_000_000),
        scales: &[256],
        settings: &["set=0.5"],
        changes: Changes::Peak,
        tables: Box::leak(Box::new([
            Table { ..base },
            Table { name: "two", role: Role::Improved, settings: &["kswapd_threads=2"], ..base },
        ])),
        columns: &[
            Column {
                name: "throughput",
                unit: "1/s",
                heading: "throughput",
                take: |run| run.tasks as f64,
                plot: Some(""),
            },
            Column {
                name: "other",
                unit: "1",
                heading: "",
                take: |run| run.settings["kswapd_threads"].parse().expect("a number"),
                plot: None,
            },
        ],
    };
    let experiment = Experiment { parts: &[], tables: Box::leak(Box::new([tables])), ..TINY };
    let reproduced =
        experiment.reproduce(asked(None, 1, Curves::Yes), |_, _| ()).expect("small runs");
    let rows: Vec<_> = reproduced
        .rows
        .iter()
        .map(|row| (row.experiment.as_str(), row.quantity.as_str(), row.published, row.measured))
        .collect();
    assert_eq!(
        rows,
        [
            ("one", "throughput, 2 tasks", Some(10.0), 2.0),
            ("one", "other, 2 tasks", None, 1.0),
            ("one", "throughput, 4 tasks", Some(30.0), 4.0),
            ("one", "other, 4 tasks", None, 1.0),
            ("one", "throughput, peak", Some(30.0), 4.0),
            ("two", "throughput, 2 tasks", Some(10.0), 2.0),
            ("two", "other, 2 tasks", None, 2.0),
            ("two", "throughput, 4 tasks", Some(30.0), 4.0),
            ("two", "other, 4 tasks", None, 2.0),
            ("two", "throughput, peak", Some(30.0), 4.0),
            ("two", "throughput, peak", Some(0.0), 0.0),
        ]
    );
    let [(suffix, plot)] = &reproduced.plots[..] else { panic!("one column is plotted") };
    let names: Vec<_> = plot.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(
        (suffix.as_str(), names),
        ("", vec!["one", "one, published", "two", "two, published"])
    );
}

/// It runs at its smallest scale; all that was published is a line, of every published variant.
fn assert_matrix(matrix: &Matrix) {
    let scale = *matrix.scales.last().expect("a scale");
    for variant in matrix.variants {
        let made = matrix.at(variant, drawn(matrix.tasks, scale)).expect("settings");
        simulate::check(&made).expect("it fits");
        let known = |line: &&Line| matrix.published(line, variant).is_some();
        let lines = matrix.csv.lines().count() - 1;
        let expected = if variant.known == Known::Published { lines } else { 0 };
        assert_eq!(matrix.lines.iter().filter(known).count(), expected, "{}", variant.name);
    }
    let is_line = |name: &&str| matrix.lines.iter().any(|line| line.name == *name);
    assert!(matrix.plot.iter().all(is_line));
}

#[test]
fn columns_have_their_published_values_and_their_parts_of_the_first() {
    use super::matrix::Variant;
    let variant = |name, threads| Variant { name, known: Known::Published, settings: threads };
    let tiny = Matrix {
        machine: "desktop-2012-kvm",
        workload: Workload::Highalloc,
        tasks: 2,
        scales: &[256],
        settings: &["compilers=0.2"],
        variants: Box::leak(Box::new([
            variant("one", &["kswapd_threads=1"]),
            variant("two", &["kswapd_threads=2"]),
            Variant { known: Known::Beyond, ..variant("four", &["kswapd_threads=4"]) },
        ])),
        lines: &[
            Line {
                name: "threads",
                unit: "1",
                ratio: Ratio::Told,
                take: |run| run.settings["kswapd_threads"].parse().expect("a number"),
            },
            Line {
                name: "attempts",
                unit: "1",
                ratio: Ratio::Hidden,
                take: |run| {
                    let passes = &run.figures.highalloc.as_ref().expect("passes").passes;
                    passes.iter().map(|pass| pass.attempts as f64).sum()
                },
            },
        ],
        plot: &["threads"],
        csv: "quantity,one,two\nthreads,10,5\n",
    };
    let experiment = Experiment { parts: &[], matrix: Some(tiny), published: "", ..TINY };
    let reproduced =
        experiment.reproduce(asked(None, 1, Curves::Yes), |_, _| ()).expect("small runs");
    let rows: Vec<_> = reproduced
        .rows
        .iter()
        .map(|row| (row.experiment.as_str(), row.quantity.as_str(), row.published, row.measured))
        .collect();
    let attempts = 3.0 * 15.0;
    assert_eq!(
        rows,
        [
            ("tiny-one", "threads", Some(10.0), 1.0),
            ("tiny-one", "attempts", None, attempts),
            ("tiny-two", "threads", Some(5.0), 2.0),
            ("tiny-two", "threads, of one's", Some(0.5), 2.0),
            ("tiny-two", "attempts", None, attempts),
            ("tiny-four", "threads", None, 4.0),
            ("tiny-four", "threads, of one's", None, 4.0),
            ("tiny-four", "attempts", None, attempts),
            ("tiny", "threads: pairs in order", Some(1.0), 0.0),
        ]
    );
    let [(_, values), (suffix, ratios)] = &reproduced.plots[..] else { panic!("two plots") };
    let points: Vec<_> = values.series.iter().map(|series| series.points[0]).collect();
    assert_eq!(points, [(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]);
    let published = &ratios.series[1];
    assert_eq!((suffix.as_str(), published.name.as_str()), ("-ratios", "threads, published"));
    assert_eq!(published.points, [(1.0, 1.0), (2.0, 0.5)]);
}
