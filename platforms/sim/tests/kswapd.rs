//! kswapd threads on a virtual machine: how many there are, and what they do.

mod common;

use common::{device, machine, platform, setup};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::Answer;
use highwater_sim::{Sim, Vm, simulate};
use highwater_units::{SpaceId, Vpn};

const FRAMES: u32 = 4096;
const PAGES: u64 = 4 * FRAMES as u64;
const SPACE: SpaceId = SpaceId(0);

/// A manager with one space, on a machine that swaps to memory.
fn manager(vm: &Vm, nodes: usize, config: Config) -> Manager<Sim> {
    let swap = device(Answer::Synchronous);
    let frames = vec![FRAMES / nodes as u32; nodes];
    let sim = platform(vm, frames, &[swap], 4 * PAGES as u32, Recency::AccessedBit);
    let manager = Manager::start(sim, config).expect("threads");
    assert_eq!(manager.add_space(PAGES).expect("a space"), SPACE);
    manager
}

/// Tasks write pages of their own in order, until `pages` of them are.
fn write(vm: &Vm, manager: &Manager<Sim>, tasks: u64, pages: u64) {
    vm.scope(tasks as usize, "task", &|task| {
        for index in 0..pages {
            let page = (task as u64 * PAGES / tasks + index) % PAGES;
            let pin = manager.pin(SPACE, Vpn(page), Access::Write).expect("room for all");
            manager.platform().store(pin.pfn(), 3, page + 1);
        }
    });
}

#[test]
fn the_number_of_threads_changes_while_they_run() {
    let whole = |vm: &Vm| {
        let mut manager = manager(vm, 2, Config::default());
        let count = |counter| manager.statistics().get(counter);
        for threads in [1, 16, 3, 4, 1] {
            let before = count(Counter::PgStealKswapd);
            // At the same time: some threads are at work while their number changes.
            vm.scope(2, "either", &|which| match which {
                0 => manager.set_kswapd_threads(threads).expect("threads"),
                _ => write(vm, &manager, 3, PAGES / 3),
            });
            assert_eq!(manager.kswapd_threads(), [threads; 2]);
            assert!(count(Counter::PgStealKswapd) > before, "they work");
        }
        assert!(manager.set_kswapd_threads(0).is_err());
        assert!(manager.set_kswapd_threads(17).is_err());
        manager.stop_kswapd();
        assert_eq!(manager.kswapd_threads(), [0; 2]);
        manager.verify(&[]);
    };
    let report = simulate(setup(machine(2, 4), 1), whole).expect("it ends").report;
    let named = |name: &str| report.roles.iter().find(|role| role.name == name).map(|r| r.threads);
    // Started once at first, once in the steps to 16 and to 4, and never again.
    assert_eq!(["kswapd0:0", "kswapd1:3", "kswapd0:15"].map(named), [Some(1), Some(2), Some(1)]);
    assert_eq!(named("kswapd0:16"), None);
}
