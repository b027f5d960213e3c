//! Processes of a model share memory by [`targets`]: fairness, convergence, no oscillation.

use super::*;

const FLOOR: u64 = 1024;

/// Rounds of a second.
const SECOND: usize = 25;

/// A process that touches pages of a set at random, and misses those that it has no memory for.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// Pages of its set.
    set: u64,
    /// Accesses per second.
    rate: u64,
    granted: u64,
}

impl Model {
    fn misses(&self) -> u64 {
        let missing = self.set.saturating_sub(self.granted);
        self.rate * missing / self.set.max(1)
    }

    fn claim(&self) -> Claim {
        Claim {
            granted: self.granted,
            floor: FLOOR,
            spare: self.granted.saturating_sub(self.set),
            misses: self.misses(),
            is_short: self.misses() > 0,
            ..Claim::default()
        }
    }
}

/// One round: each process gets its target. Returns the pages that changed owners.
fn round(limit: u64, processes: &mut [Model]) -> u64 {
    let claims: Vec<Claim> = processes.iter().map(Model::claim).collect();
    let targets = targets(limit, &claims, None);
    let floors = FLOOR * processes.len() as u64;
    assert!(targets.iter().sum::<u64>() <= limit.max(floors), "{targets:?} exceed {limit}");
    let mut moved = 0;
    for (process, target) in processes.iter_mut().zip(&targets) {
        let target = (*target).min(process.set.max(FLOOR));
        assert!(target >= FLOOR.min(process.granted), "a process lost its floor");
        moved += process.granted.abs_diff(target);
        process.granted = target;
    }
    moved
}

fn rounds(limit: u64, processes: &mut [Model], count: usize) -> u64 {
    (0..count).map(|_| round(limit, processes)).last().unwrap_or(0)
}

#[test]
fn one_that_grows_gets_the_memory_of_the_idle_within_a_second() {
    let limit = 100_000;
    let mut processes = vec![Model { set: 12_500, rate: 0, granted: 12_500 }; 8];
    processes[0] = Model { set: 1_000_000, rate: 100_000, granted: 12_500 };
    rounds(limit, &mut processes, SECOND);
    let most = limit - 7 * FLOOR;
    assert!(processes[0].granted > most * 95 / 100, "{} of {most}", processes[0].granted);
    // The others wake, each with the pages that it had before as its set.
    processes[1..].iter_mut().for_each(|process| process.rate = 100_000);
    rounds(limit, &mut processes, 2 * SECOND);
    for process in &processes[1..] {
        assert!(process.granted > 8000, "{processes:?}");
    }
}

#[test]
fn equals_share_equally_and_leave_each_other_alone() {
    let limit = 400_000;
    let mut processes: Vec<_> =
        (0..200).map(|_| Model { set: 100_000, rate: 10_000, granted: FLOOR }).collect();
    processes[0].granted = 100_000;
    let moved = rounds(limit, &mut processes, 4 * SECOND);
    let granted = || processes.iter().map(|process| process.granted);
    let (least, most) = (granted().min().unwrap(), granted().max().unwrap());
    assert!(most <= 2 * least, "{least} to {most}");
    assert_eq!(moved, 0, "memory still moves");
}

#[test]
fn two_hundred_unequal_processes_settle() {
    let mut random = highwater_units::Prng::new(1);
    for _ in 0..20 {
        let limit = 200 * FLOOR + random.below(2_000_000);
        let drawn = |random: &mut highwater_units::Prng| Model {
            set: 1 + random.below(50_000),
            rate: random.below(4) * random.below(50_000),
            granted: FLOOR,
        };
        let mut processes: Vec<_> = (0..200).map(|_| drawn(&mut random)).collect();
        let moved = rounds(limit, &mut processes, 16 * SECOND);
        assert!(moved < limit / 50, "{moved} of {limit} still move in a round");
        // Over a second, no process has far more misses per page than a process that could give
        // pages. At a single moment, a process whose set nearly fits may: it gives and takes its
        // last pages.
        let mut sums = vec![0.0; processes.len()];
        for _ in 0..SECOND {
            round(limit, &mut processes);
            let weigh = |process: &Model| process.misses() as f64 / process.granted as f64;
            sums.iter_mut().zip(&processes).for_each(|(sum, process)| *sum += weigh(process));
        }
        let neediest = sums.iter().copied().fold(0.0, f64::max);
        let rich = processes.iter().zip(&sums).filter(|(it, _)| it.granted > 2 * FLOOR);
        let least = rich.map(|(_, sum)| *sum).fold(f64::MAX, f64::min);
        assert!(neediest <= 4.0 * least.max(1.0), "{neediest} beside {least}");
    }
}

#[test]
fn a_lower_limit_takes_from_all_in_proportion() {
    let claim = |granted| Claim { granted, floor: 1000, ..Claim::default() };
    let claims = [claim(11_000), claim(6000), claim(1000), claim(500)];
    assert_eq!(targets(18_500, &claims, None), [11_000, 6000, 1000, 500]);
    assert_eq!(targets(11_000, &claims, None), [6000, 3500, 1000, 500]);
    assert_eq!(targets(0, &claims, None), [1000, 1000, 1000, 500]);
    assert_eq!(targets(10, &[], None), [0; 0]);
    // Free memory first.
    let claims = [Claim { spare: 2000, ..claim(11_000) }, claim(6000)];
    assert_eq!(targets(16_000, &claims, None), [10_000, 6000]);
    assert_eq!(targets(15_000, &claims, None), [9000, 6000]);
    assert_eq!(targets(13_700, &claims, None), [8200, 5500]);
}

#[test]
fn free_memory_goes_first() {
    let idle = Claim { granted: 10_000, floor: 1000, spare: 4000, misses: 50, ..Claim::default() };
    let short =
        Claim { granted: 10_000, floor: 1000, misses: 50, is_short: true, ..Claim::default() };
    assert_eq!(targets(20_000, &[idle, short], None), [7500, 12_500]);
    assert_eq!(targets(21_000, &[idle, short], None), [8500, 12_500]);
    assert_eq!(targets(23_000, &[idle, short], None), [10_000, 12_500]);
    assert_eq!(targets(20_000, &[short, short], None), [10_000, 10_000]);
}

#[test]
fn in_turn_memory_moves_from_the_last_to_the_first_that_is_short() {
    let of = |granted, is_short, runs| {
        let claim = Claim { granted, floor: 1000, is_short, runs, ..Claim::default() };
        Claim { misses: 1000, ..claim }
    };
    // In order: the third process, which has the pages it needs, then the first, then the second.
    let mut claims = [of(5000, true, 100), of(5000, true, 100), of(5000, false, 100)];
    assert_eq!(targets(15_000, &claims, Some(2)), [6000, 4000, 5000]);
    // The second has nothing left to give.
    claims[1].granted = 1000;
    assert_eq!(targets(11_000, &claims, Some(2)), [5000, 1000, 5000]);
    // A sleeping process gives, too; free memory goes first.
    claims[2].runs = 0;
    assert_eq!(targets(11_000, &claims, Some(2)), [6000, 1000, 4000]);
    assert_eq!(targets(12_000, &claims, Some(2)), [6250, 1000, 4750]);
    // Over a lowered limit, the last gives first.
    claims[1].granted = 2000;
    assert_eq!(targets(10_500, &claims, Some(2)), [4500, 1000, 5000]);
    assert_eq!(targets(9000, &claims, Some(0)), [5000, 2000, 2000]);
    assert_eq!(targets(0, &[], Some(0)), [0; 0]);
}
