//! What can be done with an allocated frame.

/// The kernel's migrate types that a zone has lists for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mobility {
    /// Its contents can go to another frame: pages of spaces.
    Movable = 0,
    /// It stays until who has it gives it back.
    Unmovable = 1,
    /// It stays, but who has it gives it back when asked: caches.
    Reclaimable = 2,
}

impl Mobility {
    /// All of them, in the order of their values.
    pub const ALL: [Mobility; 3] = [Mobility::Movable, Mobility::Unmovable, Mobility::Reclaimable];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mobility::Movable => "Movable",
            Mobility::Unmovable => "Unmovable",
            Mobility::Reclaimable => "Reclaimable",
        }
    }
}
