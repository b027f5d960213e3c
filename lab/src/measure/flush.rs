//! Flushes of other CPUs' TLBs: the time that they take from the CPU that requests them, and from
//! the CPUs that are interrupted.
//!
//! ```text
//! CPU that asks     page read-only, writable, written      alone, then beside the others
//! the others        count, in chunks                       chunks take longer while flushed
//! ```

use super::runs::{beside, median, median_of, time_each};
use crate::peer::{Mapping, Unavailable};
use crate::workload::{Access, Intent, Target};
use highwater_os::monotonic;
use highwater_units::{Bytes, CpuId};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Flushes of a run: some ten microseconds.
const STEPS: usize = 20;

/// Steps of a chunk: some microseconds.
const CHUNK: u64 = 10_000;

/// Since 6.14, Linux forgets the CPUs that a process has left once a second, during a flush.
const FORGOTTEN: Duration = Duration::from_millis(1100);

/// Times of a flush, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    /// The time that the others add to it.
    pub(super) others: f64,
    /// The time that it takes from each of them.
    pub(super) interrupt: f64,
}

/// Measures flushes of `own` while `others` run threads of the same address space.
pub(super) fn flush(time: Duration, own: CpuId, others: &[CpuId]) -> Result<Flush, Unavailable> {
    let mapping = Mapping::anonymous(Bytes::of_pages(1))?;
    let flushes = AtomicU64::new(0);
    let flush = || {
        // A page that becomes read-only is flushed everywhere, one that becomes writable nowhere.
        let _ = mapping.protect_and_back();
        if let Ok(words) = mapping.extent().enter().page(0, Intent::Write) {
            words[0].store(1, Relaxed);
        }
        flushes.fetch_add(1, Relaxed);
    };
    let steps = || time_each(STEPS, || (0..STEPS).for_each(|_| flush()));
    let alone = beside(own, &[], &|| (), || {
        thread::sleep(FORGOTTEN);
        flush();
        median(time / 2, steps)
    });
    let chunks = Mutex::new(Vec::new());
    let count = || {
        let (before, began) = (flushes.load(Relaxed), monotonic());
        (0..CHUNK).for_each(|step| {
            black_box(step);
        });
        let took = monotonic().since(began).0 as f64;
        let met = flushes.load(Relaxed) - before;
        chunks.lock().expect("no holder panics").push(Chunk { took, met });
    };
    let ended = || chunks.lock().expect("no holder panics").len();
    let both = beside(own, others, &count, || {
        thread::sleep(time / 4);
        let mut runs = Vec::new();
        median(time / 2, || {
            let before = ended();
            let took = steps();
            runs.push((took, ended() > before));
            took
        });
        // A CPU that runs another program meanwhile is not interrupted.
        let asked = runs.into_iter().filter_map(|(took, worked)| worked.then_some(took));
        median_of(&mut asked.collect::<Vec<_>>())
    });
    let chunks = chunks.into_inner().expect("no holder panics");
    Ok(Flush { others: both - alone, interrupt: lost(&chunks) })
}

/// A chunk of work of a CPU that is interrupted.
struct Chunk {
    /// In ns.
    took: f64,
    /// Flushes meanwhile.
    met: u64,
}

/// The time that each flush adds to a chunk that it meets: the median.
fn lost(chunks: &[Chunk]) -> f64 {
    let (quiet, flushed): (Vec<&Chunk>, Vec<&Chunk>) =
        chunks.iter().partition(|chunk| chunk.met == 0);
    let quiet = median_of(&mut quiet.iter().map(|chunk| chunk.took).collect::<Vec<_>>());
    let longer = flushed.iter().map(|chunk| (chunk.took - quiet) / chunk.met as f64);
    median_of(&mut longer.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_share_the_time_that_they_add_to_a_chunk() {
        let chunks = |all: &[(f64, u64)]| {
            let chunk = |&(took, met)| Chunk { took, met };
            lost(&all.iter().map(chunk).collect::<Vec<_>>())
        };
        let quiet = [(1000.0, 0), (900.0, 0), (5000.0, 0)];
        assert_eq!(
            chunks(&[&quiet[..], &[(1600.0, 3), (90_000.0, 1), (1200.0, 2)]].concat()),
            200.0
        );
        assert_eq!(chunks(&quiet), 0.0, "no flush met");
    }
}
