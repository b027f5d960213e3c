//! The number of a virtual thread.

/// The number of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId(pub(crate) u32);

impl TaskId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
