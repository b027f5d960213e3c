//! Processes that borrow pages, end and are killed; each is a file with a lock.

use super::*;
use crate::budget::{BUDGET_FILE, Compacted, MARGIN, Reaped, Words};
use crate::{Name, StatsFile};
use highwater_devices::Area;
use std::time::Instant;

const LIMIT: u64 = 10_000;

struct Run {
    dir: tempfile::TempDir,
    budget: Budget,
}

impl Run {
    fn new(limit: u64) -> Run {
        Run::of(Scope::Paged, limit)
    }

    fn of(scope: Scope, limit: u64) -> Run {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget::create(dir.path(), scope, limit, 2 * limit).unwrap();
        Run { dir, budget }
    }

    /// A process that uses the pages that it may always have.
    fn join(&self, pid: u32) -> (StatsFile, Share) {
        let (file, share) = self.start(pid);
        assert_eq!((share.borrow(FLOOR - START), share.granted()), (FLOOR - START, FLOOR));
        (file, share)
    }

    fn start(&self, pid: u32) -> (StatsFile, Share) {
        let file = StatsFile::create(self.dir.path(), pid, Name::default()).unwrap();
        let share =
            Budget::open(self.dir.path()).unwrap().join(file.image(), Forked::default()).unwrap();
        (file, share)
    }
}

#[test]
fn processes_borrow_up_to_the_limit() {
    let run = Run::new(LIMIT);
    let (_one_file, one) = run.join(1);
    let (_other_file, other) = run.join(2);
    assert_eq!((one.granted(), run.budget.granted(), one.room()), (FLOOR, 2 * FLOOR, 7952));
    assert_eq!((one.borrow(5000), other.borrow(5000), other.borrow(1)), (5000, 2952, 0));
    assert_eq!(run.budget.granted(), LIMIT);
    one.give_back(1000);
    assert_eq!(other.borrow(500), 0, "it was told to wait for its next aim");
    // A quarter of its pages, out of the 1000 that are free.
    assert_eq!((other.granted(), other.aim(0, 100)), (3976, Aim::Pages(3976 + 994)));
    assert_eq!((other.borrow(600), other.borrow(600)), (600, 394));
    one.leave();
    assert_eq!(run.budget.granted(), other.granted());
}

#[test]
fn a_tier_gets_half_and_gives_all_processes_have_too_many() {
    let run = Run::of(Scope::Everything, LIMIT);
    let (_one_file, one) = run.join(1);
    let (_other_file, other) = run.join(2);
    let left = run.budget.pages_left();
    assert!(left > 0);
    assert_eq!(one.tiers_most(500), Some((FLOOR + 500 + left) / 2));
    // Memory that cannot be paged: all memory, except the floor of one process.
    let unpaged = LIMIT - LIMIT / MARGIN - FLOOR;
    other.set_besides(Besides { unpaged, ..Besides::default() });
    assert_eq!(run.budget.granted() - run.budget.room(), FLOOR);
    assert_eq!(one.tiers_most(3 * FLOOR), Some((FLOOR + 3 * FLOOR) / 2 - FLOOR));
    assert_eq!(one.tiers_most(0), Some(0));
    let (_file, paged) = Run::new(LIMIT).join(1);
    assert_eq!(paged.tiers_most(500), None);
}

#[test]
fn a_process_gets_its_least_pages_when_it_uses_them() {
    let run = Run::new(LIMIT);
    let (_rich_file, rich) = run.join(1);
    assert_eq!(rich.borrow(LIMIT), LIMIT - FLOOR);
    let (_poor_file, poor) = run.start(2);
    assert_eq!((poor.granted(), poor.room()), (START, FLOOR - START));
    assert_eq!(rich.aim(0, 0), Aim::Pages(LIMIT - START));
    let seen = poor.changes();
    assert_eq!((poor.borrow(300), poor.borrow(1000)), (300, FLOOR - START - 300));
    assert_ne!(poor.changes(), seen, "nobody gives");
    assert_eq!(rich.aim(0, 0), Aim::Pages(LIMIT - FLOOR));
    // It keeps those pages that it uses.
    rich.give_back(FLOOR);
    for (spare, kept) in [(0, FLOOR), (700, FLOOR - 700), (1000, START)] {
        poor.aim(spare, 0);
        run.budget.set_limit(1);
        assert_eq!(poor.aim(spare, 0), Aim::Pages(kept));
        run.budget.set_limit(LIMIT);
    }
}

#[test]
fn a_killed_process_gives_back_what_it_had() {
    let run = Run::new(LIMIT);
    let (file, killed) = run.join(1);
    let (_living_file, living) = run.join(1);
    assert_eq!(killed.borrow(4000), 4000);
    living.reap();
    assert_eq!(run.budget.members().len(), 2, "its lock is held");
    drop(file);
    living.reap();
    assert_eq!(run.budget.granted(), living.granted());
    // Its file may have been removed meanwhile.
    let (file, _killed) = run.join(7);
    std::fs::remove_file(run.dir.path().join("7.0")).unwrap();
    living.reap();
    drop(file);
    let images: Vec<Image> = run.budget.members().iter().map(|member| member.image).collect();
    assert_eq!(images, [Image { pid: 1, number: 1 }]);
}

/// Regression: after its statistics were final and read, a helper took 0.3 s to free its pages on a
/// server. Meanwhile the next process got its entry; the helper's threads gave back memory of this
/// process, down to less than nothing, and finally the helper cleared the entry.
#[test]
fn a_process_that_counts_as_ended_changes_nothing_of_the_next_one() {
    let run = Run::new(LIMIT);
    let (file, first) = run.join(1);
    drop(file);
    assert!(run.budget.reap(first.index()) == Reaped::Free);
    let (_next, second) = run.join(2);
    assert_eq!(second.index(), first.index());
    first.give_back(FLOOR + 1);
    first.set_besides(Besides { unpaged: 7, ..Besides::default() });
    first.aim(5, 5);
    assert_eq!(first.claim_swap(0, 9), 0);
    first.give_back_swap(0, 9);
    first.leave();
    assert_eq!((second.granted(), run.budget.unpaged()), (FLOOR, 0));
    assert_eq!(second.borrow(FLOOR), FLOOR);
}

#[test]
fn a_request_to_compact_is_for_those_that_live() {
    let run = Run::new(LIMIT);
    let [(_first_file, first), (killed_file, _killed)] = [1, 2].map(|pid| run.join(pid));
    assert_eq!(first.compaction(), None);
    let request = run.budget.compact();
    assert_eq!(first.compaction(), Some(request));
    let (_later_file, later) = run.join(3);
    assert_eq!(later.compaction(), None, "its memory is new");
    let so_far = |done, blocks, behind| Compacted { done, blocks, behind };
    assert_eq!(run.budget.compacted(request), so_far(1, 0, 2));
    first.has_compacted(request, 7);
    assert_eq!(run.budget.compacted(request), so_far(2, 7, 1));
    drop(killed_file);
    assert_eq!(run.budget.compacted(request), so_far(2, 7, 0));
    first.leave();
    assert_eq!(run.budget.compacted(request), so_far(1, 0, 0));
}

#[test]
fn processes_that_outlive_their_run_leave_each_other_alone() {
    let run = Run::new(LIMIT);
    let shares = [1, 2].map(|pid| run.join(pid));
    run.dir.close().unwrap();
    shares.iter().for_each(|(_, share)| share.reap());
    assert_eq!(run.budget.members().len(), 2);
}

#[test]
fn the_swap_of_a_killed_process_is_free_again() {
    let run = Run::new(LIMIT);
    run.budget.add_swap(&Area::parse("ram:4000K").unwrap());
    let (file, killed) = run.join(1);
    let (_living_file, living) = run.join(2);
    assert_eq!((killed.claim_swap(0, 900), living.claim_swap(0, 900)), (900, 100));
    living.reap_all();
    assert_eq!(living.claim_swap(0, 1), 0, "its lock is held");
    drop(file);
    living.reap_all();
    assert_eq!(living.claim_swap(0, 1000), 900);
    living.leave();
    assert_eq!(run.budget.swap_rooms()[0].claimed, 0);
}

#[test]
fn all_that_have_ended_are_found_by_their_neighbours() {
    let run = Run::new(LIMIT);
    let mut shares: Vec<_> = (1..=9).map(|pid| Some(run.join(pid))).collect();
    let living = [2, 3, 6];
    for (index, share) in shares.iter_mut().enumerate() {
        if !living.contains(&index) {
            *share = None;
        }
    }
    assert_eq!(run.budget.members().len(), 9, "a share that is dropped stays");
    shares.iter().flatten().for_each(|(_, share)| share.reap());
    let pids: Vec<u32> = run.budget.members().iter().map(|member| member.image.pid).collect();
    assert_eq!(pids, [3, 4, 7]);
}

#[test]
fn a_lower_limit_wakes_everyone() {
    let run = Run::new(LIMIT);
    let (_file, share) = run.join(1);
    assert_eq!(share.borrow(8000), 8000);
    assert_eq!(share.aim(0, 0), Aim::Keep);
    let (seen, started) = (share.changes(), Instant::now());
    run.budget.set_limit(5000);
    share.wait(seen, Duration::from_secs(10));
    assert!(started.elapsed() < Duration::from_secs(5), "nobody was woken");
    assert_eq!(share.aim(0, 0), Aim::Pages(5000));
    share.give_back(share.granted() - 5000);
    assert_eq!((share.borrow(10), share.aim(0, 0)), (0, Aim::Pages(5000)));
    run.budget.set_limit(u64::MAX);
    assert_eq!(run.budget.limit(), 2 * LIMIT);
}

#[test]
fn threads_that_borrow_at_once_never_exceed_the_limit() {
    let run = Run::new(50_000);
    let shares: Vec<_> = (1..=8).map(|pid| run.join(pid)).collect();
    std::thread::scope(|scope| {
        for (number, (_, share)) in shares.iter().enumerate() {
            scope.spawn(move || {
                let mut random = highwater_units::Prng::new(number as u64);
                let mut own = 0;
                for _ in 0..20_000 {
                    if random.percent(55) {
                        own += share.borrow(1 + random.below(2000));
                    } else {
                        let some = random.below(own + 1);
                        share.give_back(some);
                        own -= some;
                    }
                    share.denied.store(0, Relaxed);
                }
                assert_eq!(share.granted(), FLOOR + own);
            });
        }
    });
    assert!(run.budget.granted() <= 50_000);
}

#[test]
fn pages_that_two_processes_map_count_once() {
    let run = Run::new(LIMIT);
    let (_file, parent) = run.join(1);
    assert_eq!(parent.borrow(LIMIT - FLOOR), LIMIT - FLOOR);
    let file = StatsFile::create(run.dir.path(), 2, Name::default()).unwrap();
    let forked = Forked { pages: 8000, parent: Some(parent.index()) };
    let child = Budget::open(run.dir.path()).unwrap().join(file.image(), forked).unwrap();
    // Only the pages that it begins with exceed the limit.
    assert_eq!(child.granted(), 8000 + 8000 / MARKS_SHARE);
    let (Aim::Pages(of_parent), Aim::Pages(of_child)) = (parent.aim(0, 0), child.aim(0, 0)) else {
        panic!("nobody gives anything")
    };
    assert_eq!(of_parent + of_child, LIMIT + 8000);
    // It writes to half of the pages: each of the two processes still shares 4000 with the other.
    child.set_besides(Besides { shared: 2000, ..Besides::default() });
    assert_eq!(parent.take_lent(), 4000);
    parent.set_besides(Besides { shared: 2000, ..Besides::default() });
    let (Aim::Pages(of_parent), Aim::Pages(of_child)) = (parent.aim(0, 0), child.aim(0, 0)) else {
        panic!("nobody gives anything")
    };
    assert_eq!(of_parent + of_child, LIMIT + 4000);
    child.leave();
    assert_eq!((parent.aim(0, 0), run.budget.granted()), (Aim::Keep, LIMIT));
}

/// A process with 8000 pages, all of which it shares with a child.
fn forked(run: &Run) -> [(StatsFile, Share); 2] {
    let parent = run.join(1);
    assert_eq!(parent.1.borrow(8000 - FLOOR), 8000 - FLOOR);
    let file = StatsFile::create(run.dir.path(), 2, Name::default()).unwrap();
    let forked = Forked { pages: 8000, parent: Some(parent.1.index()) };
    let child = Budget::open(run.dir.path()).unwrap().join(file.image(), forked).unwrap();
    [parent, (file, child)]
}

#[test]
fn a_parent_takes_over_its_half_of_what_it_shares() {
    let run = Run::new(LIMIT);
    let [(_, parent), (_, child)] = forked(&run);
    assert_eq!(run.budget.room(), LIMIT + 8000);
    assert_eq!((child.take_lent(), parent.take_lent(), parent.take_lent()), (0, 4000, 0));
    let half = Besides { shared: 4000, ..Besides::default() };
    [parent, child].iter().for_each(|share| share.set_besides(half));
    assert_eq!(run.budget.room(), LIMIT + 8000);
}

#[test]
fn pages_of_a_parent_that_ended_are_its_childs_alone() {
    let run = Run::new(LIMIT);
    let [(_, parent), (_, child)] = forked(&run);
    parent.leave();
    assert_eq!((run.budget.room(), child.taken()), (LIMIT, 4000));
    child.set_besides(Besides::default());
    assert_eq!(run.budget.room(), LIMIT);
}

#[test]
fn pages_in_common_with_one_that_ended_are_in_common_with_fewer() {
    let run = Run::new(LIMIT);
    let (_parent_file, parent) = run.join(1);
    let forked = Forked { pages: 900, parent: Some(parent.index()) };
    let children = [2, 3].map(|pid| {
        let file = StatsFile::create(run.dir.path(), pid, Name::default()).unwrap();
        let share = Budget::open(run.dir.path()).unwrap().join(file.image(), forked).unwrap();
        (file, share)
    });
    let (_stranger_file, stranger) = run.join(4);
    let publish = |share: &Share, common: u64| {
        share.set_besides(Besides { shared: common as i64, common, ..Besides::default() });
    };
    parent.take_lent();
    // Each of the three has a third of each of the 900 pages.
    let [(_, first), (_, second)] = &children;
    [&parent, first, second].iter().for_each(|share| publish(share, 600));
    publish(&stranger, 50);
    assert_eq!(run.budget.room(), LIMIT + 1850);
    first.leave();
    assert_eq!((parent.taken(), second.taken(), stranger.taken()), (150, 150, 0));
    assert_eq!(run.budget.room(), LIMIT + 950);
    [&parent, second].iter().for_each(|share| publish(share, 450));
    second.leave();
    assert_eq!((run.budget.room(), parent.taken()), (LIMIT + 50, 600));
}

#[test]
fn frames_of_shared_pages_that_leave_are_given_up() {
    let run = Run::new(LIMIT);
    let [_, (_, child)] = forked(&run);
    let before = (child.granted(), run.budget.room());
    // There is memory for 1000 pages.
    assert_eq!((child.owed(0, 900), run.budget.room()), (0, before.1 - 900));
    assert_eq!((child.owed(0, 1100), run.budget.room()), (100, before.1 - 1000));
    child.pay(60);
    assert_eq!((child.granted(), run.budget.room()), (before.0 - 60, before.1 - 1060));
    // More pages than its half can part (be copied on write), but no more than all.
    assert_eq!((child.owed(0, 1100), child.owed(0, 9000)), (40, 8000 - 1060));
    child.pay(8000 - 1060);
    assert_eq!((run.budget.room(), child.owed(0, 9000)), (before.1 - 8000, 0));
    // As many are shared as before: other pages had been evicted.
    let besides = Besides { shared: 4000, common: 4000, parted: 9000, ..Besides::default() };
    child.set_besides(besides);
    assert_eq!((run.budget.room(), child.owed(0, 9010)), (before.1, 10));
}

#[test]
fn what_one_finds_to_share_the_others_have_counted() {
    let run = Run::new(LIMIT);
    let [(_, parent), (_, child)] = forked(&run);
    parent.take_lent();
    let publish = |share: &Share, shared: i64| {
        share.set_besides(Besides { shared, common: 4000, ..Besides::default() });
    };
    publish(&parent, 4000);
    // The child has copied 3000 pages on write ("parted"): 2500 pages of each count for the other.
    publish(&child, 1000);
    assert!(parent.has_kin() && child.has_kin());
    child.exchange(1500);
    assert_eq!((run.budget.room(), parent.taken(), child.taken()), (LIMIT + 5000, 1500, 0));
    parent.exchange(-100);
    assert_eq!((run.budget.room(), parent.taken(), child.taken()), (LIMIT + 5000, 1500, -100));
    parent.leave();
    assert!(!child.has_kin());
    let room = run.budget.room();
    child.exchange(500);
    assert_eq!(run.budget.room(), room);
}

#[test]
fn what_is_owed_is_still_owed_once_it_is_published() {
    let run = Run::new(LIMIT);
    let [(_, parent), (_, child)] = forked(&run);
    assert_eq!(parent.borrow(1000), 1000);
    let before = child.granted();
    assert_eq!(child.owed(0, 500), 500);
    let besides = Besides { shared: 3500, common: 4000, parted: 500, ..Besides::default() };
    child.set_besides(besides);
    let room = run.budget.room();
    assert_eq!((room, child.owed(0, 500)), (LIMIT + 7500, 500));
    child.pay(200);
    assert_eq!((child.granted(), run.budget.room()), (before - 200, room));
    // The parent gives the rest.
    parent.give_back(300);
    assert_eq!(child.owed(0, 500), 0);
}

#[test]
fn a_budget_of_another_build_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kind = || Budget::open(dir.path()).err().map(|error| error.kind());
    assert_eq!(kind(), Some(io::ErrorKind::NotFound));
    for bytes in [vec![0; size_of::<Words>()], vec![1; 100]] {
        std::fs::write(dir.path().join(BUDGET_FILE), bytes).unwrap();
        assert_eq!(kind(), Some(io::ErrorKind::InvalidData));
    }
}

/// The rest of [`LIMIT`] for one process, with this number of pages that cannot be paged.
fn left(unpaged: u64) -> u64 {
    LIMIT - LIMIT / MARGIN - unpaged
}

#[test]
fn what_cannot_be_paged_leaves_less_for_pages() {
    let run = Run::of(Scope::Everything, LIMIT);
    let (_file, share) = run.join(1);
    let unpaged = |unpaged| share.set_besides(Besides { unpaged, ..Besides::default() });
    unpaged(1000);
    run.budget.measure_unpaged(|| 2000);
    assert_eq!((run.budget.scope(), run.budget.unpaged()), (Scope::Everything, 3000));
    assert_eq!(FLOOR + share.borrow(LIMIT), left(3000));
    // Growth takes pages back, down to the floor.
    unpaged(2000);
    assert_eq!(share.aim(0, 0), Aim::Pages(left(4000)));
    unpaged(2 * LIMIT);
    assert_eq!(share.aim(0, 0), Aim::Pages(FLOOR));
    // The whole excess, also the part that no process can give.
    let excess = 2 * LIMIT + 2000 + LIMIT / MARGIN + left(3000) - LIMIT;
    assert_eq!(share.balance(), -excess.cast_signed());
}

#[test]
fn frames_are_given_up_for_swap_in_memory() {
    let run = Run::of(Scope::Everything, LIMIT);
    let (_file, share) = run.join(1);
    let besides = |devices| Besides { unpaged: 500 + devices, devices, ..Besides::default() };
    share.set_besides(besides(100));
    assert_eq!(FLOOR + share.borrow(LIMIT), left(600));
    assert_eq!((share.owed(100, 0), share.owed(400, 0), share.owed(50, 0)), (0, 300, 0));
    share.pay(200);
    assert_eq!((share.granted(), run.budget.unpaged()), (left(800), 800));
    assert_eq!(share.owed(400, 0), 100);
    // The rest is owed until the limit is kept again.
    share.set_besides(besides(400));
    assert_eq!((run.budget.unpaged(), share.owed(400, 0)), (900, 100));
    share.pay(100);
    assert_eq!((share.granted(), run.budget.unpaged(), share.owed(400, 0)), (left(900), 900, 0));
    // A device that shrinks makes room.
    share.set_besides(besides(0));
    assert_eq!((share.owed(0, 0), share.owed(30, 0)), (0, 30));
    assert_eq!(share.owed(2 * LIMIT, 0), share.granted() - FLOOR);
}

#[test]
fn a_budget_for_pages_alone_leaves_the_rest_out() {
    let run = Run::of(Scope::Paged, LIMIT);
    let (_file, share) = run.join(1);
    share.set_besides(Besides { unpaged: LIMIT, ..Besides::default() });
    assert_eq!((FLOOR + share.borrow(LIMIT), share.owed(LIMIT, 0)), (LIMIT, 0));
}
