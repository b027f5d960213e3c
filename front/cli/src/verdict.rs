//! What limited a run, and what to change.
//!
//! ```text
//! Totals -- Evidence --- verdict: pure ---> Verdict --- Display ---> last line of the summary
//! ```
//! The memory that would have avoided most reads is estimated from reuse distances
//! (`Snapshot::frames_to_avoid`), which are a process's own: it is given where one process made
//! nearly all reads.

use crate::options::Memory;
use crate::totals::{Totals, reads};
use highwater_mm::stats::Counter;
use highwater_session::Scope;
use highwater_units::Bytes;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Part of the run's time, in percent, below which waiting for memory does not matter.
const STALLED_MIN: u64 = 2;
/// Part of all reads, in percent, that one process has made if its estimate is to count.
const READS_MIN: u64 = 90;
/// Part of the reads that more memory is to avoid.
const AVOIDED: f64 = 0.9;

/// What limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitedBy {
    /// Threads hardly waited for memory.
    Nothing,
    /// Threads waited for pages that were read from swap.
    SwapReads,
    /// Threads waited for memory to be freed.
    Reclaim,
}

/// What limited a run, and what would help.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Verdict {
    /// What limited it.
    pub(crate) limited_by: LimitedBy,
    /// Time in which at least one thread waited for memory, in percent of the run.
    pub(crate) stalled_percent: u64,
    /// The budget with which nine of ten reads from swap would not have been made, in bytes; none
    /// if too little is known.
    pub(crate) budget_bytes: Option<u64>,
    /// The option that sets that budget.
    pub(crate) option: &'static str,
}

/// The evidence.
#[derive(Clone, Copy, Debug)]
struct Evidence {
    elapsed: Duration,
    /// At least one thread waited for memory.
    stalled: Duration,
    /// All threads waited for reads from swap, summed.
    reading: Duration,
    /// All threads freed memory themselves, summed.
    reclaiming: Duration,
    /// Pages that all processes read from swap.
    reads: u64,
    /// Those of the process that read most, ...
    reads_of_one: u64,
    /// ... and the frames that would have avoided most of them.
    frames: Option<u64>,
    budget: Bytes,
    option: &'static str,
}

impl Evidence {
    fn of(totals: &Totals, memory: &Memory, elapsed: Duration) -> Evidence {
        let (all, reader) = (&totals.all, totals.reader.as_ref());
        let sum = |count: u64, mean: u64| Duration::from_nanos(count.saturating_mul(mean));
        Evidence {
            elapsed,
            stalled: Duration::from_micros(all.get(Counter::PsiSomeMicros)),
            reading: sum(all.major.count(), all.major.mean().0),
            reclaiming: sum(all.reclaims.count(), all.reclaims.mean().0),
            reads: reads(all),
            reads_of_one: reader.map_or(0, reads),
            frames: reader.and_then(|reader| reader.frames_to_avoid(AVOIDED)),
            budget: memory.budget(),
            option: match memory.shared.map(|shared| shared.scope) {
                Some(Scope::Everything) => "--memory",
                Some(Scope::Paged) => "--paged",
                None => "--memory-per-process",
            },
        }
    }
}

impl Verdict {
    /// On a run that took `elapsed`.
    pub(crate) fn of(totals: &Totals, memory: &Memory, elapsed: Duration) -> Verdict {
        verdict(&Evidence::of(totals, memory, elapsed))
    }
}

fn verdict(evidence: &Evidence) -> Verdict {
    let &Evidence { elapsed, stalled, reading, reclaiming, option, .. } = evidence;
    let stalled_percent = (stalled.as_micros() * 100 / elapsed.as_micros().max(1)) as u64;
    let limited_by = match () {
        () if stalled_percent < STALLED_MIN => LimitedBy::Nothing,
        () if reclaiming > reading => LimitedBy::Reclaim,
        () => LimitedBy::SwapReads,
    };
    let budget_bytes = match limited_by {
        LimitedBy::Nothing => None,
        LimitedBy::SwapReads | LimitedBy::Reclaim => budget(evidence),
    };
    Verdict { limited_by, stalled_percent, budget_bytes, option }
}

/// The budget that would have avoided most reads, in whole MiB.
fn budget(evidence: &Evidence) -> Option<u64> {
    const MIB: u64 = 1 << 20;
    if evidence.reads_of_one * 100 < evidence.reads * READS_MIN {
        return None;
    }
    let more = Bytes::of_pages(evidence.frames?);
    Some((evidence.budget.0 + more.0).div_ceil(MIB) * MIB)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.limited_by {
            LimitedBy::Nothing => return f.write_str("memory did not slow the program"),
            LimitedBy::SwapReads => "for reads from swap",
            LimitedBy::Reclaim => "for memory to be freed",
        };
        let percent = self.stalled_percent;
        write!(f, "a thread waited {percent} % of the time, mostly {reason}")?;
        match self.budget_bytes {
            Some(bytes) => {
                let (option, mib) = (self.option, bytes >> 20);
                write!(f, "; {option} {mib}M would avoid 9 of 10 reads")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Evidence = Evidence {
        elapsed: Duration::from_secs(100),
        stalled: Duration::from_secs(46),
        reading: Duration::from_secs(60),
        reclaiming: Duration::from_secs(2),
        reads: 1000,
        reads_of_one: 900,
        frames: Some(1000),
        budget: Bytes(64 << 20),
        option: "--memory",
    };

    #[test]
    fn a_verdict_names_the_limit_and_the_remedy() {
        let secs = Duration::from_secs;
        let table = [
            (
                SLOW,
                "a thread waited 46 % of the time, mostly for reads from swap; --memory 68M would \
                 avoid 9 of 10 reads",
            ),
            (Evidence { stalled: secs(1), ..SLOW }, "memory did not slow the program"),
            (
                Evidence { reclaiming: secs(61), frames: None, ..SLOW },
                "a thread waited 46 % of the time, mostly for memory to be freed",
            ),
            (
                Evidence { reads_of_one: 899, stalled: secs(2), ..SLOW },
                "a thread waited 2 % of the time, mostly for reads from swap",
            ),
            (
                Evidence { option: "--paged", frames: Some(0), ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap; --paged 64M would \
                 avoid 9 of 10 reads",
            ),
        ];
        for (evidence, expected) in table {
            assert_eq!(verdict(&evidence).to_string(), expected, "{evidence:?}");
        }
    }
}
