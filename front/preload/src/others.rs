//! Budgets of other runs, by process: each of the processes of MPI may have a run of its own.

use highwater_session::Budget;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The most that are kept.
const MOST: usize = 64;

/// The budgets that were opened.
#[derive(Default)]
pub(crate) struct Others(Mutex<BTreeMap<u32, Arc<Budget>>>);

impl Others {
    /// The budget of the run of a process. A signal handler that interrupts its own thread here
    /// opens it anew.
    pub(crate) fn of(
        &self,
        pid: u32,
        open: impl FnOnce() -> Option<Budget>,
    ) -> Option<Arc<Budget>> {
        let has = |budget: &Arc<Budget>| budget.members().iter().any(|it| it.image.pid == pid);
        let found = self.0.try_lock().ok().and_then(|budgets| budgets.get(&pid).cloned());
        if let Some(budget) = found.filter(has) {
            return Some(budget);
        }
        let budget = Arc::new(open()?);
        if let Ok(mut budgets) = self.0.try_lock() {
            if budgets.len() == MOST {
                budgets.clear();
            }
            budgets.insert(pid, budget.clone());
        }
        Some(budget)
    }
}
