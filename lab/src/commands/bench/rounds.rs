//! `--peer`: the peers and ours run in turn, each in a process of its own with a hard time limit.

use super::common::{BenchError, Peer, Platform, name_of};
use super::job::Job;
use super::subject::Run;
use highwater_devices::Seal;
use highwater_lab::peer::disk;
use highwater_lab::peer::keeper::Ready;
use highwater_units::Bytes;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Beside pages of the set: data and heap of the process under the peer's limit, as measured; more
/// would be memory for the set that ours does not have.
const PROCESS_ALLOWANCE: u64 = 1 << 20;
/// Stacks and histograms of each of its threads.
const THREAD_ALLOWANCE: u64 = 64 << 10;
/// A slower pass over the set than this many bytes per second counts as hung.
const SLOWEST: u64 = 16 << 20;
/// What a run may take beyond its time and its passes over the set.
const GRACE: Duration = Duration::from_secs(30);
/// How often a child is polled.
const TICK: Duration = Duration::from_millis(10);

/// All runs.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Highwater's median round.
    pub(super) ours: Run,
    /// The peers', in the order of the command line.
    pub(super) peers: Vec<PeerRun>,
    /// How often all ran.
    rounds: u32,
}

/// A peer's median round.
#[derive(Debug, Serialize)]
pub(super) struct PeerRun {
    #[serde(flatten)]
    pub(super) run: Run,
    /// What it ran under, in a line.
    pub(super) conditions: String,
    /// accesses/s, ours / peer.
    accesses_ratio: f64,
    /// CPU time of the process per major fault, ours / peer; none if one had none.
    cpu_per_major_fault_ratio: Option<f64>,
    /// Pages read per second, ours / peer; none if the peer read none.
    pages_in_ratio: Option<f64>,
    /// Bytes written per second, ours / peer; none if the peer wrote none.
    swap_out_ratio: Option<f64>,
}

impl PeerRun {
    fn new(ours: &Run, run: Run, conditions: String) -> PeerRun {
        let (our, their) = (&ours.figures, &run.figures);
        let ratio = |ours: f64, theirs: f64| (theirs > 0.0).then(|| ours / theirs);
        let cpu = our.cpu_ns_per_major_fault.zip(their.cpu_ns_per_major_fault);
        PeerRun {
            accesses_ratio: our.accesses_per_s / their.accesses_per_s,
            cpu_per_major_fault_ratio: cpu.and_then(|(ours, theirs)| ratio(ours, theirs)),
            pages_in_ratio: ratio(our.pages_in_per_s, their.pages_in_per_s),
            swap_out_ratio: ratio(our.swap_out_gb_per_s, their.swap_out_gb_per_s),
            run,
            conditions,
        }
    }
}

/// Runs all, `--rounds` times.
pub(super) fn run(job: &impl Job, peers: &[Peer]) -> Result<Comparison, BenchError> {
    let mut rounds = Rounds { ours: Vec::new(), peers: vec![Vec::new(); peers.len()] };
    let mut conditions = Vec::new();
    for round in 0..job.common().rounds {
        for (index, peer) in peers.iter().enumerate() {
            let (run, under) = peer_run(job, *peer)?;
            if round == 0 {
                conditions.push(under);
            }
            rounds.peers[index].push(run);
        }
        rounds.ours.push(own_run(job)?);
    }
    let ours = median(rounds.ours);
    let medians = rounds.peers.into_iter().map(median).zip(conditions);
    let peers = medians.map(|(run, conditions)| PeerRun::new(&ours, run, conditions)).collect();
    Ok(Comparison { peers, ours, rounds: job.common().rounds })
}

/// One run on the platform of the command line.
pub(super) fn own_run(job: &impl Job) -> Result<Run, BenchError> {
    let args = job.common();
    child_run(arguments(job, args.platform, args.seal), time_limit(job))
}

/// One run on memory of the kernel's in a process of `highwater run`, with these options.
pub(super) fn program_run(job: &impl Job, options: &[String]) -> Result<Run, BenchError> {
    let lab = this_program()?;
    let highwater = lab.with_file_name("highwater");
    if !highwater.exists() {
        let missing = format!("there is no {}: run 'make build' first", highwater.display());
        return Err(BenchError::Setup(missing));
    }
    let mut line: Vec<OsString> = ["run", "--quiet"].map(OsString::from).into();
    line.extend(options.iter().map(OsString::from));
    line.extend(["--".into(), lab.into()]);
    line.extend(arguments(job, Platform::None, Seal::default()));
    figures_of(piped(&highwater, line), time_limit(job))
}

/// One run of a peer, and what it ran under, in a line.
pub(super) fn peer_run(job: &impl Job, peer: Peer) -> Result<(Run, String), BenchError> {
    let stage = Stage::set_up(job, peer)?;
    let conditions = stage.conditions(peer);
    let ran = child_run(peer_arguments(job, peer, stage.ready()), time_limit(job));
    let run = stage.take_down().and(ran)?;
    Ok((Run { subject: name_of(&peer), ..run }, conditions))
}

/// What has run so far.
struct Rounds {
    ours: Vec<Run>,
    peers: Vec<Vec<Run>>,
}

/// The run in the middle by accesses/s; there is at least one.
pub(super) fn median(mut runs: Vec<Run>) -> Run {
    let rate = |run: &Run| run.figures.accesses_per_s;
    runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    runs.swap_remove(runs.len() / 2)
}

/// When a run counts as hung.
fn time_limit(job: &impl Job) -> Duration {
    Duration::from_secs(job.seconds() + job.common().set.0 / SLOWEST) + GRACE
}

/// The command line of a run of `platform` alone.
fn arguments<J: Job>(job: &J, platform: Platform, seal: Seal) -> Vec<OsString> {
    let args = job.common();
    let mut line: Vec<OsString> = ["bench", J::NAME, "--json"].map(OsString::from).into();
    let mut option = |name: &str, value: OsString| line.extend([name.into(), value]);
    option("--platform", name_of(&platform).into());
    option("--memory", args.memory.0.to_string().into());
    option("--set", args.set.0.to_string().into());
    option("--threads", args.threads.to_string().into());
    option("--seed", args.seed.to_string().into());
    option("--seal", seal.to_string().into());
    option("--kswapd", args.kswapd.to_string().into());
    option("--mapping", name_of(&args.mapping).into());
    option("--dir", args.dir.clone().into());
    job.options().into_iter().for_each(|(name, value)| option(name, value.into()));
    args.swap.iter().for_each(|spec| option("--swap", spec.into()));
    line.extend(args.in_thread.then(|| "--in-thread".into()));
    line.extend(args.large_pages.then(|| "--large-pages".into()));
    let khugepaged = args.khugepaged.map(|pages| format!("--khugepaged={pages}").into());
    line.extend(khugepaged);
    line
}

fn peer_arguments(job: &impl Job, peer: Peer, ready: Option<&Ready>) -> Vec<OsString> {
    let (platform, seal) = match peer {
        Peer::None | Peer::KernelSwap => (Platform::None, Seal::default()),
        Peer::Mmap => (Platform::Mmap, Seal::default()),
        Peer::IoUring => (Platform::IoUring, Seal::default()),
        Peer::Buffered => (Platform::Buffered, Seal::default()),
        Peer::Direct => (Platform::Direct, Seal::default()),
        Peer::Unsealed => (job.common().platform, Seal::Off),
    };
    let mut line = arguments(job, platform, seal);
    if let Some(Ready { cgroup, swap }) = ready {
        line.extend(["--join-cgroup".into(), cgroup.into()]);
        let name = swap.as_ref().map(|device| OsString::from(&device.name));
        line.extend(name.into_iter().flat_map(|name| ["--swap-device".into(), name]));
    }
    line
}

/// The path of this program.
pub(super) fn this_program() -> Result<PathBuf, BenchError> {
    std::env::current_exe().map_err(|e| BenchError::Setup(e.to_string()))
}

/// A command whose standard output can be read.
pub(super) fn piped(program: &Path, arguments: Vec<OsString>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped());
    command
}

fn child_run(arguments: Vec<OsString>, limit: Duration) -> Result<Run, BenchError> {
    figures_of(piped(&this_program()?, arguments), limit)
}

/// Runs a child to its end, at most for `limit`, and takes the figures that it prints. The child
/// and the processes that it starts are a group of their own, which ends as one.
pub(super) fn figures_of<T: DeserializeOwned>(
    mut command: Command,
    limit: Duration,
) -> Result<T, BenchError> {
    // The keyboard's signals do not reach that group: it is to end with us.
    let with_us = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec one system call is made, and nothing allocated.
    unsafe { command.pre_exec(with_us) };
    let started = command.stdin(Stdio::null()).process_group(0).spawn();
    let mut child = started.map_err(|e| BenchError::Setup(format!("starting a run: {e}")))?;
    let status = wait(&mut child, limit)?;
    if !status.success() {
        return Err(match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code) => BenchError::Reported(code),
            None => BenchError::Killed(format!("a run ended by {status}")),
        });
    }
    // The output fits into a pipe, so the child can end before the output is read.
    let mut text = String::new();
    let read = child.stdout.take().expect("piped").read_to_string(&mut text);
    let parsed = read
        .map_err(|e| e.to_string())
        .and_then(|_| serde_json::from_str(&text).map_err(|e| e.to_string()));
    parsed.map_err(|reason| BenchError::Run(format!("figures of a run: {reason}")))
}

/// Waits for a child; past `limit` its group is killed.
fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, BenchError> {
    let failed = |e: std::io::Error| BenchError::Run(format!("waiting for a run: {e}"));
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        if began.elapsed() > limit {
            let killed = kill_process_group(Pid::from_child(child), Signal::KILL);
            killed.map_err(std::io::Error::from).and_then(|()| child.wait()).map_err(failed)?;
            return Err(BenchError::Run(format!("a run did not end within {} s", limit.as_secs())));
        }
        std::thread::sleep(TICK);
    }
}

/// What surrounds the peer.
enum Stage {
    /// Nothing; the reason, if it is to be reported.
    Bare(Option<String>),
    /// What a keeper holds.
    Kept { keeper: Keeper, ready: Ready, limit: Bytes },
}

impl Stage {
    fn set_up(job: &impl Job, peer: Peer) -> Result<Stage, BenchError> {
        let set = job.common().set;
        let zram = match peer {
            Peer::None | Peer::IoUring | Peer::Direct | Peer::Unsealed => {
                return Ok(Stage::Bare(None));
            }
            Peer::KernelSwap => Some(Bytes(set.0 + set.0 / 8)),
            Peer::Mmap | Peer::Buffered => None,
        };
        let limit = limit(job);
        match (Keeper::start(limit, zram, time_limit(job) + GRACE)?, peer) {
            (Ok((keeper, ready)), _) => Ok(Stage::Kept { keeper, ready, limit }),
            (Err(reason), Peer::Mmap | Peer::Buffered) => Ok(Stage::Bare(Some(reason))),
            (Err(reason), _) => Err(BenchError::Setup(format!("--peer kernel-swap: {reason}"))),
        }
    }

    fn ready(&self) -> Option<&Ready> {
        match self {
            Stage::Bare(_) => None,
            Stage::Kept { ready, .. } => Some(ready),
        }
    }

    fn conditions(&self, peer: Peer) -> String {
        let name = name_of(&peer);
        match self {
            Stage::Bare(None) if peer == Peer::IoUring => {
                format!(
                    "{name}: {} transfers in flight, no memory: compare pages in/s",
                    disk::DEPTH
                )
            }
            Stage::Bare(None) if peer == Peer::Unsealed => {
                format!("{name}: the same with --seal off")
            }
            Stage::Bare(None) if peer == Peer::Direct => format!("{name}: no page cache"),
            Stage::Bare(None) => format!("{name}: no memory limit"),
            Stage::Bare(Some(reason)) => format!("{name}: NO memory limit ({reason})"),
            Stage::Kept { ready, limit, .. } => {
                let swap = ready.swap.as_ref().map_or(String::new(), |device| {
                    format!(", swap on {} ({})", device.name, device.algorithm)
                });
                format!("{name}: memory cgroup of {limit}{swap}")
            }
        }
    }

    fn take_down(self) -> Result<(), BenchError> {
        match self {
            Stage::Bare(_) => Ok(()),
            Stage::Kept { keeper, .. } => keeper.stop(),
        }
    }
}

/// The budget, and the memory that the peer's process needs in addition: bookkeeping, page tables,
/// its own data.
fn limit(job: &impl Job) -> Bytes {
    let args = job.common();
    let page_tables = args.set.0 / 512;
    let process = PROCESS_ALLOWANCE + u64::from(args.threads) * THREAD_ALLOWANCE;
    Bytes(args.memory.0 + job.bookkeeping().0 + page_tables + process)
}

/// The process that holds the set-up. It undoes all when `wanted` closes, also by our death.
struct Keeper {
    process: Child,
    wanted: ChildStdin,
}

impl Keeper {
    /// Starts it; the inner error is why the set-up failed.
    fn start(
        limit: Bytes,
        zram: Option<Bytes>,
        at_most: Duration,
    ) -> Result<Result<(Keeper, Ready), String>, BenchError> {
        let failed = |reason: String| BenchError::Setup(format!("starting the keeper: {reason}"));
        let mut line: Vec<OsString> = ["bench", "keep"].map(OsString::from).into();
        let mut option =
            |name: &str, value: u64| line.extend([name.into(), value.to_string().into()]);
        option("--limit", limit.0);
        option("--at-most", at_most.as_secs());
        zram.into_iter().for_each(|size| option("--zram", size.0));
        let mut command = piped(&this_program()?, line);
        // A group of its own: a SIGKILL to ours must not end the process that undoes the set-up.
        command.stdin(Stdio::piped()).process_group(0);
        let mut process = command.spawn().map_err(|e| failed(e.to_string()))?;
        let wanted = process.stdin.take().expect("piped");
        let mut line = String::new();
        let stdout = process.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).map_err(|e| failed(e.to_string()))?;
        let answer = serde_json::from_str::<Result<Ready, String>>(&line);
        let keeper = Keeper { process, wanted };
        match answer.map_err(|e| failed(e.to_string()))? {
            Ok(ready) => Ok(Ok((keeper, ready))),
            Err(reason) => {
                // It has undone its set-up; its exit status is 2.
                let _ = keeper.stop();
                Ok(Err(reason))
            }
        }
    }

    /// Makes it undo the set-up.
    fn stop(mut self) -> Result<(), BenchError> {
        drop(self.wanted);
        let status =
            self.process.wait().map_err(|e| BenchError::Run(format!("the keeper: {e}")))?;
        if status.success() { Ok(()) } else { Err(BenchError::Reported(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hung_run_has_started_ends_with_it() {
        let (mut said, errors) = std::io::pipe().expect("a pipe");
        let mut command = Command::new("/bin/sh");
        let script = "(sleep 3; echo alive >&2) & wait";
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(errors);
        let figures = figures_of::<u32>(command, Duration::from_millis(300));
        assert!(matches!(figures, Err(BenchError::Run(_))));
        let mut all = String::new();
        said.read_to_string(&mut all).expect("text");
        assert_eq!(all, "");
    }
}
