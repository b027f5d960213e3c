//! The case that a seed of the swarm draws: everything is small, so that limits are reached all the
//! time.

use crate::machines;
use highwater_platform::Recency;
use highwater_sim::machine::{Answer, DeviceSpec, Machine, Role};
use highwater_sim::{InjectedFaults, Limits, Policy, Setup, Traced};
use highwater_testkit::trial::{Failures, LARGE_FRAMES_MIN, Plan};
use highwater_units::{LARGE_PAGES, Nanos, PAGE_SIZE, Prng};
use std::fmt;

/// Virtual time without progress after which a run is stuck: a fault on devices that fail gives up
/// after 10 s.
const IDLE: Nanos = Nanos(120_000_000_000);
/// Suspensions without progress.
const IDLE_STEPS: u64 = 200_000_000;
/// Of 100 cases, how many have room for large pages.
const LARGE_PERCENT: u64 = 5;
/// Longest latency of an access without injected faults, if no queue of the devices is longer.
const LATENCY_MAX: Nanos = Nanos(2_000_000_000);

/// How the program reaches pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPath {
    /// Guards.
    Guards,
    /// Virtual page tables.
    PageTables,
}

/// Whether there is room for all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// They do.
    Enough,
    /// Devices are too small.
    Short,
}

/// One run of the swarm.
#[derive(Debug)]
pub struct Case {
    /// Where it comes from.
    pub seed: u64,
    /// The machine.
    pub machine: Machine,
    /// Frames of each node.
    pub frames: Vec<u32>,
    /// Devices and their sizes in pages.
    pub devices: Vec<(DeviceSpec, u32)>,
    /// Which CPU runs next.
    pub policy: Policy,
    /// One shared access in this many is delayed; 0: none.
    pub holdups: u64,
    /// How accesses are noticed.
    pub recency: Recency,
    /// How pages are reached.
    pub access_path: AccessPath,
    /// Whether there is room for all.
    pub room: Room,
    /// Faults to inject.
    pub injected_faults: InjectedFaults,
    /// What the users do.
    pub plan: Plan,
}

impl Case {
    /// The case of a seed.
    pub fn draw(seed: u64) -> Case {
        let mut random = Prng::new(seed ^ 0x5a4a_0000);
        let machine = draw_machine(&mut random);
        let frames = if Prng::new(seed ^ 0x1a46_e000).percent(LARGE_PERCENT) {
            draw_many_frames(&mut random, machine.node_mib.len())
        } else {
            draw_frames(&mut random, machine.node_mib.len())
        };
        let policy = Policy::draw(&mut random);
        let holdups = if random.percent(50) { 0 } else { 32 << random.below(10) };
        // Under page tables alone, nothing sets accessed bits.
        let (recency, access_path) = match random.below(3) {
            0 => (Recency::AccessedBit, AccessPath::Guards),
            1 => (Recency::Unmapping, AccessPath::Guards),
            _ => (Recency::Unmapping, AccessPath::PageTables),
        };
        let all: u32 = frames.iter().sum();
        let mut plan = Plan::draw(seed, u64::from(all), 0);
        // Without room, every fault scans every page again and again: so only cases with few pages
        // are short of it.
        let room = if all < 160 && random.percent(25) { Room::Short } else { Room::Enough };
        plan.steps = match room {
            Room::Enough if plan.config.large_pages => 1000 / plan.threads,
            Room::Enough => 4000 / plan.threads,
            Room::Short => 200 / plan.threads,
        };
        let injected_faults = match random.below(4) {
            0 => InjectedFaults::default(),
            1 => InjectedFaults::draw_harmless(&mut random),
            _ if room == Room::Short => InjectedFaults::draw_harmless(&mut random),
            _ => InjectedFaults::draw(&mut random),
        };
        let faultless = room == Room::Enough && !injected_faults.any_fatal();
        plan.failures = if faultless { Failures::None } else { Failures::Allowed };
        let slots = match room {
            Room::Enough => plan.slots(),
            Room::Short => 64 + random.below(plan.pages * 2),
        };
        let nodes = machine.node_mib.len() as u8;
        let mut devices = draw_devices(&mut random, slots as u32, nodes);
        // A file beside them, before or after.
        if random.percent(75) {
            let at = random.below(devices.len() as u64 + 1) as usize;
            let spec = draw_device(&mut random, devices.len() as u32, nodes);
            let pages = 1 + random.below(plan.pages) as u32;
            devices.insert(at, (DeviceSpec { role: Role::File, ..spec }, pages));
        }
        let timed = faultless && policy.is_timed();
        plan.latency_max = timed.then(|| latency_max(all, devices.iter().map(|(spec, _)| spec)));
        Case {
            seed,
            machine,
            frames,
            devices,
            policy,
            holdups,
            recency,
            access_path,
            room,
            injected_faults,
            plan,
        }
    }

    /// How its simulation starts.
    pub fn setup(&self) -> Setup {
        Setup {
            machine: self.machine.clone(),
            seed: self.seed,
            policy: self.policy,
            limits: Limits { idle_time: IDLE, idle_steps: IDLE_STEPS },
            holdups: self.holdups,
            traced: Traced::Off,
        }
    }
}

/// The costs of one of our machines, on 1 to 32 CPUs.
fn draw_machine(random: &mut Prng) -> Machine {
    let names: Vec<&str> = machines::names().collect();
    let name = names[random.below(names.len() as u64) as usize];
    let mut machine = machines::find(name).expect("listed");
    machine.sockets = 1 + random.below(4) as u16;
    machine.cores_per_socket = 1 + random.below(4) as u16;
    machine.threads_per_core = 1 + random.below(2) as u16;
    machine.node_mib = vec![1; usize::from(machine.sockets)];
    machine.devices.clear();
    machine
}

/// 40 to 700 frames, in unequal parts; half of the time few.
fn draw_frames(random: &mut Prng, nodes: usize) -> Vec<u32> {
    let most = if random.percent(50) { 40 } else { 600 };
    let each = 40 / nodes as u64 + 8;
    (0..nodes).map(|_| (each + random.below(most / nodes as u64 + 1)) as u32).collect()
}

/// Frames for large pages: some blocks of 512 on each node.
fn draw_many_frames(random: &mut Prng, nodes: usize) -> Vec<u32> {
    let each = (LARGE_FRAMES_MIN / nodes as u64).max(2 * LARGE_PAGES as u64);
    (0..nodes).map(|_| (each + random.below(each / 2)) as u32).collect()
}

/// One to three devices of `slots` pages in all, or a little more.
fn draw_devices(random: &mut Prng, slots: u32, nodes: u8) -> Vec<(DeviceSpec, u32)> {
    let count = 1 + random.below(3) as u32;
    let device = |index: u32, random: &mut Prng| {
        let spec = draw_device(random, index, nodes);
        // The first ones small: full all the time, in use by all CPUs.
        if index + 1 == count { (spec, slots) } else { (spec, 64 + random.below(600) as u32) }
    };
    (0..count).map(|index| device(index, random)).collect()
}

fn draw_device(random: &mut Prng, index: u32, nodes: u8) -> DeviceSpec {
    let answer = if random.percent(40) { Answer::Synchronous } else { Answer::Asynchronous };
    // A CPU copies from memory.
    let turns = answer == Answer::Asynchronous && random.percent(20);
    DeviceSpec {
        name: format!("device{index}"),
        role: Role::Swap,
        node: random.below(u64::from(nodes)) as u8,
        mib: 1,
        answer,
        read_latency: 1000 << random.below(10),
        write_latency: 1000 << random.below(10),
        read_mb_per_s: 100 << random.below(7),
        write_mb_per_s: 100 << random.below(7),
        channels: 1 << random.below(7),
        buses: 1,
        stripe_kib: 0,
        seek: if turns { 4_000_000 } else { 0 },
        priority: random.below(3) as u16,
    }
}

/// Longest latency of an access without injected faults: it waits for the write of a frame to
/// reuse, then for its own read, each time behind as many transfers as there are frames.
fn latency_max<'a>(frames: u32, devices: impl Iterator<Item = &'a DeviceSpec>) -> Nanos {
    let transfer = |device: &DeviceSpec| {
        let latency = device.read_latency.max(device.write_latency);
        let mb_per_s = device.read_mb_per_s.min(device.write_mb_per_s);
        let page = PAGE_SIZE as u64 * 1000 / mb_per_s;
        (device.seek + latency + page) / u64::from(device.channels)
    };
    let slowest = devices.map(transfer).max().unwrap_or(0);
    LATENCY_MAX.max(Nanos(2 * u64::from(frames) * slowest))
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            seed,
            machine,
            frames,
            devices,
            policy,
            holdups,
            recency,
            access_path,
            room,
            plan,
            ..
        } = self;
        let Machine { name, sockets, cores_per_socket, threads_per_core, .. } = machine;
        write!(f, "seed {seed}: {sockets}x{cores_per_socket}x{threads_per_core} CPUs of {name}, ")?;
        write!(f, "{frames:?} frames, {} users of {} pages, ", plan.threads, plan.pages)?;
        let pages: Vec<u32> = devices.iter().map(|(_, pages)| *pages).collect();
        write!(
            f,
            "{pages:?} slots ({room:?}), {policy:?}, {holdups} hold-ups, {recency:?}, \
             {access_path:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::mem::discriminant;

    #[test]
    fn seeds_draw_all_kinds() {
        let cases: Vec<Case> = (0..300).map(Case::draw).collect();
        let kinds = |kind: fn(&Case) -> u64| cases.iter().map(kind).collect::<HashSet<_>>().len();
        let policies = cases.iter().map(|case| discriminant(&case.policy));
        assert_eq!(policies.collect::<HashSet<_>>().len(), 4);
        assert_eq!(kinds(|case| case.access_path as u64), 2);
        assert_eq!(kinds(|case| case.room as u64), 2);
        assert_eq!(kinds(|case| u64::from(case.recency == Recency::Unmapping)), 2);
        assert_eq!(kinds(|case| u64::from(case.injected_faults.any_fatal())), 2);
        assert!(kinds(|case| case.machine.cpus() as u64) > 10);
    }

    #[test]
    fn cases_are_fixed_by_their_seed() {
        for seed in 0..50 {
            assert_eq!(format!("{:?}", Case::draw(seed)), format!("{:?}", Case::draw(seed)));
        }
    }
}
