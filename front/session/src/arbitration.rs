//! Divides the memory of a run among its processes.
//!
//! ```text
//! limit = sum of targets:    over the limit: free memory first, then everyone in proportion
//!                            a process is short: free memory first, then that of processes that
//!                            bring in far fewer pages for each page they have
//! ```
//! A page is worth most where it saves most faults. If misses fall as memory grows, as they do for
//! LRU, one more page saves about as many misses as the process now has per page; so memory moves
//! from a process with few misses per page to one with many. It moves only where the two differ by
//! a factor, and by small steps unless the factor is large: processes of equal need leave each
//! other alone, and nothing oscillates.
//!
//! A pure function: every process of a run calculates its own target from the same claims.

/// Of equal need.
const EQUAL: u64 = 100;
/// A process gives one page in [`GIVES_LITTLE`] at a time to one with more than this many percent
/// of its misses per page, ...
const MORE: u64 = 200;
const GIVES_LITTLE: u64 = 16;
/// ... and one in [`GIVES_MUCH`] to one with more than this many: an idle process gives nearly all
/// in a second.
const FAR_MORE: u64 = 800;
const GIVES_MUCH: u64 = 8;
/// ... and one in [`GIVES_IN_TURN`] to one that comes earlier where processes take turns.
const GIVES_IN_TURN: u64 = 4;
/// A process that runs or stalls in less than this many percent of the time sleeps.
const ACTIVE: u64 = 5;
/// A process that is short gets at most one page for this many that it has, ...
const WISH_SHARE: u64 = 4;
/// ... but at least one in this many of its equal part of the limit.
const WISH_OF_PART: u64 = 8;

/// The state of one process, in pages unless another unit is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Pages that it may use now.
    pub granted: u64,
    /// It never gets less.
    pub floor: u64,
    /// Free pages that it would not miss.
    pub spare: u64,
    /// Pages per second that faults brought in lately.
    pub misses: u64,
    /// Whether it lately asked for more, and got none.
    pub is_short: bool,
    /// Percent of its time that it lost to stalls for memory lately.
    pub stalled: u64,
    /// Percent of the time in which it ran lately.
    pub runs: u64,
}

impl Claim {
    fn above_floor(&self) -> u64 {
        self.granted.saturating_sub(self.floor)
    }

    /// Free pages that it can give.
    fn free(&self) -> u64 {
        self.spare.min(self.above_floor())
    }

    /// Whether it has more misses per page than `percent` percent of the other's.
    fn outweighs(&self, other: &Claim, percent: u64) -> bool {
        let weigh =
            |one: &Claim, by: &Claim| u128::from(one.misses) * u128::from(by.granted.max(1));
        weigh(self, other) * 100 > weigh(other, self) * u128::from(percent)
    }

    /// Whether it runs, or would run if it did not stall.
    pub(crate) fn is_active(&self) -> bool {
        self.stalled + self.runs >= ACTIVE
    }

    /// How much it would like to have in addition, if its equal part of the limit is `part`.
    fn wish(&self, part: u64) -> u64 {
        if self.is_short { (self.granted / WISH_SHARE).max(part / WISH_OF_PART) } else { 0 }
    }
}

/// The pages that each process is to have: their sum is at most `limit`, unless the floors exceed
/// that.
/// `first`: processes take turns ([`crate::turns`]), and their order begins with this one.
pub fn targets(limit: u64, claims: &[Claim], first: Option<usize>) -> Vec<u64> {
    let granted: u64 = claims.iter().map(|claim| claim.granted).sum();
    let mut targets: Vec<u64> = claims.iter().map(|claim| claim.granted).collect();
    let over = granted.saturating_sub(limit);
    let mut given = take(&mut targets, over, claims, Claim::free);
    let used: Vec<u64> = claims.iter().map(|claim| claim.above_floor() - claim.free()).collect();
    given += match first {
        None => take_portions(&mut targets, portions(over - given, &used)),
        Some(first) => take_portions(&mut targets, from_last(over - given, &used, first)),
    };
    if over > 0 {
        debug_assert!(given <= over, "no more is taken than is missing");
        return targets;
    }
    let room = limit - granted;
    let part = limit / claims.len().max(1) as u64;
    let mut wishes: Vec<u64> = claims.iter().map(|claim| claim.wish(part)).collect();
    if let Some(first) = first {
        keep_first(&mut wishes, first);
    }
    let wanted: u64 = wishes.iter().sum();
    let mut found = room.min(wanted);
    let idle = |claim: &Claim| if claim.is_short { 0 } else { claim.free() };
    found += take(&mut targets, wanted - found, claims, idle);
    share(&mut targets, found, &wishes);
    match first {
        _ if found == wanted => {}
        None => move_to_needy(&mut targets, wanted - found, claims, &wishes),
        Some(first) => move_to_first(&mut targets, wanted - found, claims, &wishes, first),
    }
    targets
}

/// The places of `count` claims in the order that begins with `first`.
pub(crate) fn in_order(count: usize, first: usize) -> impl DoubleEndedIterator<Item = usize> {
    (first..count).chain(0..first.min(count))
}

/// Drops all wishes except the first one in the order.
fn keep_first(wishes: &mut [u64], first: usize) {
    let kept = in_order(wishes.len(), first).find(|at| wishes[*at] > 0);
    wishes.iter_mut().enumerate().for_each(|(at, wish)| {
        if Some(at) != kept {
            *wish = 0;
        }
    });
}

/// Moves up to `wanted` pages from those that come later in the order to the one that has a wish.
fn move_to_first(targets: &mut [u64], wanted: u64, claims: &[Claim], wishes: &[u64], first: usize) {
    let mut comes_later = false;
    let mut gives = vec![0; claims.len()];
    for at in in_order(claims.len(), first) {
        if wishes[at] > 0 {
            comes_later = true;
        } else if comes_later || !claims[at].is_active() {
            gives[at] = claims[at].above_floor() / GIVES_IN_TURN;
        }
    }
    let found = take_portions(targets, from_last(wanted, &gives, first));
    share(targets, found, wishes);
}

/// Parts of at most `whole`: all of the last one in the order, then of the one before.
fn from_last(whole: u64, most: &[u64], first: usize) -> Vec<u64> {
    let (mut left, mut parts) = (whole, vec![0; most.len()]);
    for at in in_order(most.len(), first).rev() {
        parts[at] = most[at].min(left);
        left -= parts[at];
    }
    parts
}

/// Takes `wanted` pages in proportion to what each process can give; returns how many.
fn take(
    targets: &mut [u64],
    wanted: u64,
    claims: &[Claim],
    can_give: impl Fn(&Claim) -> u64,
) -> u64 {
    let gives: Vec<u64> = claims.iter().map(can_give).collect();
    take_portions(targets, portions(wanted, &gives))
}

fn take_portions(targets: &mut [u64], portions: Vec<u64>) -> u64 {
    targets.iter_mut().zip(&portions).for_each(|(target, taken)| *target -= taken);
    portions.iter().sum()
}

/// Adds pages in proportion to wishes.
fn share(targets: &mut [u64], pages: u64, wishes: &[u64]) {
    let shares = portions(pages, wishes);
    targets.iter_mut().zip(shares).for_each(|(target, share)| *target += share);
}

/// Parts of at most `whole` in proportion to `most`, none above its own. Rounded up while the whole
/// lasts, so that nothing is left.
fn portions(whole: u64, most: &[u64]) -> Vec<u64> {
    let sum: u64 = most.iter().sum();
    let mut left = whole.min(sum);
    let scaled = |part: u64| (u128::from(part) * u128::from(whole)).div_ceil(u128::from(sum));
    let portion = |part: &u64| {
        let own = if sum == 0 { 0 } else { (*part).min(scaled(*part) as u64).min(left) };
        left -= own;
        own
    };
    most.iter().map(portion).collect()
}

/// Moves up to `wanted` pages from processes that the neediest one outweighs to short processes
/// that it does not outweigh.
fn move_to_needy(targets: &mut [u64], wanted: u64, claims: &[Claim], wishes: &[u64]) {
    let short = claims.iter().filter(|claim| claim.is_short);
    let needier = |one: Claim, other: Claim| {
        if other.outweighs(&one, EQUAL) { other } else { one }
    };
    let Some(neediest) = short.copied().reduce(needier) else { return };
    let can_give = |claim: &Claim| match () {
        () if neediest.outweighs(claim, FAR_MORE) => claim.above_floor() / GIVES_MUCH,
        () if neediest.outweighs(claim, MORE) => claim.above_floor() / GIVES_LITTLE,
        () => 0,
    };
    let wish = |(claim, wish): (&Claim, &u64)| if can_give(claim) > 0 { 0 } else { *wish };
    let wishes: Vec<u64> = claims.iter().zip(wishes).map(wish).collect();
    let wanted = wanted.min(wishes.iter().sum());
    let found = take(targets, wanted, claims, can_give);
    share(targets, found, &wishes);
}

#[cfg(test)]
#[path = "arbitration_tests.rs"]
mod tests;
