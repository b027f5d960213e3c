//! The conformance suite, under every policy and with both ways of detecting accesses.

use crate::common::{device, machine, platform, setup};
use highwater_platform::Recency;
use highwater_sim::machine::Answer;
use highwater_sim::{Policy, Setup, Sim, simulate};
use highwater_testkit::conformance::{Mapped, World, check};
use std::sync::Arc;

struct Virtual(Arc<Sim>);

impl World for Virtual {
    type Platform = Sim;

    fn platform(&self) -> Arc<Sim> {
        self.0.clone()
    }

    fn load(&self, page: Mapped, word: usize) -> u64 {
        self.0.program_load(page.space, page.vpn, word).expect("the page is mapped")
    }

    fn store(&self, page: Mapped, word: usize, value: u64) {
        self.0.program_store(page.space, page.vpn, word, value).expect("the page may be written");
    }

    fn drop_page(&self, page: Mapped) -> bool {
        self.0.program_drop(page.space, page.vpn);
        true
    }
}

fn conforms(policy: Policy, recency: Recency) {
    let setup = Setup { policy, ..setup(machine(2, 3), 5) };
    let finished = simulate(setup, move |vm| {
        let devices = [device(Answer::Synchronous), device(Answer::Asynchronous)];
        check(|| Virtual(Arc::new(platform(vm, vec![60, 40], &devices, 512, recency))));
    });
    finished.expect("it ends");
}

#[test]
fn conforms_in_time_order() {
    conforms(Policy::SmallestClock, Recency::AccessedBit);
    conforms(Policy::SmallestClock, Recency::Unmapping);
}

#[test]
fn conforms_in_random_order() {
    conforms(Policy::Random { period: 1 }, Recency::AccessedBit);
    conforms(Policy::Random { period: 20 }, Recency::Unmapping);
    conforms(Policy::RoundRobin { quantum: 3 }, Recency::Unmapping);
    conforms(Policy::Pct { changes: 50, steps: 100_000 }, Recency::Unmapping);
}
