//! Experiments are sound, and a tiny one runs.

use super::*;
use crate::simulate::KEYS;

/// pmbench with one and with four kswapd threads, published as 10 % better.
const TINY: Experiment = Experiment {
    name: "tiny",
    about: "kswapd threads on a machine of 2012",
    machine: "desktop-2012-kvm",
    workload: Workload::Pmbench,
    tasks: 2,
    curve: &[1, 2],
    time: Some(Nanos(2_000_000)),
    scales: &[1 << 40, 256],
    settings: &["read_percent=50", "set=0.5"],
    variants: &[
        Variant {
            name: "tiny",
            role: Role::Base,
            known: Known::Published,
            settings: &["kswapd_threads=1"],
        },
        Variant {
            name: "tiny",
            role: Role::Improved,
            known: Known::Published,
            settings: &["kswapd_threads=4"],
        },
        Variant {
            name: "tiny-unknown",
            role: Role::Improved,
            known: Known::Beyond,
            settings: &["kswapd_threads=8"],
        },
    ],
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
    published: "quantity,unit,base,improved\none,1,1,2\nanother,1,0,1\ngain,percent,0,10\n",
};

#[test]
fn rows_are_base_then_improved_and_change_of_each_variant() {
    let reproduced = TINY.reproduce(None, Curves::No, |_, _| ()).expect("a small run");
    assert_eq!(reproduced.plot, None);
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
fn a_plot_has_a_curve_for_each_variant() {
    let plot = TINY.reproduce(Some(256), Curves::Yes, |_, _| ()).expect("small runs").plot;
    let series = plot.expect("asked for").series;
    let names: Vec<_> = series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["tiny, base", "tiny, improved", "tiny-unknown, improved"]);
    for Series { points, .. } in series {
        assert_eq!(points.iter().map(|(tasks, _)| *tasks).collect::<Vec<_>>(), [1.0, 2.0]);
        assert!(points.iter().all(|(_, rate)| *rate > 0.0), "{points:?}");
    }
}

/// Their machines, settings and published rows exist, and they fit at their smallest scale.
#[test]
fn every_experiment_fits_together() {
    for experiment in ALL {
        assert_eq!(find(experiment.name).map(|found| found.name), Some(experiment.name));
        let smallest = *experiment.scales.last().expect("a scale");
        for variant in experiment.variants {
            for tasks in experiment.curve.iter().chain([&experiment.tasks]) {
                let made = experiment.at(variant, *tasks, smallest).expect("settings");
                simulate::check(&made).expect("it fits");
            }
            let set = |text: &&str| KEYS.iter().any(|key| text.starts_with(key.name));
            assert!(variant.settings.iter().all(set), "{}", variant.name);
        }
        let rows = published::rows(experiment.published);
        for quantity in experiment.quantities {
            let of = |name: &&str| rows.iter().any(|row| row.quantity == **name);
            assert!(quantity.published.iter().all(of), "{}", quantity.name);
            let Change::Row(name) = quantity.change else { continue };
            assert!(of(&name), "{name}");
        }
    }
}

#[test]
fn no_experiment_is_called_by_another_name() {
    assert!(find("swap").is_none());
}
