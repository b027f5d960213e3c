//! A space on the os platform: a page is reached through a pin that holds it in its frame.

use super::{Setup, with_devices};
use crate::peer::Block;
use crate::workload::host::Host;
use crate::workload::world::World;
use crate::workload::{Access, Arena, Denied, Folios, Intent, Service, Target, Words};
use highwater_devices::{Device, FileAccess, open_file};
use highwater_mm::Mobility;
use highwater_mm::stats::Snapshot;
use highwater_mm::{Access as Want, Manager, Pin, Range, StartError};
use highwater_os::Os;
use highwater_platform::LockStatistics;
use highwater_units::{Bytes, Nanos, Order, Pfn, SpaceId, Vpn};
use std::ops::Deref;
use std::path::Path;

/// A manager on [`Os`] with one space.
pub struct Guards {
    manager: Manager<Os>,
    space: SpaceId,
    pages: u64,
    /// Those of larger pages, by order from 1 on, if there are such.
    folios: Vec<SpaceId>,
}

impl Guards {
    /// Starts a manager.
    ///
    /// # Errors
    /// One line: a device cannot be opened, or the system refuses memory or threads.
    pub fn start(setup: &Setup) -> Result<Guards, String> {
        Guards::over(setup, setup.open_devices()?, Manager::add_space)
    }

    /// Starts a manager with spaces of pages of all orders, each as long as the set.
    ///
    /// # Errors
    /// Those of [`Guards::start`].
    pub fn with_folios(setup: &Setup) -> Result<Guards, String> {
        let mut guards = Guards::start(setup)?;
        let add = |order| guards.manager.add_space_of(guards.pages >> order, Order(order));
        let spaces: Result<_, StartError> = (1..=Order::LARGE.0).map(add).collect();
        guards.folios = spaces.map_err(|e| e.to_string())?;
        Ok(guards)
    }

    /// Starts a manager with these devices and a space, which `add` creates with that many pages.
    fn over(
        setup: &Setup,
        devices: Vec<Box<dyn Device>>,
        add: impl FnOnce(&Manager<Os>, u64) -> Result<SpaceId, StartError>,
    ) -> Result<Guards, String> {
        let devices = devices.into_iter().map(Some).collect();
        let platform = Os::backed_by(setup.memory, devices, 0, setup.huge_pages);
        let platform = platform.map_err(|e| e.to_string())?;
        let manager = Manager::start(platform, setup.config.clone()).map_err(|e| e.to_string())?;
        let pages = setup.set.pages();
        let space = add(&manager, pages).map_err(|e| e.to_string())?;
        Ok(Guards { manager, space, pages, folios: Vec::new() })
    }
}

impl Service for Guards {
    type Target = Guards;
    type World = Host;

    fn target(&self) -> &Guards {
        self
    }

    fn world(&self) -> &Host {
        &Host
    }

    fn counters(&self) -> Snapshot {
        with_devices(self.manager.statistics(), self.manager.platform().swap_devices())
    }

    fn locks(&self) -> Option<LockStatistics> {
        Some(self.manager.lock_statistics())
    }
}

impl Arena for Guards {
    fn alloc_run(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        self.manager.alloc_run(order, mobility)
    }

    fn free_run(&self, first: Pfn) {
        self.manager.free_run(first);
    }

    fn drop_pages(&self, pages: std::ops::Range<u64>) {
        let range = Range { first: Vpn(pages.start), end: Vpn(pages.end) };
        self.manager.discard(self.space, range);
    }

    fn work(&self, time: Nanos) {
        let end = Host.now().0 + time.0;
        while Host.now().0 < end {
            std::hint::spin_loop();
        }
    }
}

impl Folios for Guards {
    fn folio(
        &self,
        first: u64,
        order: Order,
        intent: Intent,
        see: &mut dyn FnMut(u64, &Words),
    ) -> Result<(), Denied> {
        let folio = self.reach(self.space_of(order), first >> order.0, intent)?;
        (first..).zip(folio.pages).for_each(|(page, words)| see(page, words));
        Ok(())
    }

    fn drop_folio(&self, first: u64, order: Order) {
        let vpn = Vpn(first >> order.0);
        self.manager.discard(self.space_of(order), Range { first: vpn, end: vpn.offset(1) });
    }
}

impl Target for Guards {
    type Access<'a> = &'a Guards;

    fn pages(&self) -> u64 {
        self.pages
    }

    fn enter(&self) -> &Guards {
        self
    }
}

impl Access for &Guards {
    type Page<'a>
        = Pinned<'a>
    where
        Self: 'a;

    fn page(&mut self, index: u64, intent: Intent) -> Result<Pinned<'_>, Denied> {
        self.reach(self.space, index, intent)
    }

    fn ahead(&mut self, index: u64) {
        let page = Range { first: Vpn(index), end: Vpn(index + 1) };
        self.manager.prefetch(self.space, page);
    }
}

impl Guards {
    /// Holds a page of 2^order pages, by its number; how much of all memory is in huge pages:
    /// [`Guards::huge_bytes`].
    ///
    /// # Errors
    /// It cannot be served.
    pub fn hold(&self, order: Order, index: u64) -> Result<Pinned<'_>, Denied> {
        self.reach(self.space_of(order), index, Intent::Write)
    }

    /// How much of the arena is in huge pages, now.
    pub fn huge_bytes(&self) -> Bytes {
        self.manager.platform().huge_bytes()
    }

    fn space_of(&self, order: Order) -> SpaceId {
        match order {
            Order(0) => self.space,
            Order(order) => self.folios[usize::from(order) - 1],
        }
    }

    fn reach(&self, space: SpaceId, index: u64, intent: Intent) -> Result<Pinned<'_>, Denied> {
        let want = match intent {
            Intent::Read => Want::Read,
            Intent::Write => Want::Write,
        };
        let pin = self.manager.pin(space, Vpn(index), want);
        let pin = pin.map_err(|reason| Denied(reason.to_string()))?;
        let (first, count) = (self.manager.platform().frame(pin.pfn()), pin.frames() as usize);
        // SAFETY: `count` frames from the pin's first on are page-aligned memory of the arena. It
        // lives as long as the manager; while the pin lives they are this page's, and pages are
        // reached by atomics alone.
        let pages = unsafe { std::slice::from_raw_parts(first.cast::<Words>(), count) };
        Ok(Pinned { pages, _pin: pin })
    }
}

/// A manager on [`Os`] with the space of a file, for readers that copy what they read.
pub struct Copies(Guards);

impl Copies {
    /// Starts a manager over a file that exists.
    ///
    /// # Errors
    /// Those of [`Guards::start`]; or the file cannot be opened.
    pub fn start(setup: &Setup, file: &Path) -> Result<Copies, String> {
        let mut devices = setup.open_devices()?;
        devices.push(open_file(file, FileAccess::Read).map_err(|e| e.to_string())?);
        let device = (devices.len() - 1) as u8;
        Guards::over(setup, devices, |m, pages| m.add_file_space(pages, device)).map(Copies)
    }
}

impl Service for Copies {
    type Target = Copies;
    type World = Host;

    fn target(&self) -> &Copies {
        self
    }

    fn world(&self) -> &Host {
        &Host
    }

    fn counters(&self) -> Snapshot {
        self.0.counters()
    }

    fn locks(&self) -> Option<LockStatistics> {
        self.0.locks()
    }
}

impl Target for Copies {
    type Access<'a> = Copying<'a>;

    fn pages(&self) -> u64 {
        self.0.pages
    }

    fn enter(&self) -> Copying<'_> {
        Copying { guards: &self.0, block: Block::new() }
    }
}

/// One reader, and the block that it copies to, as a reader by system calls has one.
pub struct Copying<'a> {
    guards: &'a Guards,
    block: Block,
}

impl Access for Copying<'_> {
    type Page<'a>
        = Pinned<'a>
    where
        Self: 'a;

    fn page(&mut self, index: u64, intent: Intent) -> Result<Pinned<'_>, Denied> {
        self.guards.reach(self.guards.space, index, intent)
    }

    fn copy(&mut self, index: u64, see: &mut dyn FnMut(&Words)) -> Result<(), Denied> {
        let page = self.guards.reach(self.guards.space, index, Intent::Read)?;
        let own = self.block.page(index);
        // SAFETY: the pin keeps the page where it is, and the file's pages are only read; the block
        // is this reader's alone.
        unsafe {
            std::ptr::copy_nonoverlapping(&raw const *page, own.as_ptr().cast_mut().cast(), 1)
        };
        drop(page);
        see(own);
        Ok(())
    }
}

/// A page that stays in its frames while this lives.
pub struct Pinned<'a> {
    /// A frame each.
    pages: &'a [Words],
    _pin: Pin<'a, Os>,
}

impl Pinned<'_> {
    /// All its pages.
    pub fn pages(&self) -> &[Words] {
        self.pages
    }
}

impl Deref for Pinned<'_> {
    type Target = Words;

    fn deref(&self) -> &Words {
        &self.pages[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::pattern::Pattern;
    use crate::workload::pmbench::{Config, Sharing, run};
    use highwater_devices::{Area, Seal, Spec};
    use highwater_mm::lock_class;
    use highwater_mm::stats::Counter;
    use highwater_os::HugePages;
    use std::time::Duration;

    #[test]
    fn pmbench_keeps_its_contents_at_a_quarter_of_the_set() {
        for (threads, pattern) in [(1, Pattern::Sequential), (4, Pattern::Uniform)] {
            let mut guards = Guards::start(&Setup {
                memory: Bytes(4 << 20),
                set: Bytes(16 << 20),
                swap: vec![Area::new(Spec::Ram { size: Bytes(24 << 20) })],
                seal: Seal::On,
                config: highwater_mm::Config::default(),
                huge_pages: HugePages::Auto,
            })
            .expect("a small manager");
            let time = Duration::from_millis(300);
            let (sharing, ahead, warm_up) = (Sharing::Shared, 0, Duration::ZERO);
            let config = Config {
                threads,
                read_percent: 50,
                pattern,
                sharing,
                ahead,
                warm_up,
                time,
                seed: 5,
            };
            let outcome = run(&guards, &config).unwrap_or_else(|failure| panic!("{failure}"));
            let faults = |snapshot: &Snapshot| snapshot.get(Counter::PswpIn);
            assert!(
                faults(&outcome.measured.after) > faults(&outcome.measured.before),
                "nothing was swapped in"
            );
            // Of the whole run: per-CPU lists can serve all that is allocated while it is measured.
            let locks = guards.locks().expect("a manager can be asked");
            assert!(locks.class(lock_class::ZONE).acquisitions > 0, "frames came from nowhere");
            assert!(outcome.measured.locks.is_some(), "locks were not measured");
            guards.manager.stop_kswapd();
            guards.manager.verify(&[]);
        }
    }
}
