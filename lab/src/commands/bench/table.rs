//! Figures as a table: a row each, a column for each subject, and the ratio. Then what locks cost.

use super::job::Job;
use super::rounds::Comparison;
use super::subject::Run;
use highwater_command::Unit;
use highwater_command::counted;
use highwater_lab::report::locks::table_of;
use highwater_lab::workload::figures::{Figures, TierFigures};
use highwater_units::Nanos;
use std::fmt::Write;

/// Rows of a lock table: the locks with the most wait and hold time.
const LOCK_ROWS: usize = 10;

/// A row: its name, its unit, and the figure, where there is one.
type Row = (&'static str, Unit, fn(&Figures) -> Option<f64>);

const ROWS: &[Row] = &[
    ("accesses/s", Unit::Rate, |f| Some(f.accesses_per_s)),
    ("major faults / accesses", Unit::Rate, |f| f.major_faults_per_access),
    ("faults/s, major", Unit::Rate, |f| Some(f.major_faults_per_s)),
    ("faults/s, soft", Unit::Rate, |f| Some(f.soft_faults_per_s)),
    ("threads x time / major faults", Unit::Time, |f| f.ns_per_major_fault_and_thread),
    ("threads x time / all faults", Unit::Time, |f| f.ns_per_fault_and_thread),
    ("CPU time / major faults", Unit::Time, |f| f.cpu_ns_per_major_fault),
    ("TLB interrupts / major faults", Unit::Rate, |f| f.tlb_interrupts_per_major_fault),
    ("calls for pages / major faults", Unit::Rate, |f| f.calls_per_major_fault),
    ("switches / major faults", Unit::Rate, |f| f.context_switches_per_major_fault),
    ("fault latency p50", Unit::Time, |f| f.fault_p50_ns.map(|ns| ns as f64)),
    ("fault latency p99", Unit::Time, |f| f.fault_p99_ns.map(|ns| ns as f64)),
    ("access latency p50", Unit::Time, |f| Some(f.access_p50_ns as f64)),
    ("access latency p99", Unit::Time, |f| Some(f.access_p99_ns as f64)),
    ("second half to first, faster by", Unit::Share, |f| f.drift),
    ("CPUs kept busy", Unit::Share, |f| Some(f.cpus)),
    ("CPUs busy with other programs", Unit::Share, |f| f.other_cpus),
    ("pages in/s", Unit::Rate, |f| Some(f.pages_in_per_s)),
    ("swap in", Unit::Speed, |f| Some(f.swap_in_gb_per_s)),
    ("swap out", Unit::Speed, |f| Some(f.swap_out_gb_per_s)),
    ("direct reclaims/s", Unit::Rate, |f| f.direct_reclaims_per_s),
    ("time in which threads stall", Unit::Share, |f| f.stalled),
    ("tasks' KB/s, sum", Unit::Rate, |f| f.tasks.map(|tasks| tasks.sum_kib_per_s)),
    ("tasks' KB/s, median", Unit::Rate, |f| f.tasks.map(|tasks| tasks.median_kib_per_s)),
    ("tasks' KB/s, deviation", Unit::Rate, |f| f.tasks.map(|tasks| tasks.stddev_kib_per_s)),
    ("fill of the whole set", Unit::Speed, |f| f.fill_gb_per_s),
    ("check of the whole set", Unit::Speed, |f| f.sweep_gb_per_s),
];

/// The table of one run.
pub(super) fn one(job: &impl Job, run: &Run) -> String {
    let mut text = heading(job);
    let _ = write!(text, "\n{:32}{:>14}", "", run.subject);
    for (name, unit, figure) in ROWS {
        let _ = write!(text, "\n{name:32}{:>14}", unit.show(figure(&run.figures)));
    }
    format!("{text}{}{}\n{}", tiers(&run.figures), locks(&run.figures), checked(run))
}

/// The table of all runs, and the ratio to each peer, ours / peer.
pub(super) fn all(job: &impl Job, all: &Comparison) -> String {
    let mut text = heading(job);
    let _ = write!(text, "\n{:32}{:>14}", "", all.ours.subject);
    for peer in &all.peers {
        let _ = write!(text, "{:>14}{:>8}", peer.run.subject, "ratio");
    }
    for (name, unit, figure) in ROWS {
        let ours = figure(&all.ours.figures);
        let _ = write!(text, "\n{name:32}{:>14}", unit.show(ours));
        for peer in &all.peers {
            let theirs = figure(&peer.run.figures);
            let _ = write!(text, "{:>14}{:>8}", unit.show(theirs), ratio(ours, theirs));
        }
    }
    text += &tiers(&all.ours.figures);
    text += &locks(&all.ours.figures);
    let conditions = all.peers.iter().map(|peer| peer.conditions.clone());
    let runs = [&all.ours].into_iter().chain(all.peers.iter().map(|peer| &peer.run));
    for line in conditions.chain(runs.map(checked)) {
        let _ = write!(text, "\n{line}");
    }
    text
}

/// A line about devices of two levels, if there are any.
fn tiers(figures: &Figures) -> String {
    let line = |tiers: TierFigures| {
        let rate = |pages| Unit::Rate.show(Some(pages));
        format!(
            "\n\npages in tiers: fast {}, slow {}; written back {}/s, {:.0} to a write, {} failed; \
             written to the slow level at once {}/s; read from there {}/s\n",
            tiers.fast_pages,
            tiers.slow_pages,
            rate(tiers.written_back_per_s),
            tiers.pages_per_writeback.unwrap_or(0.0),
            tiers.writeback_failures,
            rate(tiers.slow_writes_per_s),
            rate(tiers.slow_reads_per_s),
        )
    };
    figures.tiers.map_or(String::new(), line)
}

/// A table of the locks that cost most, where locks were measured.
fn locks(figures: &Figures) -> String {
    let table = |rows: &Vec<_>| table_of(rows, Nanos(figures.cpu_ns), LOCK_ROWS);
    figures.locks.as_ref().map_or(String::new(), |rows| format!("\n\n{}\n", table(rows)))
}

fn heading<J: Job>(job: &J) -> String {
    let args = job.common();
    let threads = counted(args.threads.into(), "thread", "threads");
    let (name, parameters) = (J::NAME, job.parameters());
    format!(
        "{name}: set {}, memory {}, {threads}, {parameters}, seed {}",
        args.set, args.memory, args.seed,
    )
}

fn checked(run: &Run) -> String {
    let Figures { checked_reads, swept_words, injected_faults, .. } = run.figures;
    let subject = &run.subject;
    let pass = match swept_words {
        0 => String::new(),
        words => format!(", full pass of {words} words"),
    };
    let struck = match injected_faults {
        0 => String::new(),
        faults => format!(", in spite of {faults} injected faults"),
    };
    format!("{subject}: contents checked: {checked_reads} reads{pass} ok{struck}")
}

fn ratio(ours: Option<f64>, peers: Option<f64>) -> String {
    match (ours, peers) {
        (Some(ours), Some(peers)) if peers > 0.0 => format!("{:.2}", ours / peers),
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_needs_both() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), "1.50");
        assert_eq!(ratio(Some(3.0), Some(0.0)), "-");
        assert_eq!(ratio(None, Some(1.0)), "-");
    }
}
