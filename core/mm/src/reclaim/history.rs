//! Direct reclaim of kernels that do not stop at a batch.

use super::balance::Plan;
use crate::config::history::DirectNodes;
use crate::machine::Machine;
use highwater_platform::Platform;

/// Frames that a direct reclaim frees in its first round, if it can; `plan` scans as many pages.
pub(super) fn direct_goal<P: Platform>(m: &Machine<P>, target: u32, plan: &mut Plan) -> u32 {
    let goal = target.max(m.config.history.reclaim.direct_reclaim);
    if goal > target {
        plan.left = plan.left.max(goal);
    }
    goal
}

/// Whether a round of direct reclaim goes on to other nodes when one has freed something.
pub fn scans_all_nodes<P: Platform>(m: &Machine<P>) -> bool {
    m.config.history.reclaim.direct_nodes == DirectNodes::All
}
