//! Sessions: the running runs of this user, for commands that show or change them from another
//! terminal.
//!
//! ```text
//! highwater run --- Description, as JSON ---> run_dir/owner, locked while it runs
//!                                                 |
//! highwater ls, top --- running ------------------/---> Session --- processes ---> Process
//!                   \-- choose: by name, by pid, or the only one
//! ```
//! A run that was killed has left an unlocked `owner`, and does not count as a session.
//! Locks: none.

use crate::ctl::key::is_key;
use crate::{Refusal, run_dir};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::{
    Budget, LargePages, MallocStats, Parts, Published, Settings, SwapItem, read_published,
};
use highwater_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest name of a session.
const NAME_LEN_MAX: usize = 32;
/// Most bytes of a command that are published: arguments may take megabytes.
const COMMAND_LEN_MAX: usize = 4096;

/// The name of a session. It begins with a letter, so it is neither a pid nor an option. It is not
/// a key: the first word after `highwater ctl` is a session or a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionName(String);

impl FromStr for SessionName {
    type Err = String;

    fn from_str(text: &str) -> Result<SessionName, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
        if !begins || text.len() > NAME_LEN_MAX || !text.chars().all(allowed) {
            return Err(format!(
                "a name is a letter and up to {} letters, digits, dots, dashes and underscores",
                NAME_LEN_MAX - 1
            ));
        }
        match is_key(text) {
            false => Ok(SessionName(text.to_owned())),
            true => Err(format!(
                "it is a key of 'highwater ctl', which could not tell it from a session; give \
                 another name, for example {text}-1"
            )),
        }
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A run, as it describes itself when it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The pid of `highwater run`.
    pub(crate) pid: u32,
    pub(crate) name: Option<SessionName>,
    /// The program and its arguments, the first ones if there are many.
    pub(crate) command: Vec<String>,
    /// The budget when the run began.
    pub(crate) budget_bytes: u64,
    /// Specifications of the swap devices.
    pub(crate) swap: Vec<String>,
    /// Whether its processes have large pages, and compact their memory.
    pub(crate) large_pages: bool,
    /// When the run began, in milliseconds since 1970.
    pub(crate) started_ms: u64,
}

impl Description {
    /// The description of a run that this process begins now.
    pub(crate) fn now(
        name: Option<SessionName>,
        command: &[OsString],
        settings: &Settings,
        budget: Bytes,
    ) -> Description {
        Description {
            pid: std::process::id(),
            name,
            command: shortened(command),
            budget_bytes: budget.0,
            swap: settings.swap.iter().map(ToString::to_string).collect(),
            large_pages: settings.large_pages == LargePages::On,
            started_ms: since_1970().as_millis() as u64,
        }
    }

    /// The text for [`RunDir::create`](run_dir::RunDir::create).
    pub(crate) fn to_text(&self) -> String {
        // The fields are strings, numbers and a flag, so that the conversion does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// How long it has been running.
    pub(crate) fn running(&self) -> Duration {
        since_1970().saturating_sub(Duration::from_millis(self.started_ms))
    }

    /// The command on one line.
    pub(crate) fn command_line(&self) -> String {
        // Arguments may contain any character, and are printed on a terminal.
        self.command.join(" ").replace(|c: char| c.is_control(), "?")
    }

    /// Its name and pid, or its pid alone.
    pub(crate) fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} ({})", self.pid),
            None => self.pid.to_string(),
        }
    }
}

/// The first arguments, until there are [`COMMAND_LEN_MAX`] characters, as text.
fn shortened(command: &[OsString]) -> Vec<String> {
    let parts = command.iter().map(|part| part.to_string_lossy().into_owned());
    let first = parts.scan(0, |len, part| {
        let fits = *len < COMMAND_LEN_MAX;
        *len += part.len();
        fits.then_some(part)
    });
    let cut = |part: String| part.chars().take(COMMAND_LEN_MAX).collect::<String>() + "...";
    first.map(|part| if part.len() > COMMAND_LEN_MAX { cut(part) } else { part }).collect()
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A session that is running.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Session {
    pub(crate) description: Description,
    /// Where its processes publish their statistics.
    pub(crate) run_dir: PathBuf,
}

/// A living process of a session, with the statistics that it published last.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) snapshot: Snapshot,
    /// The parts of its manager, if it has one.
    pub(crate) parts: Option<Parts>,
    /// Statistics of malloc, if the process uses Highwater's.
    pub(crate) malloc: Option<MallocStats>,
}

impl Process {
    /// The value of a counter of pages, in bytes.
    pub(crate) fn bytes(&self, counter: Counter) -> Bytes {
        Bytes::of_pages(self.snapshot.get(counter))
    }
}

impl Session {
    /// Its served processes that are alive, by pid.
    ///
    /// # Errors
    /// A process whose library is of another build.
    pub(crate) fn processes(&self) -> Result<Vec<Process>, Refusal> {
        let published = read_published(&self.run_dir).map_err(|other_build| {
            Refusal::new(other_build.to_string(), "call the highwater that runs the session")
        })?;
        Ok(living(published, is_alive))
    }

    /// The budget that its processes share; `None`: each has its own.
    pub(crate) fn shared_budget(&self) -> Option<Budget> {
        Budget::open(&self.run_dir).ok()
    }

    /// The specifications of its swap devices by place, including those that were removed.
    pub(crate) fn swap(&self) -> Vec<String> {
        let text = |item: Option<SwapItem>| item.map_or(String::new(), |it| it.area.to_string());
        match self.shared_budget() {
            Some(budget) => budget.swap_items().into_iter().map(text).collect(),
            None => self.description.swap.clone(),
        }
    }

    /// The specifications of the swap devices that it uses now.
    pub(crate) fn swap_in_use(&self) -> Vec<String> {
        self.shared_budget().map_or_else(|| self.description.swap.clone(), |it| in_use(&it))
    }

    /// Its budget now.
    pub(crate) fn budget(&self) -> Bytes {
        let began = Bytes(self.description.budget_bytes);
        self.shared_budget().map_or(began, |budget| Bytes::of_pages(budget.limit()))
    }

    /// Its budget now: "in 1 GiB" if the processes share it, "of 1 GiB" if each has its own.
    pub(crate) fn budget_text(&self) -> String {
        match self.shared_budget() {
            Some(budget) => format!("in {}", Bytes::of_pages(budget.limit())),
            None => format!("of {}", Bytes(self.description.budget_bytes)),
        }
    }

    /// Whether `highwater run` is still running.
    pub(crate) fn is_running(&self) -> bool {
        run_dir::description(&self.run_dir).is_some()
    }
}

/// The specifications of a budget's swap devices that are used now.
pub(crate) fn in_use(budget: &Budget) -> Vec<String> {
    budget.swap_in_use().iter().map(|device| device.area.to_string()).collect()
}

/// Whether there is a process of this pid.
pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The last image of each living process. If a process called exec, only its last image holds
/// memory.
pub(crate) fn living(
    published: Vec<(u32, Published)>,
    is_alive: impl Fn(u32) -> bool,
) -> Vec<Process> {
    let last: BTreeMap<u32, Published> = published.into_iter().collect();
    let goes_on = |snapshot: &Snapshot| snapshot.get(Counter::ProcessEnded) == 0;
    let living = last.into_iter().filter(|(pid, it)| goes_on(&it.snapshot) && is_alive(*pid));
    let process = |(pid, published)| {
        let Published { name, snapshot, parts, malloc } = published;
        Process { pid, name, snapshot, parts, malloc }
    };
    living.map(process).collect()
}

/// This user's sessions, the oldest first.
pub(crate) fn running() -> Vec<Session> {
    let session = |(run_dir, text): (PathBuf, String)| {
        // The description of a run of another build may have other fields.
        let description = serde_json::from_str(&text).ok()?;
        Some(Session { description, run_dir })
    };
    let mut sessions: Vec<_> = run_dir::living().into_iter().filter_map(session).collect();
    sessions.sort_by_key(|session| (session.description.started_ms, session.description.pid));
    sessions
}

/// Refuses a name that a session has already, except the session in the directory `own`.
pub(crate) fn refuse_taken(
    name: &SessionName,
    sessions: &[Session],
    own: Option<&Path>,
) -> Result<(), Refusal> {
    let mut others = sessions.iter().filter(|session| Some(session.run_dir.as_path()) != own);
    match others.find(|session| session.description.name.as_ref() == Some(name)) {
        None => Ok(()),
        Some(Session { description, .. }) => {
            let what =
                format!("the session of pid {} already has the name {name}", description.pid);
            Err(Refusal::new(what, "give another --name; see 'highwater ls'"))
        }
    }
}

/// The session that `given` names, by name or pid; without it, the only one.
pub(crate) fn choose(sessions: Vec<Session>, given: Option<&str>) -> Result<Session, Refusal> {
    if sessions.is_empty() {
        let what = "no session of this user is running";
        return Err(Refusal::new(what, "start one with highwater run -- PROGRAM"));
    }
    let titles: Vec<String> = sessions.iter().map(|it| it.description.title()).collect();
    let titles = titles.join(", ");
    let is_given = |session: &Session| match (given, &session.description) {
        (None, _) => true,
        (Some(given), Description { pid, name, .. }) => {
            pid.to_string() == given || name.as_ref().is_some_and(|name| name.0 == given)
        }
    };
    let mut chosen: Vec<Session> = sessions.into_iter().filter(is_given).collect();
    match (chosen.pop(), given) {
        (Some(only), _) if chosen.is_empty() => Ok(only),
        (None, Some(given)) => {
            let what = format!("no session has the name or pid '{given}'");
            Err(Refusal::new(what, format!("running: {titles}")))
        }
        _ => {
            let what = "several sessions are running";
            Err(Refusal::new(what, format!("name one of them, or its pid: {titles}")))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process that has published a snapshot only.
    pub(crate) fn process(pid: u32, name: &str, snapshot: Snapshot) -> Process {
        Process { pid, name: name.to_owned(), snapshot, parts: None, malloc: None }
    }

    /// A session of this pid and name.
    pub(crate) fn session(pid: u32, name: Option<&str>) -> Session {
        let description = Description {
            pid,
            name: name.map(|name| name.parse().unwrap()),
            command: ["sort", "-S", "1G"].map(str::to_owned).into(),
            budget_bytes: 64 << 20,
            swap: vec!["ram:1 GiB".to_owned()],
            large_pages: false,
            started_ms: since_1970().as_millis() as u64 - 61_500,
        };
        Session { description, run_dir: format!("/dev/shm/highwater-{pid}").into() }
    }

    #[test]
    fn names_are_words_that_are_no_numbers() {
        for name in ["demo", "a", "Night-run_2.1", &"x".repeat(NAME_LEN_MAX)] {
            assert!(name.parse::<SessionName>().is_ok(), "{name}");
        }
        let long = "x".repeat(NAME_LEN_MAX + 1);
        for name in ["", "7", "7up", "-x", ".", "a b", "a/b", "a\n", "\u{e9}", &long] {
            let error = name.parse::<SessionName>().unwrap_err();
            assert!(error.contains("up to 31 letters"), "{name}: {error}");
        }
        for name in ["memory", "swap", "compact", "swap-add"] {
            let error = name.parse::<SessionName>().unwrap_err();
            assert!(error.ends_with(&format!("for example {name}-1")), "{name}: {error}");
        }
        assert!("memory-1".parse::<SessionName>().is_ok());
    }

    #[test]
    fn a_description_survives_its_file() {
        let description = session(7, Some("demo")).description;
        let text = description.to_text();
        assert_eq!(serde_json::from_str::<Description>(&text).unwrap(), description);
        assert_eq!(description.running().as_secs(), 61);
    }

    #[test]
    fn long_commands_are_cut() {
        let command =
            |parts: &[&str]| shortened(&parts.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(command(&["sort", "", "-S"]), ["sort", "", "-S"]);
        let long = "x".repeat(5000);
        let cut = command(&["echo", &long, "y"]);
        assert_eq!((cut.len(), cut[1].len()), (2, COMMAND_LEN_MAX + "...".len()));
    }

    #[test]
    fn a_session_is_chosen_by_name_by_pid_or_as_the_only_one() {
        let one = || vec![session(7, None)];
        let two = || vec![session(7, Some("demo")), session(8, None)];
        for (sessions, given, chosen) in [
            (one(), None, Ok(7)),
            (two(), Some("demo"), Ok(7)),
            (two(), Some("8"), Ok(8)),
            (two(), None, Err("name one of them, or its pid: demo (7), 8")),
            (two(), Some("dem"), Err("name or pid 'dem'; running: demo (7), 8")),
            (vec![], None, Err("start one with")),
            (vec![], Some("demo"), Err("start one with")),
        ] {
            match (choose(sessions, given), chosen) {
                (Ok(found), Ok(pid)) => assert_eq!(found.description.pid, pid),
                (Err(refusal), Err(part)) => {
                    assert!(refusal.to_string().contains(part), "{refusal}");
                }
                (found, _) => panic!("{given:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_name_is_taken_by_others_only() {
        let sessions = [session(7, Some("demo")), session(8, None)];
        let name = "demo".parse().unwrap();
        assert!(refuse_taken(&"demo2".parse().unwrap(), &sessions, None).is_ok());
        assert!(refuse_taken(&name, &sessions, Some(&sessions[0].run_dir)).is_ok());
        let refusal = refuse_taken(&name, &sessions, Some(&sessions[1].run_dir)).unwrap_err();
        assert!(refusal.what().contains("pid 7"), "{refusal}");
    }

    #[test]
    fn the_last_images_of_living_processes_count() {
        let published = |faults, ended| {
            let mut snapshot = Snapshot::empty();
            snapshot.counters[Counter::PgFault as usize] = faults;
            snapshot.counters[Counter::ProcessEnded as usize] = ended;
            Published { name: "a".to_owned(), snapshot, parts: None, malloc: None }
        };
        let all = [(1, 1, 0), (2, 2, 0), (2, 3, 0), (3, 4, 1), (4, 5, 0)];
        let all = all.map(|(pid, faults, ended)| (pid, published(faults, ended)));
        let found = living(all.into(), |pid| pid != 4);
        let found: Vec<_> =
            found.iter().map(|it| (it.pid, it.snapshot.get(Counter::PgFault))).collect();
        assert_eq!(found, [(1, 1), (2, 3)]);
    }
}
