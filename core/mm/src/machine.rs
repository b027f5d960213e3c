//! The state of a manager that all modules share. The manager's threads and the callers of its
//! methods work on one [`Machine`].
//!
//! ```text
//! Machine -- platform, config, stats
//!         |- Frames                 one record per frame
//!         |- Node x n               Zone (free frames), Lru (pages in use), wait events
//!         |- Space x m              page tables; spaces are never removed
//!         |- Swap                   devices: slots, swap cache, transfers; also of files
//!         |- ReadaheadQueue x n     readahead requests, by node and thread
//!         \- InflightReadahead      readahead that readers of files have started (history)
//! ```
//! Lock order of `core/mm`, by lock class:
//!
//! ```text
//! entry -> LruBatch -> Lru
//! entry -> SlotCache -> SwapInfo -> SwapCpu -> SwapCluster -> SwapDevice
//! entry -> SwapCache
//! entry -> PerCpuFrames -> Zone
//! entry -> Prefetch
//! entry -> SlabCpu -> SlabNode, SlabRecords
//! entry -> SlabSheaf -> SlabBarn
//! ```
//! A thread takes a lock of one line only under locks to its left on that line, never under a lock
//! of another line. An entry is a page-table entry that a thread has locked; device I/O happens
//! under entries, never under another lock.
//!
//! Words that threads share without a lock are the platform's ([`highwater_platform::Atomics`]);
//! statistics are per CPU. [`Machine::enter`] sets the phase of a thread.

mod evictor_state;
#[cfg(feature = "history")]
mod inflight;
mod read_batch;
mod tunable_words;

pub use evictor_state::EvictorState;
#[cfg(feature = "history")]
pub use inflight::{InflightReadahead, WINDOW_EXPIRY};
pub use read_batch::{ReadBatch, ReadRun};
pub use tunable_words::TunableWords;

use crate::config::{Config, FILE_WINDOW_MAX};
use crate::frame::{Frames, Owner, Writeback};
use crate::lru::{Kind, List, Lru, Removal};
use crate::phase::{self, PhaseGuard};
use crate::space::{Backing, Entry, Page, Space};
use crate::stats::{Counter, Pressure, Reading, Stats};
use crate::swap::{Queued, ReadaheadQueue, ReadaheadRequest, Swap};
use crate::zone::{Mobility, Watermarks, Zone};
use highwater_platform::{
    Atomic, DeviceInfo, DeviceRole, Event, FrameRange, IdleTime, Phase, Platform, Ticket,
};
use highwater_units::{CpuId, IoFrames, Nanos, NodeId, Order, Pfn, Slot, SpaceId};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{OnceLock, Weak};

/// The most spaces of a manager.
pub const SPACES_MAX: usize = 256;

/// The memory of one node.
pub struct Node<P: Platform> {
    /// The buddy allocator: the node's free frames.
    pub zone: Zone<P>,
    /// The LRU lists: the node's pages in use.
    pub lru: Lru<P>,
    /// kswapd threads of the node sleep on this.
    pub kswapd_wait: P::Event,
    /// Number of pages isolated for reclaim, by [`Kind`].
    pub isolated: [P::Atomic<u32>; 2],
    /// Reclaimers sleep on this while too many pages are isolated.
    pub isolated_wait: P::Event,
    /// Number of threads that sleep on `isolated_wait`, or are about to.
    pub isolated_waiters: P::Atomic<u32>,
    /// 1: kswapd has given up on this node, or no kswapd runs.
    pub kswapd_failing: P::Atomic<u8>,
    /// Which threads evict the node's pages.
    pub evictor: EvictorState<P>,
    /// Requests to kcompactd.
    pub kcompactd: KcompactdControl<P>,
}

/// Requests to a node's kcompactd.
pub struct KcompactdControl<P: Platform> {
    /// kcompactd sleeps on this.
    pub wait: P::Event,
    /// The largest order requested since kcompactd last read this word; 0: none.
    pub order: P::Atomic<u8>,
}

/// Signals between the flusher and the threads that dirty pages of files.
pub struct FlusherControl<P: Platform> {
    /// The flusher sleeps on this.
    pub wait: P::Event,
    /// 1: the flusher found no dirty page, and sleeps without a timeout.
    pub sleeping: P::Atomic<u8>,
    /// Throttled writers sleep on this until the flusher has written pages.
    pub progress: P::Event,
}

/// A cache that can free memory when memory is short (the kernel's shrinkers).
pub trait Shrinker: Send + Sync {
    /// Frees unused memory; returns the number of freed pages. The caller may hold entries, but no
    /// other lock.
    fn shrink(&self) -> u64;
}

/// The most shrinkers of a machine.
pub const SHRINKERS_MAX: usize = 16;

/// The state of a manager, without its threads.
pub struct Machine<P: Platform> {
    /// The platform.
    pub platform: P,
    /// The settings as they were at the start.
    pub config: Config,
    /// The settings that may have changed since.
    pub tunables: TunableWords,
    /// Counters, latencies and pressure.
    pub stats: Stats,
    /// One record per frame.
    pub frames: Frames<P>,
    /// The nodes, by [`NodeId`].
    pub nodes: Vec<Node<P>>,
    /// The devices, for swap and for files.
    pub swap: Swap<P>,
    /// Readahead requests, by node and readahead thread.
    pub readahead: Vec<Vec<ReadaheadQueue<P>>>,
    /// Readahead that readers of files have started.
    #[cfg(feature = "history")]
    pub inflight: InflightReadahead<P>,
    /// Direct reclaimers sleep on this until kswapd has freed enough memory.
    pub throttle_wait: P::Event,
    /// The flusher's events.
    pub flusher: FlusherControl<P>,
    /// khugepaged sleeps on this between two scans.
    pub khugepaged_wait: P::Event,
    /// Threads that wait for the write of a frame sleep on this.
    written: P::Event,
    shrinkers: [OnceLock<Weak<dyn Shrinker>>; SHRINKERS_MAX],
    /// 1: a space has claimed the device; by device.
    files: Vec<P::Atomic<u8>>,
    spaces: Vec<OnceLock<Space<P>>>,
    /// 1: some space has pages of more than one frame.
    folios: P::Atomic<u8>,
}

/// CPUs of a node per readahead thread.
const CPUS_PER_READER: usize = 8;

/// The default number of readahead threads of a node.
fn readahead_threads<P: Platform>(platform: &P, node: NodeId) -> usize {
    let own = |cpu: &usize| platform.node_of(CpuId(*cpu as u16)) == node;
    ((0..platform.cpus()).filter(own).count() / CPUS_PER_READER).clamp(1, CPUS_PER_READER)
}

/// A memory stall of this thread; dropping it ends the stall.
#[must_use]
pub struct Stall<'a, P: Platform> {
    machine: &'a Machine<P>,
    cpu: CpuId,
    kind: StallKind,
    /// The thread's CPU time at the start of a [`StallKind::Reclaim`].
    used: Nanos,
}

/// The kind of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// The thread waits for a device.
    Io,
    /// The thread reclaims memory itself.
    Reclaim,
}

impl<P: Platform> Drop for Stall<'_, P> {
    fn drop(&mut self) {
        let m = self.machine;
        let reclaiming = match self.kind {
            StallKind::Io => Nanos(0),
            StallKind::Reclaim => m.platform.thread_cpu_time().since(self.used),
        };
        let now = m.platform.now();
        m.stats.stall_ends(self.cpu, now, reclaiming);
        m.update_pressure(now);
    }
}

impl<P: Platform> Machine<P> {
    /// Creates a machine without spaces: all frames and slots are free.
    pub fn new(platform: P, config: Config) -> Machine<P> {
        let ranges = platform.ranges();
        let swap = Swap::new(&platform, &config);
        let total: u32 = ranges.iter().map(|range| range.frames).sum();
        let nodes = ranges.iter().map(|range| {
            let (min_free, scale) = (config.min_free, config.watermark_scale);
            let marks = Watermarks::new(range.frames, total, min_free, scale);
            Node {
                zone: Zone::new(&platform, *range, marks, (&config).into()),
                lru: Lru::new(&platform, *range, config.lru_shards),
                kswapd_wait: platform.new_event(),
                isolated: [0; 2].map(Atomic::new),
                isolated_wait: platform.new_event(),
                isolated_waiters: Atomic::new(0),
                kswapd_failing: Atomic::new(1),
                evictor: EvictorState::new(),
                kcompactd: KcompactdControl { wait: platform.new_event(), order: Atomic::new(0) },
            }
        });
        let threads = |range: &FrameRange| {
            config.readahead_threads.unwrap_or_else(|| readahead_threads(&platform, range.node))
        };
        let queues = |count| (0..count).map(|_| ReadaheadQueue::new(&platform)).collect();
        let readahead = ranges.iter().map(|range| queues(threads(range))).collect();
        let machine = Machine {
            nodes: nodes.collect(),
            tunables: TunableWords::new(config.tunables()),
            config,
            stats: Stats::new(platform.cpus()),
            frames: Frames::new(total as usize),
            swap,
            readahead,
            #[cfg(feature = "history")]
            inflight: InflightReadahead::new(&platform),
            throttle_wait: platform.new_event(),
            flusher: FlusherControl {
                wait: platform.new_event(),
                sleeping: Atomic::new(0),
                progress: platform.new_event(),
            },
            khugepaged_wait: platform.new_event(),
            written: platform.new_event(),
            shrinkers: [const { OnceLock::new() }; SHRINKERS_MAX],
            files: platform.devices().iter().map(|_| Atomic::new(0)).collect(),
            spaces: (0..SPACES_MAX).map(|_| OnceLock::new()).collect(),
            folios: Atomic::new(0),
            platform,
        };
        machine.stats.begin_pressure(machine.reading(machine.platform.now()));
        machine
    }

    /// Begins a stall of this thread at `now`.
    pub fn stall(&self, kind: StallKind, now: Nanos) -> Stall<'_, P> {
        let cpu = self.cpu();
        let used = match kind {
            StallKind::Io => Nanos(0),
            StallKind::Reclaim => self.platform.thread_cpu_time(),
        };
        self.stats.stall_begins(cpu, now);
        Stall { machine: self, cpu, kind, used }
    }

    /// Updates the averages of pressure if the last update was at least 2 s ago.
    pub fn update_pressure(&self, now: Nanos) {
        if self.stats.pressure_is_due(now) {
            self.stats.update_pressure(self.reading(now));
        }
    }

    /// Returns the pressure of kinds some and full; updates it first if that is due.
    pub fn pressures(&self) -> [Pressure; 2] {
        let now = self.platform.now();
        self.update_pressure(now);
        self.stats.pressures(&self.reading(now))
    }

    fn reading(&self, now: Nanos) -> Reading {
        // Without idle times, all CPUs count as in use.
        let unknown = IdleTime { cpus: self.platform.cpus(), time: Nanos(0) };
        let nodes = self.nodes.iter().map(|node| node.zone.range().node);
        let idle = nodes.map(|node| self.platform.idle_time(node).unwrap_or(unknown));
        let sum = |a: IdleTime, b: IdleTime| IdleTime {
            cpus: a.cpus + b.cpus,
            time: Nanos(a.time.0 + b.time.0),
        };
        let IdleTime { cpus, time } = idle.fold(IdleTime::default(), sum);
        Reading { now, stalled: self.stats.stalled(now), cpus, idle: time }
    }

    /// Adds a space; `None` if there are 256 already.
    pub fn add_space(&self, pages: u64, order: Order, backing: Backing) -> Option<&Space<P>> {
        if order > Order(0) {
            self.folios.store(1, Relaxed);
        }
        let mut free = self.spaces.iter().enumerate().filter(|(_, place)| place.get().is_none());
        free.find_map(|(index, place)| {
            let id = SpaceId(index as u16);
            let space = Space::new(&self.platform, id, pages, order, backing);
            place.set(space).is_ok().then(|| place.get().expect("just set"))
        })
    }

    /// Whether any space has pages of more than one frame.
    pub fn has_folios(&self) -> bool {
        self.folios.load(Relaxed) != 0
    }

    /// Whether a device is of role File and large enough for a space of `pages` pages.
    pub fn fits_file(&self, device: u8, pages: u64) -> bool {
        let fits =
            |info: &DeviceInfo| info.role == DeviceRole::File && pages <= u64::from(info.pages);
        self.swap.info(device).is_some_and(fits)
    }

    /// Claims a device for a file's space. Returns `false` if it was claimed already.
    pub fn claim_file(&self, device: u8) -> bool {
        self.files[usize::from(device)].swap(1, Acquire) == 0
    }

    /// Releases a claimed device.
    pub fn release_file(&self, device: u8) {
        self.files[usize::from(device)].store(0, Release);
    }

    /// Whether a device is claimed.
    pub fn has_file(&self, device: u8) -> bool {
        self.files[usize::from(device)].load(Relaxed) != 0
    }

    /// The devices of role Place.
    pub fn places(&self) -> impl Iterator<Item = u8> + '_ {
        let devices = 0..self.files.len() as u8;
        let is_place = |info: &DeviceInfo| info.role == DeviceRole::Place;
        devices.filter(move |device| self.swap.info(*device).is_some_and(is_place))
    }

    /// Whether any device is for files.
    pub fn has_files(&self) -> bool {
        self.platform.devices().iter().any(DeviceInfo::is_for_files)
    }

    /// Returns a space.
    ///
    /// # Panics
    /// If no space has this id.
    pub fn space(&self, id: SpaceId) -> &Space<P> {
        self.spaces[usize::from(id.0)].get().expect("spaces are named by add_space")
    }

    /// Queues a readahead request on this CPU's node. Successive windows go to the node's threads
    /// in turn.
    pub fn request_readahead(&self, request: ReadaheadRequest) -> Queued {
        let node = usize::from(self.platform.node_of(self.cpu()).0) % self.nodes.len();
        let queues = &self.readahead[node];
        let turn = request.first.0 / FILE_WINDOW_MAX as u64 + u64::from(request.space.0);
        queues[turn as usize % queues.len()].push(request)
    }

    /// All spaces.
    pub fn spaces(&self) -> impl Iterator<Item = &Space<P>> {
        self.spaces.iter().map_while(OnceLock::get)
    }

    /// Registers a shrinker. It is called when memory is short, until its owner drops it.
    ///
    /// # Panics
    /// If there are 16 already.
    pub fn add_shrinker(&self, shrinker: Weak<dyn Shrinker>) {
        let added = self.shrinkers.iter().any(|place| place.set(shrinker.clone()).is_ok());
        assert!(added, "a machine has at most {SHRINKERS_MAX} shrinkers");
    }

    /// Calls all shrinkers; returns how many pages they freed.
    pub fn shrink_caches(&self) -> u64 {
        let asked = self.shrinkers.iter().map_while(OnceLock::get).filter_map(Weak::upgrade);
        let pages = asked.map(|shrinker| shrinker.shrink()).sum();
        self.count(Counter::PgShrunk, pages);
        pages
    }

    /// The frames in use or free: all but those of the balloons.
    pub fn present(&self) -> usize {
        self.nodes.iter().map(|node| node.zone.present() as usize).sum()
    }

    /// The slot that holds a page's current contents, whether or not a frame holds them, too. A
    /// hint, unless the page's entry is held.
    pub fn slot_of(&self, entry: Entry) -> Option<Slot> {
        match entry.page() {
            Page::Swapped(slot) => Some(slot),
            Page::Resident(pfn) if !entry.is_dirty() => self.frames.slot(pfn),
            Page::Absent | Page::Resident(_) | Page::Poisoned => None,
        }
    }

    /// How many more pages can be stored: frames that are free or could be borrowed, and free slots
    /// of devices with room.
    pub fn capacity_left(&self) -> u64 {
        let free = (self.present() as u64).saturating_sub(self.resident().into());
        free + u64::from(self.platform.borrowable()) + self.swap.room()
    }

    /// The watermarks of a node with `frames` frames.
    pub fn marks(&self, node: &Node<P>, frames: u32) -> Watermarks {
        let others = self.present() as u32 - node.zone.present();
        let Config { min_free, watermark_scale, .. } = self.config;
        Watermarks::new(frames, others + frames, min_free, watermark_scale)
    }

    /// Sets the watermarks of a node for its present size, after its balloon has changed. If
    /// another thread changes the size meanwhile, both threads end with the watermarks of the last
    /// size.
    pub fn update_marks(&self, node: &Node<P>) {
        let mut size = node.zone.present();
        loop {
            node.zone.set_marks(self.marks(node, size));
            match node.zone.present() {
                now if now == size => return,
                now => size = now,
            }
        }
    }

    /// The CPU that this thread runs on; a hint.
    pub fn cpu(&self) -> CpuId {
        self.platform.cpu()
    }

    /// Begins a phase of this thread; dropping the result ends it.
    pub fn enter(&self, phase: &'static Phase) -> PhaseGuard<'_, P> {
        PhaseGuard::enter(&self.platform, phase)
    }

    /// Adds to a counter, on this CPU's shard.
    pub fn count(&self, counter: Counter, count: u64) {
        self.stats.add(self.cpu(), counter, count);
    }

    /// The node of a frame.
    pub fn node_of(&self, pfn: Pfn) -> &Node<P> {
        let holds = |node: &&Node<P>| node.zone.range().contains(pfn);
        self.nodes.iter().find(holds).expect("ranges cover all frames")
    }

    /// Nodes in the order this CPU prefers them: its own, then the others.
    pub fn nodes_from(&self, cpu: CpuId) -> impl Iterator<Item = (NodeId, &Node<P>)> {
        let own = usize::from(self.platform.node_of(cpu).0) % self.nodes.len();
        let order = (0..self.nodes.len()).map(move |i| (own + i) % self.nodes.len());
        order.map(|index| (NodeId(index as u8), &self.nodes[index]))
    }

    /// Counts frames that were allocated from a zone.
    pub fn taken(&self, frames: usize) {
        self.count(Counter::Resident, frames as u64);
    }

    /// Frees frames to this CPU's list. They have no owner and are on no LRU list.
    pub fn free(&self, frames: &[Pfn]) {
        let cpu = self.cpu();
        self.give_back(frames, |node, frames| node.zone.free(cpu, frames));
    }

    /// Frees frames to the buddy allocator, where all CPUs find them.
    pub fn free_to_zone(&self, frames: &[Pfn]) {
        self.give_back(frames, |node, frames| node.zone.free_to_zone(frames));
    }

    /// Frees 2^order frames from `first` on that [`Zone::alloc_block`] allocated.
    pub fn free_run(&self, first: Pfn, order: Order, mobility: Mobility) {
        let _phase = self.enter(phase::ALLOC);
        let cpu = self.cpu();
        self.release_contents(first, order);
        self.stats.subtract(cpu, Counter::Resident, order.frames().into());
        self.node_of(first).zone.free_block(cpu, first, order, mobility);
    }

    /// Frees 2^order frames of a node that were allocated for pages, to the buddy allocator.
    pub fn release_block(&self, node: &Node<P>, first: Pfn, order: Order) {
        let _phase = self.enter(phase::ALLOC);
        self.release_contents(first, order);
        self.stats.subtract(self.cpu(), Counter::Resident, order.frames().into());
        node.zone.release_block(first, order);
    }

    fn release_contents(&self, first: Pfn, order: Order) {
        let frames = IoFrames::Block(first, order);
        frames.lists().for_each(|(_, frames)| self.platform.release(&frames));
    }

    fn give_back(&self, frames: &[Pfn], to: impl Fn(&Node<P>, &[Pfn])) {
        if frames.is_empty() {
            return;
        }
        debug_assert!(frames.iter().all(|pfn| self.frames.owner(*pfn).is_none()));
        debug_assert!(frames.iter().all(|pfn| self.frames.slot(*pfn).is_none()));
        let _phase = self.enter(phase::ALLOC);
        self.platform.release(frames);
        self.stats.subtract(self.cpu(), Counter::Resident, frames.len() as u64);
        self.by_node(frames, to);
    }

    /// Calls `act` with each stretch of frames that lie on one node.
    fn by_node(&self, frames: &[Pfn], act: impl Fn(&Node<P>, &[Pfn])) {
        match &self.nodes[..] {
            [only] => act(only, frames),
            _ => {
                let same = |a: &Pfn, b: &Pfn| std::ptr::eq(self.node_of(*a), self.node_of(*b));
                frames.chunk_by(same).for_each(|frames| act(self.node_of(frames[0]), frames));
            }
        }
    }

    /// The number of frames in use. A sum over CPUs, exact while no thread allocates or frees.
    pub fn resident(&self) -> u32 {
        self.stats.get(Counter::Resident).min(self.frames.len() as u64) as u32
    }

    /// The most frames in use at once, including those on per-CPU lists; with several nodes, the
    /// sum of their maxima.
    pub fn resident_peak(&self) -> u32 {
        self.nodes.iter().map(|node| node.zone.peak()).sum()
    }

    /// Adds new pages to a list of the LRU.
    pub fn add_to_lru(&self, pages: &[Pfn], list: List) {
        let cpu = self.cpu();
        self.by_node(pages, |node, pages| {
            self.free(&node.lru.add(&self.frames, cpu, pages, list));
        });
    }

    /// Records a refault as a cost of reclaiming this kind of pages.
    pub fn note_refault(&self, node: &Node<P>, kind: Kind) {
        node.lru.workingset().note_cost(kind, 1, 0, node.lru.listed());
    }

    /// Detaches the frame of a dropped page and frees it; if a thread has isolated the frame, that
    /// thread frees it. The caller holds the page's entry; the frame is unmapped.
    pub fn abandon(&self, pfn: Pfn) {
        self.frames.set_owner(pfn, None);
        self.forget_slot(pfn);
        match self.node_of(pfn).lru.remove(&self.frames, pfn) {
            Removal::Taken => self.free(&[pfn]),
            Removal::Abandoned => {}
        }
    }

    /// Frees the slot that has the contents of a frame, if any: the page is about to change.
    pub fn forget_slot(&self, pfn: Pfn) {
        if let Some(slot) = self.frames.take_slot(pfn) {
            self.release_slot(slot);
        }
    }

    /// Drops one reference to a slot.
    pub fn release_slot(&self, slot: Slot) {
        self.swap.release(&self.platform, self.cpu(), slot);
    }

    /// Sets the owner of a frame: a page whose entry the caller holds.
    pub fn adopt(&self, pfn: Pfn, owner: Owner) {
        self.frames.set_owner(pfn, Some(owner));
    }

    /// Waits for the write of a frame to end; returns its outcome.
    pub fn wait_written(&self, pfn: Pfn) -> Writeback {
        loop {
            let ticket: Ticket = self.written.ticket();
            match self.frames.writeback(pfn) {
                Writeback::Running => self.written.wait(ticket, None),
                done => return done,
            }
        }
    }

    /// Records the outcome of writes of frames, and wakes their waiters.
    pub fn set_written(&self, pfns: impl Iterator<Item = Pfn>, outcome: Writeback) {
        pfns.for_each(|pfn| self.frames.set_writeback(pfn, outcome));
        self.written.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::Cpu;
    use highwater_platform::testing::TestPlatform;

    #[test]
    fn phases_nest() {
        let platform = TestPlatform::new(64, Vec::new());
        let m = Machine::new(platform, Config::default());
        let now = || {
            let now = m.platform.enter(phase::PROGRAM);
            m.platform.enter(now);
            now
        };
        let before = now();
        let outer = m.enter(phase::FAULT);
        let inner = m.enter(phase::ALLOC);
        assert_eq!(now(), phase::ALLOC);
        drop(inner);
        assert_eq!(now(), phase::FAULT);
        drop(outer);
        assert_eq!(now(), before);
    }
}
