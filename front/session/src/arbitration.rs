//! Divides the memory of a run among its processes.
//!
//! ```text
//! limit = sum of targets:    over the limit: free memory first, then everyone in proportion
//!                            somebody is short: free memory first, then that of processes that
//!                            bring in far fewer pages for each page they have
//! ```
//! A page is worth most where it saves most faults. If misses fall with memory, as they do for LRU,
//! the next page saves about as many as there are misses for each page now; so memory moves from a
//! process with few misses per page to one with many. It moves only where these differ by a factor,
//! and by small steps unless that is large: equals leave each other alone, and nothing oscillates.
//!
//! A pure function: every process of a run calculates its own target from the same claims.

/// Of equal need.
const EQUAL: u64 = 100;
/// A process gives one page in [`GIVES_LITTLE`] at a time to one with so many percent of its misses
/// per page, ...
const MORE: u64 = 200;
const GIVES_LITTLE: u64 = 16;
/// ... and one in [`GIVES_MUCH`] to one with so many: an idle process gives nearly all in a second.
const FAR_MORE: u64 = 800;
const GIVES_MUCH: u64 = 8;
/// A process that is short gets at most one page for this many that it has, ...
const WISH_SHARE: u64 = 4;
/// ... but at least one in this many of its equal part of the limit.
const WISH_OF_PART: u64 = 8;

/// The state of one process. In pages, if nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// It may use these now.
    pub granted: u64,
    /// It never gets less.
    pub floor: u64,
    /// Free ones that it would not miss.
    pub spare: u64,
    /// Pages per second that faults brought in lately.
    pub misses: u64,
    /// Whether it lately asked for more, and got none.
    pub is_short: bool,
}

impl Claim {
    fn above_floor(&self) -> u64 {
        self.granted.saturating_sub(self.floor)
    }

    /// Free pages that it can give.
    fn free(&self) -> u64 {
        self.spare.min(self.above_floor())
    }

    /// Whether it has more misses per page than so many percent of the other's.
    fn outweighs(&self, other: &Claim, percent: u64) -> bool {
        let weigh =
            |one: &Claim, by: &Claim| u128::from(one.misses) * u128::from(by.granted.max(1));
        weigh(self, other) * 100 > weigh(other, self) * u128::from(percent)
    }

    /// How much it would like to have in addition, if its equal part of the limit is `part`.
    fn wish(&self, part: u64) -> u64 {
        if self.is_short { (self.granted / WISH_SHARE).max(part / WISH_OF_PART) } else { 0 }
    }
}

/// The pages that each process is to have: their sum is at most `limit`, unless the floors exceed
/// that.
pub fn targets(limit: u64, claims: &[Claim]) -> Vec<u64> {
    let granted: u64 = claims.iter().map(|claim| claim.granted).sum();
    let mut targets: Vec<u64> = claims.iter().map(|claim| claim.granted).collect();
    let over = granted.saturating_sub(limit);
    let mut given = take(&mut targets, over, claims, Claim::free);
    given += take(&mut targets, over - given, claims, |claim| claim.above_floor() - claim.free());
    if over > 0 {
        debug_assert!(given <= over, "no more is taken than is missing");
        return targets;
    }
    let room = limit - granted;
    let part = limit / claims.len().max(1) as u64;
    let wishes: Vec<u64> = claims.iter().map(|claim| claim.wish(part)).collect();
    let wanted: u64 = wishes.iter().sum();
    let mut found = room.min(wanted);
    let idle = |claim: &Claim| if claim.is_short { 0 } else { claim.free() };
    found += take(&mut targets, wanted - found, claims, idle);
    share(&mut targets, found, &wishes);
    if found < wanted {
        move_to_needy(&mut targets, wanted - found, claims, &wishes);
    }
    targets
}

/// Takes `wanted` pages in proportion to what each process can give; returns how many.
fn take(
    targets: &mut [u64],
    wanted: u64,
    claims: &[Claim],
    can_give: impl Fn(&Claim) -> u64,
) -> u64 {
    let gives: Vec<u64> = claims.iter().map(can_give).collect();
    let taken = portions(wanted, &gives);
    targets.iter_mut().zip(&taken).for_each(|(target, taken)| *target -= taken);
    taken.iter().sum()
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

/// Moves up to `wanted` pages from processes that the neediest outweighs to the short ones that it
/// does not.
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
