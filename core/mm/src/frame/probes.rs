//! The results of probing an anonymous page by unmapping it. A probe of a page in use costs a
//! fault, so pages that were in use each time are probed less often.
//!
//! ```text
//! probe found the page used:   1st   2nd   3rd   4th and later
//! then spared for              1     3     7     15 rounds of the active list
//! ```
//! So pages that are in use all the time cost few faults, and stay when a page that was used only
//! once is evicted. A page that was found unused is evicted, and its history starts anew.

/// Most probes in a row that are counted.
const USED_MAX: u8 = 4;
const SPARED_BITS: u32 = 4;
const SPARED: u8 = (1 << SPARED_BITS) - 1;

/// The history of an anonymous page: `used << 4 | spared`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probes(u8);

impl Probes {
    /// Packed.
    pub fn to_bits(self) -> u8 {
        self.0
    }

    /// The inverse of [`Probes::to_bits`].
    pub fn from_bits(bits: u8) -> Probes {
        Probes(bits)
    }

    /// After one more probe that found the page used.
    pub fn found_used(self) -> Probes {
        let used = (self.0 >> SPARED_BITS).saturating_add(1).min(USED_MAX);
        Probes(used << SPARED_BITS | ((1 << used) - 1))
    }

    /// Whether the page goes round the active list without a probe.
    pub fn is_spared(self) -> bool {
        self.0 & SPARED > 0
    }

    /// After a round without a probe.
    pub fn spare(self) -> Probes {
        debug_assert!(self.is_spared());
        Probes(self.0 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_use_are_probed_less_and_less() {
        let mut probes = Probes::default();
        assert!(!probes.is_spared());
        for expected in [1, 3, 7, 15, 15] {
            probes = probes.found_used();
            let mut rounds = 0;
            while probes.is_spared() {
                probes = Probes::from_bits(probes.spare().to_bits());
                rounds += 1;
            }
            assert_eq!(rounds, expected);
        }
    }
}
