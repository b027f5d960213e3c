//! Which page next: the generators of pmbench.
//!
//! ```text
//! Pattern::Uniform      rnd % n            Pattern::Normal   mean of 12 uniforms (Irwin-Hall)
//! Pattern::Sequential   stride 1 from a start of the thread's own, wrapping
//! Pattern::Zipf         few pages often, most seldom (zipf.rs); not one of pmbench's
//! ```

use super::lcg::Lcg;
use super::zipf::Zipf;
use highwater_units::Prng;

/// The order in which pages are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All pages alike.
    Uniform,
    /// Around the middle page, with a standard deviation of a twelfth of the set.
    Normal,
    /// One after the other.
    Sequential,
    /// By popularity, as YCSB: Zipf's law with exponent 0.99, popular pages all over the set.
    Zipf,
}

/// One thread's stream of pages.
#[derive(Clone, Debug)]
pub struct Pages {
    pattern: Pattern,
    pages: u64,
    zipf: Zipf,
    random: Lcg,
    next: u64,
}

impl Pages {
    /// The stream of thread `index` of `threads` over pages 0 to `pages` - 1.
    pub fn new(pattern: Pattern, pages: u64, random: Lcg, index: u64, threads: u64) -> Pages {
        assert!((1..=1 << 31).contains(&pages), "a draw has 31 bits");
        let next = (u128::from(pages) * u128::from(index) / u128::from(threads)) as u64;
        Pages { pattern, pages, zipf: Zipf::new(pages), random, next }
    }

    /// The next page.
    pub fn draw(&mut self) -> u64 {
        match self.pattern {
            Pattern::Uniform => self.random.below(self.pages),
            Pattern::Normal => (0..12).map(|_| self.random.below(self.pages)).sum::<u64>() / 12,
            Pattern::Sequential => {
                let page = self.next;
                self.next = if page + 1 == self.pages { 0 } else { page + 1 };
                page
            }
            Pattern::Zipf => self.zipf.draw(&mut self.random),
        }
    }
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Load this word.
    Load(usize),
    /// Store where the history says this thread stores next in the page.
    Store,
}

/// One thread's stream of accesses, the same for the same seed and thread.
#[derive(Clone, Debug)]
pub struct Stream {
    pages: Pages,
    words: Lcg,
    dice: Lcg,
    read_percent: u32,
}

impl Stream {
    /// The stream of thread `index` of `threads`, with `read_percent` of 100 accesses loads.
    pub fn new(
        pattern: Pattern,
        pages: u64,
        read_percent: u32,
        seed: u64,
        thread: ThreadIndex,
    ) -> Stream {
        let mut seeds = Prng::new(seed ^ thread.index.wrapping_mul(0xd134_2543_de82_ef95));
        let mut lcg = || Lcg::new(seeds.next_u64());
        Stream {
            pages: Pages::new(pattern, pages, lcg(), thread.index, thread.of),
            words: lcg(),
            dice: lcg(),
            read_percent,
        }
    }

    /// The next access: a page, and what to do there.
    pub fn draw(&mut self) -> (u64, Operation) {
        let page = self.pages.draw();
        let operation = if self.dice.dice(self.read_percent) {
            Operation::Load(self.words.below(super::WORDS as u64) as usize)
        } else {
            Operation::Store
        };
        (page, operation)
    }
}

/// The index of a thread among all threads of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadIndex {
    /// From 0.
    pub index: u64,
    /// How many threads there are.
    pub of: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pattern: Pattern, count: u64, thread: ThreadIndex) -> Pages {
        Pages::new(pattern, count, Lcg::new(7), thread.index, thread.of)
    }

    const ONLY: ThreadIndex = ThreadIndex { index: 0, of: 1 };

    #[test]
    fn uniform_visits_all_pages_alike() {
        const PAGES: usize = 1000;
        let mut stream = pages(Pattern::Uniform, PAGES as u64, ONLY);
        let mut seen = [0_u64; PAGES];
        (0..100 * PAGES).for_each(|_| seen[stream.draw() as usize] += 1);
        let chi_square: f64 = seen.iter().map(|&n| (n as f64 - 100.0).powi(2) / 100.0).sum();
        // 999 degrees of freedom: mean 999, sigma 45; five sigma either way.
        assert!((775.0..1225.0).contains(&chi_square), "{chi_square}");
    }

    #[test]
    fn normal_has_its_mean_and_deviation() {
        let (pages_, draws) = (120_000_u64, 100_000);
        let mut stream = pages(Pattern::Normal, pages_, ONLY);
        let drawn: Vec<f64> = (0..draws).map(|_| stream.draw() as f64).collect();
        let mean = drawn.iter().sum::<f64>() / f64::from(draws);
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(draws);
        assert!((59_700.0..60_300.0).contains(&mean), "{mean}");
        assert!((9_800.0..10_200.0).contains(&variance.sqrt()), "{}", variance.sqrt());
        let within = drawn.iter().filter(|&&x| (x - mean).abs() < 10_000.0).count();
        assert!((67_000..70_000).contains(&within), "{within} of {draws} within a sigma");
    }

    #[test]
    fn sequential_starts_apart_and_wraps() {
        let mut second = pages(Pattern::Sequential, 6, ThreadIndex { index: 1, of: 2 });
        let order: Vec<u64> = (0..8).map(|_| second.draw()).collect();
        assert_eq!(order, [3, 4, 5, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_stream_is_fixed_by_seed_and_thread() {
        let draw = |seed, index| {
            let mut stream =
                Stream::new(Pattern::Uniform, 5000, 80, seed, ThreadIndex { index, of: 4 });
            (0..1000).map(|_| stream.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3, 1), draw(3, 1));
        assert_ne!(draw(3, 1), draw(4, 1));
        assert_ne!(draw(3, 1), draw(3, 2));
        let loads =
            draw(3, 0).iter().filter(|(_, operation)| *operation != Operation::Store).count();
        assert!((740..860).contains(&loads), "{loads} of 1000 at 80%");
    }
}
