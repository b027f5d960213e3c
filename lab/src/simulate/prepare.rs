//! Turns an experiment into the simulator's input, or says why it does not fit together.

use super::experiment::{Experiment, TIME, Workload};
use super::settings::{BadSetting, Processes, Scale, Settings};
use crate::subject::Room;
use crate::workload::highalloc::{self, Share};
use crate::workload::history::History;
use crate::workload::streams::{self, Layout};
use highwater_mm::Config;
use highwater_mm::SPACES_MAX;
use highwater_sim::Machine;
use highwater_sim::machine::{DeviceSpec, Role};
use highwater_units::{Bytes, Nanos, PAGE_SIZE};
use procfs::Current;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most memory that [`Scale::Auto`] leaves, unless the machine's minimum is larger.
const AUTO_MEMORY: Bytes = Bytes(1 << 30);
/// The smallest divisor of [`Scale::Auto`].
const AUTO_SCALE: u64 = 64;
/// The part of memory that pages may fill without swap: at most an eighth is kept free, and another
/// eighth is in per-CPU lists.
const USABLE: f64 = 0.75;
/// Part of memory that `min_free` may be.
const MIN_FREE_SHARE: u64 = 4;

/// An experiment that fits together.
pub(super) struct Prepared {
    /// Scaled.
    pub(super) machine: Machine,
    scale: u64,
    /// Of each node.
    pub(super) frames: Vec<u32>,
    /// In pages.
    pub(super) devices: Vec<(DeviceSpec, u32)>,
    pub(super) config: Config,
    /// The set.
    pub(super) rooms: Vec<Room>,
    /// The files in the set.
    pub(super) files: Files,
}

/// Files of a set: they come first, on the first devices.
#[derive(Clone, Copy, Debug)]
pub(super) enum Files {
    None,
    /// Files of streams, and the rest of their set.
    Streams(Layout),
    /// Files of builds, with the whole configuration of the builds.
    Highalloc(highalloc::Config),
}

impl Files {
    /// How many devices they are on.
    pub(super) fn devices(&self) -> usize {
        match self {
            Files::None => 0,
            Files::Streams(layout) => layout.devices,
            Files::Highalloc(_) => 1,
        }
    }

    /// Pages on each.
    pub(super) fn device_pages(&self) -> u64 {
        match self {
            Files::None => 0,
            Files::Streams(layout) => layout.device_pages,
            Files::Highalloc(config) => config.layout.files(),
        }
    }
}

/// The conditions of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// CPUs of the machine.
    pub cpus: usize,
    /// The divisor of its memory and devices; they are divided by less where the result would be
    /// below the minimum.
    pub scale: u64,
    /// Memory, scaled.
    pub memory_bytes: u64,
    /// Swap devices that were used.
    pub devices: Vec<String>,
    /// Their sizes together, scaled.
    pub swap_bytes: u64,
    /// The set.
    pub set_bytes: u64,
    /// Pages that were kept free at least, all nodes together.
    pub min_free: u32,
    /// Gaps between the watermarks, in 10000ths of a node.
    pub watermark_scale: u32,
}

impl Prepared {
    /// For reports.
    pub(super) fn conditions(&self) -> Conditions {
        let pages = swap_pages(&self.devices, &self.files);
        let set = self.rooms.iter().map(|room| room.pages).sum();
        Conditions {
            cpus: self.machine.cpus(),
            scale: self.scale,
            memory_bytes: self.machine.memory().0,
            devices: self.devices.iter().map(|(spec, _)| spec.name.clone()).collect(),
            swap_bytes: Bytes::of_pages(pages).0,
            set_bytes: Bytes::of_pages(set).0,
            min_free: self.config.min_free.unwrap_or_default(),
            watermark_scale: self.config.watermark_scale.unwrap_or_default(),
        }
    }
}

/// Makes an experiment fit, or says what does not.
pub(super) fn prepare(experiment: &Experiment) -> Result<Prepared, BadSetting> {
    let Experiment { machine: whole, tasks, settings, .. } = experiment;
    let scale = match settings.scale {
        Scale::By(by) => by,
        Scale::Auto => AUTO_SCALE.max(whole.memory().0.div_ceil(AUTO_MEMORY.0)),
    };
    let machine = whole.scaled(scale).map_err(|what| bad(what, "give a scale from 1"))?;
    let set = (machine.memory().pages() as f64 * settings.set) as u64;
    let room = match experiment.workload {
        Workload::Streams => of_streams(&machine, experiment, set)?,
        Workload::Mmap1 | Workload::Hackbench => {
            if !(1..=History::THREADS_MAX).contains(tasks) {
                return Err(bad(format!("{tasks} tasks cannot be"), "give 1 or more"));
            }
            Rooms { rooms: Vec::new(), devices: Vec::new(), files: Files::None }
        }
        Workload::Highalloc => of_builds(&machine, experiment, set)?,
        _ => {
            let spaces = spaces(*tasks, settings.processes)?;
            let room = Room { pages: (set / spaces as u64).max(1), file: None };
            let devices = devices(&machine, settings.devices.as_deref())?;
            Rooms { rooms: vec![room; spaces], devices, files: Files::None }
        }
    };
    has_room(experiment, &machine, &room)?;
    let Rooms { rooms, devices, files } = room;
    let config = config(settings, whole, &machine)?;
    let frames = machine.node_mib.iter().map(|mib| pages(*mib)).collect();
    Ok(Prepared { machine, scale, frames, devices, config, rooms, files })
}

/// The set, and the devices behind it.
struct Rooms {
    rooms: Vec<Room>,
    devices: Vec<(DeviceSpec, u32)>,
    files: Files,
}

/// The files that streams read, as large as `set` pages together, and what is beside them.
fn of_streams(machine: &Machine, experiment: &Experiment, set: u64) -> Result<Rooms, BadSetting> {
    let Experiment { settings, tasks, time, .. } = experiment;
    let most = History::THREADS_MAX;
    if !(1..=most).contains(tasks) {
        return Err(bad(format!("{tasks} tasks cannot be"), format!("give 1 to {most} of them")));
    }
    let (mut files, swap) = files_and_swap(machine, experiment)?;
    let smallest = files.iter().map(|(_, pages)| *pages).min().expect("there is one");
    let device_pages = (set / files.len() as u64).clamp(1, smallest.into());
    files.iter_mut().for_each(|(_, pages)| *pages = device_pages as u32);
    let time = time.map_or(TIME, |time| Duration::from_nanos(time.0));
    let small = if settings.small {
        streams::small_pages(time + Duration::from_secs_f64(settings.warm_up))
    } else {
        0
    };
    let anon_pages = (machine.memory().pages() as f64 * settings.anon) as u64;
    let layout = Layout { devices: files.len(), device_pages, anon_pages, small_pages: small };
    let on = |device| Room { pages: device_pages, file: Some(device as u8) };
    let beside = [anon_pages, small].into_iter().filter(|pages| *pages > 0);
    let rooms = (0..files.len()).map(on).chain(beside.map(|pages| Room { pages, file: None }));
    let rooms = rooms.collect();
    let devices = files.into_iter().chain(swap).collect();
    Ok(Rooms { rooms, devices, files: Files::Streams(layout) })
}

/// Devices with their sizes in pages.
type Devices = Vec<(DeviceSpec, u32)>;

/// At least one device for files, and those to swap to.
fn files_and_swap(
    machine: &Machine,
    experiment: &Experiment,
) -> Result<(Devices, Devices), BadSetting> {
    let all: Vec<String> = machine.devices.iter().map(|device| device.name.clone()).collect();
    let names = experiment.settings.devices.as_deref().unwrap_or(&all);
    let is_file = |(spec, _): &(DeviceSpec, u32)| spec.role == Role::File;
    let (files, swap): (Vec<_>, Vec<_>) =
        devices(machine, Some(names))?.into_iter().partition(is_file);
    if files.is_empty() {
        let workload = experiment.workload.name();
        let what = format!("{workload}: {} has no device for files", machine.name);
        return Err(bad(what, "use another machine"));
    }
    Ok((files, swap))
}

/// Kernels that are built: their trees on one device, as large as `set` pages together, and a space
/// for the compiler of each.
fn of_builds(machine: &Machine, experiment: &Experiment, set: u64) -> Result<Rooms, BadSetting> {
    let Experiment { settings, tasks, seed, machine: whole, .. } = experiment;
    let most = SPACES_MAX - 1;
    if !(1..=most).contains(tasks) {
        return Err(bad(format!("{tasks} builds cannot be"), format!("give 1 to {most} tasks")));
    }
    let (mut files, swap) = files_and_swap(machine, experiment)?;
    files.truncate(1);
    let (memory, builds) = (machine.memory().pages(), *tasks as u64);
    let part = |share: f64| (memory as f64 * share) as u64;
    let file_pages = set.min(files[0].1.into()) / builds;
    let anon_pages = (part(settings.compilers) / builds).max(1);
    if file_pages < highalloc::FILE_PAGES_MIN {
        let what = format!("set: {file_pages} pages of files for each of {tasks} builds");
        return Err(bad(what, "give a larger set, or fewer tasks"));
    }
    let layout = highalloc::Layout { builds: *tasks, file_pages, anon_pages };
    files[0].1 = layout.files() as u32;
    let config = highalloc::Config {
        layout,
        memory,
        kernel: Share { pages: part(settings.kernel), left_percent: settings.kernel_left },
        interval: highalloc::INTERVAL,
        // Between two attempts builds are to change the same part of memory.
        work: Nanos(highalloc::WORK.0 * whole.memory().pages() / memory),
        warm_up: Duration::from_secs_f64(settings.warm_up),
        seed: *seed,
    };
    let on_file = Room { pages: layout.files(), file: Some(0) };
    let compiler = Room { pages: anon_pages, file: None };
    let rooms = std::iter::once(on_file).chain(vec![compiler; *tasks]).collect();
    let devices = files.into_iter().chain(swap).collect();
    Ok(Rooms { rooms, devices, files: Files::Highalloc(config) })
}

/// Pages to swap to: all devices but those of files, which come first.
fn swap_pages(devices: &[(DeviceSpec, u32)], files: &Files) -> u64 {
    devices[files.devices()..].iter().map(|(_, pages)| u64::from(*pages)).sum()
}

/// Whether the simulated machine has room for the set, and this machine for its contents. Files
/// need one copy of each kind of page.
fn has_room(experiment: &Experiment, machine: &Machine, room: &Rooms) -> Result<(), BadSetting> {
    let set: u64 = room.rooms.iter().map(|room| room.pages).sum();
    let anon = room.rooms.iter().filter(|room| room.file.is_none()).map(|room| room.pages).sum();
    let (anon, memory) = (Bytes::of_pages(anon), machine.memory());
    let swap = Bytes::of_pages(swap_pages(&room.devices, &room.files));
    fits(anon, memory, swap)?;
    let books = experiment.workload.bookkeeping_bytes(experiment.tasks, set);
    let copies = match room.files {
        Files::Streams(_) => anon.0,
        Files::None | Files::Highalloc(_) => memory.0,
    };
    enough_host_memory(Bytes(anon.0 + copies + books))
}

fn bad(what: impl Into<String>, remedy: impl Into<String>) -> BadSetting {
    BadSetting { what: what.into(), remedy: remedy.into() }
}

/// Pages of a size that a machine may have: below 2^32.
fn pages(mib: u64) -> u32 {
    u32::try_from(Bytes(mib << 20).pages()).expect("machines are checked for this")
}

/// Spaces for the tasks.
fn spaces(tasks: usize, processes: Processes) -> Result<usize, BadSetting> {
    let most = match processes {
        Processes::One => History::THREADS_MAX,
        Processes::PerTask => SPACES_MAX,
    };
    match processes {
        _ if !(1..=most).contains(&tasks) => {
            Err(bad(format!("{tasks} tasks cannot be"), format!("give 1 to {most} of them")))
        }
        Processes::One => Ok(1),
        Processes::PerTask => Ok(tasks),
    }
}

/// The devices to swap to, with their sizes in pages.
fn devices(
    machine: &Machine,
    names: Option<&[String]>,
) -> Result<Vec<(DeviceSpec, u32)>, BadSetting> {
    let find = |name: &String| {
        let found = machine.devices.iter().find(|device| device.name == *name);
        found.cloned().ok_or_else(|| {
            let all: Vec<&str> = machine.devices.iter().map(|d| d.name.as_str()).collect();
            let remedy = if all.is_empty() {
                "it has none".into()
            } else {
                format!("it has {}", all.join(", "))
            };
            bad(format!("devices: {} has no device '{name}'", machine.name), remedy)
        })
    };
    let for_swap = |device: &&DeviceSpec| device.role == Role::Swap;
    let specs: Vec<DeviceSpec> = match names {
        Some(names) => names.iter().map(find).collect::<Result<_, _>>()?,
        None => machine.devices.iter().filter(for_swap).cloned().collect(),
    };
    let twice = specs.iter().enumerate().find(|(at, spec)| specs[..*at].contains(spec));
    if let Some((_, spec)) = twice {
        return Err(bad(format!("devices: {} is named twice", spec.name), "name it once"));
    }
    let sized = |spec: DeviceSpec| (pages(spec.mib), spec);
    Ok(specs.into_iter().map(sized).map(|(pages, spec)| (spec, pages)).collect())
}

/// Whether the pages of the set find room.
fn fits(set: Bytes, memory: Bytes, swap: Bytes) -> Result<(), BadSetting> {
    let room = swap.0 as f64 + memory.0 as f64 * USABLE;
    if set.0 as f64 <= room {
        Ok(())
    } else {
        Err(bad(
            format!("a set of {set} does not fit memory of {memory} and swap of {swap}"),
            format!(
                "give --set set={:.2} or less",
                (room / memory.0 as f64 * 100.0).floor() / 100.0
            ),
        ))
    }
}

/// Whether this machine has room for the contents of the simulated one: each page of the set, an
/// older copy of the pages in frames, and the workload's records.
fn enough_host_memory(needed: Bytes) -> Result<(), BadSetting> {
    let info = procfs::Meminfo::current();
    let available = info.ok().and_then(|info| info.mem_available).map(Bytes);
    match available {
        Some(available) if needed > available => Err(bad(
            format!("contents would take {needed} of this machine, where {available} are free"),
            "give a larger --set scale=N, or a smaller --set set=RATIO",
        )),
        _ => Ok(()),
    }
}

/// The manager's settings: the watermarks of the whole machine, unless set.
fn config(settings: &Settings, whole: &Machine, machine: &Machine) -> Result<Config, BadSetting> {
    let marks = whole.watermarks(machine);
    let min_free = settings.min_free.unwrap_or(marks.min_free);
    let most = machine.memory().0 / PAGE_SIZE as u64 / MIN_FREE_SHARE;
    if u64::from(min_free) > most {
        let what = format!("min_free: {min_free} pages are more than a quarter of memory");
        return Err(bad(what, format!("give {most} or less")));
    }
    let watermark_scale = settings.watermark_scale.unwrap_or(marks.watermark_scale);
    let watermark_scale = Some(watermark_scale);
    Ok(Config { min_free: Some(min_free), watermark_scale, ..settings.config.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;
    use highwater_sim::Traced;

    fn experiment(machine: &str, tasks: usize, set: &[&str]) -> Experiment {
        let mut settings = Settings::default();
        set.iter().for_each(|text| settings.set(text).expect("a setting"));
        Experiment {
            machine: machines::find(machine).expect("a machine"),
            workload: Workload::Pmbench,
            tasks,
            seed: 1,
            time: None,
            settings,
            traced: Traced::Off,
        }
    }

    #[track_caller]
    fn assert_refused(machine: &str, tasks: usize, set: &[&str], expected: &str) {
        let bad = prepare(&experiment(machine, tasks, set)).err().expect("it cannot be");
        assert!(bad.to_string().contains(expected), "{bad}");
    }

    #[test]
    fn what_does_not_fit_says_what_would() {
        let ramdisks = "xeon-48c-2-ramdisks";
        assert_refused(ramdisks, 0, &[], "1 to 256");
        assert_refused(ramdisks, 257, &[], "1 to 256");
        assert_refused(ramdisks, 513, &["processes=one"], "1 to 512");
        assert_refused(ramdisks, 1, &["devices=pmem0,nvme"], "it has pmem0, pmem1");
        assert_refused(ramdisks, 1, &["devices=pmem0,pmem0"], "once");
        assert_refused(ramdisks, 1, &["set=4"], "set=3.75 or less");
        assert_refused(ramdisks, 1, &["min_free=100000"], "give 32768 or less");
        assert_refused("x7-2l-52c-8nvme", 1, &["devices=nvme0", "scale=1"], "scale=N");
    }

    #[test]
    fn builds_need_a_device_for_their_files_and_spaces_for_their_compilers() {
        let refused = |machine: &str, tasks: usize, set: &[&str], expected: &str| {
            let workload = Workload::Highalloc;
            let bad = prepare(&Experiment { workload, ..experiment(machine, tasks, set) });
            let bad = bad.err().expect("it cannot be").to_string();
            assert!(bad.contains(expected), "{bad}");
        };
        refused("spr-112c-224t", 1, &[], "highalloc: spr-112c-224t has no device for files");
        let desktop = "desktop-2012-kvm";
        refused(desktop, 0, &[], "give 1 to 255 tasks");
        refused(desktop, 256, &[], "give 1 to 255 tasks");
        refused(desktop, 200, &["set=0.5"], "give a larger set, or fewer tasks");
        refused(desktop, 4, &["compilers=9"], "does not fit memory");
    }

    /// Between two attempts the same part of memory changes as on the whole machine.
    #[test]
    fn builds_are_slower_where_there_is_less_memory() {
        let set = ["scale=16", "compilers=0.2", "kernel=0.1", "set=1.5"];
        let experiment = experiment("desktop-2012-kvm", 20, &set);
        let workload = Workload::Highalloc;
        let prepared = prepare(&Experiment { workload, ..experiment }).expect("it fits");
        let Files::Highalloc(config) = prepared.files else { panic!("builds have files") };
        assert_eq!(config.interval, highalloc::INTERVAL);
        assert_eq!(config.work, Nanos(16 * highalloc::WORK.0));
        assert_eq!((config.attempts(), config.kernel.pages), (243, 13_107));
        assert_eq!(prepared.rooms.len(), 21);
        assert_eq!(prepared.rooms[0].pages, config.layout.files());
        assert_eq!(prepared.rooms[20], Room { pages: 131_072 / 5 / 20, file: None });
        assert_eq!(prepared.conditions().devices, ["sda1", "sda"]);
    }

    #[test]
    fn a_machine_without_devices_swaps_nowhere() {
        for (set, expected) in [(&[][..], "set=0.75 or less"), (&["devices=sda"], "it has none")] {
            let mut experiment = experiment("spr-112c-224t", 1, set);
            experiment.machine.devices.clear();
            let bad = prepare(&experiment).err().expect("it cannot be").to_string();
            assert!(bad.contains(expected), "{bad}");
        }
    }

    #[test]
    fn memory_is_scaled_and_shared_out() {
        let prepared = prepare(&experiment("xeon-48c-2-ramdisks", 3, &["set=1"])).expect("it fits");
        assert_eq!(prepared.frames, [65_536, 65_536], "32 GiB / 64, two nodes");
        assert_eq!(prepared.rooms, [Room { pages: 131_072 / 3, file: None }; 3]);
        let conditions = prepared.conditions();
        assert_eq!(conditions.devices, ["pmem0", "pmem1"]);
        assert_eq!(conditions.swap_bytes, (2 * 768) << 20);
        let nvme = prepare(&experiment("x7-2l-52c-8nvme", 1, &["devices=nvme3", "set=0.5"]));
        assert_eq!(nvme.expect("it fits").conditions().memory_bytes, 1 << 30);
    }
}
