//! The ways of compaction that there were, as data: what each of the seed's kernels does.
//!
//! ```text
//!              contended, async   locks   scanners start            pageblocks skipped
//! vanilla      goes on            early   free one where it was,    none
//!                                         goes round
//! lesslock     aborts             late    likewise                  none
//! revert       aborts             late    at the ends               none
//! cachefail    aborts             late    at the ends               where nothing was found
//! skipuseless  aborts             late    after the skipped ones    where nothing was found
//! ```

use crate::config::Config;
#[cfg(feature = "history")]
use crate::config::history::CompactHistory;
use crate::zone::Hold;

#[cfg_attr(not(feature = "history"), allow(dead_code, reason = "ways of the past"))]
/// Where the scanners of a run start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// At the two ends of the zone.
    Ends,
    /// The free scanner near where it last found any; past the other one it starts once more, from
    /// the end (Rik van Riel's compact_cached_free_pfn).
    FreeCached,
    /// Both after the pageblocks where nothing was found; they do not go round.
    Remembered,
}

/// What a run does when a lock is contended that it may not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contended {
    /// It goes on, and may find the lock contended again.
    GoesOn,
    /// It ends.
    Aborts,
}

/// How scanners work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method {
    pub(super) contended: Contended,
    pub(super) hold: Hold,
    pub(super) start: Start,
    /// Whether pageblocks where nothing was found are noted and left out.
    pub(super) skips: bool,
    pub(super) today: bool,
}

impl Method {
    /// That of a setting; `None`: nothing is compacted.
    pub(super) fn of(config: &Config) -> Option<Method> {
        if !config.compact {
            return None;
        }
        #[cfg(feature = "history")]
        if let Some(past) = config.history.compact {
            return Some(Method::of_past(past));
        }
        Some(Method {
            contended: Contended::Aborts,
            hold: Hold::Late,
            start: Start::Remembered,
            skips: true,
            today: true,
        })
    }

    #[cfg(feature = "history")]
    fn of_past(setting: CompactHistory) -> Method {
        let (contended, hold) = match setting {
            CompactHistory::Vanilla => (Contended::GoesOn, Hold::Early),
            _ => (Contended::Aborts, Hold::Late),
        };
        let (start, skips) = match setting {
            CompactHistory::Vanilla | CompactHistory::LessLock => (Start::FreeCached, false),
            CompactHistory::Revert => (Start::Ends, false),
            CompactHistory::CacheFail => (Start::Ends, true),
            CompactHistory::SkipUseless => (Start::Remembered, true),
        };
        Method { contended, hold, start, skips, today: false }
    }
}
