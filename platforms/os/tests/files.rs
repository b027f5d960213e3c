//! Real files as spaces: reads return the files' contents, a sync writes changes to the files, and
//! the length of the files does not change.

#[path = "common/contents.rs"]
mod contents;

use contents::{directory, file, page_of};
use highwater_devices::{Device, FileAccess, Spec, open, open_file};
use highwater_mm::inspect::{Entry, Space};
use highwater_mm::{Access, Config, FaultError, Manager, Range, StartError};
use highwater_os::Os;
use highwater_units::{Bytes, PAGE_SIZE, Prng, SpaceId, Vpn};
use std::fs;
use std::path::{Path, PathBuf};

/// The budget: a sixth of the file.
const MEMORY: Bytes = Bytes(1 << 20);
const PAGES: usize = 6 * 256;

struct World {
    manager: Manager<Os>,
    space: SpaceId,
}

/// An open file, of any manager.
struct Opened<'a> {
    manager: &'a Manager<Os>,
    space: SpaceId,
}

impl World {
    fn over(path: &Path, access: FileAccess) -> World {
        let file = open_file(path, access).expect("the file");
        let pages = u64::from(file.info().pages);
        let swap: Box<dyn Device> = open(&Spec::Ram { size: MEMORY }).expect("a RAM device");
        let platform = Os::new(MEMORY, vec![swap, file]).expect("an arena");
        let manager = Manager::start(platform, Config::default()).expect("threads");
        let space = manager.add_file_space(pages, 1).expect("a space");
        World { manager, space }
    }

    fn opened(&self) -> Opened<'_> {
        Opened { manager: &self.manager, space: self.space }
    }

    fn bytes(&self, page: usize) -> Result<Vec<u8>, FaultError> {
        self.opened().bytes(page)
    }

    fn set(&self, page: usize, byte: usize, value: u8) -> Result<(), FaultError> {
        self.opened().set(page, byte, value)
    }
}

impl Opened<'_> {
    fn bytes(&self, page: usize) -> Result<Vec<u8>, FaultError> {
        let pin = self.manager.pin(self.space, Vpn(page as u64), Access::Read)?;
        let frame = self.manager.platform().frame(pin.pfn());
        // SAFETY: the pin keeps the page in this frame, and no thread writes to it now.
        Ok(unsafe { std::slice::from_raw_parts(frame, PAGE_SIZE) }.to_vec())
    }

    fn set(&self, page: usize, byte: usize, value: u8) -> Result<(), FaultError> {
        let pin = self.manager.pin(self.space, Vpn(page as u64), Access::Write)?;
        let frame = self.manager.platform().frame(pin.pfn());
        // SAFETY: the frame is this page's while the pin lives, and this thread is alone.
        unsafe { frame.add(byte).write(value) };
        Ok(())
    }
}

#[test]
fn changes_are_in_the_file_after_a_sync_and_its_length_stays() {
    for odd in [0, 1, 1000, PAGE_SIZE - 1] {
        let dir = directory();
        let (path, mut contents) = file(&dir, PAGES * PAGE_SIZE + odd);
        let pages = contents.len().div_ceil(PAGE_SIZE);
        let world = World::over(&path, FileAccess::ReadWrite);
        for page in 0..pages {
            assert_eq!(world.bytes(page), Ok(page_of(&contents, page)), "page {page} + {odd}");
        }
        let mut random = Prng::new(odd as u64);
        for _ in 0..3000 {
            let at = random.below(contents.len() as u64) as usize;
            let value = random.next_u64() as u8;
            world.set(at / PAGE_SIZE, at % PAGE_SIZE, value).expect("a page");
            contents[at] = value;
        }
        // The last page, and bytes behind the end, which are never written.
        let last = contents.len() - 1;
        world.set(last / PAGE_SIZE, last % PAGE_SIZE, 77).expect("the last page");
        contents[last] = 77;
        if odd > 0 {
            world.set(pages - 1, PAGE_SIZE - 1, 99).expect("the last page");
        }
        assert_eq!(world.manager.sync(), Ok(()));
        assert!(fs::read(&path).expect("the file") == contents, "{odd} bytes in the last page");
        let all = Range { first: Vpn(0), end: Vpn(pages as u64) };
        world.manager.discard(world.space, all);
        for page in (0..pages).rev() {
            assert_eq!(world.bytes(page), Ok(page_of(&contents, page)), "page {page}, read again");
        }
    }
}

#[test]
fn a_file_for_reading_refuses_changes() {
    let dir = directory();
    let (path, contents) = file(&dir, 5 * PAGE_SIZE + 17);
    let world = World::over(&path, FileAccess::Read);
    assert_eq!(world.set(2, 0, 1), Err(FaultError::ReadOnly));
    assert_eq!(world.bytes(5), Ok(page_of(&contents, 5)));
    assert_eq!(world.set(5, 0, 1), Err(FaultError::ReadOnly), "nor once it is in memory");
    assert_eq!(world.manager.sync(), Ok(()));
    assert_eq!(fs::read(&path).expect("the file"), contents);
}

#[test]
fn pages_of_a_truncated_file_are_errors() {
    let dir = directory();
    let (path, contents) = file(&dir, 64 * PAGE_SIZE);
    let world = World::over(&path, FileAccess::ReadWrite);
    let cut = fs::OpenOptions::new().write(true).open(&path).expect("the file");
    cut.set_len(32 * PAGE_SIZE as u64).expect("a shorter file");
    assert_eq!(world.bytes(31), Ok(page_of(&contents, 31)));
    for page in 32..64 {
        assert!(matches!(world.bytes(page), Err(FaultError::Read(_))), "page {page}");
    }
}

#[test]
fn files_come_and_go() {
    const THREADS: usize = 3;
    let swap: Box<dyn Device> = open(&Spec::Ram { size: MEMORY }).expect("a RAM device");
    let platform = Os::with_places(MEMORY, vec![Some(swap)], 2).expect("an arena");
    let mut manager = Manager::start(platform, Config::default()).expect("threads");
    let use_files = |manager: &Manager<Os>, thread: usize| {
        let dir = directory();
        let mut random = Prng::new(thread as u64);
        for turn in 0..12 {
            let bytes = 1 + random.below((PAGES * PAGE_SIZE / 2) as u64) as usize;
            let (path, mut contents) = file(&dir, bytes);
            let access = if turn % 3 == 0 { FileAccess::Read } else { FileAccess::ReadWrite };
            // Other threads may have taken all places.
            let space = loop {
                match manager.open_file(open_file(&path, access).expect("the file")) {
                    Ok(space) => break space,
                    Err(refused) => assert!(matches!(refused, StartError::Places), "{refused}"),
                }
                std::thread::yield_now();
            };
            let world = Opened { manager, space };
            for page in 0..bytes.div_ceil(PAGE_SIZE) {
                assert_eq!(world.bytes(page), Ok(page_of(&contents, page)), "page {page}");
                let at = page * PAGE_SIZE;
                let changed = world.set(page, 0, thread as u8);
                match access {
                    FileAccess::Read => assert_eq!(changed, Err(FaultError::ReadOnly)),
                    FileAccess::ReadWrite => contents[at] = thread as u8,
                }
            }
            assert_eq!(manager.close_file(space), Ok(()));
            assert!(fs::read(&path).expect("the file") == contents, "{bytes} bytes, {access:?}");
        }
    };
    std::thread::scope(|scope| {
        let manager = &manager;
        (0..THREADS).for_each(|thread| drop(scope.spawn(move || use_files(manager, thread))));
    });
    manager.stop_kswapd();
    manager.verify(&[]);
    let absent =
        |space: &Space<Os>| (0..space.pages()).all(|page| space.entry(Vpn(page)) == Entry::ABSENT);
    assert!(manager.inspect().spaces().all(absent), "all files are closed");
}

#[test]
fn other_kinds_of_files_are_refused_in_one_line() {
    let dir = directory();
    let empty = dir.path().join("empty");
    fs::write(&empty, "").expect("a file");
    for (path, told) in [
        (dir.path().join("nowhere"), "No such file"),
        (dir.path().to_owned(), "neither a file nor a block device"),
        (PathBuf::from("/dev/null"), "neither a file nor a block device"),
        (empty, "empty"),
    ] {
        let refused = open_file(&path, FileAccess::Read).err().expect("no device").to_string();
        let name = path.file_name().expect("a name").to_str().expect("text");
        assert!(refused.contains(told) && refused.contains(name), "{refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
}
