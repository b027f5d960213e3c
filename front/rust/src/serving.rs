//! The threads that serve the faults of an engine.

use crate::forked::Known;
use crate::owner::Mappings;
use crate::regions::SPACE;
use highwater_mm::Manager;
use highwater_serve::{Server, Service};
use highwater_uffd::{Delivery, Uffd};
use highwater_units::SpaceId;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Serves until it is dropped.
pub(crate) enum Serving {
    Handlers { _server: Server },
    InThread { _service: Service },
}

impl Serving {
    /// Serves the space of anonymous memory; handler threads serve all other spaces, too.
    pub(crate) fn start(
        delivery: Delivery,
        manager: &Arc<Manager<Uffd>>,
        owner: &Arc<Mappings>,
    ) -> io::Result<Serving> {
        match delivery {
            Delivery::Handler => Server::start(manager.clone(), SPACE, owner.clone())
                .map(|server| Serving::Handlers { _server: server }),
            Delivery::InThread => Serving::in_thread(manager, SPACE, owner),
        }
    }

    /// Serves a space in the faulting threads.
    pub(crate) fn in_thread(
        manager: &Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: &Arc<Mappings>,
    ) -> io::Result<Serving> {
        let service = Service::of_engine(manager.clone(), space, owner.clone())?;
        Ok(Serving::InThread { _service: service })
    }
}

/// The addresses of files, and the service of faults at them.
pub(crate) struct Addresses {
    pub(crate) base: NonNull<u8>,
    pub(crate) _known: Known,
    pub(crate) _serving: Option<Serving>,
}

/// The result of an attempt to make addresses for files.
pub(crate) enum Attempt {
    None,
    /// The system refused them, with this error.
    Refused(i32),
}
