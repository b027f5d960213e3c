//! Several swap devices: the order in which they fill up.

use crate::common::{device, machine, platform, setup};
use highwater_mm::config::history::{DeviceLock, History, SwapHistory};
use highwater_mm::{Access, Config, Manager};
use highwater_platform::Recency;
use highwater_sim::machine::{Answer, DeviceSpec};
use highwater_sim::{Sim, Vm, simulate};
use highwater_units::{CpuId, Pfn, Vpn};

/// Slots of each device.
const SLOTS: u32 = 16_384;
/// For tests with many rotations: each CPU may use one device for 512 slots more than the other.
const MANY_SLOTS: u32 = 8 * SLOTS;
/// Frames of each of two nodes.
const FRAMES: u32 = 2048;
const THREADS: usize = 8;

fn spec(node: u8, priority: u16, seek: u64) -> DeviceSpec {
    let answer = if seek > 0 { Answer::Asynchronous } else { Answer::Synchronous };
    DeviceSpec { node, priority, seek, ..device(answer) }
}

fn manager(vm: &Vm, specs: &[DeviceSpec], slots: u32, swap: SwapHistory) -> Manager<Sim> {
    let sim = platform(vm, vec![FRAMES; 2], specs, slots, Recency::AccessedBit);
    Manager::start(
        sim,
        Config { history: History { swap, ..History::default() }, ..Config::default() },
    )
    .expect("virtual threads abound")
}

/// Used slots of each device.
fn used(manager: &Manager<Sim>) -> Vec<u64> {
    manager.swaps().iter().map(|(_, swap)| swap.used).collect()
}

/// Writes `pages` pages by threads on all CPUs, each a part of them in order. Returns the used
/// slots.
fn written(specs: Vec<DeviceSpec>, slots: u32, swap: SwapHistory, pages: u64) -> Vec<u64> {
    let main = move |vm: &Vm| {
        let mut manager = manager(vm, &specs, slots, swap);
        let space = manager.add_space(pages).expect("room for a space");
        let beat = vm.beat();
        vm.scope(THREADS, "writer", &|thread| {
            let each = pages / THREADS as u64;
            for page in each * thread as u64..each * (thread as u64 + 1) {
                manager.pin(space, Vpn(page), Access::Write).expect("swap has room");
                beat();
            }
        });
        manager.stop_kswapd();
        manager.verify(&[]);
        used(&manager)
    };
    simulate(setup(machine(2, 4), 5), main).expect("comes to its end").result
}

/// The default settings, and the slot allocation of earlier kernels.
fn settings() -> [SwapHistory; 3] {
    let default = SwapHistory::default();
    let whole = SwapHistory { device_lock: DeviceLock::Whole, ..default };
    [default, whole, SwapHistory { slot_cache: true, ..default }]
}

#[test]
fn devices_of_equal_priority_fill_at_the_same_rate() {
    for (swap, seek) in settings().into_iter().flat_map(|swap| [(swap, 0), (swap, 4000)]) {
        let found = written(vec![spec(0, 0, seek), spec(0, 0, seek)], MANY_SLOTS, swap, 192_000);
        let [least, most] = [found.iter().min(), found.iter().max()].map(|used| used.copied());
        let (least, most) = (least.expect("two"), most.expect("two"));
        assert!(least + most > 180_000, "{swap:?}: {found:?}");
        assert!(most - least <= most / 10, "{swap:?}: {found:?}");
    }
}

#[test]
fn a_device_of_higher_priority_fills_first() {
    for swap in settings() {
        let specs = || vec![spec(0, 1, 0), spec(1, 7, 0)];
        let few = written(specs(), SLOTS, swap, 12_000);
        assert!(few[0] == 0 && few[1] > 7_000, "{swap:?}: {few:?}");
        let many = written(specs(), SLOTS, swap, 28_000);
        assert!(many[0] > 5_000 && many[1] == u64::from(SLOTS), "{swap:?}: {many:?}");
    }
}

#[test]
fn among_devices_of_equal_priority_the_local_one_fills_first() {
    for swap in settings() {
        let main = move |vm: &Vm| {
            let manager = manager(vm, &[spec(0, 3, 0), spec(1, 3, 0)], SLOTS, swap);
            for (cpu, near) in [(0, 0), (5, 1), (7, 1), (3, 0)] {
                let found = manager.inspect().swap.alloc(CpuId(cpu), &[Pfn(0)]);
                assert_eq!(found.expect("room").0.device, near, "CPU {cpu}");
            }
            // Slots in per-CPU caches count as free.
            let swap = &manager.inspect().swap;
            let taken = (0..SLOTS).map_while(|_| swap.alloc(CpuId(1), &[Pfn(0)]));
            let near = taken.take_while(|(slot, _)| slot.device == 0).count();
            assert!((SLOTS as usize * 9 / 10..SLOTS as usize).contains(&near), "{near}");
        };
        simulate(setup(machine(2, 4), 1), main).expect("comes to its end");
    }
}
