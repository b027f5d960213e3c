//! Huge pages of the arena: contents are the same with and without them.

use crate::common::memory;
use highwater_devices::Faults;
use highwater_mm::{Access, Config, Manager};
use highwater_os::{HugePages, Os};
use highwater_platform::{Latency, Memory, WORDS_PER_FRAME};
use highwater_units::{Bytes, Order, Vpn};
use std::sync::Arc;

const FRAMES: u64 = 8 * 512;

/// Writes and reads pages of 2 MiB, twice as many as fit in memory; returns how much of the arena
/// is in huge pages afterwards.
fn used(huge_pages: HugePages) -> Bytes {
    let device = memory(4 * FRAMES, Latency::Synchronous, &Arc::new(Faults::default()));
    let os = Os::backed_by(Bytes::of_pages(FRAMES), vec![Some(device)], 0, huge_pages);
    let mut manager = Manager::start(os.expect("an arena"), Config::default()).expect("threads");
    let pages = 2 * FRAMES / 512;
    let space = manager.add_space_of(pages, Order::LARGE).expect("a space");
    let value = |page: u64, frame: u32| (page << 16 | u64::from(frame)) + 1;
    let word = |frame: u32| frame as usize * 97 % WORDS_PER_FRAME;
    for page in 0..pages {
        let pin = manager.pin(space, Vpn(page), Access::Write).expect("room");
        for frame in 0..pin.frames() {
            let pfn = pin.pfn().offset(frame);
            manager.platform().store(pfn, word(frame), value(page, frame));
        }
    }
    for page in (0..pages).rev() {
        let pin = manager.pin(space, Vpn(page), Access::Read).expect("room");
        for frame in 0..pin.frames() {
            let found = manager.platform().load(pin.pfn().offset(frame), word(frame));
            assert_eq!(found, value(page, frame), "frame {frame} of page {page}, {huge_pages:?}");
        }
    }
    manager.stop_kswapd();
    manager.verify(&[]);
    manager.platform().huge_bytes()
}

/// Enables or disables the kernel's huge pages for this process.
fn allow(given: bool) {
    let refused = libc::c_ulong::from(!given);
    // SAFETY: the call changes how later mappings are backed, and none of their contents.
    let set = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, refused, 0, 0, 0) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A single test, because the kernel's setting applies to the whole process.
#[test]
fn contents_are_the_same_in_huge_pages_and_small_ones() {
    assert_eq!(used(HugePages::Off), Bytes(0), "they were not wanted");
    allow(false);
    assert_eq!(used(HugePages::Auto), Bytes(0), "the kernel refuses them");
    allow(true);
    let huge = used(HugePages::Auto);
    assert!(huge <= Bytes::of_pages(FRAMES), "{huge}");
    if huge == Bytes(0) {
        highwater_testkit::skip_or_fail("the kernel has no huge pages to give");
    }
}
