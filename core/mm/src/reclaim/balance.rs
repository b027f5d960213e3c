//! Which lists reclaim scans, and how much of them: the kernel's `get_scan_count`.
//!
//! ```text
//! Figures -- balance: Balance   which kinds: pure
//!         \- Plan::new          pages to scan, and each kind's share: pure
//! ```

use super::aging::{Aging, aging};
use super::probing::probing;
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use highwater_platform::Platform;
use highwater_units::BATCH_PAGES_MAX;

/// The unit of shares: a whole batch has this many parts.
const WHOLE: u64 = 1 << 10;

/// The figures that decide, read at one time. Arrays are by [`Kind`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Pages on both lists.
    pages: [u32; 2],
    /// Pages on the inactive list.
    inactive: [u32; 2],
    /// Free frames.
    free: u32,
    /// The high watermark.
    high: u32,
    slots: Slots,
    /// Whether active files' pages are to be aged.
    file: Aging,
    swappiness: u32,
    costs: [u64; 2],
}

/// Whether anonymous pages can go anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slots {
    Free,
    None,
}

impl Figures {
    pub(super) fn of<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Figures {
        let pages = Kind::ALL.map(|kind| node.lru.len_of(kind));
        // With one kind, neither slots nor costs matter.
        let one_kind = pages.contains(&0);
        Figures {
            pages,
            inactive: Kind::ALL.map(|kind| node.lru.len(List::inactive(kind))),
            free: node.zone.free_frames(),
            high: node.zone.marks().high,
            slots: if !one_kind && m.swap.is_full() { Slots::None } else { Slots::Free },
            file: aging(node, Kind::File, probing(m, node, Kind::File)),
            swappiness: m.tunables.swappiness(),
            costs: if one_kind { [0, 0] } else { node.lru.workingset().costs() },
        }
    }
}

/// Which kinds of pages are scanned (scan_balance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balance {
    /// One kind only.
    Only(Kind),
    /// Both, by the sizes of their lists.
    Equal,
    /// Both, by swappiness and by their costs.
    Fraction,
}

/// Decides. Unlike the kernel's, the last round scans both kinds even with swappiness 0 or without
/// free slots, before an allocation fails.
fn balance(f: &Figures, priority: u32) -> Balance {
    let [anon, file] = f.pages;
    let file_is_tiny = file + f.free <= f.high && f.inactive[0] >> priority > 0;
    let trims_cache = f.inactive[1] >> priority > 0 && f.file == Aging::NotDue;
    if file == 0 {
        Balance::Only(Kind::Anon)
    } else if anon == 0 {
        Balance::Only(Kind::File)
    } else if priority == 0 {
        Balance::Equal
    } else if f.slots == Slots::None {
        Balance::Only(Kind::File)
    } else if file_is_tiny {
        Balance::Only(Kind::Anon)
    } else if trims_cache {
        Balance::Only(Kind::File)
    } else {
        Balance::Fraction
    }
}

/// The share of anonymous pages under [`Balance::Fraction`], in parts of [`WHOLE`]: the cheaper
/// kind is scanned more.
fn anon_share(swappiness: u32, costs: [u64; 2]) -> u64 {
    let sum = costs[0] + costs[1];
    let part = |weight: u64, cost: u64| weight * (3 * sum + 1) / (sum + cost + 1);
    let anon = part(swappiness.into(), costs[0]);
    let file = part(200 - u64::from(swappiness), costs[1]);
    anon * WHOLE / (anon + file).max(1)
}

/// The pages that one round scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Pages still to be scanned.
    pub(super) left: u32,
    /// Each kind's part of the batches, in parts of [`WHOLE`]; 0: none.
    shares: [u64; 2],
}

impl Plan {
    pub(super) fn new(f: &Figures, priority: u32) -> Plan {
        let parts = match balance(f, priority) {
            Balance::Only(Kind::Anon) => [WHOLE, 0],
            Balance::Only(Kind::File) => [0, WHOLE],
            Balance::Equal => [WHOLE; 2],
            Balance::Fraction => {
                let anon = anon_share(f.swappiness, f.costs);
                [anon, WHOLE - anon]
            }
        };
        let scan = |kind: usize| u64::from(f.pages[kind]) * parts[kind] / WHOLE;
        let (anon, file) = (scan(0), scan(1));
        let left = (((anon + file) >> priority) as u32).max(BATCH_PAGES_MAX as u32);
        let share = anon * WHOLE / (anon + file).max(1);
        Plan { left, shares: [share, WHOLE - share] }
    }

    /// The kind of the next batch. Where both take turns, `before` adds the given share to the sum
    /// of anonymous pages' shares and returns the sum before that.
    pub(super) fn next(&self, before: impl FnOnce(u32) -> u32) -> Option<Kind> {
        match self.shares {
            [0, 0] => None,
            [_, 0] => Some(Kind::Anon),
            [0, _] => Some(Kind::File),
            [anon, _] => {
                let before = u64::from(before(anon as u32));
                let is_full = (before + anon) / WHOLE > before / WHOLE;
                Some(if is_full { Kind::Anon } else { Kind::File })
            }
        }
    }

    /// Ends the batches of a kind, of which no page can be isolated.
    pub(super) fn exhaust(&mut self, kind: Kind) {
        self.shares[kind as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Figures = Figures {
        pages: [8000, 8000],
        inactive: [4000, 4000],
        free: 100,
        high: 200,
        slots: Slots::Free,
        file: Aging::Due,
        swappiness: 60,
        costs: [0, 0],
    };

    #[test]
    fn the_kinds_scanned_follow_the_kernel() {
        use Balance::{Equal, Fraction, Only};
        let table = [
            (USUAL, 12, Fraction),
            (USUAL, 0, Equal),
            (Figures { swappiness: 0, ..USUAL }, 0, Equal),
            (Figures { pages: [8000, 0], inactive: [0, 0], ..USUAL }, 12, Only(Kind::Anon)),
            (Figures { pages: [0, 8000], inactive: [0, 0], ..USUAL }, 12, Only(Kind::File)),
            (Figures { slots: Slots::None, ..USUAL }, 12, Only(Kind::File)),
            (Figures { slots: Slots::None, ..USUAL }, 0, Equal),
            // Files' pages and free frames together do not exceed the high watermark.
            (Figures { pages: [8000, 100], ..USUAL }, 11, Only(Kind::Anon)),
            (Figures { pages: [8000, 100], ..USUAL }, 12, Fraction),
            (Figures { pages: [8000, 101], ..USUAL }, 11, Fraction),
            // Enough inactive files' pages, and no refaults.
            (Figures { file: Aging::NotDue, ..USUAL }, 11, Only(Kind::File)),
            (Figures { file: Aging::NotDue, ..USUAL }, 12, Fraction),
        ];
        for (figures, priority, expected) in table {
            assert_eq!(balance(&figures, priority), expected, "{priority}: {figures:?}");
        }
    }

    #[test]
    fn the_cheaper_kind_is_scanned_more() {
        let table = [
            (100, [0, 0], 512),
            (0, [0, 900], 0),
            (200, [900, 0], 1024),
            (60, [0, 0], 307),
            (100, [1000, 0], 341),
            (100, [0, 1000], 682),
        ];
        for (swappiness, costs, expected) in table {
            let share = anon_share(swappiness, costs);
            assert!(share.abs_diff(expected) <= 5, "{swappiness} {costs:?}: {share}");
        }
    }

    #[test]
    fn batches_are_taken_in_proportion() {
        let plan = Plan::new(&Figures { pages: [2000, 6000], ..USUAL }, 0);
        assert_eq!(plan, Plan { left: 8000, shares: [256, 768] }, "by size");
        let kinds = (0..400).map(|turn| plan.next(|share| turn * share));
        assert_eq!(kinds.filter(|kind| *kind == Some(Kind::Anon)).count(), 100);
        let plan = Plan::new(&Figures { swappiness: 0, ..USUAL }, 5);
        assert_eq!(plan, Plan { left: 250, shares: [0, WHOLE] });
        assert_eq!(plan.next(|_| unreachable!("one kind has every turn")), Some(Kind::File));
        let mut plan = Plan::new(&Figures { pages: [8000, 0], ..USUAL }, 12);
        assert_eq!(plan.left, 32, "at least a batch");
        plan.exhaust(Kind::Anon);
        assert_eq!(plan.next(|_| 0), None);
    }
}
