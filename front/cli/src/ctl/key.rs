//! The keys of `highwater ctl`: properties of a session that are read or set, and words that change
//! it. No session may have one of them as its name.

pub(crate) const COMPACT: &str = "compact";
pub(crate) const SWAP_ADD: &str = "swap-add";
pub(crate) const SWAP_REMOVE: &str = "swap-remove";

/// A property of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Memory,
    MemoryMax,
    Granted,
    Unpaged,
    Processes,
    Kswapd,
    Swappiness,
    Readahead,
    FileReadahead,
    Swap,
    Pressure,
    Buddyinfo,
    Slabinfo,
    Locks,
    Vmstat,
}

impl Key {
    /// First the keys that are printed if none is given, then the others.
    pub(crate) const NAMES: [(&str, Key); 15] = [
        ("memory", Key::Memory),
        ("memory-max", Key::MemoryMax),
        ("granted", Key::Granted),
        ("unpaged", Key::Unpaged),
        ("processes", Key::Processes),
        ("kswapd", Key::Kswapd),
        ("swappiness", Key::Swappiness),
        ("readahead", Key::Readahead),
        ("file-readahead", Key::FileReadahead),
        ("swap", Key::Swap),
        ("pressure", Key::Pressure),
        ("buddyinfo", Key::Buddyinfo),
        ("slabinfo", Key::Slabinfo),
        ("locks", Key::Locks),
        ("vmstat", Key::Vmstat),
    ];
    pub(crate) const USUAL: usize = 5;

    pub(crate) fn named(name: &str) -> Option<Key> {
        Key::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, key)| key)
    }

    pub(crate) fn name(self) -> &'static str {
        Key::NAMES.into_iter().find(|(_, key)| *key == self).map_or("", |(name, _)| name)
    }
}

/// Whether an argument is a key or a change, and does not name the session.
pub(crate) fn is_key(argument: &str) -> bool {
    let is_change = [SWAP_ADD, SWAP_REMOVE, COMPACT].contains(&argument);
    argument.contains('=') || is_change || Key::named(argument).is_some()
}
