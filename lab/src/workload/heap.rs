//! Memory for tests of the checkers: pages on the heap that fail in a known way.

use super::host::Host;
use super::{Access, Arena, Denied, Folios, Intent, Service, Target, WORDS, Words};
use highwater_mm::Mobility;
use highwater_mm::stats::Snapshot;
use highwater_platform::LockStatistics;
use highwater_units::{Nanos, Order, Pfn};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Pages on the heap that may lose or misplace accesses.
pub(super) struct Heap {
    pages: Vec<Words>,
    fault: Fault,
    accesses: AtomicU64,
    runs: Mutex<Runs>,
}

/// Runs that are given out are numbers.
#[derive(Default)]
struct Runs {
    out: BTreeSet<Pfn>,
    given: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Fault {
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
    /// Sound until `fault` comes to pass.
    pub(super) fn new(pages: usize, fault: Fault) -> Heap {
        let page = |_| [const { AtomicU64::new(0) }; WORDS];
        // The last page is what lost stores go to.
        Heap {
            pages: (0..=pages).map(page).collect(),
            fault,
            accesses: AtomicU64::new(0),
            runs: Mutex::default(),
        }
    }
}

impl Heap {
    /// Runs that were given out so far, and those that are still out.
    pub(super) fn runs(&self) -> (u32, usize) {
        let runs = self.runs.lock().expect("no thread panics with it");
        (runs.given, runs.out.len())
    }
}

/// Of every four large blocks there are three.
impl Arena for Heap {
    fn alloc_run(&self, order: Order, _: Mobility) -> Option<Pfn> {
        let mut runs = self.runs.lock().expect("no thread panics with it");
        runs.given += 1;
        let run = Pfn(runs.given);
        (order != Order::LARGE || !run.0.is_multiple_of(4)).then(|| {
            runs.out.insert(run);
            run
        })
    }

    fn free_run(&self, first: Pfn) {
        let mut runs = self.runs.lock().expect("no thread panics with it");
        assert!(runs.out.remove(&first), "{first:?} is not out");
    }

    fn drop_pages(&self, pages: Range<u64>) {
        let drop =
            |page: u64| self.pages[page as usize].iter().for_each(|word| word.store(0, Relaxed));
        pages.for_each(drop);
    }

    fn work(&self, _: Nanos) {}
}

impl Folios for Heap {
    fn folio(
        &self,
        first: u64,
        order: Order,
        intent: Intent,
        see: &mut dyn FnMut(u64, &Words),
    ) -> Result<(), Denied> {
        let mut pages = self;
        (first..first + u64::from(order.frames()))
            .try_for_each(|page| pages.page(page, intent).map(|words| see(page, words)))
    }

    fn drop_folio(&self, first: u64, order: Order) {
        self.drop_pages(first..first + u64::from(order.frames()));
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
