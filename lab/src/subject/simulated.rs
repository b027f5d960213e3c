//! Spaces on a virtual machine, and that machine as the world of a workload.
//!
//! ```text
//! pages 0 1 2 ... | n n+1 ... | ...       rooms, one after the other: a space each
//! page(i): Recency::AccessedBit  a pin, as guards do       \ charge, then the frame's words
//!          Recency::Unmapping    the virtual page tables   /
//! ```
//! All virtual threads share one thread of the host, and switch only inside a call to the
//! simulator. Words are taken after the last such call of an access and released before the pin, so
//! an operation on them is not interrupted, and no write goes to a stale copy.

use crate::workload::world::{CpuUse, RoleTime, World};
use crate::workload::{Access, Arena, Denied, Intent, Service, Target, Words};
use highwater_mm::Mobility;
use highwater_mm::stats::Snapshot;
use highwater_mm::{Access as Want, Config, Fault, FaultError, Manager, Pin, Range, StartError};
use highwater_platform::{LockStatistics, Mmu, Protection, Recency};
use highwater_sim::{Seen, Sim, Vm};
use highwater_units::{Nanos, NodeId, Order, Pfn, SpaceId, Vpn};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A part of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How large it is.
    pub pages: u64,
    /// The device whose file it is; none for anonymous memory.
    pub file: Option<u8>,
}

/// A room with its space.
struct Let {
    /// The number of its first page in the set.
    first: u64,
    space: SpaceId,
    room: Room,
}

/// A manager on [`Sim`] with a space for each room.
pub struct Simulated<'a> {
    world: Virtual<'a>,
    manager: Manager<Sim>,
    rooms: Vec<Let>,
    /// Reports progress: the simulator ends runs without.
    beat: Arc<dyn Fn() + Send + Sync>,
}

impl<'a> Simulated<'a> {
    /// Starts a manager with these rooms.
    ///
    /// # Errors
    /// A setting is out of its bounds, there are too many spaces, or a file does not fit its
    /// device.
    pub fn start(
        vm: &'a Vm,
        sim: Sim,
        config: Config,
        rooms: &[Room],
    ) -> Result<Simulated<'a>, StartError> {
        let manager = Manager::start(sim, config)?;
        let mut first = 0;
        let add = |room: &Room| {
            let space = match room.file {
                Some(device) => manager.add_file_space(room.pages, device)?,
                None => manager.add_space(room.pages)?,
            };
            let added = Let { first, space, room: *room };
            first += room.pages;
            Ok(added)
        };
        let rooms = rooms.iter().map(add).collect::<Result<Vec<_>, StartError>>()?;
        Ok(Simulated { world: Virtual(vm), manager, rooms, beat: vm.beat() })
    }

    /// Stops the manager's threads and checks all its structures.
    ///
    /// # Panics
    /// At a contradiction.
    pub fn verify(mut self) {
        self.manager.stop_kswapd();
        self.manager.verify(&[]);
    }

    /// The room that a page of the set is in.
    fn room(&self, index: u64) -> &Let {
        &self.rooms[self.rooms.partition_point(|room| room.first <= index) - 1]
    }

    /// Which page of which space a page of the set is.
    fn place(&self, index: u64) -> (SpaceId, Vpn) {
        let room = self.room(index);
        (room.space, Vpn(index - room.first))
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

    /// A page through the page tables. If it is evicted while the access is charged for, the access
    /// is repeated.
    fn mapped(
        &self,
        index: u64,
        want: Want,
        charge: impl Fn(SpaceId, Pfn),
    ) -> Result<Held<'_>, FaultError> {
        let (sim, (space, vpn)) = (self.manager.platform(), self.place(index));
        let within = Range { first: Vpn(0), end: Vpn(self.room(index).room.pages) };
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
                    charge(space, pfn);
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

impl Arena for Simulated<'_> {
    fn alloc_run(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        (self.beat)();
        self.manager.alloc_run(order, mobility)
    }

    fn free_run(&self, first: Pfn) {
        self.manager.free_run(first);
    }

    fn drop_pages(&self, pages: std::ops::Range<u64>) {
        let (space, first) = self.place(pages.start);
        let end = first.offset(pages.end - pages.start);
        self.manager.discard(space, Range { first, end });
    }

    fn work(&self, time: Nanos) {
        self.world.0.work(time);
    }
}

impl<'a> Target for Simulated<'a> {
    type Access<'b>
        = &'b Simulated<'a>
    where
        Self: 'b;

    fn pages(&self) -> u64 {
        self.rooms.iter().map(|room| room.room.pages).sum()
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
        // A new access: the last one is finished.
        (self.beat)();
        let (space, vpn) = self.place(index);
        let want = match intent {
            Intent::Read => Want::Read,
            Intent::Write => Want::Write,
        };
        let held = match self.manager.platform().recency() {
            Recency::AccessedBit => self.pinned(space, vpn, want),
            Recency::Unmapping => {
                let sim = self.manager.platform();
                self.mapped(index, want, |space, pfn| sim.charge_access(space, pfn))
            }
        };
        held.map_err(|reason| Denied(reason.to_string()))
    }

    fn copy(&mut self, index: u64, see: &mut dyn FnMut(&Words)) -> Result<(), Denied> {
        (self.beat)();
        let (sim, (space, vpn)) = (self.manager.platform(), self.place(index));
        let denied = |reason: FaultError| Denied(reason.to_string());
        match sim.recency() {
            Recency::AccessedBit => {
                let pin = self.manager.pin(space, vpn, Want::Read).map_err(denied)?;
                sim.charge_copy(pin.pfn());
                see(&sim.words(pin.pfn()));
            }
            Recency::Unmapping => {
                let held = self.mapped(index, Want::Read, |_, pfn| sim.charge_copy(pfn));
                see(&*held.map_err(denied)?);
            }
        }
        Ok(())
    }

    fn copy_past(
        &mut self,
        pages: std::ops::Range<u64>,
        see: &mut dyn FnMut(u64, &Words),
    ) -> Result<(), Denied> {
        (self.beat)();
        let Let { first, room, .. } = *self.room(pages.start);
        let Some(device) = room.file else { return Err(Denied("no file".into())) };
        let slots = (pages.start - first) as u32..(pages.end - first) as u32;
        let sim = self.manager.platform();
        sim.read_past(device, slots, |slot, words| see(first + u64::from(slot), words));
        Ok(())
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
pub struct Virtual<'a>(pub &'a Vm);

impl World for Virtual<'_> {
    fn on_threads<R: Send>(
        &self,
        threads: usize,
        role: &str,
        body: &(dyn Fn(usize) -> R + Sync),
    ) -> Vec<R> {
        self.0.scope(threads, role, &body)
    }

    fn on_threads_of<R: Send>(
        &self,
        threads: usize,
        role: &str,
        node: &dyn Fn(usize) -> Option<NodeId>,
        body: &(dyn Fn(usize) -> R + Sync),
    ) -> Vec<R> {
        self.0.scope_on(threads, role, node, &body)
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn work(&self, time: Nanos) {
        // The step before this computation is finished.
        self.0.progressed();
        self.0.work(time);
    }

    fn sleep(&self, time: Duration) {
        self.0.sleep(Nanos(time.as_nanos() as u64));
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
