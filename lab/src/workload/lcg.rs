//! The random numbers of pmbench.

/// Knuth's linear congruential generator, as pmbench draws from it: the upper 31 bits.
#[derive(Clone, Debug)]
pub struct Lcg(u64);

impl Lcg {
    /// A stream that repeats exactly for the same seed.
    pub fn new(seed: u64) -> Lcg {
        Lcg(seed)
    }

    /// The next 31 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Below `bound`, which is at most 2^31. The bias is under `bound` / 2^31, as pmbench's.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// True for about `percent` of 100 draws: pmbench's dice of 1024 sides.
    pub fn dice(&mut self, percent: u32) -> bool {
        self.draw() % 1024 < u64::from(percent) * 1024 / 100
    }
}
