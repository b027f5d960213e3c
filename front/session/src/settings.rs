//! The settings of a run, and the environment variables that carry them.
//!
//! Locks: none. The environment is read once, when the library is loaded.

use highwater_devices::Area;
use highwater_mm::Config;
use highwater_mm::config::KswapdThreads;
use highwater_units::Bytes;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Budget in bytes. Without it a process is not served.
const MEMORY: &str = "HIGHWATER_MEMORY";
/// Specifications of devices, joined by [`SWAP_SEPARATOR`].
const SWAP: &str = "HIGHWATER_SWAP";
const KSWAPD: &str = "HIGHWATER_KSWAPD";
const MAPPING: &str = "HIGHWATER_MAPPING";
const MAP_FILES: &str = "HIGHWATER_MAP_FILES";
const MALLOC: &str = "HIGHWATER_MALLOC";
const LARGE_PAGES: &str = "HIGHWATER_LARGE_PAGES";
const SYSTEM_CALLS: &str = "HIGHWATER_SYSTEM_CALLS";
/// The directory where the processes of a run publish their statistics.
pub const RUN_DIR: &str = "HIGHWATER_RUN_DIR";

const SWAP_SEPARATOR: char = ';';

/// The userfaultfd operation that maps and unmaps pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// MOVE if the kernel has it, else COPY.
    #[default]
    Auto,
    /// UFFDIO_MOVE; refused by kernels before 6.8.
    Move,
    /// UFFDIO_COPY and write protection, even if the kernel has MOVE.
    Copy,
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mapping::Auto => "auto",
            Mapping::Move => "move",
            Mapping::Copy => "copy",
        })
    }
}

impl FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Mapping, String> {
        match text {
            "auto" => Ok(Mapping::Auto),
            "move" => Ok(Mapping::Move),
            "copy" => Ok(Mapping::Copy),
            _ => Err(format!("mapping '{text}' is none of auto, move, copy")),
        }
    }
}

/// Which mappings of files are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapFiles {
    /// None: all stay in the kernel's page cache.
    #[default]
    Off,
    /// Mappings for reading, of files that are open for reading.
    Read,
}

impl fmt::Display for MapFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapFiles::Off => "off",
            MapFiles::Read => "read",
        })
    }
}

impl FromStr for MapFiles {
    type Err = String;

    fn from_str(text: &str) -> Result<MapFiles, String> {
        match text {
            "off" => Ok(MapFiles::Off),
            "read" => Ok(MapFiles::Read),
            _ => Err(format!("'{text}' is neither off nor read")),
        }
    }
}

/// Which blocks of malloc are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Malloc {
    /// Blocks of every size, once the process has asked for 1 MiB in all, or for 64 KiB at once.
    #[default]
    All,
    /// Blocks of 64 KiB and more; smaller ones are the C library's.
    Large,
}

impl fmt::Display for Malloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malloc::All => "all",
            Malloc::Large => "large",
        })
    }
}

impl FromStr for Malloc {
    type Err = String;

    fn from_str(text: &str) -> Result<Malloc, String> {
        match text {
            "all" => Ok(Malloc::All),
            "large" => Ok(Malloc::Large),
            _ => Err(format!("'{text}' is neither all nor large")),
        }
    }
}

/// Whether aligned blocks of 2 MiB are brought in, collapsed and swapped out as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LargePages {
    /// Pages come and go one by one, or in windows of up to 16.
    #[default]
    Off,
    /// Blocks are large pages where possible, and kcompactd makes room for them.
    On,
}

impl fmt::Display for LargePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LargePages::Off => "off",
            LargePages::On => "on",
        })
    }
}

impl FromStr for LargePages {
    type Err = String;

    fn from_str(text: &str) -> Result<LargePages, String> {
        match text {
            "off" => Ok(LargePages::Off),
            "on" => Ok(LargePages::On),
            _ => Err(format!("'{text}' is neither on nor off")),
        }
    }
}

/// How system calls reach paged memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemCalls {
    /// The kernel faults, as programs do. Needs a userfaultfd for faults of the kernel.
    #[default]
    Faults,
    /// They get copies of what their arguments point to: a filter traps them. Needs no privileges.
    Copies,
}

impl fmt::Display for SystemCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SystemCalls::Faults => "faults",
            SystemCalls::Copies => "copies",
        })
    }
}

impl FromStr for SystemCalls {
    type Err = String;

    fn from_str(text: &str) -> Result<SystemCalls, String> {
        match text {
            "faults" => Ok(SystemCalls::Faults),
            "copies" => Ok(SystemCalls::Copies),
            _ => Err(format!("'{text}' is neither faults nor copies")),
        }
    }
}

/// How the processes of a run are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Budget of each process: frames, and the manager's own memory.
    pub memory: Bytes,
    /// Swap devices; among those without a priority, the first is used first.
    pub swap: Vec<Area>,
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
    /// Where processes publish their statistics; `None`: they do not.
    pub run_dir: Option<PathBuf>,
}

impl Settings {
    /// The environment variables for these settings.
    pub fn to_env(&self) -> Vec<(&'static str, OsString)> {
        let areas: Vec<String> = self.swap.iter().map(Area::to_string).collect();
        let mut vars = vec![
            (MEMORY, self.memory.0.to_string().into()),
            (SWAP, areas.join(&SWAP_SEPARATOR.to_string()).into()),
            (KSWAPD, self.kswapd.to_string().into()),
            (MAPPING, self.mapping.to_string().into()),
            (MAP_FILES, self.map_files.to_string().into()),
            (MALLOC, self.malloc.to_string().into()),
            (LARGE_PAGES, self.large_pages.to_string().into()),
            (SYSTEM_CALLS, self.system_calls.to_string().into()),
        ];
        vars.extend(self.run_dir.iter().map(|dir| (RUN_DIR, dir.clone().into_os_string())));
        vars
    }

    /// The settings in an environment, where `var` looks a name up; `None`: a process with this
    /// environment is not served.
    ///
    /// # Errors
    /// What is wrong with a variable, in one line.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Option<Settings>, String> {
        let text = |name: &str| match var(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(format!("{name} is not UTF-8")),
        };
        let Some(memory) = text(MEMORY)? else { return Ok(None) };
        Ok(Some(Settings {
            memory: Bytes(parse(MEMORY, &memory)?),
            swap: areas(&text(SWAP)?.unwrap_or_default())?,
            kswapd: text(KSWAPD)?.map_or(Ok(Config::default().kswapd_threads), |text| {
                text.parse().map_err(|error| format!("{KSWAPD}: {error}"))
            })?,
            mapping: text(MAPPING)?.map_or(Ok(Mapping::Auto), |text| text.parse())?,
            map_files: text(MAP_FILES)?.map_or(Ok(MapFiles::Off), |text| {
                text.parse().map_err(|error| format!("{MAP_FILES}: {error}"))
            })?,
            malloc: text(MALLOC)?.map_or(Ok(Malloc::default()), |text| {
                text.parse().map_err(|error| format!("{MALLOC}: {error}"))
            })?,
            large_pages: text(LARGE_PAGES)?.map_or(Ok(LargePages::default()), |text| {
                text.parse().map_err(|error| format!("{LARGE_PAGES}: {error}"))
            })?,
            system_calls: text(SYSTEM_CALLS)?.map_or(Ok(SystemCalls::default()), |text| {
                text.parse().map_err(|error| format!("{SYSTEM_CALLS}: {error}"))
            })?,
            run_dir: var(RUN_DIR).map(PathBuf::from),
        }))
    }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name}='{text}' is not a number in range"))
}

fn areas(text: &str) -> Result<Vec<Area>, String> {
    text.split(SWAP_SEPARATOR).filter(|area| !area.is_empty()).map(Area::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn read(vars: &[(&'static str, OsString)]) -> Result<Option<Settings>, String> {
        let vars: HashMap<_, _> = vars.iter().cloned().collect();
        Settings::from_vars(|name| vars.get(name).cloned())
    }

    fn settings(run_dir: Option<&str>) -> Settings {
        Settings {
            memory: Bytes(64 << 20),
            swap: ["ram:1G,priority=1", "dir:/var/tmp:2G"]
                .map(|area| Area::parse(area).unwrap())
                .into(),
            kswapd: KswapdThreads::Fixed(3),
            mapping: Mapping::Copy,
            map_files: MapFiles::Read,
            malloc: Malloc::Large,
            large_pages: LargePages::On,
            system_calls: SystemCalls::Copies,
            run_dir: run_dir.map(PathBuf::from),
        }
    }

    #[test]
    fn settings_survive_the_environment() {
        for settings in [settings(None), settings(Some("/dev/shm/run"))] {
            assert_eq!(read(&settings.to_env()), Ok(Some(settings)));
        }
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
        assert_eq!((found.map_files, found.malloc), (MapFiles::Off, Malloc::All));
        assert_eq!(found.large_pages, LargePages::Off);
        assert_eq!(found.system_calls, SystemCalls::Faults);
    }

    #[test]
    fn bad_variables_are_named() {
        for (name, value) in [
            (MEMORY, "much"),
            (KSWAPD, "0"),
            (KSWAPD, "17"),
            (MAPPING, "fly"),
            (MAP_FILES, "write"),
            (LARGE_PAGES, "huge"),
            (SYSTEM_CALLS, "magic"),
            (SWAP, "tape:1G"),
        ] {
            let mut vars = settings(None).to_env();
            vars.iter_mut().find(|(var, _)| *var == name).unwrap().1 = value.into();
            let error = read(&vars).unwrap_err();
            assert!(error.contains(value.split(':').next().unwrap()), "{name}={value}: {error}");
        }
    }
}
