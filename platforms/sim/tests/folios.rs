//! Folios of 2 to 256 frames that are used, dropped and migrated while another thread allocates
//! large blocks, under random schedules: their contents must not change.

use crate::common::{machine, platform, setup};
use highwater_mm::Mobility;
use highwater_mm::config::history::{CompactHistory, History};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager, Range};
use highwater_platform::{Memory, Recency};
use highwater_sim::{Policy, Setup, Sim, Vm, simulate};
use highwater_units::{Order, Prng, SpaceId, Vpn};

/// 10 pageblocks.
const FRAMES: u32 = 10 * 512;
/// The folio orders of a user's spaces.
const ORDERS: std::ops::RangeInclusive<u8> = 1..=8;
/// Frames of all folios of a space: the folios of two users exceed memory.
const SPACE_FRAMES: u64 = 384;
/// Steps of a user.
const STEPS: u64 = 800;
/// The word of a frame that the test checks.
const WORD: usize = 5;

/// A user and the expected contents of its folios.
struct User<'a> {
    manager: &'a Manager<Sim>,
    random: Prng,
    /// By order: a space, and the values of its folios.
    spaces: Vec<(SpaceId, Vec<u64>)>,
}

impl<'a> User<'a> {
    fn new(manager: &'a Manager<Sim>, seed: u64) -> User<'a> {
        let space = |order: u8| {
            let pages = SPACE_FRAMES >> order;
            let space = manager.add_space_of(pages.max(1), Order(order)).expect("a space");
            (space, vec![0; pages.max(1) as usize])
        };
        User { manager, random: Prng::new(seed), spaces: ORDERS.map(space).collect() }
    }

    /// Writes, checks or drops a folio.
    fn step(&mut self) {
        let of = self.random.below(self.spaces.len() as u64) as usize;
        let page = self.random.below(self.spaces[of].1.len() as u64);
        match self.random.below(8) {
            0..4 => self.store(of, page),
            4..6 => self.check(of, page),
            _ => {
                let range = Range { first: Vpn(page), end: Vpn(page + 1) };
                self.manager.discard(self.spaces[of].0, range);
                self.spaces[of].1[page as usize] = 0;
            }
        }
    }

    fn store(&mut self, of: usize, page: u64) {
        let (value, space) = (self.random.next_u64() | 1, self.spaces[of].0);
        // Failing for lack of contiguous memory is no error: nothing is written then.
        let Ok(pin) = self.manager.pin(space, Vpn(page), Access::Write) else { return };
        for frame in 0..pin.frames() {
            self.manager.platform().store(pin.pfn().offset(frame), WORD, value ^ u64::from(frame));
        }
        self.spaces[of].1[page as usize] = value;
    }

    fn check(&self, of: usize, page: u64) {
        let (space, known) = &self.spaces[of];
        let value = known[page as usize];
        if value == 0 {
            return;
        }
        let pin = self.manager.pin(*space, Vpn(page), Access::Read).expect("it is in memory");
        for frame in 0..pin.frames() {
            let found = self.manager.platform().load(pin.pfn().offset(frame), WORD);
            assert_eq!(
                found,
                value ^ u64::from(frame),
                "frame {frame} of {page}, order {}",
                of + 1
            );
        }
    }

    fn check_all(&self) {
        for (of, (_, known)) in self.spaces.iter().enumerate() {
            (0..known.len() as u64).for_each(|page| self.check(of, page));
        }
    }
}

/// Allocates and frees large blocks.
fn ask(manager: &Manager<Sim>) {
    for round in 0..STEPS / 10 {
        let blocks: Vec<_> = (0..1 + round % 3)
            .map_while(|_| manager.alloc_run(Order::LARGE, Mobility::Movable))
            .collect();
        blocks.into_iter().for_each(|first| manager.free_run(first));
    }
}

/// Runs users and allocations. Returns the number of migrated folios.
fn moved(compact: Option<CompactHistory>, seed: u64) -> u64 {
    let policy = Policy::draw(&mut Prng::new(seed));
    let whole = move |vm: &Vm| {
        let sim = platform(vm, vec![FRAMES], &[], 0, Recency::AccessedBit);
        let history = History { compact, ..History::default() };
        let config = Config { history, min_free: Some(64), ..Config::default() };
        let mut manager = Manager::start(sim, config).expect("threads");
        vm.scope(3, "user", &|thread| match thread {
            0 => ask(&manager),
            _ => {
                let mut user = User::new(&manager, seed << 8 | thread as u64);
                (0..STEPS).for_each(|_| user.step());
                user.check_all();
            }
        });
        manager.stop_kswapd();
        manager.verify(&[]);
        manager.statistics().get(Counter::ThpMigrationSuccess)
    };
    let run = simulate(Setup { policy, ..setup(machine(1, 2), seed) }, whole);
    run.expect("it comes to its end").result
}

#[test]
fn folios_of_all_orders_keep_their_contents_when_migrated() {
    for compact in [Some(CompactHistory::Vanilla), Some(CompactHistory::SkipUseless), None] {
        let all: u64 = (1..=6).map(|seed| moved(compact, seed)).sum();
        assert!(all > 0, "{compact:?}: pages of many frames were moved");
    }
}
