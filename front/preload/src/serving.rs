//! The threads that serve the page faults of a process.

use highwater_mm::Manager;
use highwater_serve::{Owner, Server, Service};
use highwater_uffd::{Delivery, Uffd};
use highwater_units::SpaceId;
use std::io;
use std::sync::Arc;

/// Serves the faults of a process until it is dropped.
pub(crate) enum Serving {
    Handlers { _server: Server },
    InThread { _service: Service },
}

impl Serving {
    pub(crate) fn start(
        delivery: Delivery,
        manager: &Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: Arc<dyn Owner>,
    ) -> io::Result<Serving> {
        let manager = manager.clone();
        match delivery {
            Delivery::Handler => Server::start(manager, space, owner)
                .map(|server| Serving::Handlers { _server: server }),
            Delivery::InThread => Service::of_program(manager, space, owner)
                .map(|service| Serving::InThread { _service: service }),
        }
    }
}
