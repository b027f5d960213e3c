//! An event count: a notification wakes all waiters.

use crate::engine::{Confined, Home, TaskId};
use highwater_platform::{Event, Ticket};
use highwater_units::Nanos;

/// An event count of the simulated machine.
pub struct SimEvent(Confined<History>);

struct History {
    sequence: u32,
    waiters: Vec<TaskId>,
}

impl SimEvent {
    /// An event count of zero.
    pub(crate) fn new(home: &Home) -> SimEvent {
        SimEvent(Confined::new(home, History { sequence: 0, waiters: Vec::new() }))
    }
}

impl Event for SimEvent {
    fn ticket(&self) -> Ticket {
        let engine = self.0.engine();
        engine.sync();
        engine.charge(engine.machine.costs.atomic);
        Ticket(self.0.with(|history| history.sequence))
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Nanos>) {
        let engine = self.0.engine();
        engine.sync();
        let task = engine.running_task();
        let waits = self.0.with(|history| {
            let waits = history.sequence == ticket.0;
            history.waiters.extend(waits.then_some(task));
            waits
        });
        if waits {
            engine.sleep(timeout.map(|timeout| timeout.0), "an event");
            // This is only needed after a timeout: a notification empties the list.
            self.0.with(|history| history.waiters.retain(|other| *other != task));
        }
    }

    fn notify_all(&self) {
        let engine = self.0.engine();
        engine.sync();
        engine.charge(engine.machine.costs.atomic);
        let waiters = self.0.with(|history| {
            history.sequence = history.sequence.wrapping_add(1);
            std::mem::take(&mut history.waiters)
        });
        waiters.into_iter().for_each(|task| engine.wake(task));
    }
}
