//! Pages by popularity: the k-th most popular is drawn with a probability in proportion to k^-0.99.
//!
//! ```text
//! 53 random bits ──> rank (0 is the most popular) ──> page, by a permutation of all pages
//! ```
//! Ranks are drawn as in Gray et al., "Quickly generating billion-record synthetic databases"
//! (1994), with the exponent of YCSB. Ranks 0 and 1 have their exact probabilities; from there on
//! the distribution is the integral of x^-0.99, up to 0.02 above the sum (measured in the tests).

use super::lcg::Lcg;

/// The exponent.
const THETA: f64 = 0.99;
/// 0.5^[`THETA`]: how often rank 1 is drawn for each time that rank 0 is.
const SECOND: f64 = 0.503_477_775_028_359_4;
/// Terms of the harmonic number that are added one by one; the rest is an integral.
const TERMS: u64 = 64;
/// Moves rank 0 away from page 0. Fixed: all threads of all runs have the same popular pages.
const MOVED: u64 = 0x6a09_e667;
/// Odd numbers, by which multiplication can be undone.
const FACTORS: [u64; 2] = [0x7feb_352d, 0x846c_a68b];

/// Draws pages of a set, and has the constants that this takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zipf {
    pages: u64,
    /// The sum of k^-[`THETA`] over all ranks.
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// For pages 0 to `pages` - 1, of which there is at least one.
    pub(super) fn new(pages: u64) -> Zipf {
        let zeta = harmonic(pages);
        let eta = (1.0 - (2.0 / pages as f64).powf(1.0 - THETA)) / (1.0 - (1.0 + SECOND) / zeta);
        Zipf { pages, zeta, eta }
    }

    /// The next page.
    pub(super) fn draw(&self, random: &mut Lcg) -> u64 {
        scatter(self.rank(uniform(random)), self.pages)
    }

    /// The rank at a place of the distribution, from 0 to below 1.
    fn rank(&self, at: f64) -> u64 {
        let weight = at * self.zeta;
        if weight < 1.0 {
            return 0;
        }
        if weight < 1.0 + SECOND {
            return 1.min(self.pages - 1);
        }
        let share = (self.eta * at - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        ((self.pages as f64 * share) as u64).min(self.pages - 1)
    }
}

/// From 0 to below 1. It takes two draws, since with one the least popular pages of large sets
/// would never be drawn.
fn uniform(random: &mut Lcg) -> f64 {
    let bits = random.draw() << 22 | random.draw() >> 9;
    bits as f64 / (1_u64 << 53) as f64
}

/// The sum of k^-[`THETA`] for k from 1 to `count`: first terms, then the Euler-Maclaurin formula.
fn harmonic(count: u64) -> f64 {
    let first = count.min(TERMS);
    let sum: f64 = (1..=first).map(|k| (k as f64).powf(-THETA)).sum();
    let integral = |x: f64| x.powf(1.0 - THETA) / (1.0 - THETA);
    let correction = |x: f64| 0.5 * x.powf(-THETA) - THETA / 12.0 * x.powf(-THETA - 1.0);
    let rest = |x: u64| integral(x as f64) + correction(x as f64);
    sum + rest(count) - rest(first)
}

/// A permutation of 0 to `pages` - 1 in which neighbours are not close: of the next power of two,
/// repeated until it is one of these.
fn scatter(rank: u64, pages: u64) -> u64 {
    let bits = u64::BITS - (pages - 1).leading_zeros();
    let (mask, half) = ((1_u64 << bits) - 1, bits.div_ceil(2));
    let fold = |x: u64| x ^ (x >> half);
    let step = |x: u64| {
        let moved = x.wrapping_add(MOVED) & mask;
        FACTORS.iter().fold(fold(moved), |x, factor| fold(x.wrapping_mul(*factor) & mask))
    };
    let mut page = step(rank);
    while page >= pages {
        page = step(page);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_rank_and_neighbours_are_apart() {
        for pages in [1, 2, 3, 64, 1000, 1025, 131_072] {
            let mut seen: Vec<u64> = (0..pages).map(|rank| scatter(rank, pages)).collect();
            let near = seen.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < pages / 256);
            assert!(near.count() as u64 <= pages / 64, "{pages}");
            // The most popular pages are in all parts of the set.
            let part = |page: &u64| page * 16 / pages;
            let mut parts: Vec<_> = seen.iter().take(160).map(part).collect();
            parts.sort_unstable();
            parts.dedup();
            assert_eq!(parts.len() as u64, pages.min(16), "{pages}");
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..pages), "{pages}");
        }
    }

    #[test]
    fn the_harmonic_number_is_the_sum() {
        for count in [1, 2, 64, 65, 100, 131_072] {
            let sum: f64 = (1..=count).map(|k| (k as f64).powf(-THETA)).sum();
            assert!((harmonic(count) - sum).abs() < 1e-9, "{count}: {} {sum}", harmonic(count));
        }
        assert_eq!(SECOND, 0.5_f64.powf(THETA));
    }

    /// How often each rank is drawn, and how often it should be.
    fn drawn(pages: u64, draws: u64) -> (Vec<f64>, Vec<f64>) {
        let (zipf, mut random) = (Zipf::new(pages), Lcg::new(7));
        let mut rank_of = vec![0; pages as usize];
        (0..pages).for_each(|rank| rank_of[scatter(rank, pages) as usize] = rank);
        let mut counts = vec![0_u64; pages as usize];
        (0..draws).for_each(|_| counts[rank_of[zipf.draw(&mut random) as usize] as usize] += 1);
        let share = |count| count as f64 / draws as f64;
        let exact = |k: u64| (k as f64).powf(-THETA) / harmonic(pages);
        (counts.into_iter().map(share).collect(), (1..=pages).map(exact).collect())
    }

    #[test]
    fn ranks_are_drawn_with_their_probabilities() {
        const DRAWS: u64 = 1_000_000;
        for pages in [1000, 131_072] {
            let (found, exact) = drawn(pages, DRAWS);
            for rank in [0, 1] {
                let sigma = (exact[rank] * (1.0 - exact[rank]) / DRAWS as f64).sqrt();
                let off = (found[rank] - exact[rank]).abs();
                assert!(off < 5.0 * sigma, "rank {rank} of {pages}: {off} off");
            }
            let sums = found.iter().zip(&exact).scan((0.0, 0.0), |sum, (found, exact)| {
                *sum = (sum.0 + found, sum.1 + exact);
                Some(*sum)
            });
            for (rank, (found, exact)) in sums.enumerate() {
                let above = found - exact;
                assert!((-0.003..0.02).contains(&above), "up to {rank} of {pages}: {above}");
            }
        }
    }

    #[test]
    fn few_pages_are_drawn_all() {
        for pages in [1, 2, 3] {
            let (found, _) = drawn(pages, 1000);
            assert!(found.iter().all(|share| *share > 0.1), "{found:?}");
        }
    }
}
