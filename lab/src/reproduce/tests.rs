//! Experiments are sound, and a tiny one runs.

use super::published::Table;
use super::runs::Point;
use super::*;
use crate::simulate::{self, KEYS, Workload};
use highwater_units::Nanos;

/// pmbench with one and with four kswapd threads, published as 10 % better.
const TINY: Experiment =
    Experiment { name: "tiny", about: "kswapd threads on a machine of 2012", studies: &[STUDY] };

const STUDY: Study = Study {
    machine: "desktop-2012-kvm",
    workload: Workload::Pmbench,
    tasks: Tasks::Fixed(2),
    time: Some(Nanos(2_000_000)),
    scales: &[1 << 40, 256],
    settings: &["read_percent=50", "set=0.5", "kswapd_threads=2"],
    variants: &[
        BASE,
        Variant {
            role: Role::Improved,
            column: "improved",
            settings: &[&["kswapd_threads=4"]],
            ..BASE
        },
        Variant {
            name: "tiny-unknown",
            role: Role::Improved,
            known: Known::Beyond,
            settings: &[&["kswapd_threads=1"], &["kswapd_threads=8"]],
            ..Variant::DEFAULT
        },
    ],
    quantities: &[
        Quantity { published: &["one", "another"], compared: Compared::Always, ..THREADS },
        Quantity {
            name: "throughput",
            unit: "1/s",
            compared: Compared::PublishedPercent("gain"),
            take: |run| run.figures.accesses_per_s,
            ..Quantity::DEFAULT
        },
        Quantity {
            name: "tasks",
            unit: "1",
            published: &["one"],
            take: |run| run.tasks as f64,
            ..Quantity::DEFAULT
        },
    ],
    presentation: Presentation::Comparison(Latency::Shown),
};

const THREADS: Quantity = Quantity {
    name: "threads",
    unit: "1",
    take: |run| run.settings["kswapd_threads"].parse().expect("a number"),
    ..Quantity::DEFAULT
};

const BASE: Variant = Variant {
    name: "tiny",
    csv: "quantity,unit,base,improved\none,1,1,2\nanother,1,0,1\ngain,percent,0,10\n",
    column: "base",
    settings: &[&["kswapd_threads=1"]],
    curve: &[1, 2],
    ..Variant::DEFAULT
};

fn options(scale: Option<u64>, seeds: u64, curves: Curves) -> Options<'static> {
    Options { scale, seeds, tasks: None, curves, kept: None }
}

#[test]
fn rows_are_base_then_improved_and_change_of_each_variant() {
    let reproduced = TINY.reproduce(options(None, 1, Curves::Skip), |_| ()).expect("a small run");
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
            ("tiny", "threads", "change", Some(3.0), 4.0),
            ("tiny", "tasks", "improved", Some(2.0), 2.0),
            ("tiny", "tasks", "change", Some(2.0), 1.0),
            ("tiny-unknown", "threads", "improved", None, 8.0),
            ("tiny-unknown", "threads", "change", None, 8.0),
            ("tiny-unknown", "tasks", "improved", None, 2.0),
        ]
    );
    let gain = |experiment| {
        let of = |row: &&Row| row.experiment == experiment && row.role == Role::Change;
        let mut rows = reproduced.rows.iter().filter(of);
        rows.find(|row| row.quantity == "throughput").expect("a change").published
    };
    assert_eq!((gain("tiny"), gain("tiny-unknown")), (Some(1.1), None));
}

#[test]
fn curves_are_of_variants_that_have_one_and_of_the_first_quantity() {
    let reproduced =
        TINY.reproduce(options(Some(256), 1, Curves::Plot), |_| ()).expect("small runs");
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
    let points = reproduced.rows.iter().filter_map(|row| Some((row.tasks?, row.measured)));
    assert_eq!(points.collect::<Vec<_>>(), [(1, 1.0), (2, 1.0), (1, 4.0), (2, 4.0)]);
}

#[test]
fn every_study_has_its_conditions() {
    let reproduced =
        TINY.reproduce(options(Some(256), 2, Curves::Skip), |_| ()).expect("small runs");
    let [conditions] = &reproduced.conditions[..] else { panic!("one study") };
    let inside =
        |row: &Row| row.spread.is_some_and(|[a, b]| a <= row.measured && row.measured <= b);
    assert!(reproduced.rows.iter().all(inside), "two seeds were run");
    assert!(conditions.contains("desktop-2012-kvm") && conditions.contains("scale 256"));
    let of: Vec<_> = reproduced.latency.iter().map(|(title, _)| title.as_str()).collect();
    assert_eq!(of, ["tiny, base", "tiny, improved", "tiny-unknown, improved"]);
    assert!(reproduced.latency.iter().all(|(_, buckets)| !buckets.is_empty()));
}

/// Machines, settings and published rows exist, and runs fit at their smallest scale.
#[test]
fn every_experiment_fits_together() {
    for experiment in ALL {
        assert_eq!(find(experiment.name).map(|found| found.name), Some(experiment.name));
        for study in experiment.studies {
            assert_runs(study);
            assert_known(study);
        }
    }
}

fn assert_runs(study: &Study) {
    let scale = *study.scales.last().expect("a scale");
    for variant in study.variants {
        for &tasks in variant.curve.iter().chain(&study.tasks_of(variant)) {
            let point = Point { tasks, scale, seed: 1 };
            simulate::check(&study.at(variant, point).expect("settings")).expect("it fits");
        }
        let set = |text: &&str| KEYS.iter().any(|key| text.starts_with(key.name));
        assert!(variant.settings.iter().copied().flatten().all(set), "{}", variant.name);
    }
}

/// Every published name is a row of the table, or, in a sweep, the first quantity has a value in
/// each row; a matrix has all published values.
fn assert_known(study: &Study) {
    for variant in study.variants.iter().filter(|variant| variant.known == Known::Published) {
        let table = variant.table();
        let names = || study.quantities.iter().flat_map(|q| q.published.iter().copied());
        let is_row = |name: &str| table.rows().any(|row| row == name);
        match study.presentation {
            Presentation::Sweep(_) => {
                for tasks in study.tasks_of(variant) {
                    let value = study.published(variant, &study.quantities[0], tasks);
                    assert!(value.is_some(), "{} {tasks}", variant.name);
                }
            }
            Presentation::Comparison(_) => {
                assert!(names().all(is_row), "{}", variant.name);
                for quantity in study.quantities {
                    let Compared::PublishedPercent(name) = quantity.compared else { continue };
                    assert!(is_row(name), "{name}");
                }
            }
            Presentation::Matrix { plot } => {
                let value = |row| table.value(row, variant.column).is_some();
                assert!(table.rows().all(value), "{}", variant.name);
                assert_eq!(names().collect::<Vec<_>>(), table.rows().collect::<Vec<_>>());
                let is_quantity = |name: &&str| study.quantities.iter().any(|q| q.name == *name);
                assert!(plot.iter().all(is_quantity));
            }
        }
    }
}

/// `all` is refused before its first run, not in the middle.
#[test]
fn what_does_not_fit_names_the_option_that_helps() {
    let study = &swap_2020::EXPERIMENT.studies[0];
    let remedy = |scale| {
        let bad = simulate::BadSetting { what: "it is large".into(), remedy: "--set".into() };
        study.refused(bad, scale).remedy
    };
    assert_eq!(remedy(1), "give a larger --scale N");
    assert_eq!(remedy(64), "give --scale 32 or less");
    let refused = swap_2020::EXPERIMENT.check(Some(1 << 20)).expect_err("it is too small");
    assert!(refused.what.starts_with("swap-2020 on xeon-48c-2-ramdisks at scale 1048576: "));
    assert_eq!(TINY.check(None), Ok(()), "at the second of its scales");
}

#[test]
fn no_experiment_is_called_by_another_name() {
    assert!(find("swap").is_none());
}

#[test]
fn a_sweep_has_its_published_values_beside_it() {
    let csv = "dd,throughput,stalls\n2,10,0\n4,30,7\n";
    let base = || Variant { name: "one", csv, ..Variant::DEFAULT };
    let study = Study {
        tasks: Tasks::PerRow,
        scales: &[256],
        settings: &["set=0.5"],
        presentation: Presentation::Sweep(Changes::Peak),
        variants: Box::leak(Box::new([
            base(),
            Variant {
                name: "two",
                role: Role::Improved,
                settings: &[&["kswapd_threads=2"]],
                ..base()
            },
        ])),
        quantities: &[
            Quantity {
                name: "throughput",
                unit: "1/s",
                published: &["throughput"],
                compared: Compared::Always,
                take: |run| run.tasks as f64,
                plot: Some(""),
            },
            THREADS,
        ],
        ..STUDY
    };
    let experiment = Experiment { studies: Box::leak(Box::new([study])), ..TINY };
    let reproduced =
        experiment.reproduce(options(None, 1, Curves::Plot), |_| ()).expect("small runs");
    let rows: Vec<_> = reproduced
        .rows
        .iter()
        .map(|row| (row.experiment.as_str(), row.named(), row.role, row.published, row.measured))
        .collect();
    let row = |name, quantity: &str, role, published, measured| {
        (name, quantity.to_owned(), role, published, measured)
    };
    let (base, improved, change) = (Role::Base, Role::Improved, Role::Change);
    assert_eq!(
        rows,
        [
            row("one", "throughput, 2 tasks", base, Some(10.0), 2.0),
            row("one", "threads, 2 tasks", base, None, 1.0),
            row("one", "throughput, 4 tasks", base, Some(30.0), 4.0),
            row("one", "threads, 4 tasks", base, None, 1.0),
            row("one", "throughput, peak", base, Some(30.0), 4.0),
            row("two", "throughput, 2 tasks", improved, Some(10.0), 2.0),
            row("two", "threads, 2 tasks", improved, None, 2.0),
            row("two", "throughput, 4 tasks", improved, Some(30.0), 4.0),
            row("two", "threads, 4 tasks", improved, None, 2.0),
            row("two", "throughput, 2 tasks", change, Some(1.0), 1.0),
            row("two", "throughput, 4 tasks", change, Some(1.0), 1.0),
            row("two", "throughput, peak", improved, Some(30.0), 4.0),
            row("two", "throughput, peak", change, Some(1.0), 1.0),
        ]
    );
    let wanted = Options { tasks: Some(&[4]), ..options(None, 1, Curves::Skip) };
    let some = experiment.reproduce(wanted, |_| ()).expect("small runs");
    assert_eq!((some.runs, experiment.runs(wanted)), (2, 2), "one of each variant");
    let [(suffix, plot)] = &reproduced.plots[..] else { panic!("one quantity is plotted") };
    let names: Vec<_> = plot.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(
        (suffix.as_str(), names),
        ("", vec!["one", "one, published", "two", "two, published"])
    );
}

#[test]
fn a_matrix_has_published_values_and_ratios_to_the_base() {
    let csv = "quantity,one,two\nthreads,10,5\n";
    let variant = |name, column, settings| Variant {
        name,
        role: Role::Improved,
        csv,
        column,
        settings,
        ..Variant::DEFAULT
    };
    let study = Study {
        workload: Workload::Highalloc,
        scales: &[256],
        settings: &["compilers=0.2"],
        time: None,
        variants: Box::leak(Box::new([
            Variant { role: Role::Base, ..variant("tiny-one", "one", &[&["kswapd_threads=1"]]) },
            variant("tiny-two", "two", &[&["kswapd_threads=2"]]),
            Variant {
                known: Known::Beyond,
                ..variant("tiny-four", "four", &[&["kswapd_threads=4"]])
            },
        ])),
        quantities: &[
            Quantity { published: &["threads"], compared: Compared::Plotted, ..THREADS },
            Quantity {
                name: "attempts",
                unit: "1",
                take: |run| {
                    let passes = &run.figures.highalloc.as_ref().expect("passes").passes;
                    passes.iter().map(|pass| pass.attempts as f64).sum()
                },
                ..Quantity::DEFAULT
            },
        ],
        presentation: Presentation::Matrix { plot: &["threads"] },
        ..STUDY
    };
    let experiment = Experiment { studies: Box::leak(Box::new([study])), ..TINY };
    let reproduced =
        experiment.reproduce(options(None, 1, Curves::Plot), |_| ()).expect("small runs");
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
            ("tiny-two", "threads", Some(0.5), 2.0),
            ("tiny-two", "attempts", None, attempts),
            ("tiny-four", "threads", None, 4.0),
            ("tiny-four", "threads", None, 4.0),
            ("tiny-four", "attempts", None, attempts),
            ("tiny", "threads", Some(1.0), 0.0),
        ]
    );
    let [(_, values), (suffix, ratios)] = &reproduced.plots[..] else { panic!("two plots") };
    let points: Vec<_> = values.series.iter().map(|series| series.points[0]).collect();
    assert_eq!(points, [(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]);
    let published = &ratios.series[1];
    assert_eq!((suffix.as_str(), published.name.as_str()), ("-ratios", "threads, published"));
    assert_eq!(published.points, [(1.0, 1.0), (2.0, 0.5)]);
}

/// A base's table has no column of a later version, and a later version's table has none of the
/// base.
#[test]
fn published_values_of_bases_are_in_tables_of_their_own() {
    let published = ALL.iter().flat_map(|experiment| experiment.studies);
    let mut tables = [const { Vec::new() }; 2];
    for variant in published.flat_map(|study| study.variants) {
        let is_after = usize::from(variant.role != Role::Base);
        if variant.known == Known::Published {
            tables[is_after].push(variant.csv);
        }
    }
    let [base, after] = tables;
    assert!(base.iter().all(|table| !after.contains(table)));
    for table in base {
        let head = table.lines().next().expect("headings");
        for word in ["improved", "order", "partial", "lesslock", "revert", "cachefail", "useless"] {
            assert!(!head.contains(word), "{head}");
        }
    }
}

/// Values of bases and the names of changes are found without parsing the published values of
/// changes.
#[test]
fn calibration_parses_no_table_of_what_came_after_a_base() {
    let broken = "quantity,improved\none,2,3\n";
    assert!(std::panic::catch_unwind(|| Table::parse(broken)).is_err(), "too many cells");
    let variants = vec![BASE, Variant { csv: broken, role: Role::Improved, ..BASE }];
    let study: &'static Study = Box::leak(Box::new(Study { variants: variants.leak(), ..STUDY }));
    let values: Vec<_> = study.base_values().iter().map(|v| (v.name(), v.published)).collect();
    let value = |name: &str, published| (format!("tiny: {name}"), published);
    assert_eq!(values, [value("threads", 1.0), value("tasks", 1.0)]);
    assert_eq!(study.ratios(&[]).len(), 2);
}

/// A second command reuses the results that the first one kept, and a truncated line costs only its
/// own run.
#[test]
fn runs_that_ended_are_not_run_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("runs");
    let run = || {
        let kept = Kept::open(&path).expect("a file");
        let options = Options { kept: Some(&kept), ..options(Some(256), 1, Curves::Skip) };
        TINY.reproduce(options, |_| ()).expect("small runs")
    };
    let lines = || std::fs::read_to_string(&path).expect("it was kept");
    let first = run();
    assert_eq!(lines().lines().count(), 3);
    let again = run();
    assert_eq!((&again.rows, again.seconds), (&first.rows, first.seconds), "with the time it took");
    assert_eq!(lines().lines().count(), 3);
    let cut = lines().len() - 50;
    std::fs::write(&path, &lines()[..cut]).expect("written");
    assert_eq!(run().rows, first.rows);
    assert_eq!(lines().lines().count(), 4, "two whole ones, a part of one, and this one again");
}
