//! A space on the os platform: a page is reached through a pin that holds it in its frame.

use super::{Setup, with_tiers};
use crate::peer::Block;
use crate::workload::host::Host;
use crate::workload::world::World;
use crate::workload::{Access, Arena, Denied, Intent, Service, Target, Words};
use highwater_devices::{Device, FileAccess, open_file};
use highwater_mm::stats::Snapshot;
use highwater_mm::zone::Mobility;
use highwater_mm::{Access as Want, Manager, Pin, Range, StartError};
use highwater_os::Os;
use highwater_platform::LockStatistics;
use highwater_units::{Nanos, Order, Pfn, SpaceId, Vpn};
use std::ops::Deref;
use std::path::Path;

/// A manager on [`Os`] with one space.
pub struct Guards {
    manager: Manager<Os>,
    space: SpaceId,
    pages: u64,
}

impl Guards {
    /// Starts a manager.
    ///
    /// # Errors
    /// One line: a device cannot be opened, or the system refuses memory or threads.
    pub fn start(setup: &Setup) -> Result<Guards, String> {
        Guards::over(setup, setup.open_devices()?, Manager::add_space)
    }

    /// Starts a manager with these devices, and the space that `add` makes of so many pages.
    fn over(
        setup: &Setup,
        devices: Vec<Box<dyn Device>>,
        add: impl FnOnce(&Manager<Os>, u64) -> Result<SpaceId, StartError>,
    ) -> Result<Guards, String> {
        let platform = Os::new(setup.memory, devices).map_err(|e| e.to_string())?;
        let manager = Manager::start(platform, setup.config.clone()).map_err(|e| e.to_string())?;
        let pages = setup.set.pages();
        let space = add(&manager, pages).map_err(|e| e.to_string())?;
        Ok(Guards { manager, space, pages })
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
        with_tiers(self.manager.statistics(), self.manager.platform().swap_devices())
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
        self.reach(index, intent)
    }

    fn ahead(&mut self, index: u64) {
        let page = Range { first: Vpn(index), end: Vpn(index + 1) };
        self.manager.prefetch(self.space, page);
    }
}

impl Guards {
    fn reach(&self, index: u64, intent: Intent) -> Result<Pinned<'_>, Denied> {
        let want = match intent {
            Intent::Read => Want::Read,
            Intent::Write => Want::Write,
        };
        let pin = self.manager.pin(self.space, Vpn(index), want);
        let pin = pin.map_err(|reason| Denied(reason.to_string()))?;
        // SAFETY: the frame is page-aligned memory of the arena, which lives as long as the
        // manager; while the pin lives it is this page's, and pages are reached by atomics alone.
        let words = unsafe { &*self.manager.platform().frame(pin.pfn()).cast::<Words>() };
        Ok(Pinned { words, _pin: pin })
    }
}

/// A manager on [`Os`] with the space of a file, for readers that copy what they read.
pub struct Copies(Guards);

impl Copies {
    /// Starts a manager over a file that exists.
    ///
    /// # Errors
    /// As of [`Guards::start`]; or the file cannot be opened.
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
        self.guards.reach(index, intent)
    }

    fn copy(&mut self, index: u64, see: &mut dyn FnMut(&Words)) -> Result<(), Denied> {
        let page = self.guards.reach(index, Intent::Read)?;
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

/// A page that stays in its frame while this lives.
pub struct Pinned<'a> {
    words: &'a Words,
    _pin: Pin<'a, Os>,
}

impl Deref for Pinned<'_> {
    type Target = Words;

    fn deref(&self) -> &Words {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::pattern::Pattern;
    use crate::workload::pmbench::{Config, Sharing, run};
    use highwater_devices::{Area, Spec};
    use highwater_mm::stats::Counter;
    use highwater_platform::LockClass;
    use highwater_units::Bytes;
    use std::time::Duration;

    #[test]
    fn pmbench_keeps_its_contents_at_a_quarter_of_the_set() {
        for (threads, pattern) in [(1, Pattern::Sequential), (4, Pattern::Uniform)] {
            let guards = Guards::start(&Setup {
                memory: Bytes(4 << 20),
                set: Bytes(16 << 20),
                swap: vec![Area::new(Spec::Ram { size: Bytes(24 << 20) })],
                config: highwater_mm::Config::default(),
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
            let locks = outcome.measured.locks.expect("a manager can be asked");
            assert!(locks.class(LockClass::Zone).acquisitions > 0, "frames came from nowhere");
            guards.manager.verify(&[]);
        }
    }
}
