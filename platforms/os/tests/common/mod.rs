//! Devices with injected errors and delays, and panics that are printed.

pub(crate) mod bounded;

use highwater_devices::{
    Algorithm, Device, FaultKind, Faults, SIZE_MIN, Spec, When, flaky, open, tier,
};
use highwater_platform::{DeviceRole, Latency};
use highwater_units::Bytes;
use std::io::{self, Write};
use std::panic;
use std::path::Path;
use std::sync::{Arc, Once};
use std::thread;

/// Pins this thread to one CPU: the counts of a test depend on per-CPU lists, and a page in the LRU
/// batch of another CPU is on no list.
pub(crate) fn stay() {
    // SAFETY: a set of one CPU, this thread's own.
    let kept = unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut one);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one)
    };
    assert_eq!(kept, 0, "a thread may stay where it is");
}

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

/// A percentage as a rate.
pub(crate) fn percent(percent: u64) -> When {
    match percent {
        0 => When::Never,
        100 => When::Always,
        percent => When::Rate(percent as u16 * 10),
    }
}

/// Makes this percentage of writes fail: the device fails, or has no room.
pub(crate) fn fail_writes(faults: &Faults, percent_of_all: u64) {
    faults.set(FaultKind::Write, percent(percent_of_all / 2));
    faults.set(FaultKind::Full, percent(percent_of_all.div_ceil(2)));
}

/// A device in memory that claims a latency, with injected errors.
pub(crate) fn memory(pages: u64, latency: Latency, injected: &Arc<Faults>) -> Box<dyn Device> {
    let spec = Spec::Ram { size: Bytes::of_pages(pages) };
    let inner: Arc<dyn Device> = open(&spec).expect("memory for the device").into();
    let mut device = flaky(inner, injected.clone());
    device.info_mut().latency = latency;
    device
}

/// A device in memory for the pages of one space: zeros at first.
pub(crate) fn home(pages: u64, latency: Latency, injected: &Arc<Faults>) -> Box<dyn Device> {
    let mut home = memory(pages, latency, injected);
    home.info_mut().role = DeviceRole::File;
    home
}

/// Compressed memory with injected errors, and the device itself for inspection.
pub(crate) fn compressed(
    size: Bytes,
    algorithm: Algorithm,
    injected: &Arc<Faults>,
) -> (Box<dyn Device>, Arc<dyn Device>) {
    let spec = Spec::Zram { size, algorithm };
    let inner: Arc<dyn Device> = open(&spec).expect("memory for the device").into();
    (flaky(inner.clone(), injected.clone()), inner)
}

/// 256 pages of memory over `pages` slower ones with injected errors, and the device itself for
/// inspection.
pub(crate) fn tiered(pages: u64, injected: &Arc<Faults>) -> (Box<dyn Device>, Arc<dyn Device>) {
    let fast = open(&Spec::Ram { size: SIZE_MIN }).expect("memory for the device");
    let slow = memory(pages, Latency::Asynchronous, injected);
    let inner = tier("tier".into(), fast, slow).expect("a thread");
    let inner: Arc<dyn Device> = inner.into();
    (flaky(inner.clone(), Arc::default()), inner)
}

/// A file in `dir`, with injected errors.
pub(crate) fn file(pages: u64, dir: &Path, injected: &Arc<Faults>) -> Box<dyn Device> {
    let spec = Spec::Dir { path: dir.to_owned(), size: Bytes::of_pages(pages) };
    let inner: Arc<dyn Device> = open(&spec).expect("room for the file").into();
    flaky(inner, injected.clone())
}
