//! Devices with injected errors and delays, and panics that are printed.

pub(crate) mod bounded;

use highwater_devices::{Algorithm, Arena, Device, Lenders, Reason, SIZE_MIN, Spec, open, tier};
use highwater_platform::{DeviceInfo, DeviceRole, Io, IoError, Latency};
use highwater_units::{Bytes, PAGE_SIZE, Prng};
use std::io::{self, Write};
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

/// Prints the message of a panic in a thread of the platform at once: such a panic ends the
/// process, and output that the test harness captured is lost.
pub(crate) fn print_panics_of_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| match thread::current().name() {
            Some(name) if name.starts_with("trial") || name.starts_with("kswapd") => {
                // The harness would capture the output of eprintln.
                let _ = writeln!(io::stderr(), "thread {name}: {panic}");
            }
            _ => usual(panic),
        }));
    });
}

/// The errors injected into a device; they may change while it is used.
#[derive(Default)]
pub(crate) struct InjectedErrors {
    /// Percent of reads that fail.
    pub(crate) reads: AtomicU64,
    /// Percent of writes that fail.
    pub(crate) writes: AtomicU64,
    /// Percent of transfers that are delayed.
    pub(crate) delays: AtomicU64,
    drawn: AtomicU64,
}

impl InjectedErrors {
    /// Injects nothing from now on.
    pub(crate) fn end(&self) {
        for percent in [&self.reads, &self.writes, &self.delays] {
            percent.store(0, Relaxed);
        }
    }

    fn strikes(&self, percent: &AtomicU64) -> bool {
        let draw = self.drawn.fetch_add(1, Relaxed);
        Prng::new(draw).percent(percent.load(Relaxed))
    }
}

/// A device with injected errors.
struct FaultyDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    injected: Arc<InjectedErrors>,
}

/// A device in memory that claims a latency, with injected errors.
pub(crate) fn memory(
    pages: u64,
    latency: Latency,
    injected: &Arc<InjectedErrors>,
) -> Box<dyn Device> {
    let spec = Spec::Ram { size: Bytes::of_pages(pages) };
    let inner: Arc<dyn Device> = open(&spec).expect("memory for the device").into();
    let info = DeviceInfo { latency, ..inner.info() };
    Box::new(FaultyDevice { inner, info, injected: injected.clone() })
}

/// A device in memory for the pages of one space: zeros at first.
pub(crate) fn home(
    pages: u64,
    latency: Latency,
    injected: &Arc<InjectedErrors>,
) -> Box<dyn Device> {
    let mut home = memory(pages, latency, injected);
    home.info_mut().role = DeviceRole::File;
    home
}

/// Compressed memory with injected errors, and the device itself for inspection.
pub(crate) fn compressed(
    size: Bytes,
    algorithm: Algorithm,
    injected: &Arc<InjectedErrors>,
) -> (Box<dyn Device>, Arc<dyn Device>) {
    let spec = Spec::Zram { size, algorithm };
    let inner: Arc<dyn Device> = open(&spec).expect("memory for the device").into();
    let info = inner.info();
    let device = FaultyDevice { inner: inner.clone(), info, injected: injected.clone() };
    (Box::new(device), inner)
}

/// 256 pages of memory over `pages` slower ones with injected errors, and the device itself for
/// inspection.
pub(crate) fn tiered(
    pages: u64,
    injected: &Arc<InjectedErrors>,
) -> (Box<dyn Device>, Arc<dyn Device>) {
    let fast = open(&Spec::Ram { size: SIZE_MIN }).expect("memory for the device");
    let slow = memory(pages, Latency::Asynchronous, injected);
    let inner = tier("tier".into(), fast, slow).expect("a thread");
    let inner: Arc<dyn Device> = inner.into();
    let info = inner.info();
    let device = FaultyDevice { inner: inner.clone(), info, injected: Arc::default() };
    (Box::new(device), inner)
}

/// A file in `dir`, with injected errors.
pub(crate) fn file(pages: u64, dir: &Path, injected: &Arc<InjectedErrors>) -> Box<dyn Device> {
    let spec = Spec::Dir { path: dir.to_owned(), size: Bytes::of_pages(pages) };
    let inner: Arc<dyn Device> = open(&spec).expect("room for the file").into();
    Box::new(FaultyDevice { info: inner.info(), inner, injected: injected.clone() })
}

impl FaultyDevice {
    fn delay(&self) {
        if self.injected.strikes(&self.injected.delays) {
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn failure(&self) -> IoError {
        match self.injected.drawn.load(Relaxed) % 2 {
            0 => IoError::Full,
            _ => IoError::Failed(5),
        }
    }
}

impl Device for FaultyDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        self.delay();
        // SAFETY: by contract of this function.
        unsafe { self.inner.read(arena, batch) };
        for io in batch {
            if self.injected.strikes(&self.injected.reads) {
                // After an error the contents of the frames are undefined: here, unlike any page.
                for pfn in io.frames.iter() {
                    // SAFETY: a frame of this transfer, the caller's alone.
                    unsafe { arena.address(pfn).write_bytes(0xdb, PAGE_SIZE) };
                }
                io.result = Err(self.failure());
            }
        }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        self.delay();
        for index in 0..batch.len() {
            let fails = self.injected.strikes(&self.injected.writes);
            // Half of the failed writes reach their slots.
            if !fails || index % 2 == 0 {
                // SAFETY: by contract of this function.
                unsafe { self.inner.write(arena, &mut batch[index..=index]) };
            }
            if fails {
                batch[index].result = Err(self.failure());
            }
        }
        self.delay();
    }

    fn vacate(&self) {
        self.inner.vacate();
    }

    fn discard(&self, slot: u32, pages: u32) {
        self.inner.discard(slot, pages);
    }

    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.inner.thread()
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.inner.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.inner.inherit()
    }

    fn resident(&self) -> Bytes {
        self.inner.resident()
    }
}
