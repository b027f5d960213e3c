//! Frames that reclaim gives up for memory that the platform uses besides.

use crate::common::{device, machine, setup};
use highwater_mm::{Access, Config, Manager};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::Answer;
use highwater_sim::{InjectedFaults, Sim, SimConfig, Vm, simulate};
use highwater_units::{SpaceId, Vpn};
use std::sync::Arc;

const FRAMES: u32 = 2048;
const OWED: u32 = 300;

fn write_all(manager: &Manager<Sim>, space: SpaceId) {
    for page in 0..2 * u64::from(FRAMES) {
        let pin = manager.pin(space, Vpn(page), Access::Write).expect("room in swap");
        manager.platform().store(pin.pfn(), 0, page);
    }
}

#[test]
fn reclaim_gives_up_what_the_platform_uses_besides() {
    let whole = |vm: &Vm| {
        let sim = SimConfig {
            frames: vec![FRAMES],
            devices: vec![(device(Answer::Asynchronous), 4 * FRAMES)],
            recency: Recency::AccessedBit,
            injected_faults: Arc::new(InjectedFaults::default()),
        };
        let manager = Manager::start(Sim::new(vm, sim), Config::default()).expect("threads");
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
