//! Swap slots under random schedules: while slots are free, an allocation finds one.

use crate::common::{device, machine, platform, setup};
use highwater_mm::{Config, Manager};
use highwater_platform::Recency;
use highwater_sim::machine::Answer;
use highwater_sim::{Policy, Setup, Sim, Vm, simulate};
use highwater_testkit::seeds;
use highwater_units::{CpuId, Order, Pfn, Prng, Slot};

const THREADS: usize = 4;
const STEPS: usize = 40;

/// A device of one cluster or two, the last one short.
#[derive(Clone, Copy)]
struct Case {
    seed: u64,
    pages: u32,
    answer: Answer,
    /// The most slots of a thread.
    each: usize,
}

impl Case {
    /// The threads take five eighths of the slots at most, or all of them.
    fn draw(random: &mut Prng, seed: u64) -> Case {
        let pages = [64, 192, 512 + 32][random.below(3) as usize];
        let answer = [Answer::Synchronous, Answer::Asynchronous][random.below(2) as usize];
        let eighths = [5, 9][random.below(2) as usize];
        Case { seed, pages, answer, each: pages as usize / THREADS * eighths / 8 }
    }

    /// Whether slots are free whatever the threads do.
    fn has_room(&self) -> bool {
        self.each * THREADS < self.pages as usize
    }
}

/// A thread and the slots that it took.
struct User<'a> {
    manager: &'a Manager<Sim>,
    cpu: CpuId,
    slots: Vec<Slot>,
}

impl User<'_> {
    fn alloc(&mut self, case: Case) {
        let found = self.manager.inspect().swap.alloc(self.cpu, &[Pfn(0)]);
        assert!(found.is_some() || !case.has_room(), "slots were free");
        self.slots.extend(found.map(|(slot, _)| slot));
    }

    fn alloc_block(&mut self, order: Order) {
        let first = self.manager.inspect().swap.alloc_block(self.cpu, Pfn(0), order);
        let run = |first: Slot| {
            (0..order.frames()).map(move |at| Slot { index: first.index + at, ..first })
        };
        self.slots.extend(first.into_iter().flat_map(run));
    }

    fn free(&mut self, slots: usize) {
        let swap = &self.manager.inspect().swap;
        let left = self.slots.len().saturating_sub(slots);
        for slot in self.slots.drain(left..) {
            assert!(swap.claim(self.cpu, slot).is_some(), "nothing else takes it out of the cache");
            swap.release(self.manager.platform(), self.cpu, slot);
        }
    }

    /// Returns how many slots it keeps.
    fn run(mut self, case: Case) -> usize {
        let mut random = Prng::new(case.seed << 8 | u64::from(self.cpu.0));
        for _ in 0..STEPS {
            let order = Order(random.below(4) as u8);
            let room = case.each - self.slots.len();
            match random.below(8) {
                0..3 if room > 0 => self.alloc(case),
                3..5 if room >= order.frames() as usize => self.alloc_block(order),
                _ => self.free(1 + random.below(12) as usize),
            }
        }
        self.slots.len()
    }
}

fn use_slots(vm: &Vm, case: Case) {
    let sim = platform(vm, vec![64], &[device(case.answer)], case.pages, Recency::AccessedBit);
    let manager = Manager::start(sim, Config::default()).expect("virtual threads abound");
    let kept = vm.scope(THREADS, "user", &|thread| {
        User { manager: &manager, cpu: CpuId(thread as u16), slots: Vec::new() }.run(case)
    });
    let swap = &manager.inspect().swap;
    let rest = (0..).map_while(|_: u32| swap.alloc(CpuId(0), &[Pfn(0)])).count();
    assert_eq!(kept.iter().sum::<usize>() + rest, case.pages as usize, "slots are lost");
}

/// Regression: while a thread took a run of slots of the only free cluster, the cluster was on no
/// list. Another thread found no slot, and noted that the device was full. It stayed full although
/// most slots were free, until one of a full cluster was freed: there was none.
#[test]
fn an_allocation_finds_a_slot_while_slots_are_free() {
    seeds(2000, |seed| {
        let mut random = Prng::new(seed);
        let (policy, case) = (Policy::draw(&mut random), Case::draw(&mut random, seed));
        let setup = Setup { policy, ..setup(machine(1, THREADS as u16), seed) };
        simulate(setup, move |vm| use_slots(vm, case)).expect("comes to its end");
    });
}
