//! The checker finds what it is there to find, and nothing else.

use super::*;
use crate::workload::Words;
use crate::workload::host::Host;
use highwater_platform::LockStatistics;
use std::sync::atomic::AtomicU64;

/// Pages on the heap that may lose or misplace accesses.
struct Heap {
    pages: Vec<Words>,
    fault: Fault,
    accesses: AtomicU64,
}

#[derive(Clone, Copy)]
enum Fault {
    None,
    /// From the given access on, stores to this page go nowhere.
    LosesStores {
        page: u64,
        after: u64,
    },
    /// From the given access on, this page is another one.
    WrongPage {
        page: u64,
        instead: u64,
        after: u64,
    },
    /// From the given access on, there is no such page.
    Denies {
        page: u64,
        after: u64,
    },
}

impl Heap {
    fn new(pages: usize, fault: Fault) -> Heap {
        let page = |_| [const { AtomicU64::new(0) }; WORDS];
        // The last page is what lost stores go to.
        Heap { pages: (0..=pages).map(page).collect(), fault, accesses: AtomicU64::new(0) }
    }
}

impl Target for Heap {
    type Access<'a> = &'a Heap;

    fn pages(&self) -> u64 {
        self.pages.len() as u64 - 1
    }

    fn enter(&self) -> &Heap {
        self
    }
}

impl Access for &Heap {
    type Page<'a>
        = &'a Words
    where
        Self: 'a;

    fn page(&mut self, index: u64, intent: Intent) -> Result<&Words, Denied> {
        let now = self.accesses.fetch_add(1, Relaxed);
        let place = match (self.fault, intent) {
            (Fault::LosesStores { page, after }, Intent::Write) if index == page && now > after => {
                self.pages()
            }
            (Fault::WrongPage { page, instead, after }, _) if index == page && now > after => {
                instead
            }
            (Fault::Denies { page, after }, _) if index == page && now > after => {
                return Err(Denied("gone".into()));
            }
            _ => index,
        };
        Ok(&self.pages[place as usize])
    }
}

impl Service for Heap {
    type Target = Heap;
    type World = Host;

    fn target(&self) -> &Heap {
        self
    }

    fn world(&self) -> &Host {
        &Host
    }

    fn counters(&self) -> Snapshot {
        Snapshot::empty()
    }

    fn locks(&self) -> Option<LockStatistics> {
        None
    }
}

const PAGES: usize = 64;

fn config(threads: usize, pattern: Pattern) -> Config {
    let time = Duration::from_millis(50);
    Config { threads, read_percent: 50, pattern, sharing: Sharing::Shared, time, seed: 11 }
}

fn run_with(threads: usize, fault: Fault) -> Result<Outcome, Failure> {
    run(&Heap::new(PAGES, fault), &config(threads, Pattern::Uniform))
}

fn mismatch(threads: usize, fault: Fault) -> Mismatch {
    match run_with(threads, fault) {
        Err(Failure::Mismatch(mismatch)) => mismatch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sound_memory_passes_with_any_pattern_and_many_threads() {
    for pattern in [Pattern::Uniform, Pattern::Normal, Pattern::Sequential] {
        for threads in [1, 2, 7] {
            let heap = Heap::new(PAGES, Fault::None);
            let outcome = run(&heap, &config(threads, pattern)).expect("sound");
            let accesses = outcome.loads + outcome.stores;
            assert!(accesses >= 252 * threads as u64, "{accesses}");
            assert_eq!(outcome.latency.len() * u64::from(TIMED_EVERY), accesses);
            let share = outcome.loads as f64 / accesses as f64;
            assert!((0.3..0.7).contains(&share), "{share} loads");
        }
    }
}

#[test]
fn a_lost_store_is_found_as_an_older_version() {
    for threads in [1, 4] {
        let found = mismatch(threads, Fault::LosesStores { page: 9, after: 500 });
        assert_eq!((found.page, found.seed), (9, 11));
        assert!(found.found_version.expect("a value of this word") < found.version);
    }
}

#[test]
fn a_wrong_page_is_found() {
    let found = mismatch(2, Fault::WrongPage { page: 9, instead: 10, after: 500 });
    assert_eq!((found.page, found.found_version), (9, None));
}

/// The fill takes 64 accesses and the run is over at once: only the sweep can see it.
#[test]
fn the_sweep_finds_a_planted_wrong_page() {
    let heap = Heap::new(PAGES, Fault::WrongPage { page: 63, instead: 1, after: 64 });
    let still = Config { time: Duration::ZERO, ..config(1, Pattern::Uniform) };
    match run(&heap, &still) {
        Err(Failure::Mismatch(found)) => assert_eq!((found.page, found.word), (63, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_denied_page_ends_all_threads() {
    let failure = run_with(4, Fault::Denies { page: 3, after: 200 }).expect_err("denied");
    assert_eq!(failure, Failure::Denied(Denied("gone".into())));
}

#[test]
fn a_thread_stays_in_pages_of_its_own_where_it_has_some() {
    const THREADS: usize = 3;
    let heap = Heap::new(PAGES, Fault::None);
    let shared = config(THREADS, Pattern::Uniform);
    let config = Config { read_percent: 0, sharing: Sharing::Private, ..shared };
    let (content, history) = (Content::new(1), History::new(THREADS, PAGES as u64));
    let failure = OnceLock::new();
    let bench = Bench { target: &heap, world: &Host, config: &config, content, history, failure };
    let watch = Stopwatch::start(&Host);
    let worked = bench.on_all_threads("task", |seat| Worker::new(&bench, seat, &watch).work());
    worked.expect("sound");
    for page in 0..PAGES as u64 {
        let written = (0..WORDS).filter(|word| bench.history.version(page, *word) > 0);
        let mut writers: Vec<_> = written.map(|word| bench.history.lane_of(word)).collect();
        writers.sort_unstable();
        writers.dedup();
        let owner = (0..THREADS).find(|seat| bench.stretch(*seat).contains(&page));
        assert_eq!(writers, owner.into_iter().collect::<Vec<_>>(), "page {page}");
    }
}

#[test]
fn stretches_are_the_set_once() {
    for (pages, threads) in [(64, 1), (64, 7), (5, 8), (1 << 31, 512)] {
        let ends = (0..threads).map(|seat| stretch(pages, seat, threads));
        let end = ends.fold(0, |end, stretch| {
            assert_eq!(stretch.start, end, "{pages} {threads}");
            stretch.end
        });
        assert_eq!(end, pages);
    }
}
