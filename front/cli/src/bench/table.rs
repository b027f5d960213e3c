//! Figures as a table: a row each, a column for each subject, and the ratio.

use super::rounds::Comparison;
use super::subject::Run;
use super::{Pmbench, name_of};
use highwater_lab::workload::figures::Figures;
use std::fmt::Write;

/// How a figure is shown.
#[derive(Clone, Copy)]
enum Unit {
    /// With a decimal prefix: 1.23 M.
    Rate,
    /// Nanoseconds, or a larger unit of time.
    Time,
    /// 10^9 bytes per second.
    Speed,
}

/// A row: its name, its unit, and the figure, where there is one.
type Row = (&'static str, Unit, fn(&Figures) -> Option<f64>);

const ROWS: &[Row] = &[
    ("accesses/s", Unit::Rate, |f| Some(f.accesses_per_s)),
    ("faults/s, major", Unit::Rate, |f| Some(f.major_faults_per_s)),
    ("faults/s, soft", Unit::Rate, |f| Some(f.soft_faults_per_s)),
    ("threads x time / major faults", Unit::Time, |f| f.ns_per_major_fault_and_thread),
    ("threads x time / all faults", Unit::Time, |f| f.ns_per_fault_and_thread),
    ("CPU time / major faults", Unit::Time, |f| f.cpu_ns_per_major_fault),
    ("fault latency p50", Unit::Time, |f| f.fault_p50_ns.map(|ns| ns as f64)),
    ("fault latency p99", Unit::Time, |f| f.fault_p99_ns.map(|ns| ns as f64)),
    ("access latency p50", Unit::Time, |f| Some(f.access_p50_ns as f64)),
    ("access latency p99", Unit::Time, |f| Some(f.access_p99_ns as f64)),
    ("pages in/s", Unit::Rate, |f| Some(f.pages_in_per_s)),
    ("swap in", Unit::Speed, |f| Some(f.swap_in_gb_per_s)),
    ("swap out", Unit::Speed, |f| Some(f.swap_out_gb_per_s)),
    ("fill of the whole set", Unit::Speed, |f| Some(f.fill_gb_per_s)),
    ("check of the whole set", Unit::Speed, |f| Some(f.sweep_gb_per_s)),
];

/// The table of one run.
pub(super) fn one(args: &Pmbench, run: &Run) -> String {
    let mut text = heading(args);
    let _ = write!(text, "\n{:32}{:>14}", "", run.subject);
    for (name, unit, figure) in ROWS {
        let _ = write!(text, "\n{name:32}{:>14}", show(*unit, figure(&run.figures)));
    }
    text + "\n" + &checked(run)
}

/// The table of both runs and their ratio, ours / peer.
pub(super) fn both(args: &Pmbench, both: &Comparison) -> String {
    let (ours, peer) = (&both.ours, &both.peer);
    let mut text = heading(args);
    let _ = write!(text, "\n{:32}{:>14}{:>14}{:>8}", "", ours.subject, peer.subject, "ratio");
    for (name, unit, figure) in ROWS {
        let (our, their) = (figure(&ours.figures), figure(&peer.figures));
        let (our_text, their_text) = (show(*unit, our), show(*unit, their));
        let ratio = ratio(our, their);
        let _ = write!(text, "\n{name:32}{our_text:>14}{their_text:>14}{ratio:>8}");
    }
    format!("{text}\n{}\n{}\n{}", both.conditions, checked(ours), checked(peer))
}

fn heading(args: &Pmbench) -> String {
    let (threads, plural) = (args.threads, if args.threads == 1 { "" } else { "s" });
    format!(
        "pmbench: set {}, memory {}, {threads} thread{plural}, {}% reads, {}, {} s, seed {}",
        args.set,
        args.memory,
        args.read,
        name_of(&args.pattern),
        args.time,
        args.seed,
    )
}

fn checked(run: &Run) -> String {
    let Figures { checked_reads, swept_words, .. } = run.figures;
    let subject = &run.subject;
    format!(
        "{subject}: contents checked: {checked_reads} reads, full pass of {swept_words} words ok"
    )
}

fn ratio(ours: Option<f64>, peers: Option<f64>) -> String {
    match (ours, peers) {
        (Some(ours), Some(peers)) if peers > 0.0 => format!("{:.2}", ours / peers),
        _ => "-".into(),
    }
}

fn show(unit: Unit, figure: Option<f64>) -> String {
    let Some(figure) = figure else { return "-".into() };
    match unit {
        Unit::Rate => scaled(figure, &[(1e9, " G"), (1e6, " M"), (1e3, " k")], ""),
        Unit::Time => scaled(figure, &[(1e9, " s"), (1e6, " ms"), (1e3, " us")], " ns"),
        Unit::Speed => format!("{figure:.2} GB/s"),
    }
}

/// Three digits in the largest unit that is not above the figure.
fn scaled(figure: f64, units: &[(f64, &str)], least: &str) -> String {
    let fitting = units.iter().find(|(size, _)| figure >= *size);
    let (size, name) = fitting.copied().unwrap_or((1.0, least));
    let value = figure / size;
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(show(Unit::Rate, Some(1_234_567.0)), "1.23 M");
        assert_eq!(show(Unit::Rate, Some(12.34)), "12.3");
        assert_eq!(show(Unit::Time, Some(854.0)), "854 ns");
        assert_eq!(show(Unit::Time, Some(9_700.0)), "9.70 us");
        assert_eq!(show(Unit::Speed, Some(1.234)), "1.23 GB/s");
        assert_eq!(show(Unit::Time, None), "-");
    }

    #[test]
    fn a_ratio_needs_both() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), "1.50");
        assert_eq!(ratio(Some(3.0), Some(0.0)), "-");
        assert_eq!(ratio(None, Some(1.0)), "-");
    }
}
