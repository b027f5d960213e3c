//! A space on the uffd platform: plain pointers, and page faults that the manager serves.

use super::{ServedBy, Setup, with_devices};
use crate::workload::Service;
use crate::workload::extent::Extent;
use crate::workload::host::Host;
use highwater_mm::stats::Snapshot;
use highwater_mm::{FaultError, Manager, Range};
use highwater_platform::LockStatistics;
use highwater_serve::{Owner, Part, Server, Service as InThread};
use highwater_uffd::{Delivery, Mapping, Placement, Site, Uffd};
use highwater_units::{SpaceId, Vpn};
use std::io::Write;
use std::ptr::NonNull;
use std::sync::Arc;

/// The first space a manager adds.
const SPACE: SpaceId = SpaceId(0);

/// A manager on [`Uffd`] with one space, and the threads that serve its faults.
pub struct Faults {
    // Dropped in this order: access to the pages ends before faults stop being served.
    extent: Extent,
    _serving: Serving,
    manager: Arc<Manager<Uffd>>,
}

/// The server of faults, which must exist as long as pages are touched.
enum Serving {
    Handlers { _server: Server },
    InThread { _service: InThread },
}

impl Faults {
    /// Starts a manager; `mapping` none means the best this kernel has.
    ///
    /// # Errors
    /// One line: a device cannot be opened, userfaultfd is not permitted, or the system refuses
    /// memory or threads.
    pub fn start(
        setup: &Setup,
        mapping: Option<Mapping>,
        service: ServedBy,
    ) -> Result<Faults, String> {
        let refused = |reason| format!("userfaultfd: {reason} (highwater doctor says more)");
        let mapping = mapping.map_or_else(Uffd::probe, Ok).map_err(refused)?;
        let platform = Uffd::new(setup.memory, setup.open_devices()?, mapping).map_err(refused)?;
        let delivery = match service {
            ServedBy::Handlers => Delivery::Handler,
            ServedBy::InThread => Delivery::InThread,
        };
        platform.place(SPACE, Placement { site: Site::Anywhere, delivery });
        let manager = Manager::start(platform, setup.config.clone()).map_err(|e| e.to_string())?;
        let manager = Arc::new(manager);
        // The server's own page comes after the set.
        let pages = setup.set.pages();
        let space = manager.add_space(pages + 1).map_err(|e| e.to_string())?;
        assert_eq!(space, SPACE, "spaces are numbered from 0");
        let serving = Serving::start(&manager, pages, service)?;
        let base = manager.platform().address(SPACE, Vpn(0));
        let base = NonNull::new(base).expect("spaces do not lie at 0");
        // SAFETY: the space is mapped for as long as the manager lives, its faults are served for
        // as long as `_serving` lives, and both outlive the extent.
        let extent = unsafe { Extent::new(base, pages) };
        let prefetcher = Arc::clone(&manager);
        let page = |index| Range { first: Vpn(index), end: Vpn(index + 1) };
        let extent = extent.with_prefetch(move |index| prefetcher.prefetch(SPACE, page(index)));
        Ok(Faults { extent, _serving: serving, manager })
    }
}

impl Serving {
    fn start(
        manager: &Arc<Manager<Uffd>>,
        pages: u64,
        service: ServedBy,
    ) -> Result<Serving, String> {
        let (manager, owner) = (Arc::clone(manager), Arc::new(OneRegion { pages }));
        match service {
            ServedBy::Handlers => Server::start(manager, SPACE, owner)
                .map(|server| Serving::Handlers { _server: server })
                .map_err(|reason| format!("a thread to serve faults: {reason}")),
            ServedBy::InThread => InThread::of_engine(manager, SPACE, owner)
                .map(|service| Serving::InThread { _service: service })
                .map_err(|reason| reason.to_string()),
        }
    }
}

impl Service for Faults {
    type Target = Extent;
    type World = Host;

    fn target(&self) -> &Extent {
        &self.extent
    }

    fn world(&self) -> &Host {
        &Host
    }

    fn counters(&self) -> Snapshot {
        with_devices(self.manager.statistics(), self.manager.platform().devices())
    }

    fn locks(&self) -> Option<LockStatistics> {
        Some(self.manager.lock_statistics())
    }

    fn calls(&self) -> Option<u64> {
        Some(self.manager.platform().calls().total())
    }
}

/// All pages but the server's own are one region.
struct OneRegion {
    pages: u64,
}

impl Owner for OneRegion {
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part> {
        let within = Range { first: Vpn(0), end: Vpn(self.pages) };
        (vpn.0 < self.pages).then_some(Part { space, vpn, within })
    }

    fn failed(&self, part: Part, error: FaultError) {
        cannot_go_on(part.vpn, error);
    }

    fn stray(&self, _: SpaceId, vpn: Vpn) {
        unreachable!("workloads stay in their extent, and {vpn:?} is outside");
    }
}

/// The access that faulted can neither be finished nor undone.
fn cannot_go_on(vpn: Vpn, error: FaultError) {
    // A failed write is ignored: a panic here would help no one.
    let _ = writeln!(std::io::stderr(), "highwater: page {}: {error}", vpn.0);
    // SAFETY: ends the process at once, as is allowed anywhere, in a signal handler too.
    unsafe { libc::_exit(1) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::pattern::Pattern;
    use crate::workload::pmbench::{Config, Sharing, run};
    use highwater_devices::{Area, Seal, Spec};
    use highwater_mm::stats::Counter;
    use highwater_os::HugePages;
    use highwater_units::Bytes;
    use std::time::Duration;

    fn pmbench(mapping: Option<Mapping>, service: ServedBy, pattern: Pattern) {
        let setup = Setup {
            memory: Bytes(4 << 20),
            set: Bytes(16 << 20),
            swap: vec![Area::new(Spec::Ram { size: Bytes(24 << 20) })],
            seal: Seal::On,
            config: highwater_mm::Config::default(),
            huge_pages: HugePages::Off,
        };
        let faults = match Faults::start(&setup, mapping, service) {
            Ok(faults) => faults,
            Err(reason) if Uffd::probe().is_err() => {
                return highwater_testkit::skip_or_fail(reason);
            }
            Err(reason) => panic!("{reason}"),
        };
        let time = Duration::from_millis(300);
        let (sharing, ahead, warm_up) = (Sharing::Shared, 0, Duration::ZERO);
        let config = Config {
            threads: 3,
            read_percent: 50,
            pattern,
            sharing,
            ahead,
            warm_up,
            time,
            seed: 5,
        };
        let outcome = run(&faults, &config).unwrap_or_else(|failure| panic!("{failure}"));
        let swapped = |snapshot: &Snapshot| snapshot.get(Counter::PswpIn);
        assert!(
            swapped(&outcome.measured.after) > swapped(&outcome.measured.before),
            "nothing was swapped in"
        );
    }

    #[test]
    fn handlers_keep_the_contents() {
        pmbench(None, ServedBy::Handlers, Pattern::Uniform);
        pmbench(None, ServedBy::Handlers, Pattern::Sequential);
    }

    #[test]
    fn copies_keep_the_contents() {
        pmbench(Some(Mapping::Copy), ServedBy::Handlers, Pattern::Uniform);
        pmbench(Some(Mapping::Copy), ServedBy::InThread, Pattern::Normal);
    }

    #[test]
    fn faulting_threads_keep_the_contents() {
        pmbench(None, ServedBy::InThread, Pattern::Uniform);
        pmbench(None, ServedBy::InThread, Pattern::Sequential);
    }
}
