//! `highwater-lab machine new`: a machine file for this computer, for `simulate --machine`.
//!
//! ```text
//! name, place ── lab::measure ──> text ── loads? ──> file, as a whole ──> a line
//! ```
//! Exit status: 0, 1 if a measurement failed, 2 if the file exists or cannot be written.

use super::calibrate::machine;
use super::files::failed;
use clap::{Args, Subcommand};
use highwater_command::{Refusal, print};
use highwater_devices::Spec;
use highwater_lab::machines;
use highwater_lab::measure::{self, Shape, Swap, Written};
use highwater_lab::peer::disk::DiskError;
use highwater_sim::Machine;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tempfile::NamedTempFile;

/// The seconds that costs may take: with a directory, the whole takes less than 30.
const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=10.0;

/// Write a machine file that describes this computer, for 'simulate'
#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(New),
}

/// Write a machine file for this computer, with costs measured on it
///
/// CPUs, nodes and memory are read from the system. Costs are medians of short loops: atomic
/// operations, locks, cache-line transfers between CPUs, zeroing, copying, mapping and unmapping of
/// pages, TLB flushes, context switches, wake-ups, and transfers to the directory of --swap. Values
/// that cannot be measured on this computer are copied from the machine that --like names. A
/// comment beside each value gives its source. Run the command on an idle computer.
#[derive(Debug, Args)]
struct New {
    /// The machine's name (writes NAME.toml here), or a file [default: the computer's name]
    #[arg(value_name = "NAME|FILE.toml")]
    machine: Option<String>,
    /// A directory to measure as the machine's swap device [default: a RAM disk]
    #[arg(long, value_name = "dir:PATH[:SIZE]", value_parser = swap)]
    swap: Option<Swap>,
    /// The machine from which costs that are not measured are copied
    #[arg(long, value_name = "MACHINE", value_parser = machine, default_value = "desktop-2012-kvm")]
    like: &'static str,
    /// Time for measuring costs; the directory of --swap takes as long again
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    time: Duration,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

fn swap(text: &str) -> Result<Swap, String> {
    match (Spec::parse(text), text.strip_prefix("dir:")) {
        (Ok(Spec::Dir { path, size }), _) => Ok(Swap { dir: path, size: Some(size) }),
        (Err(_), Some(path)) if Path::new(path).is_dir() => {
            Ok(Swap { dir: path.into(), size: None })
        }
        (_, Some(path)) => Err(format!("'{path}' is no directory")),
        (_, None) => Err("give dir:PATH, a directory on the disk that is measured".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| SECONDS.contains(seconds));
    let (least, most) = (SECONDS.start(), SECONDS.end());
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("not a number of seconds from {least} to {most}"))
}

impl MachineArgs {
    /// Runs the subcommand.
    pub(crate) fn execute(self) -> Result<ExitCode, Refusal> {
        let Command::New(new) = self.command;
        new.execute()
    }
}

impl New {
    fn execute(&self) -> Result<ExitCode, Refusal> {
        let place = Place::of(self.machine.as_deref())?;
        // Before anything is measured: it may have no place to go.
        let new = place.prepare(self.force)?;
        let shape = Shape::of_host().map_err(|what| {
            Refusal::new(what, "measure where /proc and /sys are mounted and CPUs may be chosen")
        })?;
        let other = machines::find(self.like).expect("it was found by its name");
        let wanted = measure::Machine {
            name: &place.name,
            shape: &shape,
            other: &other,
            swap: self.swap.as_ref(),
            time: self.time,
        };
        let written = match wanted.measure() {
            Ok(written) => written,
            Err(DiskError::Setup(reason)) => {
                return Err(Refusal::new(reason.to_string(), "name a directory of a disk"));
            }
            Err(DiskError::Run(failure)) => return Ok(failed(failure)),
            Err(DiskError::Transfer(what)) => return Ok(failed(what)),
        };
        // A file that does not load replaces nothing.
        let machine = load(&written.text)?;
        place.keep(new, self.force, &written.text)?;
        Ok(print(format_args!("{}: {}\n", place.path.display(), summary(&machine, &written))))
    }
}

fn load(text: &str) -> Result<Machine, Refusal> {
    Machine::load(text).map_err(|defects| {
        let what = format!("this computer: {}", defects.trim().replace('\n', "; "));
        Refusal::new(what, "copy a file of lab/machines: docs/simulator.md says how")
    })
}

/// One line.
fn summary(machine: &Machine, written: &Written) -> String {
    let Written { measured, taken, .. } = written;
    let (cpus, memory, device) = (machine.cpus(), machine.memory(), &machine.devices[0]);
    format!(
        "{cpus} CPUs, {memory}, swap on {}: {measured} values measured, {taken} of another machine",
        device.name
    )
}

/// The place of the file, and the name of the machine.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    name: String,
    path: PathBuf,
}

impl Place {
    fn of(machine: Option<&str>) -> Result<Place, Refusal> {
        let (name, path) = match machine {
            None => {
                let name = computers_name();
                (name.clone(), format!("{name}.toml").into())
            }
            Some(text) if text.ends_with(".toml") => {
                let stem = Path::new(text).file_stem().unwrap_or_default();
                (stem.to_string_lossy().into_owned(), PathBuf::from(text))
            }
            Some(name) => (name.to_owned(), format!("{name}.toml").into()),
        };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            let what = format!("a machine cannot be called '{name}'");
            return Err(Refusal::new(what, "use lower case letters, digits and dashes"));
        }
        Ok(Place { name, path })
    }

    /// A file beside the one that is wanted, which goes when it is not kept.
    fn prepare(&self, force: bool) -> Result<NamedTempFile, Refusal> {
        if !force && self.path.exists() {
            return Err(self.exists());
        }
        let dir = self.path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        // Less what the user's mask takes away.
        let readable = builder.permissions(Permissions::from_mode(0o666));
        readable.tempfile_in(dir).map_err(|error| self.refused(&error))
    }

    fn keep(&self, mut new: NamedTempFile, force: bool, text: &str) -> Result<(), Refusal> {
        new.write_all(text.as_bytes()).map_err(|error| self.refused(&error))?;
        let kept = if force { new.persist(&self.path) } else { new.persist_noclobber(&self.path) };
        kept.map(drop).map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => self.exists(),
            _ => self.refused(&error.error),
        })
    }

    fn exists(&self) -> Refusal {
        let what = format!("'{}' exists", self.path.display());
        Refusal::new(what, "give another name, or --force to replace it")
    }

    fn refused(&self, error: &io::Error) -> Refusal {
        // The error names the temporary file.
        let what = format!("'{}' cannot be written: {}", self.path.display(), error.kind());
        Refusal::new(what, "name a file in a directory that exists and is writable")
    }
}

/// The name of this computer, as far as it can be a machine's.
fn computers_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy().to_ascii_lowercase();
    let first = name.split('.').next().unwrap_or_default();
    let plain: String = first.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    if plain.is_empty() { "computer".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_place(text: &str, expected: Option<(&str, &str)>) {
        let found = Place::of(Some(text)).ok();
        let expected = expected.map(|(name, path)| Place { name: name.into(), path: path.into() });
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_machine_is_called_as_its_file() {
        assert_place("box-2", Some(("box-2", "box-2.toml")));
        assert_place("/tmp/box.toml", Some(("box", "/tmp/box.toml")));
        for bad in ["", "Box", "a/b", "/tmp/My_Box.toml", ".toml", "box.tml"] {
            assert_place(bad, None);
        }
        assert!(Place::of(None).is_ok());
    }

    #[test]
    fn swap_is_a_directory_with_a_size_or_without() {
        let of = |text: &str| swap(text).map(|swap| (swap.dir, swap.size.map(|size| size.0)));
        assert_eq!(of("dir:/tmp"), Ok(("/tmp".into(), None)));
        assert_eq!(of("dir:/tmp:1G"), Ok(("/tmp".into(), Some(1 << 30))));
        assert_eq!(of("dir:/nonexistent"), Err("'/nonexistent' is no directory".to_owned()));
        assert!(of("zram:1G").is_err());
    }

    #[test]
    fn the_time_has_limits() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "11", "-1", "NaN", "long"] {
            assert!(seconds(bad).is_err_and(|error| error.contains("0.01 to 10")), "{bad}");
        }
    }
}
