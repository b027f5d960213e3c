//! Spaces on a virtual machine, and that machine as the world of a workload.
//!
//! ```text
//! pages 0 1 2 ... | n n+1 ... | ...       spaces of n pages each, one after the other
//! page(i): Recency::AccessedBit  a pin, as guards do       \ charge, then the frame's words
//!          Recency::Unmapping    the virtual page tables   /
//! ```
//! All virtual threads share one thread of the host, and change only inside a call to the
//! simulator. Words are taken after the last such call of an access and are let go before the pin:
//! so what is done with them right away is done at once, and no write goes to a copy that somebody
//! took meanwhile.

use crate::workload::world::{CpuUse, RoleTime, World};
use crate::workload::{Access, Denied, Intent, Service, Target, Words};
use highwater_mm::stats::Snapshot;
use highwater_mm::{Access as Want, Config, Fault, FaultError, Manager, Pin, Range, StartError};
use highwater_platform::{LockStatistics, Mmu, Protection, Recency};
use highwater_sim::{Seen, Sim, Vm};
use highwater_units::{Nanos, SpaceId, Vpn};
use std::ops::Deref;
use std::sync::Arc;

/// A manager on [`Sim`] with spaces of equal size.
pub struct Simulated<'a> {
    world: Virtual<'a>,
    manager: Manager<Sim>,
    spaces: Vec<SpaceId>,
    pages_each: u64,
    /// Says that there is progress: the simulator ends runs that get nowhere.
    beat: Arc<dyn Fn() + Send + Sync>,
}

impl<'a> Simulated<'a> {
    /// Starts a manager with `spaces` spaces of `pages_each` pages.
    ///
    /// # Errors
    /// A setting is out of its bounds, or there are too many spaces.
    pub fn start(
        vm: &'a Vm,
        sim: Sim,
        config: Config,
        spaces: usize,
        pages_each: u64,
    ) -> Result<Simulated<'a>, StartError> {
        let manager = Manager::start(sim, config)?;
        let added = (0..spaces).map(|_| manager.add_space(pages_each));
        let spaces = added.collect::<Result<Vec<_>, _>>()?;
        Ok(Simulated { world: Virtual(vm), manager, spaces, pages_each, beat: vm.beat() })
    }

    /// Stops the manager's threads and checks all its structures.
    ///
    /// # Panics
    /// At a contradiction.
    pub fn verify(mut self) {
        self.manager.stop_kswapd();
        self.manager.verify(&[]);
    }

    /// Which page of which space a page of the set is.
    fn place(&self, index: u64) -> (SpaceId, Vpn) {
        let space = self.spaces[(index / self.pages_each) as usize];
        (space, Vpn(index % self.pages_each))
    }

    /// A page through a guard.
    fn pinned(&self, space: SpaceId, vpn: Vpn, want: Want) -> Result<Held<'_>, FaultError> {
        let (sim, pin) = (self.manager.platform(), self.manager.pin(space, vpn, want)?);
        sim.charge_access(space, pin.pfn());
        let words = match want {
            Want::Read => sim.words(pin.pfn()),
            Want::Write => sim.words_mut(pin.pfn()),
        };
        Ok(Held { words, _pin: Some(pin) })
    }

    /// A page through the page tables. It may go while the access is charged for: then once more.
    fn mapped(&self, space: SpaceId, vpn: Vpn, want: Want) -> Result<Held<'_>, FaultError> {
        let sim = self.manager.platform();
        let within = Range { first: Vpn(0), end: Vpn(self.pages_each) };
        let protection = match want {
            Want::Read => Protection::ReadOnly,
            Want::Write => Protection::ReadWrite,
        };
        let mut charged = None;
        loop {
            match sim.access(space, vpn, protection) {
                Seen::Page(pfn) if charged == Some(pfn) => {
                    let words = match want {
                        Want::Read => sim.words(pfn),
                        Want::Write => sim.words_mut(pfn),
                    };
                    return Ok(Held { words, _pin: None });
                }
                Seen::Page(pfn) => {
                    sim.charge_access(space, pfn);
                    charged = Some(pfn);
                }
                Seen::Fault => {
                    self.manager.fault(space, Fault { vpn, access: want, within })?;
                }
            }
        }
    }
}

impl<'a> Service for Simulated<'a> {
    type Target = Simulated<'a>;
    type World = Virtual<'a>;

    fn target(&self) -> &Simulated<'a> {
        self
    }

    fn world(&self) -> &Virtual<'a> {
        &self.world
    }

    fn counters(&self) -> Snapshot {
        self.manager.statistics()
    }

    fn locks(&self) -> Option<LockStatistics> {
        Some(self.manager.lock_statistics())
    }
}

impl<'a> Target for Simulated<'a> {
    type Access<'b>
        = &'b Simulated<'a>
    where
        Self: 'b;

    fn pages(&self) -> u64 {
        self.pages_each * self.spaces.len() as u64
    }

    fn enter(&self) -> &Simulated<'a> {
        self
    }
}

impl<'s> Access for &'s Simulated<'_> {
    type Page<'b>
        = Held<'s>
    where
        Self: 'b;

    fn page(&mut self, index: u64, intent: Intent) -> Result<Held<'s>, Denied> {
        // Who makes an access has finished the last one.
        (self.beat)();
        let (space, vpn) = self.place(index);
        let want = match intent {
            Intent::Read => Want::Read,
            Intent::Write => Want::Write,
        };
        let held = match self.manager.platform().recency() {
            Recency::AccessedBit => self.pinned(space, vpn, want),
            Recency::Unmapping => self.mapped(space, vpn, want),
        };
        held.map_err(|reason| Denied(reason.to_string()))
    }

    fn ahead(&mut self, index: u64) {
        let (space, vpn) = self.place(index);
        self.manager.prefetch(space, Range { first: vpn, end: vpn.offset(1) });
    }
}

/// The words of a page, right now; under a pin the page stays in its frame while this lives.
pub struct Held<'a> {
    // Let go first: releasing the pin may let other threads run, and they look for other holders.
    words: Arc<Words>,
    _pin: Option<Pin<'a, Sim>>,
}

impl Deref for Held<'_> {
    type Target = Words;

    fn deref(&self) -> &Words {
        &self.words
    }
}

/// A virtual machine as the world of a workload.
pub struct Virtual<'a>(&'a Vm);

impl World for Virtual<'_> {
    fn on_threads<R: Send>(
        &self,
        threads: usize,
        role: &str,
        body: &(dyn Fn(usize) -> R + Sync),
    ) -> Vec<R> {
        self.0.scope(threads, role, &body)
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn ticks(&self) -> u64 {
        self.0.now().0
    }

    fn cpu_use(&self) -> CpuUse {
        let report = self.0.report();
        let roles = report.roles.into_iter().map(|role| {
            let highwater_sim::RoleTime { name, threads, busy } = role;
            RoleTime { name, threads, busy }
        });
        CpuUse { roles: roles.collect(), phases: report.phases }
    }
}
