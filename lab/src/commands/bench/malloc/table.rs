//! All runs as a table: a row for each load and allocator, and its ratios to the best of the load.

use super::figures::{AllocatorRun, MallocFigures};
use crate::commands::bench::common::name_of;
use highwater_command::Unit;
use highwater_command::counted;
use highwater_units::Bytes;
use std::fmt::Write;

/// The table.
pub(super) fn table(figures: &MallocFigures) -> String {
    let mut text = heading(figures);
    let peak = if figures.memory_bytes.is_some() { "paged peak" } else { "peak RSS" };
    let heads = ["operation", "of best", "CPU/object", "of best", peak, "of best"];
    let _ = write!(text, "\n\n{:19}{:10}", "load", "allocator");
    heads.iter().for_each(|head| text += &format!("{head:>11}"));
    let _ = write!(text, "{:>14}{:>12}", "major faults", "swapped in");
    for run in &figures.runs {
        let _ = write!(text, "\n{:19}{:10}", name_of(&run.load), name_of(&run.allocator));
        let time = |ns: f64| Unit::Time.show(Some(ns));
        let bytes = |bytes: f64| Bytes(bytes as u64).to_string();
        text += &with_ratio(figures, run, &|run| run.figures.ns_per_operation, &time);
        text += &with_ratio(figures, run, &|run| run.figures.cpu_ns_per_object, &time);
        text += &with_ratio(figures, run, &|run| run.peak_bytes(figures), &bytes);
        let paging = run.paging.as_ref();
        let faults = paging.map_or(run.figures.major_faults, |paging| paging.major_faults);
        let pages = paging.map_or("-".into(), |paging| paging.swapped_in_pages.to_string());
        let _ = write!(text, "{faults:>14}{pages:>12}");
    }
    text.push('\n');
    let unpaged = figures.runs.iter().filter(|run| !run.counts(figures)).map(unpaged);
    for note in figures.notes.iter().cloned().chain(unpaged) {
        let _ = write!(text, "\n{note}");
    }
    let words: u64 = figures.runs.iter().map(|run| run.figures.checked_words).sum();
    let _ = write!(text, "\ncontents compared: {} words ok", Unit::Count.show(Some(words as f64)));
    text
}

/// A figure, and its ratio to the best of those that count; a dash where there is none.
fn with_ratio(
    figures: &MallocFigures,
    run: &AllocatorRun,
    figure: &dyn Fn(&AllocatorRun) -> f64,
    show: &dyn Fn(f64) -> String,
) -> String {
    let rivals = figures.runs.iter().filter(|r| r.load == run.load && r.counts(figures));
    let best = rivals.map(figure).min_by(f64::total_cmp).filter(|best| *best > 0.0);
    let best = best.filter(|_| run.counts(figures));
    let ratio = best.map_or("-".into(), |best| format!("{:.2}", figure(run) / best));
    format!("{:>11}{ratio:>11}", show(figure(run)))
}

fn unpaged(run: &AllocatorRun) -> String {
    let paged = run.paging.as_ref().map_or(0, |paging| paging.paged_peak_bytes);
    let (load, name) = (name_of(&run.load), name_of(&run.allocator));
    format!("{load}, {name}: only {} were paged, so it was not short of memory", Bytes(paged))
}

impl AllocatorRun {
    /// What it took at most: of paged memory, where that is short, else in all.
    fn peak_bytes(&self, figures: &MallocFigures) -> f64 {
        match (&self.paging, figures.memory_bytes) {
            (Some(paging), Some(_)) => paging.paged_peak_bytes as f64,
            _ => self.figures.peak_resident_bytes as f64,
        }
    }

    /// Whether it is to be compared: where memory is short, most objects must have been paged.
    fn counts(&self, figures: &MallocFigures) -> bool {
        figures.memory_bytes.is_none() || 2.0 * self.peak_bytes(figures) >= figures.set_bytes as f64
    }
}

fn heading(figures: &MallocFigures) -> String {
    let MallocFigures { threads, seed, rounds, checked_percent, .. } = figures;
    let memory = match figures.memory_bytes {
        Some(memory) => format!("all on paged memory of {}", Bytes(memory)),
        None => "nobody is short of memory".into(),
    };
    let threads = counted((*threads).into(), "thread", "threads");
    let rounds = counted((*rounds).into(), "round", "rounds");
    format!(
        "malloc: {} of objects, {threads}, {memory}, {checked_percent} % of objects \
         compared when freed, seed {seed}, median of {rounds}",
        Bytes(figures.set_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::malloc::figures::{Allocator, Paging};
    use crate::commands::bench::malloc::load::{Load, LoadFigures};

    fn run(allocator: Allocator, ns: f64, paged: u64) -> AllocatorRun {
        let figures = LoadFigures {
            operations: 10,
            ns_per_operation: ns,
            cpu_ns_per_object: ns,
            checked_words: 20,
            base_bytes: 0,
            peak_resident_bytes: 1 << 20,
            major_faults: 0,
        };
        let paging = Paging { major_faults: 7, swapped_in_pages: 8, paged_peak_bytes: paged };
        AllocatorRun { load: Load::Churn, allocator, figures, paging: Some(paging) }
    }

    #[test]
    fn who_was_not_paged_is_not_compared() {
        let runs = vec![
            run(Allocator::Jemalloc, 300.0, 1 << 20),
            run(Allocator::Mimalloc, 200.0, 1 << 20),
            run(Allocator::Highwater, 100.0, 1 << 10),
        ];
        let mut figures = MallocFigures {
            runs,
            notes: vec![],
            rounds: 1,
            threads: 1,
            set_bytes: 1 << 20,
            memory_bytes: Some(1 << 18),
            checked_percent: 100,
            seed: 1,
        };
        let of = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let text = table(&figures);
        assert_eq!(of(&text, "jemalloc")[2..5], ["300", "ns", "1.50"], "{text}");
        assert_eq!(of(&text, "highwater")[2..5], ["100", "ns", "-"], "{text}");
        assert!(text.contains("churn, highwater: only 1 KiB were paged"), "{text}");
        figures.memory_bytes = None;
        let text = table(&figures);
        assert_eq!(of(&text, "jemalloc")[2..5], ["300", "ns", "3.00"], "{text}");
        assert!(!text.contains("only"), "{text}");
    }
}
