//! How much to scan, and which lists.
//!
//! ```text
//! shrink: priority 12 .. 0 -- Figures -> balance: Balance   whose pages: pure, get_scan_count
//!                          |- Plan                          pages of each kind to look at
//!                          \- a batch at a time: refill its inactive list, evict
//! ```
//! Each round scans 1/2^priority of the lists, as the kernel does, and stops as soon as enough
//! frames are free. How many a direct reclaim frees is a setting: its first round goes that far,
//! and the next ones only if it found not even a batch. Kinds take turns by batches, in
//! proportion. A list that is low is refilled.

use super::evict::evict;
use super::outbox::Outbox;
use super::scan::age;
use super::throttle::{self, Crowd, Isolated};
use crate::lru::{Kind, List, Lru};
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use highwater_platform::{Platform, Recency};
use highwater_units::BATCH_PAGES_MAX;

/// Rounds of a reclaim: from 1/4096 of the lists to all of them (DEF_PRIORITY).
const PRIORITY_MAX: u32 = 12;

/// Parts that the shares of kinds are given in.
const WHOLE: u64 = 1 << 10;

/// Who reclaims.
pub enum Reclaimer<'a, P: Platform> {
    /// A kswapd thread, and what it has under write.
    Kswapd(&'a mut Outbox<P>),
    /// A thread that needs a frame itself: it waits for what it writes.
    Direct,
}

impl<P: Platform> Reclaimer<'_, P> {
    /// Waits until none of its writes is under way.
    pub(super) fn finish_all(&mut self, m: &Machine<P>, node: &Node<P>) {
        match self {
            Reclaimer::Kswapd(outbox) => outbox.finish_all(m, node),
            Reclaimer::Direct => {}
        }
    }

    fn counters(&self) -> (Counter, Counter) {
        match self {
            Reclaimer::Kswapd(_) => (Counter::PgScanKswapd, Counter::PgStealKswapd),
            Reclaimer::Direct => (Counter::PgScanDirect, Counter::PgStealDirect),
        }
    }
}

/// Frees at least `target` frames of a node if it can; returns how many, with those that will be
/// free when writes of the outbox are over.
pub fn shrink<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    who: &mut Reclaimer<'_, P>,
    target: u32,
) -> u32 {
    let _phase = m.enter(phase::RECLAIM);
    let mut freed = 0;
    for priority in (0..=PRIORITY_MAX).rev() {
        let enough = match (&who, priority) {
            (Reclaimer::Direct, PRIORITY_MAX) => target.max(m.config.direct_reclaim),
            _ => target,
        };
        let mut plan = Plan::new(&Figures::of(m, node), priority);
        if enough > target {
            plan.left = plan.left.max(enough);
        }
        while plan.left > 0 && freed < enough {
            let Some(kind) = plan.next(|share| node.lru.workingset().next_turn(share)) else {
                break;
            };
            match scan_batch(m, node, kind, who) {
                Some((scanned, gained)) => {
                    plan.left = plan.left.saturating_sub(scanned);
                    freed += gained;
                }
                None => plan.exhaust(kind),
            }
        }
        if freed >= target {
            break;
        }
    }
    node.lru.workingset().hear();
    freed
}

/// Looks at a batch of inactive pages of a kind; returns how many, and how many were freed or are
/// about to be. `None`: there are none, or too many are in other threads' hands.
fn scan_batch<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    who: &mut Reclaimer<'_, P>,
) -> Option<(u32, u32)> {
    refill_inactive(m, node, kind);
    let direct = matches!(who, Reclaimer::Direct);
    if direct && throttle::enter(m, node, kind) == Crowd::Many {
        return None;
    }
    let batch = node.lru.isolate(&m.frames, m.cpu(), List::inactive(kind), BATCH_PAGES_MAX);
    let scanned = batch.len() as u32;
    if scanned == 0 {
        return None;
    }
    let isolated = Isolated::note(node, kind, scanned);
    let evicted = evict(m, node, kind, batch, who);
    drop(isolated);
    let (scan, steal) = who.counters();
    let (scan_kind, steal_kind) = match kind {
        Kind::Anon => (Counter::PgScanAnon, Counter::PgStealAnon),
        Kind::File => (Counter::PgScanFile, Counter::PgStealFile),
    };
    [scan, scan_kind].into_iter().for_each(|counter| m.count(counter, u64::from(scanned)));
    [steal, steal_kind].into_iter().for_each(|counter| m.count(counter, evicted.freed.into()));
    // A large page is looked at as one, and frees many.
    let gone = evicted.freed + evicted.under_way;
    let (rotated, listed) = (scanned.saturating_sub(gone), node.lru.listed());
    node.lru.workingset().note_cost(kind, evicted.written, rotated, listed);
    Some((scanned, gone))
}

/// What the decision rests on: pages, at one time.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// On both lists, by kind.
    pages: [u32; 2],
    /// On the inactive list, by kind.
    inactive: [u32; 2],
    /// Frames free.
    free: u32,
    /// The high mark.
    high: u32,
    /// Whether a slot is free.
    swap: Room,
    /// Whether the active files' pages are to be aged: too many, or not the ones that are used.
    file: Aging,
    swappiness: u32,
    /// By kind.
    costs: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Some,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aging {
    Due,
    NotDue,
}

impl Figures {
    fn of<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Figures {
        let pages = Kind::ALL.map(|kind| node.lru.len_of(kind));
        let alone = pages.contains(&0);
        Figures {
            pages,
            inactive: Kind::ALL.map(|kind| node.lru.len(List::inactive(kind))),
            free: node.zone.free_frames(),
            high: node.zone.marks().high,
            // Of no interest where there is one kind only, which is decided without.
            swap: if !alone && m.swap.is_full() { Room::None } else { Room::Some },
            file: aging(m, node, Kind::File),
            swappiness: m.config.swappiness,
            costs: if alone { [0, 0] } else { node.lru.workingset().costs() },
        }
    }
}

/// Whose pages are scanned (scan_balance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balance {
    /// One kind's alone.
    Only(Kind),
    /// Both, by the sizes of their lists.
    Equal,
    /// Both, by swappiness and by what they cost.
    Fraction,
}

/// Decides, as the kernel's get_scan_count. Where the kernel would rather run out of memory than
/// swap (swappiness 0), or has no swap, the last round looks at everything all the same.
fn balance(f: &Figures, priority: u32) -> Balance {
    let [anon, file] = f.pages;
    let file_is_tiny = file + f.free <= f.high && f.inactive[0] >> priority > 0;
    let trims_cache = f.inactive[1] >> priority > 0 && f.file == Aging::NotDue;
    match () {
        () if file == 0 => Balance::Only(Kind::Anon),
        () if anon == 0 => Balance::Only(Kind::File),
        () if priority == 0 => Balance::Equal,
        () if f.swap == Room::None => Balance::Only(Kind::File),
        () if file_is_tiny => Balance::Only(Kind::Anon),
        () if trims_cache => Balance::Only(Kind::File),
        () => Balance::Fraction,
    }
}

/// The share of anonymous pages under [`Balance::Fraction`], in parts of [`WHOLE`]: what costs less
/// is scanned more.
fn anon_share(swappiness: u32, costs: [u64; 2]) -> u64 {
    let sum = costs[0] + costs[1];
    let part = |willing: u64, cost: u64| willing * (3 * sum + 1) / (sum + cost + 1);
    let anon = part(swappiness.into(), costs[0]);
    let file = part(200 - u64::from(swappiness), costs[1]);
    anon * WHOLE / (anon + file).max(1)
}

/// What a round scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Pages yet to be looked at.
    left: u32,
    /// Parts of [`WHOLE`] of the batches, by kind; 0: none.
    shares: [u64; 2],
}

impl Plan {
    fn new(f: &Figures, priority: u32) -> Plan {
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

    /// Whose turn it is. Where both have some, `before` adds anonymous pages' share to what they
    /// have had so far, and returns what that was.
    fn next(&self, before: impl FnOnce(u32) -> u32) -> Option<Kind> {
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

    /// A kind has no pages that could be looked at.
    fn exhaust(&mut self, kind: Kind) {
        self.shares[kind as usize] = 0;
    }
}

/// Ages two batches for every one that goes, while the inactive list is low: one would only replace
/// what is evicted next, and no page would ever stay long enough to be used again.
fn refill_inactive<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) {
    for _ in 0..2 {
        if aging(m, node, kind) == Aging::Due {
            age(m, node, kind);
        }
    }
}

/// Whether pages should be moved from a kind's active to its inactive list: it is low; or files'
/// pages come back that should have stayed, and what is active may not be what is used now.
fn aging<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) -> Aging {
    let stale = kind == Kind::File && node.lru.workingset().has_missed();
    match stale || inactive_is_low(&node.lru, kind, m.platform.recency()) {
        true => Aging::Due,
        false => Aging::NotDue,
    }
}

/// With an accessed bit, the kernel's ratio: 1 up to 1 GiB, then sqrt(10 * GiB). Where asking costs
/// an unmapping, and a fault if the page is used, the inactive list is an eighth.
fn inactive_is_low<P: Platform>(lru: &Lru<P>, kind: Kind, recency: Recency) -> bool {
    let (active, inactive) = (lru.len(List::active(kind)), lru.len(List::inactive(kind)));
    let ratio = match recency {
        Recency::AccessedBit => inactive_ratio(active + inactive),
        Recency::Unmapping => 7,
    };
    u64::from(inactive) * u64::from(ratio) < u64::from(active)
}

fn inactive_ratio(pages: u32) -> u32 {
    match pages >> 18 {
        0 => 1,
        gib => (10 * gib).isqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_follows_the_kernel() {
        for (gib, ratio) in [(0, 1), (1, 3), (10, 10), (100, 31), (1000, 100)] {
            assert_eq!(inactive_ratio(gib << 18), ratio, "{gib} GiB");
        }
    }

    const USUAL: Figures = Figures {
        pages: [8000, 8000],
        inactive: [4000, 4000],
        free: 100,
        high: 200,
        swap: Room::Some,
        file: Aging::Due,
        swappiness: 60,
        costs: [0, 0],
    };

    #[test]
    fn whose_pages_go() {
        use Balance::{Equal, Fraction, Only};
        let table = [
            (USUAL, 12, Fraction),
            (USUAL, 0, Equal),
            (Figures { swappiness: 0, ..USUAL }, 0, Equal),
            (Figures { pages: [8000, 0], inactive: [0, 0], ..USUAL }, 12, Only(Kind::Anon)),
            (Figures { pages: [0, 8000], inactive: [0, 0], ..USUAL }, 12, Only(Kind::File)),
            (Figures { swap: Room::None, ..USUAL }, 12, Only(Kind::File)),
            (Figures { swap: Room::None, ..USUAL }, 0, Equal),
            // Files' pages and free frames are not above the high mark.
            (Figures { pages: [8000, 100], ..USUAL }, 11, Only(Kind::Anon)),
            (Figures { pages: [8000, 100], ..USUAL }, 12, Fraction),
            (Figures { pages: [8000, 101], ..USUAL }, 11, Fraction),
            // Many inactive pages of files, and none is missed.
            (Figures { file: Aging::NotDue, ..USUAL }, 11, Only(Kind::File)),
            (Figures { file: Aging::NotDue, ..USUAL }, 12, Fraction),
        ];
        for (figures, priority, expected) in table {
            assert_eq!(balance(&figures, priority), expected, "{priority}: {figures:?}");
        }
    }

    #[test]
    fn what_costs_less_is_scanned_more() {
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
        assert_eq!(plan, Plan { left: 8000, shares: [256, 768] }, "equal: by size");
        let whose = (0..400).map(|turn| plan.next(|share| turn * share));
        assert_eq!(whose.filter(|kind| *kind == Some(Kind::Anon)).count(), 100);
        let plan = Plan::new(&Figures { swappiness: 0, ..USUAL }, 5);
        assert_eq!(plan, Plan { left: 250, shares: [0, WHOLE] });
        assert_eq!(plan.next(|_| unreachable!("one kind takes no turns")), Some(Kind::File));
        let mut plan = Plan::new(&Figures { pages: [8000, 0], ..USUAL }, 12);
        assert_eq!(plan.left, 32, "a batch at least");
        plan.exhaust(Kind::Anon);
        assert_eq!(plan.next(|_| 0), None);
    }
}
