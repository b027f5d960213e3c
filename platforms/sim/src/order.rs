//! Lock order checking: a cycle is a potential deadlock, even if no run has reached it.
//!
//! ```text
//! B taken while A is held: edge A -> B between their classes. The first edge that closes a cycle
//! (also a class taken under itself) panics.
//! ```

use crate::engine::TaskId;
use highwater_platform::LockClass;
use std::cell::RefCell;

const CLASSES: usize = LockClass::MAX;
const _: () = assert!(CLASSES <= u32::BITS as usize, "a set of classes is a word");

/// The lock order seen so far, and the locks that each task holds.
pub(crate) struct Order(RefCell<Seen>);

struct Seen {
    /// `under[a]`: classes that were taken while `a` was held, as bits.
    under: [u32; CLASSES],
    /// The held classes of each task.
    held: Vec<Vec<LockClass>>,
}

impl Order {
    pub(crate) fn new() -> Order {
        Order(RefCell::new(Seen { under: [0; CLASSES], held: Vec::new() }))
    }

    /// Called before a task waits for a lock.
    pub(crate) fn want(&self, task: TaskId, class: LockClass) {
        let mut seen = self.0.borrow_mut();
        let seen = &mut *seen;
        let Some(held) = seen.held.get(task.index()) else { return };
        for outer in held {
            let known = seen.under[usize::from(outer.id())] >> class.id() & 1 == 1;
            if !known {
                assert!(
                    !seen.reaches(class, *outer),
                    "lock order: {} is taken under {}, and the other way round",
                    class.name(),
                    outer.name(),
                );
                seen.under[usize::from(outer.id())] |= 1 << class.id();
            }
        }
    }

    /// Called when a task has acquired a lock.
    pub(crate) fn took(&self, task: TaskId, class: LockClass) {
        let held = &mut self.0.borrow_mut().held;
        if held.len() <= task.index() {
            held.resize(task.index() + 1, Vec::new());
        }
        held[task.index()].push(class);
    }

    /// Called when a task releases a lock.
    pub(crate) fn left(&self, task: TaskId, class: LockClass) {
        let mut seen = self.0.borrow_mut();
        let held = &mut seen.held[task.index()];
        let last = held.iter().rposition(|other| *other == class).expect("it was taken");
        held.remove(last);
    }

    /// Whether a task holds a lock of the manager, under which sleeping is forbidden.
    pub(crate) fn holds_for_short(&self, task: TaskId) -> bool {
        let seen = self.0.borrow();
        let held = seen.held.get(task.index());
        held.is_some_and(|held| held.iter().any(|class| *class != LockClass::TEST))
    }

    /// Whether a task holds any lock.
    pub(crate) fn holds_any(&self, task: TaskId) -> bool {
        self.0.borrow().held.get(task.index()).is_some_and(|held| !held.is_empty())
    }
}

impl Seen {
    /// Whether `to` was taken under `from`, directly or through other classes.
    fn reaches(&self, from: LockClass, to: LockClass) -> bool {
        let (mut reached, mut before) = (1u32 << from.id(), 0);
        while reached != before {
            before = reached;
            for class in (0..CLASSES).filter(|class| before >> class & 1 == 1) {
                reached |= self.under[class];
            }
        }
        reached >> to.id() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWAP_CPU: LockClass = LockClass::new(0, "swap_cpu");
    const SWAP_CLUSTER: LockClass = LockClass::new(1, "swap_cluster");
    const SWAP_DEVICE: LockClass = LockClass::new(2, "swap_device");
    const LRU_BATCH: LockClass = LockClass::new(3, "lru_batch");
    const LRU: LockClass = LockClass::new(4, "lru");
    const ZONE: LockClass = LockClass::new(5, "zone");

    fn nest(order: &Order, task: u32, classes: &[LockClass]) {
        for class in classes {
            order.want(TaskId(task), *class);
            order.took(TaskId(task), *class);
        }
        classes.iter().rev().for_each(|class| order.left(TaskId(task), *class));
    }

    #[test]
    fn orders_that_agree_pass() {
        let order = Order::new();
        nest(&order, 0, &[SWAP_CPU, SWAP_CLUSTER, SWAP_DEVICE]);
        nest(&order, 1, &[SWAP_CPU, SWAP_DEVICE]);
        nest(&order, 1, &[LRU_BATCH, LRU]);
        assert!(!order.holds_any(TaskId(1)));
    }

    #[test]
    #[should_panic(expected = "lock order: swap_cpu is taken under swap_device")]
    fn a_cycle_over_three_classes_and_two_tasks_is_found() {
        let order = Order::new();
        nest(&order, 0, &[SWAP_CPU, SWAP_CLUSTER]);
        nest(&order, 1, &[SWAP_CLUSTER, SWAP_DEVICE]);
        nest(&order, 2, &[SWAP_DEVICE, SWAP_CPU]);
    }

    #[test]
    #[should_panic(expected = "lock order: zone is taken under zone")]
    fn a_class_under_itself_is_found() {
        nest(&Order::new(), 0, &[ZONE, ZONE]);
    }
}
