//! A platform for unit tests: threads, locks and events of the standard library, and CPUs that are
//! only numbers. Frames and slots have no memory: nothing is read, written or mapped. A model
//! checker replaces threads, words, locks and events by its own ([`Sharing`]).
//!
//! Locking: an event's mutex is held only to change or compare its sequence number.

use crate::{
    Atomics, AttachError, Block, Clock, Cpu, DeviceInfo, Direction, Event, FileInfo, Files,
    FrameRange, Guard, IdleTime, Int, Io, Lock, LockClass, LockStatistics, Locks, Memory, Mmu,
    OutOfHostMemory, Phase, Progress, Protection, Recency, Thread, Threads, Ticket,
};
use highwater_units::{CpuId, Nanos, NodeId, Pfn, SpaceId, Vpn};
use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const CPUS: u16 = 4;

/// Threads get CPUs in turn, and keep them.
static NEXT_CPU: AtomicU16 = AtomicU16::new(0);

thread_local! {
    static CPU: u16 = NEXT_CPU.fetch_add(1, Relaxed) % CPUS;
    static PHASE: Cell<&'static Phase> = const { Cell::new(Phase::PROGRAM) };
}

/// The words, locks and events that the threads of a [`TestPlatform`] share, and how they run.
pub trait Sharing: Atomics + Locks + Default + Send + Sync + 'static {
    /// The CPU of this thread, below 4.
    fn cpu(&self) -> u16;

    /// Lets other threads run.
    fn relax(&self);
}

/// Words, locks, events and threads of the standard library.
#[derive(Default)]
pub struct StdSharing;

impl Sharing for StdSharing {
    fn cpu(&self) -> u16 {
        CPU.with(|cpu| *cpu)
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

/// Four CPUs and one node. Lock statistics are zero.
pub struct TestPlatform<S = StdSharing> {
    frames: u32,
    devices: Vec<DeviceInfo>,
    began: Instant,
    sharing: S,
}

impl TestPlatform {
    /// A platform with `frames` frames and these devices.
    pub fn new(frames: u32, devices: Vec<DeviceInfo>) -> TestPlatform {
        TestPlatform::sharing(frames, devices)
    }
}

impl<S: Sharing> TestPlatform<S> {
    /// As [`TestPlatform::new`], with other words and locks.
    pub fn sharing(frames: u32, devices: Vec<DeviceInfo>) -> TestPlatform<S> {
        TestPlatform { frames, devices, began: Instant::now(), sharing: S::default() }
    }
}

impl<S: Sharing> Cpu for TestPlatform<S> {
    fn cpu(&self) -> CpuId {
        CpuId(self.sharing.cpu())
    }

    fn cpus(&self) -> usize {
        CPUS.into()
    }

    fn node_of(&self, _: CpuId) -> NodeId {
        NodeId(0)
    }

    fn relax(&self, _: u32) {
        self.sharing.relax();
    }

    fn enter(&self, phase: &'static Phase) -> &'static Phase {
        PHASE.replace(phase)
    }

    fn idle_time(&self, _: NodeId) -> Option<IdleTime> {
        None
    }
}

impl<S: Sharing> Clock for TestPlatform<S> {
    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    fn thread_cpu_time(&self) -> Nanos {
        Nanos(0)
    }
}

/// A mutex of the standard library.
pub struct TestLock<T>(Mutex<T>);

/// A held mutex.
pub struct TestGuard<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for TestGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for TestGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Guard<T> for TestGuard<'_, T> {
    fn visits(&self, _: usize) {}
}

impl<T: Send> Lock<T> for TestLock<T> {
    type Guard<'a>
        = TestGuard<'a, T>
    where
        T: 'a;

    fn lock(&self) -> TestGuard<'_, T> {
        TestGuard(self.0.lock().expect("no panic under a lock"))
    }

    fn try_lock(&self) -> Option<TestGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(held) => Some(TestGuard(held)),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("a thread panicked under a lock"),
        }
    }

    fn alike(&self, value: T) -> TestLock<T> {
        TestLock(Mutex::new(value))
    }
}

/// A sequence number under a mutex.
#[derive(Default)]
pub struct TestEvent {
    sequence: Mutex<u32>,
    changed: Condvar,
}

impl TestEvent {
    fn sequence(&self) -> MutexGuard<'_, u32> {
        self.sequence.lock().expect("no panic under a lock")
    }
}

impl Event for TestEvent {
    fn ticket(&self) -> Ticket {
        Ticket(*self.sequence())
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Nanos>) {
        let timeout = timeout.map_or(Duration::MAX, |timeout| Duration::from_nanos(timeout.0));
        let unchanged = |sequence: &mut u32| *sequence == ticket.0;
        let ended = self.changed.wait_timeout_while(self.sequence(), timeout, unchanged);
        drop(ended.expect("no panic under a lock"));
    }

    fn notify_all(&self) {
        let mut sequence = self.sequence();
        *sequence = sequence.wrapping_add(1);
        self.changed.notify_all();
    }
}

impl Locks for StdSharing {
    type Lock<T: Send + 'static> = TestLock<T>;
    type Event = TestEvent;

    fn new_lock<T: Send + 'static>(&self, _: LockClass, value: T) -> TestLock<T> {
        TestLock(Mutex::new(value))
    }

    fn new_event(&self) -> TestEvent {
        TestEvent::default()
    }

    fn lock_statistics(&self) -> LockStatistics {
        LockStatistics::default()
    }
}

impl Atomics for StdSharing {
    type Atomic<T: Int> = T::Std;
}

impl<S: Sharing> Locks for TestPlatform<S> {
    type Lock<T: Send + 'static> = S::Lock<T>;
    type Event = S::Event;

    fn new_lock<T: Send + 'static>(&self, class: LockClass, value: T) -> S::Lock<T> {
        self.sharing.new_lock(class, value)
    }

    fn new_event(&self) -> S::Event {
        self.sharing.new_event()
    }

    fn lock_statistics(&self) -> LockStatistics {
        self.sharing.lock_statistics()
    }
}

impl<S: Sharing> Atomics for TestPlatform<S> {
    type Atomic<T: Int> = S::Atomic<T>;
}

/// A thread of the standard library.
pub struct TestThread(JoinHandle<()>);

impl Thread for TestThread {
    fn join(self) {
        self.0.join().expect("no panic");
    }
}

impl<S: Sharing> Threads for TestPlatform<S> {
    type Thread = TestThread;

    fn spawn(
        &self,
        name: &str,
        _: NodeId,
        body: Box<dyn FnOnce() + Send>,
    ) -> Result<TestThread, io::Error> {
        thread::Builder::new().name(name.to_owned()).spawn(body).map(TestThread)
    }
}

impl<S: Sharing> Memory for TestPlatform<S> {
    fn ranges(&self) -> Vec<FrameRange> {
        vec![FrameRange { node: NodeId(0), first: Pfn(0), frames: self.frames }]
    }

    fn populate(&self, _: &[Pfn]) -> Result<(), OutOfHostMemory> {
        Ok(())
    }

    fn zero(&self, _: &[Pfn]) {}

    fn copy_frame(&self, _: Pfn, _: Pfn) {}

    fn is_zero(&self, _: Pfn) -> bool {
        false
    }

    fn load(&self, _: Pfn, _: usize) -> u64 {
        0
    }

    fn store(&self, _: Pfn, _: usize, _: u64) {}
}

impl<S: Sharing> Mmu for TestPlatform<S> {
    fn recency(&self) -> Recency {
        Recency::AccessedBit
    }

    fn attach(&self, _: SpaceId, _: u64) -> Result<(), AttachError> {
        Ok(())
    }

    fn map(&self, _: SpaceId, _: Vpn, frames: &[Pfn], _: Protection) -> Progress {
        Progress::all(frames.len())
    }

    fn unmap(&self, _: SpaceId, _: Vpn, frames: &[Pfn]) -> Progress {
        Progress::all(frames.len())
    }

    fn discard(&self, _: SpaceId, _: Vpn, _: Pfn) {}

    fn copy(&self, _: SpaceId, _: Vpn, _: Pfn, _: Pfn) {}

    fn coalesce(&self, _: SpaceId, _: Vpn, _: Pfn) {}

    fn allow_write(&self, _: SpaceId, _: Vpn, _: usize) {}

    fn holds(&self, _: SpaceId, _: Vpn) -> bool {
        true
    }
}

impl<S: Sharing> Block for TestPlatform<S> {
    type Transfer = ();

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.clone()
    }

    fn read(&self, _: u8, _: &mut [Io]) {}

    fn write(&self, _: u8, _: &mut [Io]) {}

    fn start(&self, _: u8, _: Direction, _: &mut [Io]) {}

    fn is_over(&self, (): &()) -> bool {
        true
    }

    fn finish(&self, (): (), _: &mut [Io]) {}
}

impl<S: Sharing> Files for TestPlatform<S> {
    type File = FileInfo;

    fn describe(&self, file: &FileInfo) -> FileInfo {
        *file
    }

    fn open(&self, _: u8, _: SpaceId, _: FileInfo) -> Result<(), AttachError> {
        Ok(())
    }

    fn close(&self, _: u8, _: SpaceId) {}
}
