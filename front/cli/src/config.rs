//! Settings of `highwater run` that are not on its command line.
//!
//! ```text
//! --config FILE.toml:  memory = "256M"         \
//! environment:         HIGHWATER_MEMORY=256M    +--> the options that the command line lacks,
//! command line:        --memory 256M           /     as arguments
//! ```
//! The command line wins over the environment, which wins over the file. Keys are the names of the
//! long options, read from the definition of `Run`: a new option needs no code here. Each setting
//! is first parsed alone, so that a refusal can name the file and the key.
//!
//! A run passes its settings to its program in the same variables. Inside a run they were not set
//! by the user, so a nested run ignores them.

use crate::options::Given;
use crate::report_file::Format;
use crate::{Refusal, options, swap};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use highwater_command::parse_error;
use highwater_devices::read_short_file;
use highwater_session::RUN_DIR;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The option that names the file, which cannot be in it.
const CONFIG: &str = "config";
/// Prefix of variables.
const PREFIX: &str = "HIGHWATER_";
/// Variables that do not set an option.
const OTHERS: [&str; 7] = [
    "HIGHWATER_PRELOAD",
    "HIGHWATER_REDIS_USER",
    "HIGHWATER_REDIS_PASSWORD",
    "HIGHWATER_REDIS_PASSWORD_FILE",
    "HIGHWATER_TLS_CA",
    "HIGHWATER_TLS_CERT",
    "HIGHWATER_TLS_KEY",
];
/// Separates the values of an option that may be repeated, in a variable.
const SEPARATOR: char = ';';

/// Largest file of settings: a device such as /dev/zero has no end.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Least similarity, from 0 to 1, of an unknown name to the setting that was probably meant.
const ALIKE: f64 = 0.9;
/// Least length of a name that counts as an abbreviation of a setting.
const ABBREVIATION_MIN: usize = 3;

/// The environment: variables and their values.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// A setting, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// The file and the key, or the variable.
    origin: String,
    key: String,
    values: Vec<String>,
}

/// Arguments for the options of `run` that its command line, `given`, does not have.
///
/// # Errors
/// A file that cannot be read, an unknown key, a misspelled variable, a bad value.
pub(crate) fn arguments(
    run: &Command,
    given: &ArgMatches,
    mut environment: Environment,
) -> Result<Vec<OsString>, Refusal> {
    if environment.contains_key(OsStr::new(RUN_DIR)) {
        environment.clear();
    }
    // An empty variable counts as unset, as elsewhere.
    environment.retain(|_, value| !value.is_empty());
    environment.keys().try_for_each(|name| check_name(run, name))?;
    let by_variable = || environment.get(OsStr::new(&variable_of(CONFIG))).map(PathBuf::from);
    let file = given.get_one::<PathBuf>(CONFIG).cloned().or_else(by_variable);
    let environment = of_environment(run, &environment)?;
    let file = file.map_or(Ok(Vec::new()), |path| of_file(run, &path))?;
    let mut known: BTreeSet<String> = keys(run).filter(|key| is_given(run, given, key)).collect();
    let mut arguments = Vec::new();
    for settings in [environment, file] {
        let (used, of_these): (Vec<Setting>, BTreeSet<String>) = settings
            .into_iter()
            .filter(|setting| !is_settled(&known, &setting.key))
            .map(|setting| (setting.clone(), setting.key))
            .unzip();
        known.extend(of_these);
        used.iter().try_for_each(Setting::check)?;
        arguments.extend(used.iter().flat_map(|setting| setting.arguments(run)));
    }
    Ok(arguments)
}

/// Whether a source of higher precedence has decided a setting already: by its key, or by the other
/// kind of budget.
fn is_settled(known: &BTreeSet<String>, key: &str) -> bool {
    let other = match key {
        "memory" => "paged",
        "paged" => "memory",
        _ => key,
    };
    known.contains(key) || known.contains(other)
}

/// The long options, without the one for the file.
fn keys(run: &Command) -> impl Iterator<Item = String> {
    let long = run.get_arguments().filter_map(|option| option.get_long());
    let settings = long.filter(|key| ![CONFIG, "help", "version"].contains(key));
    settings.map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// The keys that the help shows.
fn documented(run: &Command) -> Vec<String> {
    let shown = run.get_arguments().filter(|option| !option.is_hide_set());
    let shown: Vec<&str> = shown.filter_map(|option| option.get_long()).collect();
    keys(run).filter(|key| shown.contains(&key.as_str())).collect()
}

fn action<'a>(run: &'a Command, key: &str) -> Option<&'a ArgAction> {
    let option = run.get_arguments().find(|option| option.get_long() == Some(key))?;
    Some(option.get_action())
}

fn is_given(run: &Command, given: &ArgMatches, key: &str) -> bool {
    let option = run.get_arguments().find(|option| option.get_long() == Some(key));
    let source = option.and_then(|option| given.value_source(option.get_id().as_str()));
    source == Some(ValueSource::CommandLine)
}

/// The variable of an option.
fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('-', "_").to_uppercase())
}

/// Refuses a variable whose name is nearly that of a setting. Other names may have another purpose:
/// in a Kubernetes cluster a service named highwater sets HIGHWATER_PORT in every container.
fn check_name(run: &Command, name: &OsStr) -> Result<(), Refusal> {
    let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { return Ok(()) };
    let known = || keys(run).chain([CONFIG.to_owned()]).map(|key| variable_of(&key));
    if OTHERS.contains(&name) || known().any(|known| known == name) {
        return Ok(());
    }
    let is_meant = |known: &str| {
        let [name, known] = [name, known].map(|name| &name[PREFIX.len()..]);
        let is_short = name.len() >= ABBREVIATION_MIN && known.starts_with(name);
        is_short || strsim::jaro_winkler(name, known) >= ALIKE
    };
    match known().find(|known| is_meant(known)) {
        Some(meant) => {
            let what = format!("{name}: there is no such setting");
            Err(Refusal::new(what, format!("set {meant}, or unset it")))
        }
        None => Ok(()),
    }
}

fn of_environment(run: &Command, environment: &Environment) -> Result<Vec<Setting>, Refusal> {
    let set = |key: String| Some((environment.get(OsStr::new(&variable_of(&key)))?.clone(), key));
    let setting = |(value, key): (OsString, String)| {
        let origin = variable_of(&key);
        let text = value.into_string().map_err(|_| {
            Refusal::new(format!("{origin} is not UTF-8"), format!("set --{key} instead"))
        })?;
        let values = match action(run, &key) {
            Some(ArgAction::Append) => text.split(SEPARATOR).map(str::to_owned).collect(),
            _ => vec![text],
        };
        Setting { origin, key, values }.parsed(run)
    };
    keys(run).filter_map(set).map(setting).collect()
}

fn of_file(run: &Command, path: &Path) -> Result<Vec<Setting>, Refusal> {
    let file = path.display();
    let text = read(path).map_err(|error| {
        let what = format!("the settings in '{file}' cannot be read: {error}");
        Refusal::new(what, "name a text file that you may read")
    })?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let what = format!("'{file}', line {line}: {}", error.message());
        Refusal::new(what, "write lines such as memory = \"256M\"")
    })?;
    let setting = |(key, value): (&String, &Value)| {
        let origin = format!("'{file}', key {key}");
        if !keys(run).any(|known| known == *key) {
            let what = format!("{origin}: there is no such setting");
            return Err(Refusal::new(what, format!("there are {}", documented(run).join(", "))));
        }
        let action = action(run, key);
        let values = texts(value, action).map_err(|kind| {
            Refusal::new(format!("{origin}: the value is {kind}"), right_kind(key, action))
        })?;
        Setting { origin, key: key.clone(), values }.parsed(run)
    };
    table.iter().map(setting).collect()
}

/// The text of a file.
fn read(path: &Path) -> io::Result<String> {
    let bytes = read_short_file(path, FILE_BYTES_MAX)?;
    let bytes = bytes.ok_or_else(|| io::Error::other("it is larger than 1 MiB"))?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// A value as it is written on the command line: several texts for an option that may be repeated.
/// The error names the kind of a value that cannot be written there.
fn texts(value: &Value, action: Option<&ArgAction>) -> Result<Vec<String>, &'static str> {
    match (value, action) {
        (Value::String(text), _) => Ok(vec![text.clone()]),
        (Value::Array(values), Some(ArgAction::Append)) => values
            .iter()
            .map(|value| value.as_str().map(str::to_owned).ok_or(kind(value)))
            .collect(),
        (Value::Integer(_) | Value::Boolean(_), Some(ArgAction::Append)) => Err(kind(value)),
        (Value::Integer(number), _) => Ok(vec![number.to_string()]),
        (Value::Boolean(truth), _) => Ok(vec![truth.to_string()]),
        _ => Err(kind(value)),
    }
}

/// The kind of a value, in a refusal.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Float(_) => "a number with a fraction",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
        Value::Datetime(_) => "a date",
    }
}

/// The remedy for a key whose value is of the wrong kind.
fn right_kind(key: &str, action: Option<&ArgAction>) -> String {
    match action {
        Some(ArgAction::SetTrue) => "write true or false".to_owned(),
        // The only option that may be repeated is the one for devices.
        Some(ArgAction::Append) => format!("write {key} = [\"dir:/var/tmp:8G\"]"),
        _ => format!("write it as after --{key}, in quotes"),
    }
}

impl Setting {
    /// The setting, if its option accepts the values.
    fn parsed(self, run: &Command) -> Result<Setting, Refusal> {
        if matches!(action(run, &self.key), Some(ArgAction::SetTrue)) {
            let is_truth = ["true", "false"].contains(&self.values.concat().as_str());
            let what =
                || format!("{}: '{}' is neither true nor false", self.origin, self.values.concat());
            return if is_truth {
                Ok(self)
            } else {
                Err(Refusal::new(what(), "write true or false"))
            };
        }
        let alone = ["highwater run".into()].into_iter().chain(self.arguments(run));
        let alone = alone.chain(["--".into(), "program".into()]);
        match run.clone().try_get_matches_from(alone) {
            Ok(_) => Ok(self),
            Err(error) => {
                let refusal = parse_error("highwater run", error);
                let what = format!("{}: {}", self.origin, refusal.what());
                Err(Refusal::new(what, "see 'highwater run --help' for its values"))
            }
        }
    }

    fn arguments(&self, run: &Command) -> Vec<OsString> {
        match (action(run, &self.key), self.values.concat().as_str()) {
            (Some(ArgAction::SetTrue), "true") => vec![format!("--{}", self.key).into()],
            (Some(ArgAction::SetTrue), _) => Vec::new(),
            _ => self.values.iter().map(|value| format!("--{}={value}", self.key).into()).collect(),
        }
    }

    /// Refuses values that the run would refuse later without naming their origin.
    fn check(&self) -> Result<(), Refusal> {
        let value = self.values.last().map(String::as_str);
        let none = Given::default();
        let checked = match self.key.as_str() {
            "memory" => options::memory(Given { memory: value, ..none }).map(drop),
            "paged" => options::memory(Given { paged: value, ..none }).map(drop),
            "memory-per-process" => options::memory(Given { per_process: value, ..none }).map(drop),
            "memory-max" => options::memory_max(value.unwrap_or_default()).map(drop),
            "swap" => swap::devices(&self.values, None).map(drop),
            "report" => Format::of(Path::new(value.unwrap_or_default())).map(drop),
            _ => Ok(()),
        };
        checked.map_err(|refusal| {
            Refusal::new(format!("{}: {}", self.origin, refusal.what()), refusal.remedy())
        })
    }
}

#[cfg(test)]
#[path = "config_fuzz.rs"]
mod config_fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run() -> Command {
        let mut cli = crate::Cli::command();
        cli.build();
        cli.find_subcommand("run").expect("a subcommand").clone()
    }

    /// The arguments that an environment and a file add to `given`.
    fn added(given: &[&str], environment: &[(&str, &str)], file: &str) -> Result<String, Refusal> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let given = ["run", &config].into_iter().chain(given.iter().copied());
        let given = run().try_get_matches_from(given.chain(["--", "true"])).unwrap();
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        let added = arguments(&run(), &given, environment.collect())?;
        Ok(added.join(" ".as_ref()).into_string().unwrap())
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
        let file = "memory = '8M'\nkswapd = 2\nswap = ['ram:16M', 'ram:32M']\nmap-files = 'read'\n\
            quiet = true\nprogress = false\n";
        let all = "--kswapd=2 --map-files=read --memory=8M --quiet --swap=ram:16M --swap=ram:32M";
        assert_eq!(added(&[], &[], file).unwrap(), all);
        let given = ["--memory", "32M", "--swap", "ram:1G", "--quiet"];
        let environment = [
            ("HIGHWATER_MEMORY", "16M"),
            ("HIGHWATER_KSWAPD", "auto"),
            ("HIGHWATER_QUIET", "false"),
            ("HIGHWATER_MAP_FILES", ""),
        ];
        assert_eq!(added(&given, &environment, file).unwrap(), "--kswapd=auto --map-files=read");
        let found = added(&[], &environment, file).unwrap();
        let expected = "--memory=16M --kswapd=auto --map-files=read --swap=ram:16M --swap=ram:32M";
        assert_eq!(found, expected);
        let swap = added(&[], &[("HIGHWATER_SWAP", "ram:16M;ram:32M")], "").unwrap();
        assert_eq!(swap, "--swap=ram:16M --swap=ram:32M");
    }

    #[test]
    fn variables_of_a_run_are_not_the_users() {
        let inside = [("HIGHWATER_MEMORY", "16M"), ("HIGHWATER_RUN_DIR", "/dev/shm/highwater-1")];
        assert_eq!(added(&[], &inside, "").unwrap(), "");
        assert_eq!(added(&[], &inside, "memory = '8M'").unwrap(), "--memory=8M");
    }

    #[test]
    fn a_misspelled_variable_is_refused() {
        for (name, meant) in [
            ("HIGHWATER_MEM", Some("HIGHWATER_MEMORY, ")),
            ("HIGHWATER_MEMROY", Some("HIGHWATER_MEMORY, ")),
            ("HIGHWATER_SWAPS", Some("HIGHWATER_SWAP, ")),
            ("HIGHWATER_SWAP_DIR", Some("HIGHWATER_SWAP, ")),
            ("HIGHWATER_KSWAPDS", Some("HIGHWATER_KSWAPD, ")),
            ("HIGHWATER_MAP_FILE", Some("HIGHWATER_MAP_FILES, ")),
            ("HIGHWATER_CONFG", Some("HIGHWATER_CONFIG, ")),
            ("HIGHWATER_NA", None),
            ("HIGHWATER_PORT", None),
            ("HIGHWATER_SERVICE_HOST", None),
            ("HIGHWATER_REQUIRE", None),
            ("HIGHWATER_SEED", None),
            ("HIGHWATER_PRELOAD", None),
            ("HIGHWATER_REDIS_PASSWORD_FILE", None),
            ("HIGHWATER_TLS_CA", None),
            ("HIGHWATERMEMORY", None),
        ] {
            let refusal = added(&[], &[(name, "16M")], "").err().map(|refusal| refusal.to_string());
            let expected =
                meant.map(|meant| format!("{name}: there is no such setting; set {meant}"));
            let is_right = match (&refusal, &expected) {
                (Some(refusal), Some(expected)) => refusal.starts_with(expected),
                (None, None) => true,
                _ => false,
            };
            assert!(is_right, "{name}: {refusal:?}");
        }
        let inside = [("HIGHWATER_MEM", "16M"), ("HIGHWATER_RUN_DIR", "/dev/shm/highwater-1")];
        assert_eq!(added(&[], &inside, "").unwrap(), "");
    }

    #[test]
    fn every_option_has_a_key() {
        let keys: Vec<String> = keys(&run()).collect();
        for key in [
            "memory",
            "swap",
            "kswapd",
            "faults",
            "system-calls",
            "name",
            "report",
            "metrics",
            "quiet",
        ] {
            assert!(keys.iter().any(|found| found == key), "{key}: {keys:?}");
        }
        assert!(!keys.iter().any(|key| key == "config" || key == "help"), "{keys:?}");
    }

    #[test]
    fn a_refusal_names_file_key_and_remedy() {
        for (file, parts) in [
            (
                "memry = '8M'",
                ["run.toml', key memry: there is no such setting", "there are memory"],
            ),
            ("config = 'a'", ["key config: there is no", "there are memory"]),
            ("memory = 'much'", ["run.toml', key memory: --memory 'much' is", "for example 512M"]),
            ("memory = '1K'", ["key memory: a budget of 1 KiB is too small", "4M or more"]),
            ("swap = ['ram:16M', 'tape:1G']", ["run.toml', key swap: ", "dir:PATH:SIZE"]),
            ("kswapd = 17", ["key kswapd: ", "'17' is neither 1 to 16 nor auto"]),
            ("kswapd = [1, 2]", ["key kswapd: the value is a list", "as after --kswapd"]),
            ("memory = 1.5", ["the value is a number with a fraction", "in quotes"]),
            (
                "[swap]\nx = 1",
                ["key swap: the value is a table", "write swap = [\"dir:/var/tmp:8G\"]"],
            ),
            (
                "swap = 5",
                ["key swap: the value is a number;", "write swap = [\"dir:/var/tmp:8G\"]"],
            ),
            (
                "swap = [5]",
                ["key swap: the value is a number;", "write swap = [\"dir:/var/tmp:8G\"]"],
            ),
            ("swap = true", ["the value is true or false;", "write swap = [\"dir:/var/tmp:8G\"]"]),
            ("memory-max = '1K'", ["run.toml', key memory-max: a budget of 1 KiB", "4M or more"]),
            ("quiet = []", ["key quiet: the value is a list", "write true or false"]),
            ("quiet = 'yes'", ["key quiet: 'yes' is neither true nor false", "true or false"]),
            ("report = 'a.txt'", ["key report: report 'a.txt' ends in neither", "report.html"]),
            ("metrics = 'a'", ["key metrics: ", "'a' is neither PORT nor ADDRESS:PORT"]),
            ("name = '7'", ["key name: ", "a name is a letter"]),
            ("= 5", ["run.toml', line 1: ", "write lines such as"]),
            ("memory = '8M'\n= 5\n", ["run.toml', line 2: ", "write lines such as"]),
            ("\nmemory 8M", ["run.toml', line 2: ", "write lines such as"]),
        ] {
            let refusal = added(&[], &[], file).unwrap_err().to_string();
            assert!(parts.iter().all(|part| refusal.contains(part)), "{file}: {refusal}");
            assert_eq!(refusal.lines().count(), 1, "{refusal}");
        }
        let refusal = added(&[], &[("HIGHWATER_KSWAPD", "0")], "").unwrap_err().to_string();
        assert!(refusal.starts_with("HIGHWATER_KSWAPD: invalid value '0'"), "{refusal}");
        let given = ["--memory", "8M"];
        assert_eq!(added(&given, &[], "memory = '1000T'").unwrap(), "", "it has no effect");
    }
}
