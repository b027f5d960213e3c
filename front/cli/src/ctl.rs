//! `highwater ctl`: reads and changes a running session.
//!
//! ```text
//! arguments --- requests: which session, which keys ---> Request --- carry_out ---> lines
//!                               show.rs: what the processes published as text --/
//!                               swap.rs: devices that are added and removed ---/
//!                               compact.rs: compaction by all processes -------/
//! ```
//! All arguments are checked before anything changes.

mod compact;
pub(crate) mod key;
pub(crate) mod show;
mod swap;

use crate::Refusal;
use crate::ctl::key::{COMPACT, Key, SWAP_ADD, SWAP_REMOVE, is_key};
use crate::options::{size_of, within};
use crate::session::{self, Process, Session};
use crate::swap::device;
use clap::Args;
use highwater_command::print;
use highwater_devices::{Area, Exact};
use highwater_mm::Config;
use highwater_mm::config::{FILE_WINDOW_MAX, SWAPPINESS_MAX};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::{Budget, Member, SwapRoom, Tuning};
use highwater_units::{Bytes, RUN_PAGES_MAX};
use std::process::ExitCode;

/// Explains the words of the printed lines, for `--help`.
const TERMS: &str = "\
Lines, such as 'process 4711 = 14.3 MiB, 0 B free, 13.0 MiB unpaged, 1835 misses/s, short':
  = 14.3 MiB       memory that the process may use for pages now, part of the session's budget
  free             the part of it that the process does not need, and that others may get
  unpaged          memory of the process that counts towards the budget and cannot be paged
  misses/s         recent rate of pages read in by faults: memory moves to processes that have more
                   misses for each page of memory
  short            the process recently asked for more memory, and got none
and 'process 4711 dir:/var/tmp:4G = 96 MiB of 4 GiB, priority -':
  96 MiB of 4 GiB  swap of the process on this device, and the size of the device
  priority         of the device, higher first; '-': none was given: such devices are filled in the
                   order in which they were given, after those with a priority";

/// Read and change a running session
///
/// Without keys, prints the first five. KEY=VALUE changes a key: memory=512M sets the budget of all
/// processes together, and processes give up memory above it within a second or so; kswapd=4 or
/// kswapd=auto sets the number of background threads that free memory in each process;
/// swappiness=100, readahead=4 and file-readahead=64 set up each process's manager.
/// swap-add=dir:/var/tmp:4G adds a swap device to all processes. swap-remove=/var/tmp moves the
/// pages of a device to the others and removes it; it is refused if they have no room. compact
/// moves pages together, so that blocks of 2 MiB become free.
#[derive(Args)]
#[command(after_long_help = TERMS)]
pub(crate) struct Ctl {
    /// The session, by name or pid, if several are running; then keys to read or, with =VALUE, to
    /// change: memory (budget), memory-max (highest budget that can be set), granted (pages that
    /// all processes may use now), unpaged (their other memory), processes (memory that each may
    /// use), kswapd (background threads: the setting, and those of each process now), swappiness
    /// (preference of reclaim for anonymous pages over pages of files, 0 to 200), readahead (most
    /// pages that a fault of a sequential stream reads, 1 to 16), file-readahead (pages of the
    /// readahead window of a file, 0 to 256), swap (swap in use on each device, in all and by
    /// process), pressure (stalls of each process, as in /proc/pressure/memory), buddyinfo (free
    /// blocks of each process by order), slabinfo (slabs of malloc, all processes together), locks
    /// (costs of the managers' locks, together), vmstat (all counters, together). Only memory,
    /// kswapd, swappiness, readahead and file-readahead can be changed; swap-add and swap-remove
    /// change the devices, and compact makes free blocks of 2 MiB
    #[arg(value_name = "PID|NAME] [KEY[=VALUE]")]
    arguments: Vec<String>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    Read(Key),
    SetMemory(Bytes),
    Tune(Key, Tuning),
    Compact,
    AddSwap(Area),
    RemoveSwap(Device),
}

/// A swap device to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Device {
    Named(String),
    At(usize),
}

/// The session that the arguments name, if any, and the requests.
fn requests(arguments: &[String]) -> Result<(Option<&str>, Vec<Request>), Refusal> {
    let (given, keys) = match arguments.split_first() {
        Some((first, rest)) if !is_key(first) => (Some(first.as_str()), rest),
        _ => (None, arguments),
    };
    refuse_split_change(keys)?;
    let requests: Result<Vec<_>, _> = keys.iter().map(|argument| request(argument)).collect();
    let usual = || Key::NAMES[..Key::USUAL].iter().map(|(_, key)| Request::Read(*key)).collect();
    requests.map(|found| (given, if found.is_empty() { usual() } else { found }))
}

/// Refuses a change that is written in several words, such as `memory 96M` or `memory = 96M`.
fn refuse_split_change(words: &[String]) -> Result<(), Refusal> {
    let meant = |at: usize| {
        let name = words[..at].last().filter(|name| Key::named(name).is_some())?;
        let value = words[at..].iter().map(|word| word.trim_start_matches('='));
        let change = format!("{name}={}", value.clone().find(|value| !value.is_empty())?);
        request(&change).is_ok().then_some(change)
    };
    let value = words.iter().position(|word| !is_key(word) || word.starts_with('='));
    match value.and_then(|at| Some((&words[at], meant(at)?))) {
        Some((word, change)) => {
            Err(Refusal::new(format!("there is no key '{word}'"), format!("write {change}")))
        }
        None => Ok(()),
    }
}

fn request(argument: &str) -> Result<Request, Refusal> {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (argument, None),
    };
    match (Key::named(name), value) {
        (None, Some(value)) if name == SWAP_ADD => device(value, "swap-add=").map(Request::AddSwap),
        (None, Some(value)) if name == SWAP_REMOVE => {
            Ok(Request::RemoveSwap(Device::Named(value.to_owned())))
        }
        (None, None) if name == SWAP_ADD => {
            let example = "give for example swap-add=dir:/var/tmp:4G";
            Err(Refusal::new("swap-add needs a device", example))
        }
        (None, None) if name == SWAP_REMOVE => {
            let example = "give for example swap-remove=/var/tmp";
            Err(Refusal::new("swap-remove needs a device", example))
        }
        (None, None) if name == COMPACT => Ok(Request::Compact),
        (None, Some(_)) if name == COMPACT => {
            Err(Refusal::new("compact has no value", "give it without one"))
        }
        (Some(key), None) => Ok(Request::Read(key)),
        (Some(Key::Memory), Some(value)) => size_of("memory", value).map(Request::SetMemory),
        (Some(key), Some(value)) => tuning(key, value).map(|tuning| Request::Tune(key, tuning)),
        (None, _) => {
            let names = Key::NAMES.map(|(name, _)| name).join(", ");
            let remedy = format!("keys are {names}, {SWAP_ADD}, {SWAP_REMOVE}, {COMPACT}");
            Err(Refusal::new(format!("there is no key '{name}'"), remedy))
        }
    }
}

/// The setting of a key.
fn tuning(key: Key, value: &str) -> Result<Tuning, Refusal> {
    let name = key.name();
    let number = |least: usize, most: usize| {
        let known = value.parse().ok().filter(|number| (least..=most).contains(number));
        known.ok_or_else(|| {
            let what = format!("{name}: '{value}' is not {least} to {most}");
            Refusal::new(what, format!("give for example {name}={}", most / 2))
        })
    };
    let none = Tuning::default();
    Ok(match key {
        Key::Kswapd => {
            let refused =
                |what| Refusal::new(format!("{name}: {what}"), "give for example kswapd=2");
            Tuning { kswapd: Some(value.parse().map_err(refused)?), ..none }
        }
        Key::Swappiness => {
            Tuning { swappiness: Some(number(0, SWAPPINESS_MAX as usize)? as u32), ..none }
        }
        Key::Readahead => Tuning { readahead: Some(number(1, RUN_PAGES_MAX)?), ..none },
        Key::FileReadahead => Tuning { file_readahead: Some(number(0, FILE_WINDOW_MAX)?), ..none },
        _ => {
            return Err(Refusal::new(
                format!("'{name}' can only be read"),
                "give it without a value",
            ));
        }
    })
}

impl Ctl {
    /// Carries all requests out, and prints what was read.
    pub(crate) fn execute(&self) -> Result<ExitCode, Refusal> {
        let (given, requests) = requests(&self.arguments)?;
        let session = session::choose(session::running(), given)?;
        let budget = session.shared_budget();
        let checked: Result<Vec<_>, _> =
            requests.into_iter().map(|request| check(request, &session, budget.as_ref())).collect();
        let mut text = String::new();
        for request in checked? {
            text += &carry_out(request, &session, budget.as_ref())?;
        }
        Ok(print(text))
    }
}

/// The request in whole pages, if the session can carry it out.
fn check(request: Request, session: &Session, budget: Option<&Budget>) -> Result<Request, Refusal> {
    let shared = budget.ok_or_else(|| {
        let what = "the processes of this session share no memory, so nothing can be changed";
        Refusal::new(what, "start it with --memory")
    });
    match request {
        Request::Read(_) => Ok(request),
        Request::Tune(..) => shared.map(|_| request),
        Request::Compact => {
            compact::check(session)?;
            shared.map(|_| request)
        }
        Request::AddSwap(area) => swap::check_new(&area, shared?).map(|()| Request::AddSwap(area)),
        Request::RemoveSwap(Device::Named(text)) => {
            swap::check_old(&text, shared?).map(|at| Request::RemoveSwap(Device::At(at)))
        }
        Request::RemoveSwap(Device::At(_)) => Ok(request),
        Request::SetMemory(bytes) => check_memory(bytes, shared?).map(Request::SetMemory),
    }
}

/// A new budget in whole pages, if the session can have it.
fn check_memory(bytes: Bytes, budget: &Budget) -> Result<Bytes, Refusal> {
    let most = Bytes::of_pages(budget.limit_max());
    if bytes > most {
        let what = format!("{bytes} is more than this session can have");
        let remedy = format!("give memory={} or less, or start it with --memory-max", Exact(most));
        return Err(Refusal::new(what, remedy));
    }
    within("memory=", bytes, most)
}

/// Carries a request out; returns the lines to print.
fn carry_out(
    request: Request,
    session: &Session,
    budget: Option<&Budget>,
) -> Result<String, Refusal> {
    match (request, budget) {
        (Request::Read(key), _) => read(key, session, budget),
        (Request::SetMemory(bytes), Some(budget)) => {
            budget.set_limit(bytes.pages());
            Ok(line(Key::Memory, in_force(Key::Memory, session, Some(budget))))
        }
        (Request::Tune(key, tuning), Some(budget)) => {
            budget.tune(tuning);
            Ok(line(key, in_force(key, session, Some(budget))))
        }
        (Request::Compact, Some(budget)) => Ok(compact::carry_out(budget)),
        (Request::AddSwap(area), Some(budget)) => swap::add(&area, budget),
        (Request::RemoveSwap(Device::At(place)), Some(budget)) => {
            swap::remove(place, budget, &|| session.processes())
        }
        // `check` has refused these.
        (_, _) => Ok(String::new()),
    }
}

/// The line of a key, with its value if it has one.
fn line(key: Key, value: Option<String>) -> String {
    format!("{} = {}\n", key.name(), value.unwrap_or_else(|| "-".to_owned()))
}

/// The value of a key that can be changed.
fn in_force(key: Key, session: &Session, budget: Option<&Budget>) -> Option<String> {
    let (tuning, usual) = (budget.map(Budget::tuning).unwrap_or_default(), Config::default());
    match key {
        Key::Memory => Some(session.budget().to_string()),
        Key::Kswapd => tuning.kswapd.map(|threads| threads.to_string()),
        Key::Swappiness => Some(tuning.swappiness.unwrap_or(usual.swappiness).to_string()),
        Key::Readahead => Some(tuning.readahead.unwrap_or(usual.window_max).to_string()),
        Key::FileReadahead => {
            Some(tuning.file_readahead.unwrap_or(usual.file_readahead).to_string())
        }
        _ => None,
    }
}

/// The lines of a key.
fn read(key: Key, session: &Session, budget: Option<&Budget>) -> Result<String, Refusal> {
    let line = |value: Option<String>| Ok(line(key, value));
    let shared =
        |of: fn(&Budget) -> u64| budget.map(|budget| Bytes::of_pages(of(budget)).to_string());
    let in_force = || in_force(key, session, budget);
    let published = |show: &dyn Fn(&[Process]) -> String| known(key, show(&session.processes()?));
    match key {
        Key::Memory | Key::Swappiness | Key::Readahead | Key::FileReadahead => line(in_force()),
        Key::MemoryMax => line(shared(Budget::limit_max)),
        Key::Granted => line(shared(Budget::granted)),
        Key::Unpaged => line(shared(Budget::unpaged)),
        Key::Processes => Ok(budget.map(processes).unwrap_or_default()),
        Key::Kswapd => Ok(line(in_force())? + &show::kswapd(&session.processes()?)),
        Key::Swap => {
            let of_all = line(budget.map(swap_rooms))?;
            let specs = session.swap();
            Ok(of_all + &show::swap(&session.processes()?, &specs))
        }
        Key::Pressure => published(&show::pressure),
        Key::Buddyinfo => published(&show::buddyinfo),
        Key::Slabinfo => published(&show::slabinfo),
        Key::Locks => published(&show::locks),
        Key::Vmstat => {
            let mut sum = Snapshot::empty();
            session.processes()?.iter().for_each(|process| sum.merge(&process.snapshot));
            Ok(vmstat(&sum))
        }
    }
}

/// The text of a key; a refusal if it is empty, because no process has published these figures.
fn known(key: Key, text: String) -> Result<String, Refusal> {
    if text.is_empty() {
        let what = format!("no process of this session has anything for '{}' now", key.name());
        return Err(Refusal::new(what, "see 'highwater ls' for its processes"));
    }
    Ok(text)
}

/// The space that all processes together use on each swap device, and on each level of a tier.
fn swap_rooms(budget: &Budget) -> String {
    let words = |room: &SwapRoom| {
        let [claimed, limit] = [room.claimed, room.limit].map(Bytes::of_pages);
        format!("{claimed} of {limit}")
    };
    let used = budget.swap_in_use();
    used.iter().flat_map(|device| &device.rooms).map(words).collect::<Vec<_>>().join(", ")
}

/// The part of the budget that each process may use, one line per process.
fn processes(budget: &Budget) -> String {
    let line = |Member { image, claim, unpaged }: Member| {
        let [granted, spare, unpaged] = [claim.granted, claim.spare, unpaged].map(Bytes::of_pages);
        let short = if claim.is_short { ", short" } else { "" };
        format!(
            "process {} = {granted}, {spare} free, {unpaged} unpaged, {} misses/s{short}\n",
            image.pid, claim.misses
        )
    };
    budget.members().into_iter().map(line).collect()
}

/// All counters, one per line, as in /proc/vmstat.
fn vmstat(sum: &Snapshot) -> String {
    Counter::ALL
        .iter()
        .map(|counter| format!("{} {}\n", counter.name(), sum.get(*counter)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Description;
    use highwater_mm::config::KswapdThreads;
    use highwater_session::Scope;
    use std::path::PathBuf;

    fn parse(arguments: &[&str]) -> Result<(Option<String>, Vec<Request>), String> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let parsed = requests(&arguments).map_err(|refusal| refusal.to_string())?;
        Ok((parsed.0.map(str::to_owned), parsed.1))
    }

    #[test]
    fn arguments_name_a_session_and_keys() {
        let set = Request::SetMemory(Bytes(512 << 20));
        let none = Tuning::default();
        let kswapd =
            |threads| vec![Request::Tune(Key::Kswapd, Tuning { kswapd: Some(threads), ..none })];
        let table = [
            (vec!["memory=512M"], None, vec![set.clone()]),
            (vec!["kswapd=16"], None, kswapd(KswapdThreads::Fixed(16))),
            (vec!["demo", "kswapd=auto"], Some("demo"), kswapd(KswapdThreads::Auto)),
            (
                vec!["swappiness=200", "readahead=1", "file-readahead=0"],
                None,
                vec![
                    Request::Tune(Key::Swappiness, Tuning { swappiness: Some(200), ..none }),
                    Request::Tune(Key::Readahead, Tuning { readahead: Some(1), ..none }),
                    Request::Tune(Key::FileReadahead, Tuning { file_readahead: Some(0), ..none }),
                ],
            ),
            (vec!["compact"], None, vec![Request::Compact]),
            (
                vec!["demo", "memory=512M", "granted"],
                Some("demo"),
                vec![set.clone(), Request::Read(Key::Granted)],
            ),
            (vec!["4711", "vmstat"], Some("4711"), vec![Request::Read(Key::Vmstat)]),
        ];
        for (arguments, session, expected) in table {
            assert_eq!(parse(&arguments), Ok((session.map(str::to_owned), expected)));
        }
        for arguments in [vec![], vec!["demo"]] {
            assert_eq!(parse(&arguments).unwrap().1.len(), Key::USUAL);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_one_line() {
        for (arguments, expected) in [
            (["demo", "memory=much"], "is not a size"),
            (["demo", "granted=1M"], "can only be read"),
            (["demo", "buddyinfo=1"], "can only be read"),
            (["demo", "kswapd=0"], "is neither 1 to 16 nor auto"),
            (["demo", "kswapd=17"], "is neither 1 to 16 nor auto"),
            (["demo", "kswapd="], "is neither 1 to 16 nor auto"),
            (["demo", "swappiness=201"], "'201' is not 0 to 200"),
            (["demo", "readahead=0"], "'0' is not 1 to 16"),
            (["demo", "readahead=many"], "'many' is not 1 to 16"),
            (["demo", "file-readahead=257"], "'257' is not 0 to 256"),
            (["demo", "compact=1"], "compact has no value"),
            (["demo", "colour=red"], "keys are memory"),
            (["demo", "swap-add=tape:1G"], "swap-add=dir:/var/tmp:8G"),
            (["demo", "swap-add"], "needs a device"),
            (["demo", "swap-remove"], "needs a device"),
            (["demo", "colour"], "keys are memory"),
        ] {
            let line = parse(&arguments).unwrap_err();
            assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
        }
    }

    #[test]
    fn a_change_in_several_words_is_refused_with_the_one_word() {
        for (words, key, meant) in [
            (&["demo", "memory", "96M"][..], "'96M'", "write memory=96M"),
            (&["memory", "=", "96M"], "'='", "write memory=96M"),
            (&["demo", "granted", "kswapd", "=auto"], "'=auto'", "write kswapd=auto"),
            (&["demo", "memory", "much"], "'much'", "keys are memory"),
            (&["demo", "granted", "96M"], "'96M'", "keys are memory"),
            (&["demo", "memory", "="], "''", "keys are memory"),
        ] {
            let line = parse(words).unwrap_err();
            let what = format!("there is no key {key}; {meant}");
            assert!(line.starts_with(&what), "{line}");
        }
    }

    #[test]
    fn a_budget_is_set_up_to_its_maximum() {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget::create(dir.path(), Scope::Everything, 25_600, 51_200).unwrap();
        let session = session(false);
        let set = |mib: u64, budget| check(Request::SetMemory(Bytes(mib << 20)), &session, budget);
        assert_eq!(set(200, Some(&budget)), Ok(Request::SetMemory(Bytes(200 << 20))));
        let remedy = |mib| set(mib, Some(&budget)).unwrap_err().remedy().to_owned();
        assert_eq!(remedy(201), "give memory=200M or less, or start it with --memory-max");
        assert_eq!(remedy(1), "give memory=4M or more");
        let tuning = Tuning { readahead: Some(1), ..Tuning::default() };
        let readahead = Request::Tune(Key::Readahead, tuning);
        assert_eq!(check(readahead.clone(), &session, Some(&budget)), Ok(readahead.clone()));
        for refused in [set(100, None), check(readahead, &session, None)] {
            assert!(refused.unwrap_err().to_string().contains("start it with --memory"));
        }
    }

    #[test]
    fn memory_without_large_pages_is_not_compacted() {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget::create(dir.path(), Scope::Everything, 25_600, 51_200).unwrap();
        let checked = |large| check(Request::Compact, &session(large), Some(&budget));
        assert_eq!(checked(true), Ok(Request::Compact));
        let line = checked(false).unwrap_err().to_string();
        assert!(line.contains("--large-pages on") && line.lines().count() == 1, "{line}");
    }

    fn session(large_pages: bool) -> Session {
        let description = Description {
            pid: 1,
            name: None,
            command: Vec::new(),
            budget_bytes: 0,
            swap: Vec::new(),
            large_pages,
            started_ms: 0,
        };
        Session { description, run_dir: PathBuf::new() }
    }
}
