//! Compaction of a running session: each process moves its pages together, so that blocks of 2 MiB
//! become free.

use crate::Refusal;
use crate::session::Session;
use highwater_command::counted;
use highwater_session::{Budget, Compacted};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval between checks of whether the processes have finished.
const LOOK: Duration = Duration::from_millis(10);
/// How long to wait for the processes. Some 10 GiB are compacted in this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Refuses a session without large pages: for pages of 4 KiB, any frame is as good as another.
pub(super) fn check(session: &Session) -> Result<(), Refusal> {
    if session.description.large_pages {
        return Ok(());
    }
    let what = "this session has pages of 4 KiB only, which need no adjacent frames";
    Err(Refusal::new(what, "start it with --large-pages on"))
}

/// Lets all processes compact their memory, and waits for them. Returns the line to print.
pub(super) fn carry_out(budget: &Budget) -> String {
    let (request, began) = (budget.compact(), Instant::now());
    let mut all = budget.compacted(request);
    while all.behind > 0 && began.elapsed() < PATIENCE {
        sleep(LOOK);
        all = budget.compacted(request);
    }
    let Compacted { done, blocks, behind } = all;
    let blocks = counted(blocks.into(), "block", "blocks");
    let note = match behind {
        0 => String::new(),
        more => format!("; {more} go on"),
    };
    let processes = counted(done as u64, "process", "processes");
    format!("compact = {blocks} of 2 MiB made free in {processes}{note}\n")
}
