//! Real files as spaces that a program uses by plain pointers: it reads the contents of the files,
//! a sync writes its changes to the files, and a page that cannot be served makes the access fail.

#[path = "../../../platforms/os/tests/common/contents.rs"]
mod contents;

use contents::{directory, file, page_of};
use highwater_devices::{Device, FileAccess, Spec, open, open_file};
use highwater_mm::stats::Counter;
use highwater_mm::{Config, FaultError, Manager, Range, StartError};
use highwater_serve::{Owner, Part, Server};
use highwater_testkit::Watchdog;
use highwater_uffd::api::{Faults, Source};
use highwater_uffd::{FileAt, Mapping, Uffd};
use highwater_units::{Bytes, PAGE_SIZE, Prng, SpaceId, Vpn};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// The budget: a sixth of the file.
const MEMORY: Bytes = Bytes(1 << 20);
const PAGES: usize = 6 * 256;
const BOTH: [Mapping; 2] = [Mapping::Move, Mapping::Copy];

/// Pages of the open files. Locked for writing while a file is closed: a handler may still look at
/// a fault of the file that another handler has served.
type Open = Arc<RwLock<BTreeMap<SpaceId, u64>>>;

/// Each space is one range. A page that cannot be served is recorded and protected.
struct Program {
    manager: Arc<Manager<Uffd>>,
    failures: Arc<Mutex<Vec<(Vpn, FaultError)>>>,
    open: Open,
}

impl Owner for Program {
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part> {
        let within = Range { first: Vpn(0), end: self.manager.end_of(space) };
        Some(Part { space, vpn, within })
    }

    fn keep(&self, space: SpaceId, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        let open = self.open.read().expect("no panic");
        // A file was closed since the fault, and a shorter file may have its space: the thread that
        // faulted has gone on.
        if open.get(&space).is_some_and(|pages| vpn.0 < *pages) {
            self.find(space, vpn).map(act);
        }
        true
    }

    fn failed(&self, part: Part, error: FaultError) {
        self.failures.lock().expect("no panic").push((part.vpn, error));
        let access = match error {
            FaultError::ReadOnly => libc::PROT_READ,
            _ => libc::PROT_NONE,
        };
        let (platform, next) = (self.manager.platform(), part.vpn.offset(1));
        platform.protect(part.space, part.vpn, next, access).expect("mprotect");
    }

    fn stray(&self, space: SpaceId, vpn: Vpn) {
        panic!("{vpn:?} is in {space:?}");
    }
}

struct World {
    server: Option<Server>,
    manager: Arc<Manager<Uffd>>,
    space: SpaceId,
    failures: Arc<Mutex<Vec<(Vpn, FaultError)>>>,
    open: Open,
    _watchdog: Watchdog,
}

impl World {
    fn over(path: &Path, access: FileAccess, mapping: Mapping) -> World {
        let _watchdog = Watchdog::new(&format!("{path:?} by {mapping:?}"), Duration::from_secs(60));
        let file = open_file(path, access).expect("the file");
        let pages = u64::from(file.info().pages);
        let swap: Box<dyn Device> = open(&Spec::Ram { size: MEMORY }).expect("a RAM device");
        let platform = Uffd::with_places(
            MEMORY,
            vec![Some(swap), Some(file)],
            2,
            mapping,
            Source::find(Faults::All),
        );
        let platform = platform.expect("userfaultfd");
        let manager = Arc::new(Manager::start(platform, Config::default()).expect("threads"));
        let stop_page = manager.add_space(1).expect("a space");
        let space = manager.add_file_space(pages, 1).expect("a space");
        let failures: Arc<Mutex<Vec<_>>> = Arc::default();
        let open: Open = Arc::new(RwLock::new(BTreeMap::from([(space, pages)])));
        let (seen, served) = (failures.clone(), open.clone());
        let owner = Program { manager: manager.clone(), failures: seen, open: served };
        let server = Server::start(manager.clone(), stop_page, Arc::new(owner)).expect("a thread");
        World { server: Some(server), manager, space, failures, open, _watchdog }
    }

    fn at_of(&self, space: SpaceId, byte: usize) -> *mut u8 {
        let page = self.manager.platform().address(space, Vpn((byte / PAGE_SIZE) as u64));
        page.wrapping_add(byte % PAGE_SIZE)
    }

    fn at(&self, byte: usize) -> *mut u8 {
        self.at_of(self.space, byte)
    }

    fn bytes_of(&self, space: SpaceId, page: usize) -> Vec<u8> {
        let (mut bytes, from) = (vec![0; PAGE_SIZE], self.at_of(space, page * PAGE_SIZE));
        // SAFETY: a page of the space, whose faults are served; tests write it one at a time.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), PAGE_SIZE) };
        bytes
    }

    fn bytes(&self, page: usize) -> Vec<u8> {
        self.bytes_of(self.space, page)
    }

    fn set(&self, byte: usize, value: u8) {
        // SAFETY: inside the space; every thread writes bytes of its own.
        unsafe { self.at(byte).write_volatile(value) };
    }

    fn get(&self, byte: usize) -> u8 {
        // SAFETY: as for `set`.
        unsafe { self.at(byte).read_volatile() }
    }

    /// A system call that stores to a byte.
    fn read_into(&self, byte: usize) -> io::Result<usize> {
        // SAFETY: a byte that no other thread uses; the call may be refused.
        let buffer = unsafe { std::slice::from_raw_parts_mut(self.at(byte), 1) };
        fs::File::open("/dev/zero").expect("zeros").read(buffer)
    }

    /// A system call that loads from a byte.
    fn write_from(&self, byte: usize) -> io::Result<usize> {
        let (_reader, mut writer) = io::pipe().expect("a pipe");
        // SAFETY: a byte that no thread writes; the call may be refused.
        writer.write(unsafe { std::slice::from_raw_parts(self.at(byte), 1) })
    }

    fn failures(&self) -> Vec<(Vpn, FaultError)> {
        std::mem::take(&mut self.failures.lock().expect("no panic"))
    }

    fn resident(&self) -> u64 {
        self.manager.statistics().get(Counter::ResidentPeak)
    }

    fn finish(mut self) {
        self.server = None;
        let mut manager = Arc::into_inner(self.manager).expect("nobody else has it");
        manager.stop_kswapd();
        manager.verify(&[]);
    }
}

#[test]
fn changes_are_in_the_file_after_a_sync_and_its_length_stays() {
    for (mapping, odd) in [BOTH.map(|way| (way, 0)), BOTH.map(|way| (way, 1000))].concat() {
        let dir = directory();
        let (path, mut contents) = file(&dir, PAGES * PAGE_SIZE + odd);
        let pages = contents.len().div_ceil(PAGE_SIZE);
        let world = World::over(&path, FileAccess::ReadWrite, mapping);
        for page in 0..pages {
            assert_eq!(world.bytes(page), page_of(&contents, page), "page {page}, {mapping:?}");
        }
        let mut random = Prng::new(odd as u64);
        for _ in 0..4000 {
            let at = random.below(contents.len() as u64) as usize;
            // Pages that were only read, or were written back, are clean.
            if random.percent(50) {
                assert_eq!(world.get(at), contents[at], "byte {at}, {mapping:?}");
                continue;
            }
            contents[at] = random.next_u64() as u8;
            world.set(at, contents[at]);
            if random.percent(2) {
                let first = random.below(pages as u64);
                let range = Range { first: Vpn(first), end: Vpn((first + 100).min(pages as u64)) };
                assert_eq!(world.manager.write_back(world.space, range), Ok(()));
            }
        }
        if odd > 0 {
            // Behind the end of the file: this byte is never written to it.
            world.set(pages * PAGE_SIZE - 1, 99);
        }
        assert_eq!(world.manager.sync(), Ok(()));
        assert!(fs::read(&path).expect("the file") == contents, "{mapping:?}, {odd} bytes");
        let all = Range { first: Vpn(0), end: Vpn(pages as u64) };
        world.manager.discard(world.space, all);
        for page in (0..pages).rev() {
            assert_eq!(world.bytes(page), page_of(&contents, page), "page {page}, read again");
        }
        assert!(world.resident() <= MEMORY.pages());
        world.finish();
    }
}

#[test]
fn files_come_and_go() {
    const THREADS: usize = 3;
    for mapping in BOTH {
        let dir = directory();
        let (path, contents) = file(&dir, PAGES * PAGE_SIZE);
        // The first file stays open; others are opened and closed beside it.
        let world = World::over(&path, FileAccess::Read, mapping);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let world = &world;
                scope.spawn(move || use_files(world, thread));
            }
            for page in 0..PAGES {
                assert!(world.bytes(page) == page_of(&contents, page), "page {page}, {mapping:?}");
            }
        });
        world.finish();
    }
}

/// Opens one file after the other, changes some bytes of each, and checks that the file has them.
fn use_files(world: &World, thread: usize) {
    let (dir, mut random) = (directory(), Prng::new(thread as u64));
    for _ in 0..10 {
        let bytes = 1 + random.below((PAGES * PAGE_SIZE / 2) as u64) as usize;
        let (path, mut contents) = file(&dir, bytes);
        let device = open_file(&path, FileAccess::ReadWrite).expect("the file");
        let space = match world.manager.open_file(FileAt { device, address: None }) {
            Ok(space) => space,
            Err(refused) => {
                assert!(matches!(refused, StartError::Places), "{refused}");
                continue;
            }
        };
        let pages = bytes.div_ceil(PAGE_SIZE);
        world.open.write().expect("no panic").insert(space, pages as u64);
        for page in 0..pages {
            assert!(world.bytes_of(space, page) == page_of(&contents, page), "page {page}");
            let at = page * PAGE_SIZE + random.below(PAGE_SIZE as u64) as usize;
            if at < bytes && random.percent(50) {
                contents[at] = random.next_u64() as u8;
                // SAFETY: a page of a space that only this thread uses.
                unsafe { world.at_of(space, at).write_volatile(contents[at]) };
            }
        }
        let mut open = world.open.write().expect("no panic");
        assert_eq!(world.manager.close_file(space), Ok(()));
        open.remove(&space);
        drop(open);
        assert!(fs::read(&path).expect("the file") == contents, "{bytes} bytes");
    }
}

#[test]
fn threads_change_what_others_write_back() {
    const THREADS: usize = 4;
    for mapping in BOTH {
        let dir = directory();
        let (path, mut contents) = file(&dir, PAGES * PAGE_SIZE);
        let world = World::over(&path, FileAccess::ReadWrite, mapping);
        let stores = |thread: usize| {
            let mut random = Prng::new(thread as u64);
            let mut store = move || {
                let page = random.below(PAGES as u64) as usize;
                let at = page * PAGE_SIZE + thread * 1000 + random.below(1000) as usize;
                (at, random.next_u64() as u8)
            };
            (0..6000).map(move |_| store())
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let world = &world;
                scope.spawn(move || stores(thread).for_each(|(at, value)| world.set(at, value)));
            }
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(world.manager.sync(), Ok(()))));
        });
        (0..THREADS).flat_map(stores).for_each(|(at, value)| contents[at] = value);
        for page in 0..PAGES {
            assert!(world.bytes(page) == page_of(&contents, page), "page {page}, {mapping:?}");
        }
        assert_eq!(world.manager.sync(), Ok(()));
        assert!(fs::read(&path).expect("the file") == contents, "{mapping:?}");
        world.finish();
    }
}

#[test]
fn a_file_for_reading_refuses_changes() {
    for mapping in BOTH {
        let dir = directory();
        let (path, contents) = file(&dir, 9 * PAGE_SIZE + 17);
        let world = World::over(&path, FileAccess::Read, mapping);
        assert_eq!(world.bytes(5), page_of(&contents, 5));
        // One page in memory, and one that is not.
        for page in [5, 2] {
            let refused = world.read_into(page * PAGE_SIZE).map_err(|error| error.raw_os_error());
            assert_eq!(refused, Err(Some(libc::EFAULT)), "page {page}, {mapping:?}");
            assert_eq!(world.failures(), [(Vpn(page as u64), FaultError::ReadOnly)]);
        }
        for page in 0..10 {
            assert_eq!(world.bytes(page), page_of(&contents, page), "page {page}, {mapping:?}");
        }
        assert_eq!(world.manager.sync(), Ok(()));
        assert_eq!(fs::read(&path).expect("the file"), contents);
        world.finish();
    }
}

#[test]
fn what_the_file_has_lost_is_an_error() {
    for mapping in BOTH {
        let dir = directory();
        let (path, contents) = file(&dir, 64 * PAGE_SIZE);
        let world = World::over(&path, FileAccess::ReadWrite, mapping);
        let cut = fs::OpenOptions::new().write(true).open(&path).expect("the file");
        cut.set_len(32 * PAGE_SIZE as u64).expect("a shorter file");
        assert_eq!(world.write_from(40 * PAGE_SIZE).map_err(|e| e.raw_os_error()), {
            Err(Some(libc::EFAULT))
        });
        assert!(matches!(world.failures()[..], [(Vpn(40), FaultError::Read(_))]), "{mapping:?}");
        world.manager.truncate(world.space, Vpn(16));
        assert!(world.write_from(20 * PAGE_SIZE).is_err());
        assert_eq!(world.failures(), [(Vpn(20), FaultError::BeyondEnd)], "{mapping:?}");
        for page in 0..16 {
            assert_eq!(world.bytes(page), page_of(&contents, page), "page {page}, {mapping:?}");
        }
        world.finish();
    }
}
