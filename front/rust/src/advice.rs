//! How a mapping is used.

/// How a mapping is going to be used, until the next advice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// In any order: sequential access, to higher or to lower addresses, is recognised by its
    /// faults and read ahead.
    #[default]
    Detect,
    /// At random: a fault reads its own page only, even if pages happen to be used one after the
    /// other.
    Random,
}
