//! `highwater-lab bench malloc`: one load program under several allocators, in turn.
//!
//! ```text
//! each round, each load:  glibc      bench malloc-load                          \
//!                         jemalloc   bench malloc-load --library libjemalloc...  > figures, ratios
//!                         highwater  run ... -- bench malloc-load               /
//! with --memory           run --memory M ... -- bench malloc-load [--library ...]   all but glibc
//! ```
//! Without --memory the budget of `highwater run` is larger than the memory in use, so no run is
//! short of memory. With it all allocators use memory of the same manager, whose report says how
//! many pages were read back.

mod figures;
mod heap;
mod load;
mod table;

use super::common::{BenchError, json, name_of, size};
use super::rounds::{figures_of, piped, this_program};
use crate::commands::number::number;
use clap::{Args, ValueEnum};
use figures::{Allocator, AllocatorRun, MallocFigures, Paging};
use highwater_units::{Bytes, PAGE_SIZE};
use load::Load;
pub(super) use load::LoadArgs;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Operations of a load, without and with --memory.
const OPERATIONS: [u64; 2] = [4_000_000, 200_000];
/// Budget of ours without --memory, beside four times the set.
const AMPLE: u64 = 256 << 20;
/// Where libraries of Debian and others are.
const DIRECTORIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
/// Room for variables of threads of a library that is opened late: jemalloc has 2632 bytes.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");

#[derive(Clone, Debug, Args)]
pub(super) struct Malloc {
    /// The load to run (may be repeated) [default: all]
    #[arg(long, value_enum)]
    load: Vec<Load>,
    /// The allocator to measure (may be repeated) [default: all that are installed]
    #[arg(long, value_enum)]
    allocator: Vec<Allocator>,
    /// Total size of the live objects
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64M")]
    set: Bytes,
    /// Number of threads; churn always uses one
    #[arg(long, value_name = "N", default_value = "2",
          value_parser = number::<u32>(1..=64))]
    threads: u32,
    /// Number of calls of malloc, each with a call of free [default: 4 million; with --memory
    /// 200,000]
    #[arg(long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    operations: Option<u64>,
    /// Run all allocators on paged memory with this budget [default: more than they use]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<Bytes>,
    /// Swap device, as for `highwater run`; by default a RAM device large enough
    #[arg(long, value_name = "SPEC")]
    swap: Vec<String>,
    /// Percentage of objects whose contents are checked before they are freed
    #[arg(long, value_name = "PERCENT", default_value = "100",
          value_parser = number::<u64>(0..=100))]
    checked: u64,
    /// Number of rounds in which all run in turn; the median by time is reported
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = number::<u32>(1..=99))]
    rounds: u32,
    /// Seed of sizes, contents and order
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX), default_value = "1")]
    seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The part of a report of `highwater run` that is read here.
#[derive(Deserialize)]
struct Report {
    faults_major: u64,
    swap_in: SwapIn,
    paged_peak_bytes: u64,
}

#[derive(Deserialize)]
struct SwapIn {
    bytes: u64,
}

/// An allocator, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    allocator: Allocator,
    /// None for the program's own malloc.
    library: Option<String>,
}

impl Malloc {
    /// Runs all, and gives what there is to print.
    pub(super) fn run(&self) -> Result<String, BenchError> {
        let (mut found, notes) = self.allocators();
        if found.is_empty() {
            return Err(BenchError::Setup(format!("no allocator is left: {}", notes.join("; "))));
        }
        let mut runs = Vec::new();
        for _ in 0..self.rounds {
            for load in self.loads() {
                for found in &found {
                    runs.push(self.measure(load, found)?);
                }
            }
            // Each round begins with another allocator.
            found.rotate_left(1);
        }
        let figures = MallocFigures {
            runs: self.medians(&runs),
            notes,
            rounds: self.rounds,
            threads: self.threads,
            set_bytes: self.set.0,
            memory_bytes: self.memory.map(|memory| memory.0),
            checked_percent: self.checked,
            seed: self.seed,
        };
        Ok(if self.json { json(&figures) } else { table::table(&figures) })
    }

    fn loads(&self) -> Vec<Load> {
        match &self.load[..] {
            [] => Load::value_variants().to_vec(),
            asked => asked.to_vec(),
        }
    }

    /// Those that can run, and a line for each that cannot.
    fn allocators(&self) -> (Vec<Found>, Vec<String>) {
        let asked = match &self.allocator[..] {
            [] => Allocator::value_variants(),
            asked => asked,
        };
        let (mut found, mut notes) = (Vec::new(), Vec::new());
        for allocator in asked {
            match allocator.find(self.memory.is_some(), |path| path.exists()) {
                Ok(library) => found.push(Found { allocator: *allocator, library }),
                Err(reason) => notes.push(format!("{}: {reason}", name_of(allocator))),
            }
        }
        (found, notes)
    }

    fn measure(&self, load: Load, found: &Found) -> Result<AllocatorRun, BenchError> {
        let (allocator, line) = (found.allocator, self.line(load, found));
        if self.memory.is_none() && allocator != Allocator::Highwater {
            let figures = figures_of(command(&this_program()?, line), self.limit())?;
            return Ok(AllocatorRun { load, allocator, figures, paging: None });
        }
        let failed =
            |error: std::io::Error| BenchError::Setup(format!("a file for a report: {error}"));
        let file = tempfile::Builder::new().suffix(".json").tempfile().map_err(failed)?;
        let figures =
            figures_of(command(&highwater()?, self.paged(file.path(), line)?), self.limit())?;
        let text = std::fs::read_to_string(file.path()).map_err(failed)?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|error| BenchError::Run(format!("the report of a run: {error}")))?;
        let paging = Paging {
            major_faults: report.faults_major,
            swapped_in_pages: report.swap_in.bytes / PAGE_SIZE as u64,
            paged_peak_bytes: report.paged_peak_bytes,
        };
        Ok(AllocatorRun { load, allocator, figures, paging: Some(paging) })
    }

    /// The load program's command line.
    fn line(&self, load: Load, found: &Found) -> Vec<OsString> {
        let default = OPERATIONS[usize::from(self.memory.is_some())];
        let mut line: Vec<OsString> = ["bench", "malloc-load"].map(OsString::from).into();
        let mut option = |name: &str, value: String| line.extend([name.into(), value.into()]);
        option("--load", name_of(&load));
        option("--set", self.set.0.to_string());
        option("--threads", self.threads.to_string());
        option("--operations", self.operations.unwrap_or(default).to_string());
        option("--checked", self.checked.to_string());
        option("--seed", self.seed.to_string());
        found.library.iter().for_each(|library| option("--library", library.clone()));
        line
    }

    /// Arguments of `highwater` that run this program under it.
    fn paged(&self, report: &Path, line: Vec<OsString>) -> Result<Vec<OsString>, BenchError> {
        let program = this_program()?;
        let budget = self.memory.map_or(4 * self.set.0 + AMPLE, |memory| memory.0);
        let mut all: Vec<OsString> = ["run", "--quiet"].map(OsString::from).into();
        all.extend(["--paged".into(), budget.to_string().into()]);
        let ample = [format!("ram:{}", 4 * self.set.0 + AMPLE)];
        let swap = if self.swap.is_empty() { &ample[..] } else { &self.swap };
        swap.iter().for_each(|spec| all.extend(["--swap".into(), spec.into()]));
        all.extend(["--report".into(), report.into(), "--".into(), program.into()]);
        all.extend(line);
        Ok(all)
    }

    /// When a run counts as hung: a millisecond for each operation, and more than that for none.
    fn limit(&self) -> Duration {
        let operations = self.operations.unwrap_or(OPERATIONS[0]);
        Duration::from_secs(60) + Duration::from_millis(operations.min(600_000))
    }

    /// Of each load under each allocator the run in the middle by time, in the order of the first
    /// round.
    fn medians(&self, runs: &[AllocatorRun]) -> Vec<AllocatorRun> {
        let first = &runs[..runs.len() / self.rounds as usize];
        let of = |one: &AllocatorRun| {
            let same = |run: &&AllocatorRun| (run.load, run.allocator) == (one.load, one.allocator);
            let mut all: Vec<&AllocatorRun> = runs.iter().filter(same).collect();
            let time = |run: &AllocatorRun| run.figures.ns_per_operation;
            all.sort_by(|a, b| time(a).total_cmp(&time(b)));
            all[all.len() / 2].clone()
        };
        first.iter().map(of).collect()
    }
}

/// `highwater`, which lies beside this program.
fn highwater() -> Result<PathBuf, BenchError> {
    let path = this_program()?.with_file_name("highwater");
    let missing = || BenchError::Setup(format!("{} does not exist: build it", path.display()));
    if path.is_file() { Ok(path) } else { Err(missing()) }
}

/// A command without what is preloaded here.
fn command(program: &Path, line: Vec<OsString>) -> Command {
    let mut command = piped(program, line);
    command.env_remove("LD_PRELOAD").env(TUNABLES.0, TUNABLES.1);
    command
}

impl Allocator {
    /// Its library, none where it is the program's own malloc; or why it cannot run.
    fn find(self, paged: bool, exists: impl Fn(&Path) -> bool) -> Result<Option<String>, String> {
        let (names, package): (&[&str], _) = match (self, paged) {
            (Allocator::Glibc, true) => {
                let reason = "takes its memory past the calls that highwater run serves";
                return Err(format!("{reason}: without --memory only"));
            }
            (Allocator::Glibc, false) | (Allocator::Highwater, _) => return Ok(None),
            (Allocator::Jemalloc, _) => (&["libjemalloc.so.2"], "libjemalloc2"),
            (Allocator::Mimalloc, _) => {
                (&["libmimalloc.so.3", "libmimalloc.so.2"], "libmimalloc2.0 or libmimalloc3")
            }
        };
        let places = names.iter().flat_map(|name| DIRECTORIES.map(|dir| Path::new(dir).join(name)));
        let found = places.into_iter().find(|path| exists(path));
        let found = found.map(|path| path.to_string_lossy().into_owned());
        found.map(Some).ok_or_else(|| format!("not installed: Debian has it in {package}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_are_found_or_named() {
        let none = |_: &Path| false;
        let only = |name: &'static str| move |path: &Path| path.ends_with(name);
        let missing = |allocator: Allocator| allocator.find(false, none).unwrap_err();
        assert_eq!(Allocator::Glibc.find(false, none), Ok(None));
        assert!(Allocator::Glibc.find(true, none).unwrap_err().contains("--memory"));
        assert_eq!(Allocator::Highwater.find(true, none), Ok(None));
        assert!(missing(Allocator::Jemalloc).contains("libjemalloc2"));
        assert!(missing(Allocator::Mimalloc).contains("libmimalloc2.0"));
        for name in ["libmimalloc.so.2", "libmimalloc.so.3"] {
            let found = Allocator::Mimalloc.find(true, only(name)).unwrap().unwrap();
            assert!(found.ends_with(name), "{found}");
        }
    }
}
