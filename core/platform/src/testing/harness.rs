//! Seeds and a watchdog for tests with random operations and threads.

use std::io::{self, Write};
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Runs `test` with seeds 1 to `count`; with `HIGHWATER_SEED=S`, only with seed S; with
/// `HIGHWATER_SEEDS=N`, with seeds 1 to N. Prints the seed of a failure.
pub fn seeds(count: u64, test: impl Fn(u64)) {
    chosen(count).for_each(|seed| run_named(seed, &test));
}

/// As [`seeds`], by a thread for each CPU: for tests without threads of their own whose seeds take
/// seconds, and some longer than others.
///
/// # Panics
/// If `test` does, once the other threads are through.
pub fn seeds_on_all_cpus(count: u64, test: impl Fn(u64) + Sync) {
    let left = Mutex::new(chosen(count));
    // Not locked while a seed runs.
    let next = || left.lock().expect("nothing panics with it").next();
    let run_all = || {
        while let Some(seed) = next() {
            run_named(seed, &test);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(run_all);
        }
    });
}

fn chosen(count: u64) -> RangeInclusive<u64> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    match number("HIGHWATER_SEED") {
        Some(one) => one..=one,
        None => 1..=number("HIGHWATER_SEEDS").unwrap_or(count),
    }
}

fn run_named(seed: u64, test: impl Fn(u64)) {
    let naming = Naming(seed);
    test(seed);
    std::mem::forget(naming);
}

/// Prints a seed when a test panics.
struct Naming(u64);

impl Drop for Naming {
    fn drop(&mut self) {
        eprintln!("failed with HIGHWATER_SEED={}", self.0);
    }
}

/// Ends the process with a message when a test makes no progress for too long: a deadlock then
/// fails the test instead of hanging it.
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    beats: AtomicU64,
    over: AtomicBool,
}

impl Watchdog {
    /// Watches `test`, which must call [`Watchdog::beat`] at least once in every `timeout`.
    pub fn new(test: &str, timeout: Duration) -> Watchdog {
        let shared = Arc::new(Shared { beats: AtomicU64::new(0), over: AtomicBool::new(false) });
        let (watched, name) = (shared.clone(), test.to_owned());
        let thread = Some(thread::spawn(move || watched.watch(&name, timeout)));
        Watchdog { shared, thread }
    }

    /// Reports progress.
    pub fn beat(&self) {
        self.shared.beats.fetch_add(1, Relaxed);
    }
}

impl Shared {
    fn watch(&self, test: &str, timeout: Duration) {
        let (mut seen, mut since) = (0, Instant::now());
        while !self.over.load(Relaxed) {
            thread::park_timeout(Duration::from_millis(200));
            let beats = self.beats.load(Relaxed);
            if beats != seen {
                (seen, since) = (beats, Instant::now());
            } else if since.elapsed() > timeout {
                // Not with eprintln!, whose output the test harness captures.
                let message = format!("{test}: no progress for {timeout:?} after {beats} steps\n");
                let _ = io::stderr().write_all(message.as_bytes());
                std::process::abort();
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}
