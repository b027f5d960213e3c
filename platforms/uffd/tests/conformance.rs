//! The conformance suite of platforms, with both mappings. Nothing serves faults: the program
//! touches mapped pages only.

use highwater_devices::{Spec, open};
use highwater_testkit::Watchdog;
use highwater_testkit::conformance::{Mapped, World, check};
use highwater_uffd::{Mapping, Uffd};
use highwater_units::{Bytes, PAGE_SIZE};
use std::sync::Arc;
use std::time::Duration;

struct Program(Arc<Uffd>);

impl Program {
    fn word(&self, page: Mapped, word: usize) -> *mut u64 {
        let address = self.0.address(page.space, page.vpn).cast::<u64>();
        assert!(word < PAGE_SIZE / 8);
        // SAFETY: inside the page.
        unsafe { address.add(word) }
    }
}

impl World for Program {
    type Platform = Uffd;

    fn platform(&self) -> Arc<Uffd> {
        self.0.clone()
    }

    fn load(&self, page: Mapped, word: usize) -> u64 {
        // SAFETY: a mapped page.
        unsafe { self.word(page, word).read_volatile() }
    }

    fn store(&self, page: Mapped, word: usize, value: u64) {
        // SAFETY: a mapped and writable page.
        unsafe { self.word(page, word).write_volatile(value) };
    }

    fn drop_page(&self, page: Mapped) -> bool {
        let address = self.word(page, 0).cast();
        // SAFETY: a page of the program whose contents are not needed.
        let dropped = unsafe { libc::madvise(address, PAGE_SIZE, libc::MADV_DONTNEED) };
        assert_eq!(dropped, 0);
        true
    }
}

fn conforms(mapping: Mapping) {
    let _watchdog = Watchdog::new("conformance", Duration::from_secs(60));
    let dir = tempfile::tempdir().expect("a directory");
    let file = Spec::Dir { path: dir.path().to_owned(), size: Bytes(2 << 20) };
    check(|| {
        let specs = [Spec::Ram { size: Bytes(1 << 20) }, file.clone()];
        let devices = specs.iter().map(|spec| open(spec).expect("a device")).collect();
        let uffd = Uffd::new(Bytes::of_pages(100), devices, mapping).expect("userfaultfd");
        Program(Arc::new(uffd))
    });
}

#[test]
fn moving_conforms() {
    conforms(Mapping::Move);
}

#[test]
fn copying_conforms() {
    conforms(Mapping::Copy);
}
