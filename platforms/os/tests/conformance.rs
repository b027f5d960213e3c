//! The conformance suite of platforms, and tests of this platform alone.

use highwater_devices::{Spec, open};
use highwater_os::Os;
use highwater_platform::{Memory, Thread, Threads};
use highwater_testkit::Watchdog;
use highwater_testkit::conformance::{Mapped, World, check};
use highwater_units::{Bytes, NodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

struct Guards(Arc<Os>);

impl World for Guards {
    type Platform = Os;

    fn platform(&self) -> Arc<Os> {
        self.0.clone()
    }

    fn load(&self, page: Mapped, word: usize) -> u64 {
        self.0.load(page.pfn, word)
    }

    fn store(&self, page: Mapped, word: usize, value: u64) {
        self.0.store(page.pfn, word, value);
    }

    fn drop_page(&self, _: Mapped) -> bool {
        false
    }
}

#[test]
fn conforms() {
    let _watchdog = Watchdog::new("conformance", Duration::from_secs(60));
    let dir = tempfile::tempdir().expect("a directory");
    let file = Spec::Dir { path: dir.path().to_owned(), size: Bytes(2 << 20) };
    check(|| {
        let specs = [Spec::Ram { size: Bytes(1 << 20) }, file.clone()];
        let devices = specs.iter().map(|spec| open(spec).expect("a device")).collect();
        Guards(Arc::new(Os::new(Bytes::of_pages(100), devices).expect("an arena")))
    });
}

/// Signals meant for the program are never delivered to a thread of the manager.
#[test]
fn threads_of_the_manager_block_all_signals() {
    let os = Os::new(Bytes::of_pages(1), Vec::new()).expect("an arena");
    let blocked = Arc::new(AtomicBool::new(false));
    let outcome = blocked.clone();
    let body = move || {
        // SAFETY: an empty set, filled in with the thread's mask.
        let mask = unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            mask
        };
        let all = [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGUSR1, libc::SIGALRM];
        // SAFETY: reads the set.
        let blocks = |signal: &i32| unsafe { libc::sigismember(&mask, *signal) } == 1;
        outcome.store(all.iter().all(blocks), SeqCst);
    };
    os.spawn("masked", NodeId(0), Box::new(body)).expect("a thread").join();
    assert!(blocked.load(SeqCst));
}
