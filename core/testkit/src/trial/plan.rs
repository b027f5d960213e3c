//! The parameters of a trial, drawn from a seed. Some operations are off and some are heavy, so
//! that runs differ in kind (swarm testing; Groce et al., 2012).

use highwater_mm::SPACES_MAX;
use highwater_mm::config::history::{
    CompactHistory, DirectNodes, ReadaheadBy, ReclaimHistory, SwapHistory,
};
use highwater_mm::config::{Config, FILE_WINDOW_MAX, KhugepagedConfig, KswapdThreads, Readahead};
use highwater_mm::inspect::ORDER_MAX;
use highwater_units::{LARGE_PAGES, Nanos, Order, Prng};

/// The most users of a trial: each has a private space and a spare one.
pub const THREADS_MAX: usize = (SPACES_MAX - 4) / 2;

/// Whether accesses may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failures {
    /// None: an error ends the trial.
    None,
    /// Devices fail or are full: accesses may return errors, but no contents are lost.
    Allowed,
}

/// An operation of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads its words of a shared page, and perhaps writes them.
    Shared,
    /// Reads, and perhaps writes, a private page.
    Private,
    /// Reads, and perhaps writes, a page that any user may drop.
    Volatile,
    /// Reads and writes 16 shared pages in sequence.
    SharedStream,
    /// Reads and writes private pages in sequence.
    PrivateStream,
    /// Drops a range of volatile pages.
    DropVolatile,
    /// Drops a private range.
    DropPrivate,
    /// Moves a private range.
    MovePrivate,
    /// Uses a page while it pins another; does nothing if pages cannot be pinned.
    HoldTwo,
    /// Copies a space, and checks the copy.
    Copy,
    /// Uses a page of the file.
    File,
    /// Uses pages of the file one after the other ([`Plan::file_stream`]).
    FileStream,
    /// Writes a range of the file back.
    WriteBack,
    /// Writes back and drops a file page that it owns, and checks it.
    DropFile,
    /// Checks that the manager's statistics are plausible.
    Observe,
}

impl Operation {
    /// All operations, in the order of their values.
    pub const ALL: [Operation; 15] = [
        Operation::Shared,
        Operation::Private,
        Operation::Volatile,
        Operation::SharedStream,
        Operation::PrivateStream,
        Operation::DropVolatile,
        Operation::DropPrivate,
        Operation::MovePrivate,
        Operation::HoldTwo,
        Operation::Copy,
        Operation::File,
        Operation::FileStream,
        Operation::WriteBack,
        Operation::DropFile,
        Operation::Observe,
    ];

    /// Its weight in the usual mix.
    fn usual(self) -> u64 {
        match self {
            Operation::Shared => 30,
            Operation::Private | Operation::Volatile | Operation::File => 20,
            Operation::SharedStream | Operation::PrivateStream | Operation::FileStream => 5,
            Operation::DropVolatile | Operation::DropPrivate | Operation::DropFile => 3,
            Operation::MovePrivate | Operation::HoldTwo => 6,
            Operation::Copy | Operation::Observe | Operation::WriteBack => 2,
        }
    }
}

/// The relative weights of the operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix([u64; Operation::ALL.len()]);

impl Mix {
    /// Some of every operation, mostly accesses.
    pub fn usual() -> Mix {
        Mix(Operation::ALL.map(Operation::usual))
    }

    /// Some operations off, some heavy.
    pub fn draw(random: &mut Prng) -> Mix {
        let mut mix = Mix(Operation::ALL.map(|operation| match random.below(4) {
            0 => 0,
            1 => operation.usual() * (2 + random.below(8)),
            _ => operation.usual(),
        }));
        // A copy covers all pages of a space: with a larger weight a trial would only copy.
        let others: u64 = mix.0.iter().sum::<u64>() - mix.get(Operation::Copy);
        mix.set(Operation::Copy, mix.get(Operation::Copy).min(others / 30));
        // At least one writing operation, or the trial checks nothing.
        if [Operation::Shared, Operation::Private, Operation::Volatile].map(|o| mix.get(o))
            == [0; 3]
        {
            mix.set(Operation::Shared, Operation::Shared.usual());
        }
        mix
    }

    /// The weight of an operation.
    pub fn get(&self, operation: Operation) -> u64 {
        self.0[operation as usize]
    }

    /// Sets the weight of an operation; 0: never. At least one weight must not be 0.
    pub fn set(&mut self, operation: Operation, weight: u64) {
        self.0[operation as usize] = weight;
    }

    /// Draws an operation by weight.
    pub(super) fn choose(&self, random: &mut Prng) -> Operation {
        let mut at = random.below(self.0.iter().sum());
        let drawn = Operation::ALL.into_iter().find(|operation| {
            let weight = self.get(*operation);
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        drawn.expect("below the sum of all weights")
    }
}

/// The fewest frames of a plan with folios: room for some, and for small pages.
pub const LARGE_FRAMES_MIN: u64 = 4 * LARGE_PAGES as u64;

/// The fewest frames of a plan with a balloon: pinned pages need the frames of smaller ones.
const BALLOON_FRAMES_MIN: u64 = 256;

/// The folios of a plan, used if the program uses guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolioPlan {
    /// Their order.
    pub order: Order,
    /// Their number; 0: none.
    pub pages: u64,
    /// How often a user uses one, per 1000 steps.
    pub often: u64,
}

impl FolioPlan {
    /// None.
    pub const NONE: FolioPlan = FolioPlan { order: Order(0), pages: 0, often: 0 };

    /// In every second plan, folios of up to a quarter of the frames: scattered used slots may keep
    /// them in memory, and other pages need frames too.
    fn draw(seed: u64, frames: u64) -> FolioPlan {
        let mut random = Prng::new(seed ^ 0xf011);
        if random.percent(50) {
            return FolioPlan::NONE;
        }
        let largest = u64::from((frames / 32).max(1).ilog2()).min(ORDER_MAX.0.into());
        let order = Order(random.below(largest + 1) as u8);
        let pages = 4 + random.below(1 + ((frames / 8) >> order.0));
        FolioPlan { order, pages, often: 1 + random.below(300) }
    }
}

/// The parameters of a trial. The platform determines frames and devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Users, 1 to [`THREADS_MAX`]; each may pin two frames, and isolate more in direct reclaim.
    pub threads: usize,
    /// The settings of the manager.
    pub config: Config,
    /// Pages of each space.
    pub pages: u64,
    /// Steps of each user.
    pub steps: usize,
    /// The weights of the users' operations.
    pub mix: Mix,
    /// How often the first user changes the number of kswapd threads, per 1000 steps.
    pub changes: u64,
    /// How often the first user inflates or deflates the balloon, per 1000 steps.
    pub resizes: u64,
    /// Frames that the balloon takes at most.
    pub balloon: u64,
    /// How often the first user begins to remove a swap device, per 1000 steps.
    pub removals: u64,
    /// How often a user migrates the pages of some frames, per 1000 steps.
    pub migrations: u64,
    /// How often a user requests large pages in a space, per 1000 steps.
    pub collapses: u64,
    /// Pages of a stream in the file.
    pub file_stream: u64,
    /// How often the first user truncates the file, per 1000 steps.
    pub truncations: u64,
    /// How often a user allocates or frees a run of frames, per 1000 steps.
    pub runs: u64,
    /// The most frames in runs, for all users together.
    pub run_frames: u64,
    /// How often a user allocates or frees an object, per 1000 steps.
    pub objects: u64,
    /// The folios.
    pub folios: FolioPlan,
    /// Whether accesses may fail.
    pub failures: Failures,
    /// Time limit of an access, and of other calls per page they cover; `None`: no limit.
    pub latency_max: Option<Nanos>,
}

/// Draws whether memory is compacted, and by which kernel's algorithm.
fn draw_compaction(config: &mut Config, random: &mut Prng) {
    let way = random.below(7) as usize;
    config.compact = way != 0;
    config.history.compact = CompactHistory::ALL.get(way.wrapping_sub(1)).copied();
}

impl Plan {
    /// Draws a plan for a platform of `frames` frames (at least 40): up to 16 users, but at most an
    /// eighth of the frames, and spaces of up to twice the frames. Half of the plans use the usual
    /// mix.
    pub fn draw(seed: u64, frames: u64, steps: usize) -> Plan {
        let mut random = Prng::new(seed ^ 0x7121_a100);
        let threads = 1 + random.below((frames / 8).clamp(1, 16)) as usize;
        let pages = 20 + random.below(frames * 2);
        let mix = if random.percent(50) { Mix::usual() } else { Mix::draw(&mut random) };
        let mut config = draw_config(&mut random, frames);
        // A separate sequence, so that existing seeds keep their plans.
        if frames >= LARGE_FRAMES_MIN && Prng::new(seed ^ 0x1a46).percent(75) {
            config.large_pages = true;
        }
        let mut huge = Prng::new(seed ^ 0x6b68_7567);
        config.khugepaged = KhugepagedConfig::draw(&mut huge);
        let collapses = if huge.percent(75) { 1 + huge.below(30) } else { 0 };
        let mut apart = Prng::new(seed ^ 0x5ea7_0000);
        if apart.percent(25) {
            config.kswapd_threads = KswapdThreads::Auto;
        }
        let mut parts = Prng::new(seed ^ 0x20e5);
        config.zone_parts = parts.percent(75).then(|| 1 + parts.below(6) as u32);
        let changes = if apart.percent(50) { 1 + apart.below(100) } else { 0 };
        let mut writes = Prng::new(seed ^ 0x0b0c);
        config.kswapd_writes = writes.percent(75).then(|| writes.below(4) as usize);
        if Prng::new(seed ^ 0x9ead).percent(25) {
            config.prefetch = false;
        }
        let mut files = Prng::new(seed ^ 0xf11e);
        if files.percent(50) {
            config.file_readahead = files.below(1 + FILE_WINDOW_MAX as u64) as usize;
        }
        config.readahead_threads = files.percent(25).then(|| 1 + files.below(3) as usize);
        if Prng::new(seed ^ 0x4eade4).percent(50) {
            config.history.readahead_by = ReadaheadBy::Reader;
        }
        let file_stream = if files.percent(50) { 16 } else { 16 + files.below(100) };
        let mut cuts = Prng::new(seed ^ 0x7c07);
        let truncations = if cuts.percent(25) { 1 + cuts.below(20) } else { 0 };
        let mut blocks = Prng::new(seed ^ 0xb10c);
        let runs = if blocks.percent(50) { 1 + blocks.below(200) } else { 0 };
        let mut moves = Prng::new(seed ^ 0x3160);
        let migrations = if moves.percent(60) { 1 + moves.below(400) } else { 0 };
        if blocks.percent(50) {
            draw_compaction(&mut config, &mut blocks);
        }
        let mut small = Prng::new(seed ^ 0x0b1e);
        let objects = if small.percent(50) { 1 + small.below(400) } else { 0 };
        config.draw_slab(&mut small);
        let mut resizes = Prng::new(seed ^ 0xba11);
        let resizes = if resizes.percent(50) { 1 + resizes.below(100) } else { 0 };
        Plan {
            threads,
            config,
            pages,
            steps,
            mix,
            changes,
            resizes,
            removals: draw_removals(seed),
            balloon: if frames < BALLOON_FRAMES_MIN { 0 } else { frames / 4 },
            migrations,
            collapses,
            file_stream,
            truncations,
            runs,
            run_frames: frames / 8,
            objects,
            folios: FolioPlan::draw(seed, frames),
            failures: Failures::None,
            latency_max: None,
        }
    }

    /// The swap slots with which no access fails: room for all spaces and as many copies.
    pub fn slots(&self) -> u64 {
        // Runs of slots are aligned, and other slots lie between them.
        let folios = 4 * (self.folios.pages << self.folios.order.0);
        (3 * self.pages * self.spaces() as u64 + folios).max(256)
    }

    /// The spaces that the trial adds, without the file's.
    pub(super) fn spaces(&self) -> usize {
        2 + 2 * self.threads
    }
}

/// Draws how often devices are removed: in half of the plans.
fn draw_removals(seed: u64) -> u64 {
    let mut random = Prng::new(seed ^ 0x0ff5);
    if random.percent(50) { 1 + random.below(200) } else { 0 }
}

/// Draws settings: often the defaults, with watermarks of at most about half of the frames.
fn draw_config(random: &mut Prng, frames: u64) -> Config {
    let kswapd_threads = KswapdThreads::Fixed(1 + random.below(4) as usize);
    let mut usual = Config { kswapd_threads, ..Config::default() };
    // A separate sequence, so that existing seeds keep their other settings.
    let mut apart = Prng::new(random.clone().below(u64::MAX) ^ 0xd1ec);
    usual.history.reclaim.direct_reclaim = ReclaimHistory::draw_direct_reclaim(&mut apart);
    usual.history.pcp_batch = apart.percent(25).then(|| 1 + apart.below(63) as u16);
    if apart.percent(25) {
        usual.history.reclaim.direct_nodes = DirectNodes::All;
    }
    if random.percent(50) {
        return usual;
    }
    let min_free = random.percent(50).then(|| 1 + random.below(frames / 8) as u32);
    let watermark_scale = Some(1 + random.below(1000) as u32);
    let window_max = 1 + random.below(16) as usize;
    usual.history.swap = SwapHistory::draw(random);
    usual.readahead = Readahead::ALL[random.below(4) as usize];
    let swappiness = [0, 60, 100, 200, random.below(201) as u32][random.below(5) as usize];
    usual.history.reclaim.shadows = random.below(2) == 1;
    let lru_shards = random.percent(50).then(|| 1 + random.below(6) as u32);
    let [dirty_background_ratio, dirty_ratio] = draw_dirty_ratios(random);
    let usual = Config { lru_shards, dirty_background_ratio, dirty_ratio, ..usual };
    Config { min_free, watermark_scale, window_max, swappiness, ..usual }
}

/// Draws the dirty ratios, from a separate sequence so that existing seeds keep their plans.
fn draw_dirty_ratios(random: &Prng) -> [u32; 2] {
    let mut own = Prng::new(random.clone().next_u64() ^ 0xd127);
    [[10, 20], [0, 1], [100, 100], [own.below(101) as u32, own.below(101) as u32]]
        [own.below(4) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_mm::inspect::Watermarks;

    #[test]
    fn drawn_plans_are_valid() {
        for seed in 0..2000 {
            let frames = 40 + seed % 500;
            let plan = Plan::draw(seed, frames, 1);
            assert!(plan.threads <= THREADS_MAX && plan.threads as u64 * 2 < frames, "{plan:?}");
            let (config, all) = (&plan.config, frames as u32);
            let marks = Watermarks::new(all, all, config.min_free, config.watermark_scale);
            assert!(marks.high < all / 2, "{plan:?}: {marks:?}");
            assert!((1..=16).contains(&config.window_max), "{plan:?}");
        }
    }

    #[test]
    fn drawn_mixes_differ_and_always_write() {
        let mut off = [0; Operation::ALL.len()];
        for seed in 0..400 {
            let mix = Mix::draw(&mut Prng::new(seed));
            Operation::ALL.into_iter().filter(|o| mix.get(*o) == 0).for_each(|o| {
                off[o as usize] += 1;
            });
            let drawn = |operation| mix.get(operation) > 0;
            assert!(
                [Operation::Shared, Operation::Private, Operation::Volatile].map(drawn)
                    != [false; 3]
            );
            let all: u64 = mix.0.iter().sum();
            assert!(mix.get(Operation::Copy) * 30 <= all, "{mix:?}");
        }
        assert!(off.iter().all(|count| (20..300).contains(count)), "{off:?}");
    }

    #[test]
    fn operations_are_drawn_by_weight() {
        let mut mix = Mix(Default::default());
        mix.set(Operation::Private, 3);
        mix.set(Operation::Observe, 1);
        let (mut random, mut counts) = (Prng::new(5), [0; Operation::ALL.len()]);
        (0..4000).for_each(|_| counts[mix.choose(&mut random) as usize] += 1);
        let (private, observe) =
            (counts[Operation::Private as usize], counts[Operation::Observe as usize]);
        assert_eq!(private + observe, 4000, "what has no weight is never drawn: {counts:?}");
        assert!((2800..3200).contains(&private), "{counts:?}");
    }

    #[test]
    fn values_are_indices() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
    }
}
