//! The figures of passes, as printed and as JSON.

use super::config::Pass;
use crate::workload::outcome::Measured;
use highwater_command::Unit;
use highwater_mm::stats::Counter;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Names of the passes.
const NAMES: [&str; 3] = ["pass 1", "pass 2", "while rested"];

/// All passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HighallocFigures {
    /// In their order.
    pub passes: Vec<PassFigures>,
    /// The scanner that looks for free frames.
    pub free: ScannerFigures,
    /// The scanner that looks for pages to move into these frames.
    pub migrate: ScannerFigures,
}

/// What a scanner of compaction did, from the first build's start to the end of the last pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScannerFigures {
    /// Frames that it scanned.
    pub scanned: u64,
    /// Frames that it isolated.
    pub isolated: u64,
}

/// One pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassFigures {
    /// Its name.
    pub name: String,
    /// Attempts to allocate a block.
    pub attempts: u64,
    /// Attempts that got a block.
    pub successes: u64,
    /// Half of the attempts took at most this.
    pub p50_ns: u64,
    /// 99 % of them.
    pub p99_ns: u64,
}

impl HighallocFigures {
    /// Of the passes of a run.
    pub fn of(passes: &[Pass], measured: &Measured) -> HighallocFigures {
        use Counter::{CompactFreeIsolated, CompactFreeScanned};
        use Counter::{CompactMigrateIsolated, CompactMigrateScanned};
        let each = passes.iter().zip(NAMES);
        let of = |(pass, name): (&Pass, &str)| PassFigures::of(pass, name, measured.nanos_per_tick);
        let scanner = |scanned, isolated| {
            let [scanned, isolated] = [scanned, isolated].map(|counter| {
                measured.after.get(counter).saturating_sub(measured.before.get(counter))
            });
            ScannerFigures { scanned, isolated }
        };
        HighallocFigures {
            passes: each.map(of).collect(),
            free: scanner(CompactFreeScanned, CompactFreeIsolated),
            migrate: scanner(CompactMigrateScanned, CompactMigrateIsolated),
        }
    }

    /// As text: a line for each.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:22}{:>11}{:>11}{:>11}{:>11}{:>11}\n",
            "blocks of 2 MiB", "attempts", "successes", "percent", "p50", "p99"
        );
        for pass in &self.passes {
            let PassFigures { name, attempts, successes, p50_ns, p99_ns } = pass;
            let [p50, p99] = [p50_ns, p99_ns].map(|ns| Unit::Time.show(Some(*ns as f64)));
            let percent = pass.percent();
            let _ = writeln!(
                text,
                "{name:22}{attempts:>11}{successes:>11}{percent:>11.1}{p50:>11}{p99:>11}"
            );
        }
        let successes: u64 = self.passes.iter().map(|pass| pass.successes).sum();
        let _ = writeln!(
            text,
            "\n{:22}{:>11}{:>11}{:>11}{:>22}",
            "scanners", "scanned", "isolated", "efficiency", "scanned per block"
        );
        for (name, scanner) in [("free", &self.free), ("migrate", &self.migrate)] {
            let ScannerFigures { scanned, isolated } = *scanner;
            let share = |of: u64| (of > 0).then(|| isolated as f64 / of as f64);
            let each = (successes > 0).then(|| scanned as f64 / successes as f64);
            let [count, taken] =
                [scanned, isolated].map(|frames| Unit::Count.show(Some(frames as f64)));
            let (efficiency, each) = (Unit::Share.show(share(scanned)), Unit::Rate.show(each));
            let _ = writeln!(text, "{name:22}{count:>11}{taken:>11}{efficiency:>11}{each:>22}");
        }
        text
    }
}

impl PassFigures {
    fn of(pass: &Pass, name: &str, nanos_per_tick: f64) -> PassFigures {
        let nanos = |share| (pass.latency.value_at_quantile(share) as f64 * nanos_per_tick) as u64;
        PassFigures {
            name: name.into(),
            attempts: pass.attempts,
            successes: pass.successes,
            p50_ns: nanos(0.5),
            p99_ns: nanos(0.99),
        }
    }

    /// Successes of 100 attempts.
    pub fn percent(&self) -> f64 {
        self.successes as f64 * 100.0 / self.attempts.max(1) as f64
    }
}
