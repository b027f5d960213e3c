//! `highwater-lab bench seal`: CPU time of a page written to a swap file and read back, encrypted
//! beside unencrypted, in turn.
//!
//! ```text
//! off ── a file, all its pages written, then read ──> Passes  \
//! on  ── another file, the same passes ─────────────> Passes  medians, and the difference
//! ```

use super::common::{BenchError, json, size};
use crate::commands::number::number;
use clap::Args;
use highwater_command::Unit;
use highwater_devices::{Area, Seal as Way, Spec};
use highwater_os::{HugePages, Os};
use highwater_platform::{Block, Direction, Io, Memory};
use highwater_units::{BATCH_PAGES_MAX, Bytes, FrameList, PAGE_SIZE, Pfn, Prng, RUN_PAGES_MAX};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The words of a page.
const WORDS: usize = PAGE_SIZE / 8;

#[derive(Clone, Debug, Args)]
pub(super) struct Seal {
    /// Directory of the swap file; /dev/shm is in memory, so no disk disturbs the measurement
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// Bytes written and read back in each round
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64M")]
    set: Bytes,
    /// Number of rounds; the median is reported
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=999),
          default_value = "15")]
    rounds: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// CPU time of the process for a page, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Passes {
    write_ns: f64,
    read_ns: f64,
}

#[derive(Debug, Serialize)]
struct Comparison {
    algorithm: &'static str,
    off: Passes,
    on: Passes,
    set_bytes: u64,
    rounds: u32,
}

impl Seal {
    /// Runs both in turn, and gives what there is to print.
    pub(super) fn run(&self) -> Result<String, BenchError> {
        let ways = [Way::Off, Way::On];
        let files = ways.map(|way| self.open(way));
        let mut passes = [const { Vec::new() }; 2];
        for _ in 0..self.rounds {
            for (file, passes) in files.iter().zip(&mut passes) {
                let file = file.as_ref().map_err(|reason| BenchError::Setup(reason.clone()))?;
                passes.push(self.passes(file)?);
            }
        }
        let [off, on] = passes.map(|passes| Passes {
            write_ns: median(passes.iter().map(|pass| pass.write_ns)),
            read_ns: median(passes.iter().map(|pass| pass.read_ns)),
        });
        let (algorithm, set_bytes) = (Way::On.algorithm(), self.set.0);
        let comparison = Comparison { algorithm, off, on, set_bytes, rounds: self.rounds };
        Ok(if self.json { json(&comparison) } else { comparison.table() })
    }

    fn open(&self, way: Way) -> Result<Os, String> {
        let area = Area::new(Spec::Dir { path: self.dir.clone(), size: self.set });
        let device = area.open(way).map_err(|error| error.to_string())?;
        let memory = Bytes::of_pages(BATCH_PAGES_MAX as u64);
        // Frames in small pages, as those of programs are: the kernel transfers huge ones in less.
        Os::backed_by(memory, vec![Some(device)], 0, HugePages::Off)
            .map_err(|error| error.to_string())
    }

    /// Writes all pages, then reads and checks them.
    fn passes(&self, file: &Os) -> Result<Passes, BenchError> {
        let pages = self.set.pages() / BATCH_PAGES_MAX as u64 * BATCH_PAGES_MAX as u64;
        let per_page = |time: Duration| time.as_nanos() as f64 / pages as f64;
        let write_ns = per_page(pass(file, pages, Direction::Write)?);
        Ok(Passes { write_ns, read_ns: per_page(pass(file, pages, Direction::Read)?) })
    }
}

/// Transfers all pages in batches as reclaim makes them; returns the CPU time.
fn pass(file: &Os, pages: u64, direction: Direction) -> Result<Duration, BenchError> {
    let mut used = Duration::ZERO;
    for first in (0..pages as u32).step_by(BATCH_PAGES_MAX) {
        let slots = (first..).take(BATCH_PAGES_MAX).zip((0..).map(Pfn));
        let words = slots.flat_map(|(slot, frame)| {
            let mut contents = Prng::new(slot.into());
            (0..WORDS).map(move |word| (frame, word, contents.next_u64()))
        });
        match direction {
            Direction::Write => {
                words.clone().for_each(|(frame, at, word)| file.store(frame, at, word))
            }
            Direction::Read => file.zero(&(0..BATCH_PAGES_MAX as u32).map(Pfn).collect::<Vec<_>>()),
        }
        let began = cpu_time();
        let mut batch: Vec<Io> = (0..BATCH_PAGES_MAX as u32)
            .step_by(RUN_PAGES_MAX)
            .map(|at| Io::new(first + at, frames(at)))
            .collect();
        match direction {
            Direction::Write => file.write(0, &mut batch),
            Direction::Read => file.read(0, &mut batch),
        }
        used += cpu_time() - began;
        let right = |(frame, at, word)| file.load(frame, at) == word;
        if batch.iter().any(|io| io.result.is_err()) || !words.clone().all(right) {
            let name = direction.name();
            return Err(BenchError::Run(format!("a {name} from page {first} on is wrong")));
        }
    }
    Ok(used)
}

fn frames(first: u32) -> FrameList {
    (first..).take(RUN_PAGES_MAX).map(Pfn).collect()
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Comparison {
    fn table(&self) -> String {
        let Comparison { off, on, rounds, .. } = self;
        let mut text = format!(
            "{} of pages, median of {rounds} rounds, {}\n\n{:26}{:>12}{:>12}{:>12}",
            Bytes(self.set_bytes),
            self.algorithm,
            "CPU time of a page",
            "seal off",
            "seal on",
            "difference"
        );
        for (name, off, on) in
            [("written", off.write_ns, on.write_ns), ("read", off.read_ns, on.read_ns)]
        {
            let [off, on, more] = [off, on, on - off].map(|ns| Unit::Time.show(Some(ns)));
            let _ = write!(text, "\n{name:26}{off:>12}{on:>12}{more:>12}");
        }
        text
    }
}
