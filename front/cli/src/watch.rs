//! Takes looks (`look.rs`) at a run while it goes on, and passes them to progress, series and
//! metrics.
//!
//! ```text
//! statistics files, sums of ended processes --- every 250 ms ---> Look ---> Progress
//!                                                                     |---> Series    (--report)
//!                                                                     \---> Board     (--metrics)
//! ```
//! Taking a look takes no lock and makes no process wait. If nothing uses a look, none is taken.
//! Locks: none.

use crate::look::{Limit, Look, keep_from_falling};
use crate::metrics::Board;
use crate::options::Memory;
use crate::progress::Progress;
use crate::series::{Sample, Series};
use highwater_mm::stats::Snapshot;
use highwater_session::{Budget, Scope, read_published};
use highwater_units::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The users of looks while a run goes on.
pub(crate) struct Shown {
    pub(crate) progress: Progress,
    /// `None`: there is no report.
    pub(crate) series: Option<Series>,
    /// `None`: there are no metrics.
    pub(crate) board: Option<Arc<Board>>,
}

/// Takes looks at a run, and passes them on.
pub(crate) struct Watch {
    run_dir: PathBuf,
    /// The budget that the processes share; `None`: each has its own.
    shared: Option<Budget>,
    /// The budget at the start.
    budget: Bytes,
    started: Instant,
    /// The sums at the last look.
    all: Snapshot,
    shown: Shown,
}

impl Watch {
    /// The watch of a run that starts now.
    pub(crate) fn start(run_dir: &Path, memory: &Memory, shown: Shown) -> Watch {
        Watch {
            run_dir: run_dir.to_owned(),
            shared: Budget::open(run_dir).ok(),
            budget: memory.budget(),
            started: Instant::now(),
            all: Snapshot::empty(),
            shown,
        }
    }

    fn limit(&self) -> Limit {
        let Some(shared) = &self.shared else {
            return Limit { budget: self.budget, unpaged: Bytes(0) };
        };
        let unpaged = match shared.scope() {
            Scope::Everything => shared.unpaged(),
            Scope::Paged => 0,
        };
        let [budget, unpaged] = [shared.limit(), unpaged].map(Bytes::of_pages);
        Limit { budget, unpaged }
    }

    /// Takes a look, if anything uses it; to be called every [`crate::progress::PERIOD`]. `ended`:
    /// sums over the processes whose files were removed.
    pub(crate) fn tick(&mut self, ended: &Snapshot) {
        let Shown { progress, series, board } = &self.shown;
        if progress.is_off() && series.is_none() && board.is_none() {
            return;
        }
        let published = read_published(&self.run_dir).unwrap_or_default();
        let mut look = Look::of(ended, published, self.limit());
        keep_from_falling(&mut look, &mut self.all);
        self.shown.progress.tick(&look);
        if let Some(series) = &mut self.shown.series {
            series.record(self.started.elapsed(), &look);
        }
        if let Some(board) = &self.shown.board {
            board.show(look);
        }
    }

    /// Removes the progress line: the program has ended.
    pub(crate) fn hide_progress(&self) {
        self.shown.progress.hide();
    }

    /// The series of the run, with a last look. `all`: the final sums.
    pub(crate) fn finish(self, all: &Snapshot) -> Vec<Sample> {
        let look = Look::of(all, Vec::new(), self.limit());
        let at = self.started.elapsed();
        self.shown.series.map_or(Vec::new(), |mut series| {
            series.record(at, &look);
            series.into_samples()
        })
    }
}
