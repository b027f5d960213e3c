//! `make soak`: real programs under Highwater with random settings, budgets that change, signals,
//! kills and failing devices, for as long as one likes.
//!
//! ```text
//! seed --draw.rs--> Plan --session.rs--> files of each program --judge.rs--> right, ended, wrong
//!                    programs.rs: inputs, and the output without Highwater
//! swap.rs: devices     server.rs: Redis and nbdkit, for runs that swap to them
//! ```
//! A run follows from its seed, but for the order in which threads get there. The directory of a
//! run with a fault is kept.

mod draw;
mod judge;
mod programs;
mod server;
mod session;
mod swap;

use crate::tidy::ROOT;
use crate::tool::{self, Trouble};
use clap::Args;
use draw::{Act, Loss, Plan};
use judge::{Done, End, Judgement};
use programs::{Inputs, Program};
use serde_json::Value;
use session::Ended;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Counters of the report that are summed up.
const COUNTERS: [(&str, &str); 9] = [
    ("/processes", "processes"),
    ("/faults_minor", "minor faults"),
    ("/faults_major", "major faults"),
    ("/vmstat/pswpout", "pages swapped out"),
    ("/vmstat/pswpin", "pages swapped in"),
    ("/vmstat/injected_faults", "faults of the device"),
    ("/vmstat/replicas_lost", "replicas given up"),
    ("/vmstat/replica_single_writes", "pages written to one replica only"),
    ("/vmstat/replica_second_reads", "reads made again from the other replica"),
];

/// The end of a storm's last line, behind the number of its operations.
const OPERATIONS: &str = " operations";

/// Run real programs in too little memory, and disturb them.
#[derive(Args)]
pub struct Options {
    /// How long to go on.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// The seed of the first run; the next one has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs at most.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    runs: u64,
    /// Only runs with this in a swap device, for example replicate.
    #[arg(long, default_value = "", hide_default_value = true)]
    swap: String,
}

/// What all runs did.
#[derive(Default)]
struct Sums {
    runs: u64,
    failed: usize,
    programs: BTreeMap<String, u64>,
    acts: BTreeMap<&'static str, u64>,
    counters: BTreeMap<&'static str, u64>,
}

/// Runs until the time is over; prints a line for each run, and sums. Returns how many runs failed.
///
/// # Errors
/// Nothing can be run.
pub fn run(options: &Options) -> Result<usize, Trouble> {
    // Programs run in other directories.
    let (repository, target) = (Path::new(ROOT).canonicalize()?, tool::target().canonicalize()?);
    let highwater = target.join("release/highwater");
    let dir = target.join("soak");
    let mut inputs = Inputs::new(dir.join("inputs"), &repository)?;
    let (started, mut sums) = (Instant::now(), Sums::default());
    let limit = Duration::from_secs(options.minutes * 60);
    let is_asked = |plan: &Plan| plan.swap.specs.iter().any(|spec| spec.contains(&options.swap));
    for plan in (options.seed..).map(Plan::of).filter(is_asked) {
        if started.elapsed() >= limit || sums.runs >= options.runs {
            break;
        }
        one(&plan, &mut inputs, &highwater, &dir, &mut sums)?;
    }
    print!("{sums}");
    Ok(sums.failed)
}

/// One run, whose directory goes if nothing is wrong.
fn one(
    plan: &Plan,
    inputs: &mut Inputs,
    highwater: &Path,
    dir: &Path,
    sums: &mut Sums,
) -> Result<(), Trouble> {
    let dir = dir.join(format!("run-{}", plan.seed));
    let _ = fs::remove_dir_all(&dir);
    let ended = session::run(plan, inputs, highwater, &dir)?;
    let mut wrong = ended.faults.clone();
    let (mut reasons, mut killed) = (Vec::new(), 0);
    for (i, program) in plan.programs.iter().enumerate() {
        let errors = read_text(&dir.join(format!("{i}.err")));
        sums.add_operations(&errors);
        let judgement = judged(plan, i, program, inputs, &ended, &dir)?;
        let name = program.kind.name();
        match judgement {
            Judgement::Right => sums.count(name, "right"),
            Judgement::Killed => {
                sums.count(name, "killed");
                killed += 1;
            }
            Judgement::Ended(reason) => {
                sums.count(name, "ended early");
                reasons.push(format!("{name} ended: {reason}"));
            }
            Judgement::Wrong(reason) => {
                sums.count(name, "wrong");
                wrong.push(format!("{name} {}: {reason}", program.arguments.join(" ")));
            }
        }
    }
    if killed > plan.kills() {
        wrong.push("more programs ended than were killed".to_owned());
    }
    sums.add(&ended, &dir);
    println!("{}", told(plan, &ended, &reasons));
    match wrong.is_empty() {
        true => fs::remove_dir_all(&dir)?,
        false => {
            sums.failed += 1;
            wrong.iter().for_each(|fault| println!("  WRONG: {fault}"));
            println!("  again: make soak OPTIONS=\"--seed {} --runs 1\"", plan.seed);
        }
    }
    Ok(())
}

fn judged(
    plan: &Plan,
    i: usize,
    program: &Program,
    inputs: &mut Inputs,
    ended: &Ended,
    dir: &Path,
) -> Result<Judgement, Trouble> {
    let file = |end: &str| fs::read(dir.join(format!("{i}.{end}"))).unwrap_or_default();
    let text = |end: &str| read_text(&dir.join(format!("{i}.{end}")));
    let (status, output, errors) = (text("status").trim().parse().ok(), file("out"), text("err"));
    let end = End { status, output: &output, errors: &errors };
    let done = Done { faults: plan.swap.faults, acts: &ended.done };
    Ok(judge::judge(&end, inputs.expected(program)?, done))
}

/// The text of a file; empty if it is not there.
fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// A run in a line.
fn told(plan: &Plan, ended: &Ended, reasons: &[String]) -> String {
    let names: Vec<&str> = plan.programs.iter().map(|program| program.kind.name()).collect();
    let reasons: String = reasons.iter().map(|reason| format!("; {reason}")).collect();
    format!(
        "seed {}: {} with {}: {:.1} s, disturbed {} times{reasons}",
        plan.seed,
        names.join(", "),
        session::line(plan),
        ended.seconds,
        ended.done.len(),
    )
}

impl Sums {
    fn count(&mut self, name: &str, end: &str) {
        *self.programs.entry(format!("{name}, {end}")).or_default() += 1;
    }

    fn add(&mut self, ended: &Ended, dir: &Path) {
        self.runs += 1;
        for act in &ended.done {
            let name = match act {
                Act::Budget(_) => "changes of the budget",
                Act::Kswapd(_) => "changes of kswapd's threads",
                Act::AddSwap => "devices added",
                Act::RemoveSwap => "devices removed",
                Act::Stop => "processes stopped for a while",
                Act::StopServer(_) => "servers stopped for a while",
                Act::LoseServer(_, Loss::Killed) => "servers killed",
                Act::LoseServer(_, Loss::Hung) => "servers stopped for good",
                Act::Kill => "processes killed",
                Act::KillRun => "highwater run killed",
            };
            *self.acts.entry(name).or_default() += 1;
        }
        // A run that was killed has no report.
        let report = fs::read(dir.join("report.json")).unwrap_or_default();
        let report: Value = serde_json::from_slice(&report).unwrap_or_default();
        for (pointer, name) in COUNTERS {
            let number = report.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
            *self.counters.entry(name).or_default() += number;
        }
    }

    /// Adds the operations of a storm that ended well, each of which checks up to 64 pages.
    fn add_operations(&mut self, errors: &str) {
        let number = errors.lines().last().and_then(|line| line.strip_suffix(OPERATIONS));
        let number = number.and_then(|number| number.parse().ok()).unwrap_or(0);
        *self.counters.entry("operations of storms").or_default() += number;
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} runs, {} wrong", self.runs, self.failed)?;
        let acts = self.acts.iter().map(|(name, count)| (*name, count));
        let counters = self.counters.iter().map(|(name, count)| (*name, count));
        let programs = self.programs.iter().map(|(name, count)| (name.as_str(), count));
        for (name, count) in programs.chain(acts).chain(counters) {
            writeln!(f, "{count:>14} {name}")?;
        }
        Ok(())
    }
}
