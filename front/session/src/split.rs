//! How much of a process's memory the fast level of its tier takes: at most half of it, and less
//! where the frames of that level would save more if resident pages had them.
//!
//! ```text
//! pages by the evictions since their own, as if they were one list:
//!
//!   | resident: frames | fast level: frames x ratio, of pages that go there | slow level ...
//!
//! Window::cost   what the faults of a window would have cost with another division
//! Split          moves once the windows have cost so much more than another division would have
//!                that this pays for the move
//! ```
//! The distance of a read counts evictions. Some of the pages evicted meanwhile have returned; the
//! number of the others is the page's depth in the list behind the resident pages. No other
//! statistics are needed for a larger resident part. A smaller one would also miss pages that are
//! resident now: they are assumed to be read as often as pages at the same depth behind its end.
//!
//! `Window` and `Split` calculate from the counts alone, so that tests need no machine.

/// Divisions are in steps of one part in this many of the memory; the fast level has at most half.
const PARTS: u64 = 8;
const CHOICES: usize = PARTS as usize / 2 + 1;
/// Percent of its limit down to which the fast level writes pages back: a fast level that holds
/// less needs no higher limit.
const FULL_PERCENT: u64 = 80;

/// Costs of faults, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A fault whose page is on the fast level.
    pub fast: f64,
    /// A fault whose page is on the slow level.
    pub slow: f64,
}

/// Least distance, width and number of reads of each bucket of a histogram, in ascending order.
pub type Distances = Vec<(u64, u64, u64)>;

/// Reads from both levels in some time, and the memory that there was.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Pages evicted between the eviction of a page and its read; a sample of the reads.
    pub distances: Distances,
    /// All pages read.
    pub read: u64,
    /// All pages evicted.
    pub evicted: u64,
    /// Share of the evicted pages that the fast level would take: they are written, and compress.
    pub small: f64,
    /// Share of the evicted pages that the fast level takes without memory: one word fills them.
    pub filled: f64,
    /// Pages that take memory, for each frame of the fast level.
    pub ratio: f64,
    /// Frames of the fast level.
    pub fast: u64,
    /// Costs of the reads.
    pub costs: Costs,
}

impl Window {
    /// The cost of the window's faults if the fast level had had `fast` frames, and resident pages
    /// the other frames.
    fn cost(&self, fast: u64) -> f64 {
        let more = self.fast as f64 - fast as f64;
        let taking = (self.small - self.filled).max(f64::MIN_POSITIVE);
        let reach = fast as f64 * self.ratio / taking;
        let beyond = |depth: f64| {
            let small = if depth <= reach { self.small } else { self.filled };
            small * self.costs.fast + (1.0 - small) * self.costs.slow
        };
        let cost = |(depth, reads): (f64, f64)| {
            let read = if depth > more { beyond(depth - more) } else { 0.0 };
            let newly_missed = if depth <= -more { beyond(depth) } else { 0.0 };
            reads * (read + newly_missed)
        };
        self.depths().map(cost).sum()
    }

    /// Depth and number of the reads of each bucket.
    fn depths(&self) -> impl Iterator<Item = (f64, f64)> {
        let samples: u64 = self.distances.iter().map(|(.., count)| count).sum();
        let weight = self.read as f64 / samples.max(1) as f64;
        let returning = weight / self.evicted.max(1) as f64;
        let (mut seen, mut depth) = (0.0, 0.0);
        self.distances.iter().map(move |(_, width, count)| {
            let count = *count as f64;
            let left = (1.0 - returning * (seen + count / 2.0)).max(0.0);
            let pages = left * *width as f64;
            seen += count;
            depth += pages;
            (depth - pages / 2.0, count * weight)
        })
    }

    /// The cost of the move: pages that the fast level gives up are read back once from the slow
    /// level, and so are the pages whose frames the fast level gets.
    fn cost_of_move(&self, fast: u64) -> f64 {
        let frames = self.fast.abs_diff(fast) as f64;
        let pages = if fast < self.fast { frames * self.ratio } else { frames };
        pages * self.costs.slow
    }
}

/// The present division of a process's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The limit of the fast level, in parts of the memory.
    parts: usize,
    /// For each choice, the nanoseconds that it would have saved since the last move. At least 0:
    /// an earlier phase of a program says little about the next one.
    regrets: [f64; CHOICES],
}

impl Default for Split {
    fn default() -> Split {
        Split { parts: CHOICES - 1, regrets: [0.0; CHOICES] }
    }
}

impl Split {
    /// The limit of the fast level, in frames, if that of half the memory is `half`.
    pub fn most(&self, half: u64) -> u64 {
        limit(self.parts, half)
    }

    /// Learns from a window, and moves if the regret pays for the move. So it costs at most about
    /// twice as much as a move at the right time would have.
    pub fn see(&mut self, window: &Window, half: u64) {
        let here = window.cost(window.fast);
        let mut best = (self.parts, 0.0);
        for parts in 0..CHOICES {
            let fast = self.frames_with(parts, window.fast, half);
            let regret = &mut self.regrets[parts];
            *regret = (*regret + here - window.cost(fast)).max(0.0);
            let gain = *regret - window.cost_of_move(fast);
            if gain > best.1 {
                best = (parts, gain);
            }
        }
        if best.0 != self.parts {
            *self = Split { parts: best.0, regrets: [0.0; CHOICES] };
        }
    }

    /// The frames that the fast level would have with another limit.
    fn frames_with(&self, parts: usize, fast: u64, half: u64) -> u64 {
        let is_full = fast * 100 >= self.most(half) * FULL_PERCENT;
        match limit(parts, half) {
            less if parts < self.parts => less.min(fast),
            more if parts > self.parts && is_full => more.max(fast),
            _ => fast,
        }
    }
}

fn limit(parts: usize, half: u64) -> u64 {
    half * parts as u64 / (PARTS / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the memory, in frames.
    const HALF: u64 = 8000;
    const COSTS: Costs = Costs { fast: 15_000.0, slow: 100_000.0 };

    /// Reads at these distances; each evicts a page. The fast level has `fast` frames.
    fn window(fast: u64, distances: Distances) -> Window {
        let read = distances.iter().map(|(.., count)| count).sum();
        let (small, filled, ratio) = (1.0, 0.0, 3.0);
        Window { distances, read, evicted: read, small, filled, ratio, fast, costs: COSTS }
    }

    /// All reads at one distance.
    fn at(distance: u64, reads: u64) -> Distances {
        vec![(0, distance, 0), (distance, 1, reads)]
    }

    /// Random reads among `pages` pages beyond the resident ones: any of them may be next.
    fn random(pages: u64, reads: u64) -> Distances {
        let width = pages / 16;
        let returned = |to: u64| 1.0 - (-((to * width) as f64) / pages as f64).exp();
        let count = |of: u64| (reads as f64 * (returned(of + 1) - returned(of))).round() as u64;
        (0..96).map(|of| (of * width, width, count(of))).collect()
    }

    /// The limit after this number of windows.
    fn after(split: Split, windows: u64, window: &Window) -> (u64, Split) {
        let mut split = split;
        (0..windows).for_each(|_| split.see(window, HALF));
        (split.most(HALF), split)
    }

    #[test]
    fn a_cycle_that_fits_in_all_memory_gets_it() {
        // 14,000 pages in turn, 8000 frames: each page is missed after 6000 others.
        let cycle = window(HALF, at(6000, 8192));
        let (most, _) = after(Split::default(), 100, &cycle);
        assert!(HALF - most >= 6000, "{most}");
        let (first, _) = after(Split::default(), 1, &cycle);
        assert_eq!(first, HALF, "one window does not pay for the move");
    }

    #[test]
    fn a_cycle_that_is_larger_leaves_the_fast_level_as_it_is() {
        let cycle = window(HALF, at(20_000, 8192));
        assert_eq!(after(Split::default(), 100, &cycle).0, HALF);
    }

    #[test]
    fn random_reads_of_twice_the_memory_leave_the_fast_level_most_of_its_half() {
        // 32,000 pages that compress: 8000 are resident, 24,000 in the fast level.
        let all = window(HALF, random(24_000, 8192));
        assert_eq!(after(Split::default(), 100, &all).0, HALF);
    }

    #[test]
    fn pages_that_one_word_fills_need_no_fast_level() {
        let filled = Window { filled: 1.0, ratio: 0.0, ..window(HALF, random(24_000, 8192)) };
        assert_eq!(after(Split::default(), 100, &filled).0, 0);
    }

    #[test]
    fn the_fast_level_grows_again_for_them() {
        let gone = Split { parts: 0, ..Split::default() };
        let none = window(0, random(16_000, 8192));
        let (most, _) = after(gone, 100, &none);
        assert!(most >= HALF / 2, "{most}");
    }

    #[test]
    fn a_fast_level_whose_pages_are_not_read_shrinks() {
        // Pages that are needed again soon, and a stream of pages that are not.
        let mut stream = window(HALF, random(2000, 8192));
        stream.evicted = 3 * stream.read;
        let (most, split) = after(Split::default(), 100, &stream);
        assert!(most <= HALF / 2, "{most}");
        let settled = Window { fast: most, distances: at(50_000, 8192), ..stream };
        assert_eq!(after(split, 100, &settled).0, most, "it stays");
    }

    #[test]
    fn where_nothing_compresses_it_makes_no_difference() {
        let large = Window { small: 0.0, ..window(0, random(20_000, 8192)) };
        assert_eq!(after(Split::default(), 100, &large).0, HALF, "it holds nothing");
    }

    #[test]
    fn equal_windows_do_not_move_it_to_and_fro() {
        for pages in [500, 2000, 8000, 20_000, 60_000] {
            let mut split = Split::default();
            let mut moves = 0;
            for _ in 0..1000 {
                let fast = split.most(HALF);
                // A random set is missed where it exceeds the resident pages.
                let missed = (HALF + pages).saturating_sub(2 * HALF - fast);
                if missed < 16 {
                    break;
                }
                let before = split.parts;
                split.see(&window(fast, random(missed, 8192)), HALF);
                moves += usize::from(split.parts != before);
            }
            assert!(moves < CHOICES, "{pages} pages: {moves} moves");
        }
    }
}
