//! A directory on a real disk, and a lock for tests that run alone: compiles, runs and compares
//! programs.
//!
//! Locking: `TURN` is held as long as a `Place` lives; nothing else is locked under it.

use crate::common::{compile, highwater};
use crate::report::Report;
use crate::run::{Program, Run};
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tempfile::TempDir;

/// Write-locked by a test that runs alone, read-locked by the others: the test runner cannot make
/// tests of one crate wait for each other.
static TURN: RwLock<()> = RwLock::new(());

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const MIB: u64 = 1 << 20;
/// Outputs are compared in chunks of this size.
const PIECE: usize = 64 << 10;
/// Time limit of a run without Highwater, which takes seconds.
const PATIENCE_UNLIMITED: Duration = Duration::from_secs(120);
/// Time limit of a run within a budget, far above the slowest seen.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// The swap device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Swap {
    Ram,
    /// Compressed memory, by the algorithm of this name.
    Zram(&'static str),
    /// A tier: memory of this many bytes before the directory. Pages of these programs do not
    /// compress, and would bypass a level that compresses.
    Tier(u64),
    /// A tier: compressed memory of this many bytes before the directory.
    Compressed(u64),
    /// A directory on the tests' disk.
    Dir,
    /// The directory, with these faults injected.
    Flaky(&'static str),
    /// Two files there with the same pages, each with these faults.
    FlakyReplicas(&'static str),
}

/// The limits of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Budget in bytes.
    pub(crate) memory: u64,
    pub(crate) swap: Swap,
    /// Size of the swap device in bytes.
    pub(crate) swap_size: u64,
    /// The value of `--mapping`.
    pub(crate) mapping: &'static str,
    /// The value of `--map-files`.
    pub(crate) map_files: &'static str,
    /// The value of `--large-pages`.
    pub(crate) large_pages: &'static str,
    /// The value of `--malloc`.
    pub(crate) malloc: &'static str,
    /// How faults are served; `None`: [`Mode::given`].
    pub(crate) mode: Option<Mode>,
}

/// How page faults are served, and how system calls reach paged memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the thread that faults, with copies for system calls.
    InThread,
    /// By handler threads, with copies for system calls.
    Copies,
    /// By handler threads, also the kernel's own faults.
    Handlers,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::InThread, Mode::Copies, Mode::Handlers];

    /// The mode of tests that do not set one: HIGHWATER_TEST_MODE, or the product's default.
    fn given() -> Mode {
        match std::env::var("HIGHWATER_TEST_MODE").as_deref() {
            Err(_) | Ok("in-thread") => Mode::InThread,
            Ok("copies") => Mode::Copies,
            Ok("handlers") => Mode::Handlers,
            Ok(other) => panic!("HIGHWATER_TEST_MODE={other}"),
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        let (faults, system_calls) = match self {
            Mode::InThread => ("in-thread", "copies"),
            Mode::Copies => ("handlers", "copies"),
            Mode::Handlers => ("handlers", "faults"),
        };
        ["--faults", faults, "--system-calls", system_calls]
    }
}

/// A directory, and a guard of the lock.
pub(crate) struct Place {
    dir: TempDir,
    _turn: Box<dyn Any + Sync>,
}

impl Place {
    /// Waits until no other test runs.
    pub(crate) fn new() -> Place {
        // A failed test leaves no state that affects the next one.
        Place::with(TURN.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// As many of these tests run at a time as the test runner has threads; one alone would leave
    /// nearly half of two CPUs idle. Use it in tests that measure no time, look at no process but
    /// their own, and hold little memory here: the peak of each program starts at this memory.
    pub(crate) fn beside_others() -> Place {
        Place::with(TURN.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn with(turn: impl Any + Sync) -> Place {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        Place { dir, _turn: Box::new(turn) }
    }

    /// The path of a file in this directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles `tests/programs/NAME.c`. Returns the command line of the program with `arguments`.
    pub(crate) fn c_program(&self, name: &str, arguments: &[&str]) -> Program {
        let output = self.compile(name, name, &[]);
        program(output, arguments)
    }

    /// Compiles `tests/programs/NAME.c` with further options. Returns the program's path.
    pub(crate) fn compile(&self, name: &str, output: &str, options: &[&str]) -> PathBuf {
        let source = std::fs::read_to_string(source(&format!("{name}.c"))).expect("a source");
        let output = self.path(output);
        let ordinary = ["-O2", "-g", "-std=gnu11", "-pthread", "-I", SOURCES];
        compile(&source, &output, &[&ordinary, options].concat());
        output
    }

    /// Runs a program without Highwater.
    pub(crate) fn run(&self, program: &Program) -> Run {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).env("LC_ALL", "C").env_remove("LD_PRELOAD");
        Run::of(&mut command, self.dir.path(), "unlimited", PATIENCE_UNLIMITED)
    }

    /// Runs a program under Highwater, whatever its exit status.
    pub(crate) fn run_within(&self, limits: &Limits, program: &Program) -> Run {
        self.run_with_time_limit(limits, program, TIME_LIMIT)
    }

    /// Runs a program under Highwater with another time limit.
    pub(crate) fn run_with_time_limit(
        &self,
        limits: &Limits,
        program: &Program,
        time_limit: Duration,
    ) -> Run {
        let dir = format!("dir:{}:{}", self.dir.path().display(), limits.swap_size);
        let swap = match limits.swap {
            Swap::Ram => format!("ram:{}", limits.swap_size),
            Swap::Zram(algorithm) => format!("zram:{}:{algorithm}", limits.swap_size),
            Swap::Tier(fast) => format!("tier:ram:{fast}+{dir}"),
            Swap::Compressed(fast) => format!("tier:zram:{fast}:lz4+{dir}"),
            Swap::Dir => dir,
            Swap::Flaky(faults) => format!("flaky:{faults}+{dir}"),
            Swap::FlakyReplicas(faults) => {
                let file = format!("file:{}:{}", self.path("replica").display(), limits.swap_size);
                format!("replicate:flaky:{faults}+{dir}+flaky:{faults}+{file}")
            }
        };
        let mut command = highwater();
        command.arg("run").arg("--quiet").args(["--paged", &limits.memory.to_string()]);
        command.args(["--swap", &swap, "--mapping", limits.mapping]);
        command.args(limits.mode.unwrap_or_else(Mode::given).arguments());
        command.args(["--map-files", limits.map_files]);
        command.args(["--large-pages", limits.large_pages, "--malloc", limits.malloc]);
        command.arg("--report").arg(self.report_path()).arg("--").args(program);
        command.env("LC_ALL", "C").env("HIGHWATER_TEST_FLAKY_SWAP", "1");
        Run::of(&mut command, self.dir.path(), "limited", time_limit)
    }

    /// The report of the last run within limits.
    pub(crate) fn report(&self) -> Report {
        Report::read(&self.report_path())
    }

    fn report_path(&self) -> PathBuf {
        self.path("report.json")
    }

    /// Runs a program without Highwater, and with a quarter of its peak and swap in RAM, and
    /// compares both.
    pub(crate) fn compare(&self, what: &str, program: &Program) -> Report {
        let unlimited = self.run(program).expect_success(what);
        let limits = Limits::quarter(&unlimited);
        self.compare_with(what, &unlimited, &limits, program)
    }

    /// Runs a program within limits: output as in `unlimited`, all bounds kept, and pages swapped.
    pub(crate) fn compare_with(
        &self,
        what: &str,
        unlimited: &Run,
        limits: &Limits,
        program: &Program,
    ) -> Report {
        let report = self.compare_bounds(what, unlimited, limits, program);
        report.expect_swapping();
        report
    }

    /// Runs a program within limits: output as in `unlimited`, and all bounds kept.
    pub(crate) fn compare_bounds(
        &self,
        what: &str,
        unlimited: &Run,
        limits: &Limits,
        program: &Program,
    ) -> Report {
        let report = self.compare_output(what, unlimited, limits, program);
        report.expect_bounds(limits.memory, unlimited.peak);
        report
    }

    /// Runs a program within limits: output as in `unlimited`.
    pub(crate) fn compare_output(
        &self,
        what: &str,
        unlimited: &Run,
        limits: &Limits,
        program: &Program,
    ) -> Report {
        let run = self.run_within(limits, program).expect_success(what);
        let report = self.report();
        note(&format!(
            "{what}: {:.1} s, unlimited {:.1} s; budget {} MiB, unlimited peak {} MiB; {}",
            run.elapsed.as_secs_f64(),
            unlimited.elapsed.as_secs_f64(),
            limits.memory / MIB,
            unlimited.peak / MIB,
            report.figures(),
        ));
        expect_equal(what, &unlimited.output, &run.output);
        report
    }
}

impl Limits {
    /// A quarter of the peak of a run.
    pub(crate) fn quarter(unlimited: &Run) -> Limits {
        Limits::of((unlimited.peak / 4).next_multiple_of(MIB).max(4 * MIB))
    }

    /// For programs that need faults of the kernel to be served: io_uring, filters of their own,
    /// other processes that read their memory.
    pub(crate) fn by_handlers(self) -> Limits {
        Limits { mode: Some(Mode::Handlers), ..self }
    }

    /// A budget of `memory` bytes and 16 times as much swap, because forked children need swap of
    /// their own.
    pub(crate) fn of(memory: u64) -> Limits {
        Limits {
            memory,
            swap: Swap::Ram,
            swap_size: 16 * memory,
            mapping: "auto",
            mode: None,
            map_files: "off",
            large_pages: "off",
            malloc: "all",
        }
    }
}

/// The path of a file beside this one.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(SOURCES).join(name)
}

/// A command line.
pub(crate) fn program(path: impl Into<OsString>, arguments: &[&str]) -> Program {
    let arguments = arguments.iter().map(|argument| OsStr::new(argument).to_owned());
    [path.into()].into_iter().chain(arguments).collect()
}

/// Prints a line that the test runner does not capture, to show progress and figures of long runs.
pub(crate) fn note(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "  {line}");
}

/// Compares in chunks: children start as copies of this process, so the kernel counts its peak as
/// theirs.
fn expect_equal(what: &str, expected: &Path, found: &Path) {
    let open = |path: &Path| BufReader::with_capacity(PIECE, File::open(path).expect("output"));
    let (mut expected, mut found) = (open(expected), open(found));
    let mut at = 0;
    loop {
        let (a, b) = (expected.fill_buf().unwrap(), found.fill_buf().unwrap());
        let length = a.len().min(b.len());
        // In one comparison, because tests are compiled without optimisation.
        if a[..length] != b[..length] {
            let i = (0..length).find(|&i| a[i] != b[i]).expect("a difference");
            panic!("{what}: output differs at byte {}", at + i);
        }
        assert_eq!(a.len() == length, b.len() == length, "{what}: output ends at byte {at}");
        if length == 0 {
            break;
        }
        at += length;
        expected.consume(length);
        found.consume(length);
    }
    assert!(at > 0, "{what}: no output");
}
