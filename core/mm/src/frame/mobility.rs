//! Migrate types: whether the contents of an allocated frame can move.

/// The migrate types (MIGRATE_*) for which a zone has free lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mobility {
    /// The contents can move to another frame: pages of spaces.
    Movable = 0,
    /// The contents stay until the frame is freed.
    Unmovable = 1,
    /// The contents stay, but a shrinker can free them: caches of objects.
    Reclaimable = 2,
}

impl Mobility {
    /// All types, in the order of their values.
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
