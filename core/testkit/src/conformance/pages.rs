//! Mapping: a program's loads and stores access the mapped frame.

use super::frames::{assert_filled, fill, pattern};
use super::world::{Mapped, World};
use highwater_platform::{Memory, Mmu, Progress, Protection, Recency, Stop, WORDS_PER_FRAME};
use highwater_units::{Pfn, Prng, RUN_PAGES_MAX, SpaceId, Vpn};

const SPACE: SpaceId = SpaceId(0);
const PAGES: u64 = 64;
const FRAMES: u32 = 48;

pub(super) fn check<W: World>(world: &W) {
    let platform = world.platform();
    let all: Vec<Pfn> = (0..FRAMES).map(Pfn).collect();
    platform.populate(&all).expect("memory within the budget");
    platform.attach(SPACE, PAGES).expect("address space");
    platform.attach(SpaceId(1), PAGES).expect("address space for another");
    contents_go_and_come_back(world);
    written_after_permission(world);
    busy_pages_can_be_copied_and_dropped(world);
    occupied_pages_stop_a_run(world);
    vanished_pages_stop_a_run(world);
    random_runs_match_a_model(world);
}

fn page(space: SpaceId, first: Vpn, index: usize, pfn: Pfn) -> Mapped {
    Mapped { space, vpn: first.offset(index as u64), pfn }
}

/// Whether the platform has its own page tables, which can differ from the manager's view.
fn is_real<W: World>(world: &W) -> bool {
    world.platform().recency() == Recency::Unmapping
}

/// Adjacent and scattered frames in one run.
fn contents_go_and_come_back<W: World>(world: &W) {
    let (platform, first) = (world.platform(), Vpn(3));
    let frames = [5, 6, 7, 2, 30, 31, 11, 9, 10].map(Pfn);
    frames.iter().for_each(|pfn| fill(&*platform, *pfn, 1));
    let mapped = platform.map(SPACE, first, &frames, Protection::ReadWrite);
    assert_eq!(mapped, Progress::all(frames.len()));
    for (index, pfn) in frames.iter().enumerate() {
        let page = page(SPACE, first, index, *pfn);
        assert!(platform.holds(SPACE, page.vpn), "{page:?} is mapped");
        for word in 0..WORDS_PER_FRAME {
            assert_eq!(world.load(page, word), pattern(1, pfn.0, word), "{page:?}");
            world.store(page, word, pattern(2, pfn.0, word));
        }
    }
    assert_eq!(platform.unmap(SPACE, first, &frames), Progress::all(frames.len()));
    for (index, pfn) in frames.iter().enumerate() {
        assert_filled(&*platform, *pfn, *pfn, 2);
        let gone = !platform.holds(SPACE, first.offset(index as u64));
        assert!(gone || !is_real(world), "an unmapped page is not there");
    }
}

fn written_after_permission<W: World>(world: &W) {
    let (platform, first) = (world.platform(), Vpn(20));
    let frames = [1, 2, 3, 20].map(Pfn);
    frames.iter().for_each(|pfn| fill(&*platform, *pfn, 3));
    let mapped = platform.map(SPACE, first, &frames, Protection::ReadOnly);
    assert_eq!(mapped, Progress::all(frames.len()));
    let second = page(SPACE, first, 1, frames[1]);
    assert_eq!(world.load(second, 9), pattern(3, 2, 9));
    platform.allow_write(SPACE, second.vpn, 1);
    world.store(second, 9, 77);
    assert_eq!(world.load(second, 9), 77);
    assert_eq!(platform.unmap(SPACE, first, &frames), Progress::all(frames.len()));
    assert_eq!(platform.load(frames[1], 9), 77);
    platform.store(frames[1], 9, pattern(3, 2, 9));
    frames.iter().for_each(|pfn| assert_filled(&*platform, *pfn, *pfn, 3));
}

fn busy_pages_can_be_copied_and_dropped<W: World>(world: &W) {
    let (platform, vpn) = (world.platform(), Vpn(30));
    let [from, to] = [4, 8].map(Pfn);
    fill(&*platform, from, 4);
    platform.map(SPACE, vpn, &[from], Protection::ReadWrite);
    platform.copy(SPACE, vpn, from, to);
    assert_filled(&*platform, to, from, 4);
    let there = page(SPACE, vpn, 0, from);
    assert_eq!(world.load(there, 100), pattern(4, from.0, 100), "a copy leaves the page");
    platform.discard(SPACE, vpn, from);
    assert!(!platform.holds(SPACE, vpn) || !is_real(world));
    fill(&*platform, from, 5);
    assert_eq!(platform.map(SPACE, vpn, &[from], Protection::ReadWrite), Progress::all(1));
    assert_eq!(world.load(there, 100), pattern(5, from.0, 100));
    assert_eq!(platform.unmap(SPACE, vpn, &[from]), Progress::all(1));
}

fn occupied_pages_stop_a_run<W: World>(world: &W) {
    let (platform, first) = (world.platform(), Vpn(40));
    if !is_real(world) {
        return;
    }
    let frames = [12, 13, 14, 15].map(Pfn);
    frames.iter().for_each(|pfn| fill(&*platform, *pfn, 6));
    fill(&*platform, Pfn(16), 6);
    platform.map(SPACE, first.offset(2), &[Pfn(16)], Protection::ReadWrite);
    let mapped = platform.map(SPACE, first, &frames, Protection::ReadWrite);
    assert_eq!(mapped, Progress::until(2, Stop::Occupied));
    frames[2..].iter().for_each(|pfn| assert_filled(&*platform, *pfn, *pfn, 6));
    let in_place = [Pfn(12), Pfn(13), Pfn(16)];
    assert_eq!(platform.unmap(SPACE, first, &in_place), Progress::all(3));
    in_place.iter().for_each(|pfn| assert_filled(&*platform, *pfn, *pfn, 6));
}

fn vanished_pages_stop_a_run<W: World>(world: &W) {
    let (platform, first) = (world.platform(), Vpn(50));
    let frames = [12, 13, 14, 40, 15].map(Pfn);
    for gone in 0..frames.len() {
        frames.iter().for_each(|pfn| fill(&*platform, *pfn, 7));
        platform.map(SPACE, first, &frames, Protection::ReadWrite);
        if !world.drop_page(page(SPACE, first, gone, frames[gone])) {
            platform.unmap(SPACE, first, &frames);
            return;
        }
        assert!(!platform.holds(SPACE, first.offset(gone as u64)));
        let progress = platform.unmap(SPACE, first, &frames);
        assert_eq!(progress, Progress::until(gone, Stop::Vanished));
        let rest = platform.unmap(SPACE, first.offset(gone as u64 + 1), &frames[gone + 1..]);
        assert_eq!(rest, Progress::all(frames.len() - gone - 1));
        for (index, pfn) in frames.iter().enumerate().filter(|(index, _)| *index != gone) {
            assert_filled(&*platform, *pfn, *pfn, 7);
            assert!(!platform.holds(SPACE, first.offset(index as u64)));
        }
        fill(&*platform, frames[gone], 8);
        assert_filled(&*platform, frames[gone], frames[gone], 8);
    }
}

/// The frames, where they are mapped, and the value of their words.
struct Model<'a, W> {
    world: &'a W,
    values: Vec<u64>,
    /// By space and page.
    mapped: [Vec<Option<(Pfn, Protection)>>; 2],
    free: Vec<Pfn>,
}

impl<W: World> Model<'_, W> {
    fn map(&mut self, random: &mut Prng) {
        let (space, first) = (random.below(2) as usize, random.below(PAGES) as usize);
        let room = self.mapped[space][first..].iter().take_while(|page| page.is_none()).count();
        let len = room.min(self.free.len()).min(1 + random.below(RUN_PAGES_MAX as u64) as usize);
        if random.percent(50) {
            self.free.sort_unstable_by(|a, b| b.cmp(a));
        }
        let frames: Vec<Pfn> = (0..len).filter_map(|_| self.free.pop()).collect();
        let writable = random.percent(60);
        let protection = if writable { Protection::ReadWrite } else { Protection::ReadOnly };
        let (id, vpn) = (SpaceId(space as u16), Vpn(first as u64));
        if len > 0 {
            let progress = self.world.platform().map(id, vpn, &frames, protection);
            assert_eq!(progress, Progress::all(len));
        }
        for (place, pfn) in self.mapped[space][first..].iter_mut().zip(frames) {
            *place = Some((pfn, protection));
        }
    }

    fn unmap(&mut self, random: &mut Prng) {
        let (space, first) = (random.below(2) as usize, random.below(PAGES) as usize);
        let most = 1 + random.below(RUN_PAGES_MAX as u64) as usize;
        let pages = self.mapped[space][first..].iter().map_while(|page| *page).take(most);
        let frames: Vec<Pfn> = pages.map(|(pfn, _)| pfn).collect();
        if frames.is_empty() {
            return;
        }
        let (id, vpn) = (SpaceId(space as u16), Vpn(first as u64));
        let progress = self.world.platform().unmap(id, vpn, &frames);
        assert_eq!(progress, Progress::all(frames.len()));
        self.mapped[space][first..first + frames.len()].fill(None);
        for pfn in &frames {
            let word = pfn.index() % WORDS_PER_FRAME;
            assert_eq!(self.world.platform().load(*pfn, word), self.values[pfn.index()]);
        }
        self.free.extend(frames);
    }

    fn touch(&mut self, random: &mut Prng) {
        let (space, at) = (random.below(2) as usize, random.below(PAGES) as usize);
        let Some((pfn, protection)) = self.mapped[space][at] else { return };
        let page = page(SpaceId(space as u16), Vpn(at as u64), 0, pfn);
        let (word, value) = (pfn.index() % WORDS_PER_FRAME, random.next_u64());
        assert_eq!(self.world.load(page, word), self.values[pfn.index()], "{page:?}");
        if random.percent(50) {
            if protection == Protection::ReadOnly {
                self.world.platform().allow_write(page.space, page.vpn, 1);
                self.mapped[space][at] = Some((pfn, Protection::ReadWrite));
            }
            self.world.store(page, word, value);
            self.values[pfn.index()] = value;
        }
    }

    fn store_unmapped(&mut self, random: &mut Prng) {
        if !self.free.is_empty() {
            let pfn = self.free[random.below(self.free.len() as u64) as usize];
            let (word, value) = (pfn.index() % WORDS_PER_FRAME, random.next_u64());
            self.world.platform().store(pfn, word, value);
            self.values[pfn.index()] = value;
        }
    }
}

fn random_runs_match_a_model<W: World>(world: &W) {
    let mut random = Prng::new(1);
    let free: Vec<Pfn> = (0..FRAMES).map(Pfn).collect();
    world.platform().zero(&free);
    let mapped = [vec![None; PAGES as usize], vec![None; PAGES as usize]];
    let mut model = Model { world, values: vec![0; FRAMES as usize], mapped, free };
    for _ in 0..6000 {
        match random.below(6) {
            0 => model.map(&mut random),
            1 => model.unmap(&mut random),
            2..5 => model.touch(&mut random),
            _ => model.store_unmapped(&mut random),
        }
    }
}
