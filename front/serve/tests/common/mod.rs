//! A paged space, and threads that keep version numbers in words of its pages.

use highwater_devices::{Device, Spec, open};
use highwater_mm::{Config, FaultError, Manager, Range};
use highwater_serve::{Owner, Part, Server, Service};
use highwater_testkit::Watchdog;
use highwater_uffd::{Delivery, Mapping, Placement, Site, Uffd};
use highwater_units::{Bytes, Prng, SpaceId, Vpn};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The parameters of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) frames: u64,
    pub(crate) pages: u64,
    /// Pages of a region, the limit of readahead.
    pub(crate) region: u64,
    pub(crate) mapping: Mapping,
    pub(crate) delivery: Delivery,
}

/// Adjacent regions of equal size.
pub(crate) struct Regions(pub(crate) u64);

impl Owner for Regions {
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part> {
        let first = Vpn(vpn.0 / self.0 * self.0);
        Some(Part { space, vpn, within: Range { first, end: first.offset(self.0) } })
    }

    fn failed(&self, part: Part, error: FaultError) {
        fail(part.vpn, error);
    }

    fn stray(&self, _: SpaceId, vpn: Vpn) {
        panic!("{vpn:?} is in the space");
    }
}

pub(crate) fn fail(vpn: Vpn, error: FaultError) {
    eprintln!("{vpn:?}: {error}");
    std::process::abort();
}

pub(crate) fn memory() -> Box<dyn Device> {
    memory_of(64)
}

pub(crate) fn memory_of(mib: u64) -> Box<dyn Device> {
    open(&Spec::Ram { size: Bytes(mib << 20) }).expect("memory for the device")
}

pub(crate) fn file(dir: &Path) -> Box<dyn Device> {
    let spec = Spec::Dir { path: dir.to_owned(), size: Bytes(64 << 20) };
    open(&spec).expect("room for the file")
}

/// A space, and the server or service of its faults.
pub(crate) struct Paged {
    pub(crate) manager: Arc<Manager<Uffd>>,
    pub(crate) space: SpaceId,
    pub(crate) pages: u64,
    pub(crate) watchdog: Watchdog,
    server: Option<Server>,
    service: Option<Service>,
}

impl Paged {
    pub(crate) fn new(setup: Setup, device: Box<dyn Device>) -> Paged {
        Paged::with(setup, Config::default(), device)
    }

    pub(crate) fn with(setup: Setup, config: Config, device: Box<dyn Device>) -> Paged {
        let Setup { frames, pages, region, mapping, delivery } = setup;
        let watchdog = Watchdog::new(&format!("{setup:?}"), Duration::from_secs(30));
        let budget = Bytes::of_pages(frames);
        let platform = Uffd::new(budget, vec![device], mapping).expect("userfaultfd");
        platform.place(SpaceId(0), Placement { site: Site::Anywhere, delivery });
        let manager = Arc::new(Manager::start(platform, config).expect("threads"));
        let space = manager.add_space(pages + 1).expect("address space");
        let owner = Arc::new(Regions(region));
        let (server, service) = match delivery {
            Delivery::Handler => {
                (Some(Server::start(manager.clone(), space, owner).expect("a thread")), None)
            }
            Delivery::InThread => {
                (None, Some(Service::of_engine(manager.clone(), space, owner).expect("a place")))
            }
        };
        Paged { manager, space, pages, watchdog, server, service }
    }

    pub(crate) fn address(&self, page: u64) -> *mut u8 {
        assert!(page < self.pages);
        self.manager.platform().address(self.space, Vpn(page))
    }

    fn word(&self, page: u64, word: usize) -> *mut u64 {
        assert!(word < 512);
        // SAFETY: inside a page of the space.
        unsafe { self.address(page).cast::<u64>().add(word) }
    }

    pub(crate) fn load(&self, page: u64, word: usize) -> u64 {
        self.watchdog.beat();
        // SAFETY: inside the space, whose faults are served.
        unsafe { self.word(page, word).read_volatile() }
    }

    pub(crate) fn store(&self, page: u64, word: usize, value: u64) {
        self.watchdog.beat();
        // SAFETY: inside the space; every thread stores to words of its own.
        unsafe { self.word(page, word).write_volatile(value) };
    }

    /// Random accesses of one thread to `pages`. Its word of each page must be what it stored last.
    pub(crate) fn hammer(&self, pages: &[u64], thread: usize, steps: usize) {
        let mut random = Prng::new(thread as u64 + 1);
        let mut versions = vec![None; pages.len()];
        for step in 0..steps {
            let index = random.below(pages.len() as u64) as usize;
            let (page, word) = (pages[index], thread * 7);
            let found = self.load(page, word);
            let expected = *versions[index].get_or_insert(found);
            assert_eq!(found, expected, "page {page}, thread {thread}, step {step}");
            if random.percent(40) {
                let value = (step as u64 + 1) << 32 | page << 8 | thread as u64;
                self.store(page, word, value);
                versions[index] = Some(value);
            }
        }
    }

    /// Ends the service and checks the manager.
    pub(crate) fn finish(mut self) {
        self.server = None;
        self.service = None;
        let mut manager = Arc::into_inner(self.manager).expect("the last reference");
        manager.stop_kswapd();
        manager.verify(&[]);
    }
}
