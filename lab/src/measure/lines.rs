//! Cache lines and locks: of one CPU, and between two.

use super::runs::{asked, beside, circle, cpu_time_each, median, time_each};
use highwater_units::CpuId;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Steps of a run: some tens of microseconds, which interrupts seldom meet.
const STEPS: usize = 2000;

/// Lines that move in a run: they fit into the nearest cache.
const LINES: usize = 256;

/// A word that has its cache line, and the neighbouring line that is fetched with it, for itself.
#[repr(align(128))]
struct Line(AtomicU64);

/// The low bits of a line have the index of the next one, the others count visits.
const INDEX: u64 = 0xffff;
const VISIT: u64 = INDEX + 1;

/// An atomic addition to a word of this CPU.
pub(super) fn atomic(time: Duration) -> f64 {
    let word = AtomicU64::new(0);
    let add = || {
        black_box(&word).fetch_add(1, SeqCst);
    };
    median(time, || cpu_time_each(STEPS, || (0..STEPS).for_each(|_| add())))
}

/// Taking and releasing a lock of the standard library.
pub(super) fn lock(time: Duration) -> f64 {
    let lock = Mutex::new(0);
    let take = || *black_box(&lock).lock().expect("no holder panics") += 1;
    median(time, || cpu_time_each(STEPS, || (0..STEPS).for_each(|_| take())))
}

/// An atomic addition to a line that the other CPU has just changed.
pub(super) fn transfer(time: Duration, cpus: [CpuId; 2]) -> f64 {
    let lines = lines_in_circle();
    let visit_all = || {
        (0..LINES).fold(0, |at, _| (lines[at].0.fetch_add(VISIT, SeqCst) & INDEX) as usize);
    };
    asked(cpus, &visit_all, |partner| {
        median(time, || {
            partner.ask();
            time_each(LINES, visit_all)
        })
    })
}

/// Lines that name each other in a circle: each address depends on the last visit.
fn lines_in_circle() -> Vec<Line> {
    circle(LINES).into_iter().map(|next| Line(AtomicU64::new(next.into()))).collect()
}

/// The time from the store of one CPU until a waiting load of the other CPU sees it: half of a
/// round trip.
pub(super) fn handover(time: Duration, cpus: [CpuId; 2]) -> f64 {
    let rounds = STEPS / 4;
    asked(cpus, &|| (), |partner| {
        let there_and_back = || (0..rounds).for_each(|_| partner.ask());
        median(time, || time_each(2 * rounds, there_and_back))
    })
}

/// The factor by which arithmetic and visits of lines take longer while the other thread of the
/// core does them, too.
pub(super) fn slowdown(time: Duration, [own, other]: [CpuId; 2]) -> f64 {
    let work = || {
        let sum = (0..STEPS as u64).fold(1, |sum: u64, step| sum.wrapping_mul(step | 1) ^ sum >> 7);
        black_box(sum);
    };
    let measured = || median(time / 2, || cpu_time_each(STEPS, work));
    let alone = beside(own, &[], &|| (), measured);
    beside(own, &[other], &work, measured) / alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_visits_every_line_once() {
        let lines = lines_in_circle();
        let mut seen = vec![false; LINES];
        let mut at = 0;
        for _ in 0..LINES {
            assert!(!seen[at], "line {at} comes twice");
            seen[at] = true;
            at = (lines[at].0.load(SeqCst) & INDEX) as usize;
        }
        assert_eq!(at, 0, "a circle");
    }
}
