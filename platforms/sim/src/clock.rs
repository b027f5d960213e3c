//! Virtual time.

use crate::Sim;
use highwater_platform::Clock;
use highwater_units::Nanos;

impl Clock for Sim {
    fn now(&self) -> Nanos {
        self.engine().now()
    }

    fn thread_cpu_time(&self) -> Nanos {
        let engine = self.engine();
        engine.charge(engine.machine.costs.atomic);
        engine.thread_cpu_time()
    }
}
