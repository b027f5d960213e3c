//! Frames that reclaim gives up because the platform uses other memory besides.

use crate::common::{device, machine, setup};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::Answer;
use highwater_sim::{InjectedFaults, Sim, SimConfig, Vm, simulate};
use highwater_units::{SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const FRAMES: u32 = 2048;
const OWED: u32 = 300;

fn manager(vm: &Vm, recency: Recency) -> Manager<Sim> {
    manager_with(vm, recency, Arc::default())
}

fn manager_with(vm: &Vm, recency: Recency, injected_faults: Arc<InjectedFaults>) -> Manager<Sim> {
    let sim = SimConfig {
        frames: vec![FRAMES],
        devices: vec![(device(Answer::Asynchronous), 4 * FRAMES)],
        recency,
        injected_faults,
    };
    Manager::start(Sim::new(vm, sim), Config::default()).expect("threads")
}

fn write_all(manager: &Manager<Sim>, space: SpaceId) {
    for page in 0..2 * u64::from(FRAMES) {
        let pin = manager.pin(space, Vpn(page), Access::Write).expect("room in swap");
        manager.platform().store(pin.pfn(), 0, page);
    }
}

#[test]
fn reclaim_gives_up_what_the_platform_uses_besides() {
    let whole = |vm: &Vm| {
        let manager = manager(vm, Recency::AccessedBit);
        let space = manager.add_space(4 * u64::from(FRAMES)).expect("a space");
        write_all(&manager, space);
        let before = manager.frames();
        manager.platform().owe(OWED);
        assert_eq!(manager.frames(), before, "nothing was reclaimed since");
        write_all(&manager, space);
        // Debts below a batch may stay.
        let (owed, frames) = (manager.platform().owed(), manager.frames());
        assert!(owed < 16 && frames == before - u64::from(OWED - owed), "{owed}, {frames}");
        manager.verify(&[]);
    };
    simulate(setup(machine(1, 2), 1), whole).expect("it ends");
}

/// A store that may make the platform use other memory waits until frames are given up for it.
#[test]
fn a_store_to_a_clean_page_gives_up_what_is_owed() {
    let whole = |vm: &Vm| {
        let manager = manager(vm, Recency::Unmapping);
        let space = manager.add_space(4 * u64::from(FRAMES)).expect("a space");
        write_all(&manager, space);
        drop(manager.pin(space, Vpn(0), Access::Read).expect("it is in swap"));
        let before = manager.frames();
        manager.platform().owe(OWED);
        drop(manager.pin(space, Vpn(0), Access::Write).expect("it is there"));
        let (owed, frames) = (manager.platform().owed(), manager.frames());
        assert!(owed < 32 && frames == before - u64::from(OWED - owed), "{owed}, {frames}");
    };
    simulate(setup(machine(1, 2), 1), whole).expect("it ends");
}

/// A round scans all pages several times: sixteen rounds for each store would look like a hang.
#[test]
fn a_store_waits_for_one_round_where_nothing_can_be_freed() {
    let whole = |vm: &Vm| {
        let faults = Arc::new(InjectedFaults::default());
        let manager = manager_with(vm, Recency::Unmapping, faults.clone());
        let space = manager.add_space(4 * u64::from(FRAMES)).expect("a space");
        write_all(&manager, space);
        drop(manager.pin(space, Vpn(0), Access::Read).expect("it is in swap"));
        faults.writes.store(1_000_000, Relaxed);
        manager.platform().owe(FRAMES);
        let scanned = || manager.statistics().get(Counter::PgScanDirect);
        let before = scanned();
        drop(manager.pin(space, Vpn(0), Access::Write).expect("it is there"));
        let (owed, scanned) = (manager.platform().owed(), scanned() - before);
        // 62976 in sixteen rounds, 7872 in two.
        assert!(owed > FRAMES / 2 && scanned < 16_000, "{owed}, {scanned}");
        faults.end();
    };
    simulate(setup(machine(1, 2), 1), whole).expect("it ends");
}
