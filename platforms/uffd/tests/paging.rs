//! Real faults: threads use more memory than the budget, and find what they wrote.

use highwater_devices::{Spec, open};
use highwater_mm::{Config, FaultError, Manager};
use highwater_uffd::handler::{Owner, Server};
use highwater_uffd::sigbus::Service;
use highwater_uffd::{Delivery, Mapping, Placement, Uffd};
use highwater_units::{Bytes, PAGE_SIZE, Prng, SpaceId, Vpn};
use std::sync::Arc;

struct Whole(u64);

impl Owner for Whole {
    fn bound(&self, _: Vpn) -> Option<Vpn> {
        Some(Vpn(self.0))
    }

    fn failed(&self, vpn: Vpn, error: FaultError) {
        fail(vpn, error);
    }

    fn stray(&self, vpn: Vpn) {
        panic!("{vpn:?} is in the space");
    }
}

fn fail(vpn: Vpn, error: FaultError) {
    eprintln!("{vpn:?}: {error}");
    std::process::abort();
}

struct Paged {
    manager: Arc<Manager<Uffd>>,
    space: SpaceId,
    pages: u64,
    _server: Option<Server>,
    _service: Option<Service>,
}

/// A space of `pages` pages in a budget of `frames` frames.
fn paged(frames: u64, pages: u64, mapping: Mapping, delivery: Delivery) -> Paged {
    let spec = Spec::parse("ram:64M").expect("a device");
    let device = open(&spec).expect("memory for the device");
    let platform = Uffd::new(Bytes::of_pages(frames), vec![device], mapping).expect("userfaultfd");
    platform.place(SpaceId(0), Placement { address: None, delivery });
    let manager = Arc::new(Manager::start(platform, Config::default()).expect("threads"));
    let space = manager.add_space(pages + 1).expect("address space");
    let server = match delivery {
        Delivery::Handler => {
            Some(Server::start(manager.clone(), space, Arc::new(Whole(pages))).expect("a thread"))
        }
        Delivery::InThread => None,
    };
    let service = match delivery {
        Delivery::Handler => None,
        Delivery::InThread => Service::start(manager.clone(), space, fail),
    };
    Paged { manager, space, pages, _server: server, _service: service }
}

/// Every thread keeps a version in its own word of every page.
fn hammer(paged: &Paged, thread: u64, steps: u64) {
    let mut random = Prng::new(thread + 1);
    let mut versions = vec![0u64; paged.pages as usize];
    for step in 0..steps {
        let page = match step < paged.pages {
            true => step,
            false => random.below(paged.pages),
        };
        let address = paged.manager.platform().address(paged.space, Vpn(page));
        // SAFETY: inside a page of the space; the word is this thread's own.
        let word = unsafe { address.cast::<u64>().add(thread as usize * 7) };
        // SAFETY: as above.
        let found = unsafe { word.read_volatile() };
        assert_eq!(found, versions[page as usize], "page {page}, thread {thread}, step {step}");
        if random.percent(40) {
            versions[page as usize] += 1 + thread;
            // SAFETY: as above.
            unsafe { word.write_volatile(versions[page as usize]) };
        }
    }
}

fn check(mapping: Mapping, delivery: Delivery, threads: u64) {
    let mut paged = paged(512, 2048, mapping, delivery);
    std::thread::scope(|scope| {
        let paged = &paged;
        for thread in 0..threads {
            scope.spawn(move || hammer(paged, thread, 20_000));
        }
    });
    let used = paged.manager.platform().arena_used();
    assert!(used.0 <= (512 * PAGE_SIZE) as u64);
    paged._server = None;
    paged._service = None;
    let now = paged.manager.statistics();
    eprintln!("{mapping:?} {delivery:?} {threads}: {:?}", now.faults().quantile(0.5));
    let mut manager = Arc::into_inner(paged.manager).expect("nobody else has it");
    manager.stop_kswapd();
    manager.verify(&[]);
}

#[test]
fn moved_by_handlers() {
    check(Mapping::Move, Delivery::Handler, 1);
    check(Mapping::Move, Delivery::Handler, 6);
}

#[test]
fn moved_in_thread() {
    check(Mapping::Move, Delivery::InThread, 1);
    check(Mapping::Move, Delivery::InThread, 6);
}

#[test]
fn copied_by_handlers() {
    check(Mapping::Copy, Delivery::Handler, 1);
    check(Mapping::Copy, Delivery::Handler, 6);
}

#[test]
fn copied_in_thread() {
    check(Mapping::Copy, Delivery::InThread, 1);
    check(Mapping::Copy, Delivery::InThread, 6);
}
