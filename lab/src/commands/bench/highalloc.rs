//! `highwater-lab bench highalloc`: blocks of 2 MiB out of an arena in use, compacted and not.
//!
//! ```text
//! compact=off ── an arena, the trace ──> BlockFigures  \
//! compact=... ── another arena, the same ─> BlockFigures  table or JSON
//! ```

use super::common::{BenchError, Platform, json, name_of, size};
use crate::commands::number::number;
use clap::{Args, ValueEnum};
use highwater_command::Unit;
use highwater_devices::Seal;
use highwater_lab::subject::{Guards, Setup};
use highwater_lab::workload::blocks::{self, BlockFigures};
use highwater_mm::Config;
use highwater_mm::config::history::{CompactHistory, History};
use highwater_os::HugePages;
use highwater_units::Bytes;
use serde::Serialize;
use std::fmt::Write;

/// Blocks that are kept, as part of the arena.
const HELD_PERCENT: u64 = 6;
/// Of what objects leave free, how much they use at first.
const FILLED_PERCENT: u64 = 60;

/// How memory is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Method {
    /// As Linux 3.6-rc5 did
    Vanilla,
    /// vanilla, but locks are taken late, and asynchronous compaction aborts on a contended lock
    Lesslock,
    /// lesslock, but the free scanner starts at the end of the zone, not where it last succeeded
    Revert,
    /// revert, but pageblocks where nothing could be isolated are skipped for some time
    Cachefail,
    /// cachefail, but scanners start behind the skipped pageblocks
    Skipuseless,
    /// Highwater's own compaction
    Fast,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Highalloc {
    /// The memory manager: os
    #[arg(long, value_enum)]
    platform: Platform,
    /// Size of the arena
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    memory: Bytes,
    /// Percentage of the arena that objects of random orders use
    #[arg(long = "use", value_name = "PERCENT", default_value = "90",
          value_parser = number::<u64>(1..=95))]
    used: u64,
    /// Number of threads that use, free and allocate these objects
    #[arg(long, value_name = "N", default_value = "2",
          value_parser = number::<u32>(1..=64))]
    threads: u32,
    /// Number of 2 MiB blocks to request
    #[arg(long, value_name = "N", default_value = "200",
          value_parser = number::<u64>(1..=1_000_000))]
    attempts: u64,
    /// Maximum number of blocks held at once [default: 6 percent of the arena]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=100_000))]
    held: Option<u64>,
    /// Seed of contents and of the threads' actions
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// How memory is compacted in the second run; the first runs without compaction
    #[arg(long, value_enum, default_value = "fast")]
    compact: Method,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Both runs.
#[derive(Debug, Serialize)]
struct Comparison {
    /// Without compaction.
    off: BlockFigures,
    /// With it.
    compacted: BlockFigures,
    /// By what method.
    method: String,
    memory_bytes: u64,
    used_percent: u64,
    threads: u32,
    seed: u64,
}

impl Highalloc {
    /// Runs both, and gives what there is to print.
    pub(super) fn run(&self) -> Result<String, BenchError> {
        if self.platform != Platform::Os {
            let name = name_of(&self.platform);
            let refusal = format!("highalloc on {name}: give --platform os");
            return Err(BenchError::Setup(refusal));
        }
        let method = match self.compact {
            Method::Vanilla => Some(CompactHistory::Vanilla),
            Method::Lesslock => Some(CompactHistory::LessLock),
            Method::Revert => Some(CompactHistory::Revert),
            Method::Cachefail => Some(CompactHistory::CacheFail),
            Method::Skipuseless => Some(CompactHistory::SkipUseless),
            Method::Fast => None,
        };
        let comparison = Comparison {
            off: self.measure(false, None)?,
            compacted: self.measure(true, method)?,
            method: name_of(&self.compact),
            memory_bytes: self.memory.0,
            used_percent: self.used,
            threads: self.threads,
            seed: self.seed,
        };
        Ok(if self.json { json(&comparison) } else { comparison.table() })
    }

    fn measure(
        &self,
        compact: bool,
        method: Option<CompactHistory>,
    ) -> Result<BlockFigures, BenchError> {
        let frames = self.memory.pages();
        let used = (frames * self.used / 100).max(self.threads.into());
        let config = blocks::Config {
            threads: self.threads as usize,
            used,
            filled: used + frames.saturating_sub(used) * FILLED_PERCENT / 100,
            attempts: self.attempts,
            held: self.held.unwrap_or(frames / 512 * HELD_PERCENT / 100).max(1) as usize,
            seed: self.seed,
        };
        let history = History { compact: method, ..History::default() };
        let setup = Setup {
            memory: self.memory,
            set: Bytes::of_pages(config.set()),
            swap: Vec::new(),
            seal: Seal::default(),
            config: Config { compact, history, ..Config::default() },
            huge_pages: HugePages::Auto,
        };
        let guards = Guards::with_folios(&setup).map_err(BenchError::Setup)?;
        blocks::run(&guards, &config).map_err(|failure| BenchError::Run(failure.to_string()))
    }
}

/// How a figure is taken; none where there is none.
type Figure = fn(&BlockFigures) -> Option<f64>;

impl Comparison {
    fn table(&self) -> String {
        let Comparison { method, used_percent, threads, seed, .. } = self;
        let mut text = format!(
            "blocks of 2 MiB of {}: {used_percent} % in use, {threads} threads, seed {seed}\n\n\
             {:26}{:>14}{:>14}\n",
            Bytes(self.memory_bytes),
            "",
            "compact=off",
            format!("={method}")
        );
        let lines: [(&str, Unit, Figure); 10] = [
            ("attempts", Unit::Count, |run| Some(run.attempts as f64)),
            ("successes", Unit::Count, |run| Some(run.successes as f64)),
            ("success rate", Unit::Share, |run| Some(run.percent() / 100.0)),
            ("latency p50", Unit::Time, |run| Some(run.p50_ns as f64)),
            ("latency p99", Unit::Time, |run| Some(run.p99_ns as f64)),
            ("KiB moved per success", Unit::Rate, |run| {
                run.moved_bytes_per_success.map(|bytes| bytes / 1024.0)
            }),
            ("frames scanned", Unit::Count, |run| Some(run.scanned as f64)),
            ("deeds of the others/s", Unit::Rate, |run| Some(run.deeds_per_s)),
            ("objects refused", Unit::Count, |run| Some(run.refused as f64)),
            ("words checked", Unit::Count, |run| Some(run.checked_words as f64)),
        ];
        for (name, unit, figure) in lines {
            let [off, on] = [&self.off, &self.compacted].map(|run| unit.show(figure(run)));
            let _ = writeln!(text, "{name:26}{off:>14}{on:>14}");
        }
        text.truncate(text.trim_end().len());
        text
    }
}
