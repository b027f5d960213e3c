//! `highwater-lab bench walk`: a walk through pages of 2 MiB of an arena, in huge pages and in
//! small ones.
//!
//! ```text
//! huge_pages=off  ── an arena, its pages held, the walk ──> WalkFigures  \
//! huge_pages=auto ── another arena, the same walk ────────> WalkFigures  table or JSON
//! ```

use super::common::{BenchError, Platform, json, name_of, size};
use crate::commands::number::number;
use clap::Args;
use highwater_command::Unit;
use highwater_devices::Seal;
use highwater_lab::subject::{Guards, Setup};
use highwater_lab::workload::walk::{self, WalkFigures};
use highwater_mm::Config;
use highwater_os::HugePages;
use highwater_units::{Bytes, Order};
use serde::Serialize;
use std::fmt::Write;

/// Of the arena, how much is walked through.
const USED_PERCENT: u64 = 90;

#[derive(Clone, Debug, Args)]
pub(super) struct Walk {
    /// The memory manager: os
    #[arg(long, value_enum)]
    platform: Platform,
    /// Size of the arena
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1G")]
    memory: Bytes,
    /// Number of words to read, one after the other
    #[arg(long, value_name = "N", default_value = "20000000",
          value_parser = number::<u64>(1..=100_000_000_000))]
    steps: u64,
    /// Seed of contents and of the order of reads
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Both walks.
#[derive(Debug, Serialize)]
struct Comparison {
    off: WalkFigures,
    auto: WalkFigures,
    memory_bytes: u64,
    seed: u64,
}

impl Walk {
    /// Runs both, and gives what there is to print.
    pub(super) fn run(&self) -> Result<String, BenchError> {
        if self.platform != Platform::Os {
            let name = name_of(&self.platform);
            return Err(BenchError::Setup(format!("walk on {name}: give --platform os")));
        }
        if self.blocks() == 0 {
            let refusal = format!("walk in {}: give --memory of 4M or more", self.memory);
            return Err(BenchError::Setup(refusal));
        }
        let comparison = Comparison {
            off: self.measure(HugePages::Off)?,
            auto: self.measure(HugePages::Auto)?,
            memory_bytes: self.memory.0,
            seed: self.seed,
        };
        Ok(if self.json { json(&comparison) } else { comparison.table() })
    }

    /// Pages of 2 MiB that it goes through.
    fn blocks(&self) -> u64 {
        (self.memory.pages() * USED_PERCENT / 100) >> Order::LARGE.0
    }

    fn measure(&self, huge_pages: HugePages) -> Result<WalkFigures, BenchError> {
        let set = Bytes::of_pages(self.blocks() << Order::LARGE.0);
        let (swap, config) = (Vec::new(), Config::default());
        let seal = Seal::default();
        let setup = Setup { memory: self.memory, set, swap, seal, config, huge_pages };
        let guards = Guards::with_folios(&setup).map_err(BenchError::Setup)?;
        let held = (0..self.blocks()).map(|index| guards.hold(Order::LARGE, index));
        let held = held.collect::<Result<Vec<_>, _>>();
        let held = held.map_err(|denied| BenchError::Run(denied.to_string()))?;
        let pages: Vec<_> = held.iter().map(|page| page.pages()).collect();
        let step_ns = walk::run(&pages, self.steps, self.seed).map_err(BenchError::Run)?;
        let huge_bytes = guards.huge_bytes().0;
        Ok(WalkFigures { set_bytes: set.0, huge_bytes, steps: self.steps, step_ns })
    }
}

impl Comparison {
    fn table(&self) -> String {
        let Comparison { off, auto, seed, .. } = self;
        let mut text = format!(
            "{} words at random of {} in {}, seed {seed}\n\n{:26}{:>14}{:>14}\n",
            off.steps,
            Bytes(off.set_bytes),
            Bytes(self.memory_bytes),
            "huge pages",
            "=off",
            "=auto"
        );
        let [small, huge] = [off, auto].map(|walk| (walk.huge_bytes >> 20).to_string() + " MiB");
        let _ = writeln!(text, "{:26}{small:>14}{huge:>14}", "in huge pages");
        let [small, huge] = [off, auto].map(|walk| Unit::Time.show(Some(walk.step_ns)));
        let _ = write!(text, "{:26}{small:>14}{huge:>14}", "a word");
        text
    }
}
