//! The settings of a run, and the environment variables that carry them.
//!
//! Locks: none. The environment is read once, when the library is loaded.

use crate::choices::{FaultThreads, LargePages, Malloc, MapFiles, Mapping, SystemCalls};
use highwater_devices::{Area, Injection, RemoteOptions, Seal};
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_units::Bytes;
use std::ffi::OsString;
use std::path::PathBuf;
use std::slice;
use std::str::FromStr;

/// Bytes of addresses that paged memory has in each process: a tenth of all, so that large
/// reservations are paged, too. The manager's table takes 16 KiB per TiB that is not touched.
pub const RANGE: u64 = 12 << 40;
/// A limit that counts the range is raised by this many bytes: by the range, and by the library's
/// own mappings.
pub const RANGE_AND_OWN: u64 = RANGE + (4 << 30);

/// The path of `highwater`, if it may run static programs.
pub const LOADER: &str = "HIGHWATER_LOADER";
/// The static program to run. It is for one process alone.
pub const STATIC_PROGRAM: &str = "HIGHWATER_STATIC_PROGRAM";

/// Budget in bytes. Without it a process is not served.
const MEMORY: &str = "HIGHWATER_MEMORY";
/// The most that one process may use of memory that all processes of the run share. Without it they
/// share none.
const SHARED_MAX: &str = "HIGHWATER_SHARED_MAX";
/// Specifications of devices, joined by [`SWAP_SEPARATOR`].
const SWAP: &str = "HIGHWATER_SWAP";
const KSWAPD: &str = "HIGHWATER_KSWAPD";
const MAPPING: &str = "HIGHWATER_MAPPING";
const MAP_FILES: &str = "HIGHWATER_MAP_FILES";
const MALLOC: &str = "HIGHWATER_MALLOC";
const LARGE_PAGES: &str = "HIGHWATER_LARGE_PAGES";
const SYSTEM_CALLS: &str = "HIGHWATER_SYSTEM_CALLS";
const FAULTS: &str = "HIGHWATER_FAULTS";
const SEAL: &str = "HIGHWATER_SEAL";
/// The directory where the processes of a run publish their statistics.
pub const RUN_DIR: &str = "HIGHWATER_RUN_DIR";

const SWAP_SEPARATOR: char = ';';

/// How the processes of a run are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Budget of a process that shares no memory with others.
    pub memory: Bytes,
    /// The most that a process uses of the memory that all share ([`crate::Budget`]); `None`: each
    /// has a budget of its own.
    pub memory_max: Option<Bytes>,
    /// Swap devices; among those without a priority, the first is used first.
    pub swap: Vec<Area>,
    /// Whether swap files are encrypted.
    pub seal: Seal,
    /// How servers that hold swap are reached.
    pub remote: RemoteOptions,
    /// kswapd threads of each process.
    pub kswapd: KswapdThreads,
    /// The userfaultfd operation.
    pub mapping: Mapping,
    /// Which mappings of files are served.
    pub map_files: MapFiles,
    /// Which blocks of malloc are served.
    pub malloc: Malloc,
    /// Whether there are large pages.
    pub large_pages: LargePages,
    /// How system calls reach paged memory.
    pub system_calls: SystemCalls,
    /// The threads that serve page faults.
    pub faults: FaultThreads,
    /// Where processes publish their statistics; `None`: they do not.
    pub run_dir: Option<PathBuf>,
}

impl Settings {
    /// The environment variables for these settings.
    pub fn to_env(&self) -> Vec<(&'static str, OsString)> {
        let mut vars = vec![
            (MEMORY, self.memory.0.to_string().into()),
            (SWAP, text_of(&self.swap).into()),
            (SEAL, self.seal.to_string().into()),
            (KSWAPD, self.kswapd.to_string().into()),
            (MAPPING, self.mapping.to_string().into()),
            (MAP_FILES, self.map_files.to_string().into()),
            (MALLOC, self.malloc.to_string().into()),
            (LARGE_PAGES, self.large_pages.to_string().into()),
            (SYSTEM_CALLS, self.system_calls.to_string().into()),
            (FAULTS, self.faults.to_string().into()),
        ];
        // Also if there is none: a run in a run must not find the outer one's.
        let most = self.memory_max.map_or(String::new(), |most| most.0.to_string());
        vars.push((SHARED_MAX, most.into()));
        vars.extend(self.remote.to_env());
        vars.extend(self.run_dir.iter().map(|dir| (RUN_DIR, dir.clone().into_os_string())));
        vars
    }

    /// The settings in an environment, where `var` looks a name up; `None`: a process with this
    /// environment is not served.
    ///
    /// # Errors
    /// What is wrong with a variable, in one line.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Option<Settings>, String> {
        // The message quotes values, and is one line whatever is in them.
        Settings::read(var).map_err(|error| error.replace(|c: char| c.is_control(), "?"))
    }

    fn read(var: impl Fn(&str) -> Option<OsString>) -> Result<Option<Settings>, String> {
        let text = |name: &str| match var(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(format!("{name} is not UTF-8")),
        };
        let Some(memory) = text(MEMORY)? else { return Ok(None) };
        Ok(Some(Settings {
            memory: Bytes(parse(MEMORY, &memory)?),
            memory_max: text(SHARED_MAX)?
                .filter(|most| !most.is_empty())
                .map(|most| parse(SHARED_MAX, &most).map(Bytes))
                .transpose()?,
            swap: areas(&text(SWAP)?.unwrap_or_default())?,
            seal: choice(SEAL, text(SEAL)?)?,
            remote: RemoteOptions::from_vars(&var)?,
            kswapd: text(KSWAPD)?.map_or(Ok(Config::default().kswapd_threads), |text| {
                text.parse().map_err(|error| format!("{KSWAPD}: {error}"))
            })?,
            mapping: choice(MAPPING, text(MAPPING)?)?,
            map_files: choice(MAP_FILES, text(MAP_FILES)?)?,
            malloc: choice(MALLOC, text(MALLOC)?)?,
            large_pages: choice(LARGE_PAGES, text(LARGE_PAGES)?)?,
            system_calls: choice(SYSTEM_CALLS, text(SYSTEM_CALLS)?)?,
            faults: choice(FAULTS, text(FAULTS)?)?,
            run_dir: var(RUN_DIR).map(PathBuf::from),
        }))
    }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name}='{text}' is not a number in range"))
}

/// The value of a variable, or the default if it is absent.
fn choice<T>(name: &str, text: Option<String>) -> Result<T, String>
where
    T: Default + FromStr<Err = String>,
{
    text.map_or(Ok(T::default()), |text| text.parse().map_err(|error| format!("{name}: {error}")))
}

/// Checks that the processes of a run read this device from the environment as it is.
///
/// # Errors
/// Why they do not, in one line.
pub fn check_carried(device: &Area) -> Result<(), String> {
    let text = text_of(slice::from_ref(device));
    // Not UTF-8: the text has replacement characters.
    let unfit = || format!("swap {text:?}: its path is not UTF-8, or has a '{SWAP_SEPARATOR}'");
    match areas(&text) {
        Ok(read) if read == slice::from_ref(device) => Ok(()),
        Err(error) if !text.contains(SWAP_SEPARATOR) => Err(error),
        Ok(_) | Err(_) => Err(unfit()),
    }
}

fn text_of(areas: &[Area]) -> String {
    let areas: Vec<String> = areas.iter().map(Area::to_string).collect();
    areas.join(&SWAP_SEPARATOR.to_string())
}

fn areas(text: &str) -> Result<Vec<Area>, String> {
    // `highwater run` has decided whether it accepts injected faults.
    let parse = |area| Area::parse_with(area, Injection::Allowed);
    text.split(SWAP_SEPARATOR).filter(|area| !area.is_empty()).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_devices::Spec;
    use std::collections::HashMap;
    use std::os::unix::ffi::OsStringExt;

    fn read(vars: &[(&'static str, OsString)]) -> Result<Option<Settings>, String> {
        let vars: HashMap<_, _> = vars.iter().cloned().collect();
        Settings::from_vars(|name| vars.get(name).cloned())
    }

    fn settings(run_dir: Option<&str>) -> Settings {
        Settings {
            memory: Bytes(64 << 20),
            memory_max: Some(Bytes(128 << 20)),
            swap: ["ram:1G,priority=1", "dir:/var/tmp:2G"]
                .map(|area| Area::parse(area).unwrap())
                .into(),
            seal: Seal::Off,
            remote: RemoteOptions { user: Some("me".to_owned()), ..RemoteOptions::default() },
            kswapd: KswapdThreads::Fixed(3),
            mapping: Mapping::Copy,
            map_files: MapFiles::Read,
            malloc: Malloc::Large,
            large_pages: LargePages::On,
            system_calls: SystemCalls::Copies,
            faults: FaultThreads::InThread,
            run_dir: run_dir.map(PathBuf::from),
        }
    }

    #[test]
    fn settings_survive_the_environment() {
        for settings in [settings(None), settings(Some("/dev/shm/run"))] {
            assert_eq!(read(&settings.to_env()), Ok(Some(settings)));
        }
    }

    /// Regression: the program's processes could not read the device, and ran unpaged.
    #[test]
    fn devices_that_change_in_the_environment_are_found() {
        let dir = |path: &[u8]| Spec::Dir {
            path: PathBuf::from(OsString::from_vec(path.to_vec())),
            size: Bytes(1 << 20),
        };
        let check = |spec| check_carried(&Area::new(spec));
        assert_eq!(check(dir(b"/var/tmp")), Ok(()));
        for path in [&b"/a;b"[..], b"/a\xff"] {
            let error = check(dir(path)).unwrap_err();
            assert!(error.contains("not UTF-8, or has a ';'"), "{error}");
        }
        let [first, second] = [(); 2].map(|()| Box::new(dir(b"/a")));
        let error = check(Spec::Replicate { first, second }).unwrap_err();
        assert!(error.contains("both replicas are the same"), "{error}");
    }

    #[test]
    fn without_a_budget_nothing_is_served() {
        assert_eq!(read(&[(SWAP, "nonsense".into())]), Ok(None));
    }

    #[test]
    fn only_the_budget_is_needed() {
        let found = read(&[(MEMORY, "4194304".into())]).unwrap().unwrap();
        assert_eq!(
            (found.memory, found.kswapd),
            (Bytes(4 << 20), Config::default().kswapd_threads)
        );
        assert_eq!((found.swap, found.mapping, found.run_dir), (vec![], Mapping::Auto, None));
        assert_eq!(found.memory_max, None);
        assert_eq!((found.map_files, found.malloc), (MapFiles::Off, Malloc::All));
        assert_eq!(found.large_pages, LargePages::Off);
        assert_eq!(found.system_calls, SystemCalls::Faults);
        assert_eq!(found.faults, FaultThreads::Handlers);
        assert_eq!((found.seal, found.remote), (Seal::On, RemoteOptions::default()));
    }

    #[test]
    fn bad_variables_are_named() {
        for (name, value) in [
            (MEMORY, "much"),
            (SHARED_MAX, "more"),
            (KSWAPD, "0"),
            (KSWAPD, "17"),
            (MAPPING, "fly"),
            (MAP_FILES, "write"),
            (LARGE_PAGES, "huge"),
            (SYSTEM_CALLS, "magic"),
            (FAULTS, "never"),
            (SEAL, "wax"),
            ("HIGHWATER_REMOTE_PATIENCE", "endless"),
            (SWAP, "tape:1G"),
        ] {
            let mut vars = settings(None).to_env();
            vars.iter_mut().find(|(var, _)| *var == name).unwrap().1 = value.into();
            let error = read(&vars).unwrap_err();
            assert!(error.contains(value.split(':').next().unwrap()), "{name}={value}: {error}");
        }
    }
}
