//! Random operations against a map of entries; then several threads: a held entry has one holder,
//! waiters go on, and no pin is lost.

use super::entry::{ACCESSED, REFERENCED};
use super::{Access, Backing, Claim, Entry, FirstUse, Held, Page, Pinned, Space};
use highwater_platform::testing::TestPlatform;
use highwater_platform::testing::{Watchdog, seeds};
use highwater_units::{Order, Pfn, Prng, RUN_PAGES_MAX, Slot, SpaceId, Vpn};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

fn space(pages: u64) -> Space<TestPlatform> {
    let platform = TestPlatform::new(1, Vec::new());
    Space::new(&platform, SpaceId(7), pages, Order(0), Backing::Anonymous)
}

/// The expected state of an entry.
#[derive(Clone, Copy)]
struct State {
    entry: Entry,
    pins: u64,
    held: bool,
}

struct Model<'a> {
    space: &'a Space<TestPlatform>,
    states: Vec<State>,
    held: Vec<Held<'a, TestPlatform>>,
    pins: Vec<Vpn>,
}

/// An entry that the manager could make.
fn any_entry(random: &mut Prng) -> Entry {
    let resident = Entry::resident(Pfn(random.below(1 << 32) as u32));
    let slot = Slot { device: random.below(256) as u8, index: random.next_u64() as u32 };
    match random.below(8) {
        6 => resident.ahead(),
        7 => resident.mapped().ahead(),
        0 => Entry::ABSENT,
        1 => Entry::swapped(slot),
        2 => resident,
        3 => resident.dirty(),
        4 => resident.mapped(),
        _ => resident.dirty().mapped(),
    }
}

impl<'a> Model<'a> {
    fn at(&mut self, vpn: Vpn) -> &mut State {
        &mut self.states[vpn.0 as usize]
    }

    fn claim(&mut self, vpn: Vpn, access: Access) {
        let state = *self.at(vpn);
        let allowed = access == Access::Read || state.entry.is_dirty();
        match self.space.claim(vpn, access) {
            Claim::Busy(_) => assert!(state.held, "{vpn:?} is free"),
            Claim::Mapped => assert!(!state.held && state.entry.is_mapped() && allowed),
            Claim::Held(held) => {
                assert!(!(state.held || state.entry.is_mapped() && allowed));
                self.keep(held);
            }
        }
    }

    fn keep(&mut self, held: Held<'a, TestPlatform>) {
        let vpn = held.first();
        assert_eq!((held.len(), held.page()), (1, self.at(vpn).entry.page()));
        self.at(vpn).held = true;
        self.held.push(held);
    }

    fn lock(&mut self, vpn: Vpn, pinned: Pinned) {
        let state = *self.at(vpn);
        let barred = state.held || (pinned == Pinned::Refuse && state.pins > 0);
        let held = match pinned {
            Pinned::Refuse if !barred => Some(self.space.hold(vpn)),
            _ => Held::lock(self.space, vpn, pinned),
        };
        assert_eq!(held.is_none(), barred);
        held.into_iter().for_each(|held| self.keep(held));
    }

    fn extend(&mut self, random: &mut Prng) {
        let at = random.below(self.held.len() as u64) as usize;
        let pinned = if random.percent(50) { Pinned::Refuse } else { Pinned::Accept };
        let wanted = random.percent(90);
        let held = &mut self.held[at];
        let next = held.first().0 as usize + held.len();
        let full = held.len() == RUN_PAGES_MAX;
        let extended = held.extend(pinned, |_| wanted);
        let Some(state) = self.states.get_mut(next).filter(|_| !full) else {
            return assert!(!extended, "a run has an end");
        };
        let barred = state.held || (pinned == Pinned::Refuse && state.pins > 0);
        assert_eq!(extended, wanted && !barred);
        state.held |= extended;
    }

    fn truncate(&mut self, random: &mut Prng) {
        let at = random.below(self.held.len() as u64) as usize;
        let held = &mut self.held[at];
        let (first, len) = (held.first().0 as usize, held.len());
        let keep = 1 + random.below(len as u64) as usize;
        held.truncate(keep);
        self.states[first + keep..first + len].iter_mut().for_each(|state| state.held = false);
    }

    fn release(&mut self, random: &mut Prng) {
        let at = random.below(self.held.len() as u64) as usize;
        let held = self.held.swap_remove(at);
        let first = held.first().0 as usize;
        let states = &mut self.states[first..first + held.len()];
        for (index, (state, seen)) in states.iter_mut().zip(held.entries()).enumerate() {
            assert_eq!((state.entry, state.held), (*seen, true));
            assert_eq!(held.owner(index).vpn, Vpn((first + index) as u64));
            state.held = false;
        }
        if random.percent(20) {
            return drop(held);
        }
        // A pinned page keeps its frame; it may become dirty.
        let mut value = |state: &State| match state.pins {
            0 => any_entry(random),
            _ => state.entry.dirty(),
        };
        let new: Vec<Entry> = states.iter().map(&mut value).collect();
        states.iter_mut().zip(&new).for_each(|(state, entry)| state.entry = *entry);
        held.release(|index, _| new[index]);
    }

    fn pin(&mut self, vpn: Vpn, access: Access) {
        let space = self.space;
        let state = self.at(vpn);
        let allowed = access == Access::Read || state.entry.is_dirty();
        let expected = match state.entry.page() {
            Page::Resident(pfn) if !state.held && state.entry.is_mapped() && allowed => {
                let ahead = state.entry.is_ahead();
                Some((pfn, if ahead { FirstUse::OfAhead } else { FirstUse::No }))
            }
            _ => None,
        };
        assert_eq!(space.pin(vpn, access), expected);
        if expected.is_some() {
            state.pins += 1;
            state.entry = if state.entry.is_accessed() {
                state.entry.accessed().referenced()
            } else {
                state.entry.accessed()
            };
            self.pins.push(vpn);
        }
    }

    fn unpin(&mut self, random: &mut Prng) {
        if !self.pins.is_empty() {
            let at = random.below(self.pins.len() as u64) as usize;
            let vpn = self.pins.swap_remove(at);
            self.at(vpn).pins -= 1;
            self.space.unpin(vpn);
        }
    }

    fn clear_accessed(&mut self, vpn: Vpn) {
        let space = self.space;
        let state = self.at(vpn);
        if let Page::Resident(pfn) = state.entry.page() {
            space.clear_accessed(vpn, Pfn(pfn.0 ^ 1));
            assert_eq!(space.entry(vpn).is_accessed(), state.entry.is_accessed());
            space.clear_accessed(vpn, pfn);
            if !state.held {
                state.entry = Entry(state.entry.0 & !(ACCESSED | REFERENCED));
            }
        }
    }

    fn check(&self) {
        for (index, state) in self.states.iter().enumerate() {
            let now = self.space.entry(Vpn(index as u64));
            assert_eq!(now.settled(), state.entry, "page {index}");
            assert_eq!((now.pins(), now.is_locked()), (state.pins, state.held), "page {index}");
        }
    }
}

fn fuzz(seed: u64) {
    let mut random = Prng::new(seed);
    let pages = 1 + random.below(60);
    let space = space(pages);
    let state = State { entry: Entry::ABSENT, pins: 0, held: false };
    let states = vec![state; pages as usize];
    let mut model = Model { space: &space, states, held: Vec::new(), pins: Vec::new() };
    for _ in 0..1500 {
        let vpn = Vpn(random.below(pages));
        let access = if random.percent(50) { Access::Read } else { Access::Write };
        let some = !model.held.is_empty();
        match random.below(12) {
            0 | 1 => model.claim(vpn, access),
            2 => model.lock(vpn, Pinned::Refuse),
            3 => model.lock(vpn, Pinned::Accept),
            4 | 5 if some => model.extend(&mut random),
            6 if some => model.truncate(&mut random),
            7 | 8 if some => model.release(&mut random),
            9 => model.pin(vpn, access),
            10 => model.unpin(&mut random),
            _ => model.clear_accessed(vpn),
        }
        model.check();
    }
}

#[test]
fn random_operations_match_a_map() {
    seeds(100, fuzz);
}

#[test]
fn only_leaves_that_were_touched_are_walked() {
    let node = 512 * 512;
    let space = space(3 * node + 512 * 5 + 7);
    let pages = space.pages();
    let next = |from, end| space.next_made(Vpn(from), Vpn(end)).map(|vpn| vpn.0);
    assert_eq!(next(0, pages), None);
    let touched = [2 * 512 + 5, 5 * 512 + 6, node + 3 * 512, pages - 1].map(Vpn);
    assert!(touched.iter().all(|vpn| space.entry(*vpn) == Entry::ABSENT));
    assert_eq!(next(0, pages), None, "a look makes nothing");
    for vpn in touched {
        drop(Held::lock(&space, vpn, Pinned::Refuse));
    }
    assert_eq!(next(0, pages), Some(2 * 512));
    assert_eq!(next(0, 2 * 512), None);
    assert_eq!(next(2 * 512 + 9, pages), Some(2 * 512 + 9));
    assert_eq!(next(3 * 512, pages), Some(5 * 512));
    assert_eq!(next(6 * 512, pages), Some(node + 3 * 512));
    assert_eq!(next(node + 4 * 512, pages), Some(3 * node + 5 * 512));
    assert_eq!(next(pages - 1, pages), Some(pages - 1));
}

/// A space shared by several threads.
struct Users {
    space: Space<TestPlatform>,
    /// By page: the thread that holds it, plus one; 0: none.
    holder: Vec<AtomicU64>,
    pins: Vec<AtomicU64>,
    waits: AtomicU64,
    watchdog: Watchdog,
}

impl Users {
    /// A held run has one holder; with `Refuse` it is not pinned either.
    fn use_alone(
        &self,
        held: &Held<'_, TestPlatform>,
        thread: u64,
        pinned: Pinned,
        random: &mut Prng,
    ) {
        let pages = || (held.first().0..).take(held.len()).map(|page| page as usize);
        for page in pages() {
            assert_eq!(self.holder[page].swap(thread + 1, SeqCst), 0, "page {page} is held twice");
        }
        match random.below(50) {
            0 => std::thread::sleep(Duration::from_micros(50)),
            1..10 => std::thread::yield_now(),
            _ => {}
        }
        for page in pages() {
            let pins = self.pins[page].load(SeqCst);
            assert!(pinned == Pinned::Accept || pins == 0, "page {page} is held while pinned");
            assert_eq!(self.holder[page].swap(0, SeqCst), thread + 1);
        }
    }

    fn fault(&self, vpn: Vpn, thread: u64, random: &mut Prng) {
        loop {
            match self.space.claim(vpn, Access::Write) {
                Claim::Mapped => return,
                Claim::Busy(ticket) => {
                    self.waits.fetch_add(1, Relaxed);
                    self.space.wait(vpn, ticket);
                }
                Claim::Held(mut held) => {
                    while random.percent(60) && held.extend(Pinned::Refuse, |_| true) {}
                    self.use_alone(&held, thread, Pinned::Accept, random);
                    let page = held.first().0 as u32;
                    let frame = |index| Entry::resident(Pfn(page + index as u32)).mapped();
                    return held.release(|index, was| {
                        if was.is_mapped() { was.dirty() } else { frame(index).dirty() }
                    });
                }
            }
        }
    }

    fn change(&self, vpn: Vpn, thread: u64, random: &mut Prng) {
        let mut held = self.space.hold(vpn);
        while random.percent(60) && held.extend(Pinned::Refuse, |_| true) {}
        self.use_alone(&held, thread, Pinned::Refuse, random);
        let page = held.first().0 as u32;
        match random.below(3) {
            0 => held.release(|_, _| Entry::ABSENT),
            1 => held.release(|index, _| Entry::resident(Pfn(page + index as u32)).mapped()),
            _ => drop(held),
        }
    }

    fn pin(&self, vpn: Vpn, random: &mut Prng) {
        let Some((pfn, _)) = self.space.pin(vpn, Access::Read) else { return };
        assert_eq!(u64::from(pfn.0), vpn.0, "a pin gives the page's frame");
        self.pins[vpn.0 as usize].fetch_add(1, SeqCst);
        if random.percent(20) {
            std::thread::yield_now();
        }
        assert_eq!(self.space.entry(vpn).page(), Page::Resident(pfn), "a pinned page stays");
        self.pins[vpn.0 as usize].fetch_sub(1, SeqCst);
        self.space.unpin(vpn);
    }

    fn run(&self, seed: u64, thread: u64) {
        let mut random = Prng::new(seed << 8 | thread);
        for _ in 0..6000 {
            self.watchdog.beat();
            let vpn = Vpn(random.below(self.space.pages()));
            match random.below(10) {
                0..4 => self.fault(vpn, thread, &mut random),
                4..6 => self.change(vpn, thread, &mut random),
                6..9 => self.pin(vpn, &mut random),
                _ => self.space.clear_accessed(vpn, Pfn(vpn.0 as u32)),
            }
        }
    }
}

#[test]
fn threads_exclude_each_other_and_go_on() {
    let waits = AtomicU64::new(0);
    seeds(8, |seed| {
        // More pages than events, or very few: waiters of one page, or of several, share an event.
        let pages = 1 + Prng::new(seed).below(3) * 60;
        let counts = || (0..pages).map(|_| AtomicU64::new(0)).collect();
        let users = Users {
            space: space(pages),
            holder: counts(),
            pins: counts(),
            waits: AtomicU64::new(0),
            watchdog: Watchdog::new(&format!("space, seed {seed}"), Duration::from_secs(20)),
        };
        std::thread::scope(|scope| {
            let users = &users;
            (0..4).for_each(|thread| {
                scope.spawn(move || users.run(seed, thread));
            });
        });
        for page in 0..pages {
            let entry = users.space.entry(Vpn(page));
            assert_eq!((entry.pins(), entry.is_locked()), (0, false), "page {page} at rest");
        }
        waits.fetch_add(users.waits.load(Relaxed), Relaxed);
    });
    assert!(waits.into_inner() > 0, "no thread ever waited");
}
