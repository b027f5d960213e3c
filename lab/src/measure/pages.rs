//! Memory and pages: random and sequential reads, zeroing, copying, mapping.

use super::runs::{circle, cpu_time_each, median, on};
use crate::peer::{Mapping, Unavailable};
use crate::workload::{Access, Intent, Target};
use highwater_units::{Bytes, CpuId, PAGE_SIZE};
use rustix::mm::Advice;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// Words of a page, and of a cache line.
const PAGE_WORDS: usize = PAGE_SIZE / 8;
const LINE_WORDS: usize = 8;

/// More than the caches of a CPU hold: 64 MiB.
const PAGES: usize = 16_384;

/// Random reads of a run: two milliseconds.
const READS: usize = 20_000;

/// Pages that are mapped at once: 16 MiB.
const MAPPED: usize = 4096;

type Page = [u64; PAGE_WORDS];

/// Times of memory that no cache holds, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) random: f64,
    /// A line of a sequential read.
    pub(super) scan: f64,
    pub(super) zero_page: f64,
    pub(super) copy_page: f64,
}

pub(super) fn memory(time: Duration) -> Memory {
    let mut pages = vec![[1; PAGE_WORDS]; PAGES];
    let scan = median(time, || {
        let read = || {
            let lines = pages.iter().flat_map(|page| page.iter().step_by(LINE_WORDS));
            black_box(lines.sum::<u64>());
        };
        cpu_time_each(PAGES * PAGE_WORDS / LINE_WORDS, read)
    });
    let random = random_reads(time, &mut pages);
    let copy_page = copy(time, &mut pages);
    let zero = |pages: &mut Vec<Page>| {
        pages.iter_mut().for_each(|page| black_box(page).fill(0));
    };
    let zero_page = median(time, || cpu_time_each(PAGES, || zero(&mut pages)));
    Memory { random, scan, zero_page, copy_page }
}

/// Reads, each of which finds the place of the next one.
fn random_reads(time: Duration, pages: &mut [Page]) -> f64 {
    let lines = pages.len() * PAGE_WORDS / LINE_WORDS;
    let place = |line: usize| (line * LINE_WORDS / PAGE_WORDS, line * LINE_WORDS % PAGE_WORDS);
    for (line, next) in circle(lines).into_iter().enumerate() {
        let (page, word) = place(line);
        pages[page][word] = next.into();
    }
    let mut at = 0;
    median(time, || {
        let read = || {
            for _ in 0..READS {
                let (page, word) = place(at);
                at = pages[page][word] as usize;
            }
        };
        cpu_time_each(READS, read)
    })
}

/// Copies the first half to the second.
fn copy(time: Duration, pages: &mut [Page]) -> f64 {
    let (from, to) = pages.split_at_mut(pages.len() / 2);
    let copy_all = |to: &mut [Page]| {
        to.iter_mut().zip(from.iter()).for_each(|(to, from)| *black_box(to) = *from);
    };
    median(time, || cpu_time_each(from.len(), || copy_all(to)))
}

/// The factor by which the first CPU takes longer to copy pages of the second CPU's node than pages
/// of its own.
pub(super) fn remote_factor(time: Duration, [own, other]: [CpuId; 2]) -> f64 {
    // The kernel takes a page from the node of the CPU that writes it first.
    let pages_of = |cpu| on(cpu, || vec![[1; PAGE_WORDS]; PAGES]);
    let [mut near, mut far] = [own, other].map(pages_of);
    on(own, || copy(time / 2, &mut far) / copy(time / 2, &mut near))
}

/// The rate at which all CPUs copy together, in 10^6 bytes per second.
pub(super) fn copies_mb_per_s(time: Duration, cpus: &[CpuId]) -> f64 {
    let copied = |cpu: CpuId| {
        on(cpu, || {
            let mut pages = vec![[1; PAGE_WORDS]; PAGES / 4];
            PAGE_SIZE as f64 * 1000.0 / copy(time, &mut pages)
        })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|cpu| scope.spawn(|| copied(*cpu))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    })
}

/// Times of a page of an address space, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// The first write to it.
    pub(super) touch: f64,
    /// One of many that are mapped by one call; `None` before Linux 5.14.
    pub(super) populate: Option<f64>,
    /// One of many that are unmapped and freed by one call.
    pub(super) drop: f64,
}

pub(super) fn space(time: Duration) -> Result<Space, Unavailable> {
    let mapping = Mapping::anonymous(Bytes::of_pages(MAPPED as u64))?;
    let touch = || {
        let mut access = mapping.extent().enter();
        for page in 0..MAPPED as u64 {
            if let Ok(words) = access.page(page, Intent::Write) {
                words[0].store(1, Relaxed);
            }
        }
    };
    let advise = |advice| cpu_time_each(MAPPED, || drop(mapping.advise(advice)));
    let touched = median(time, || {
        advise(Advice::LinuxDontNeed);
        cpu_time_each(MAPPED, touch)
    });
    let dropped = median(time, || {
        touch();
        advise(Advice::LinuxDontNeed)
    });
    let populate = mapping.advise(Advice::LinuxPopulateWrite).is_ok().then(|| {
        median(time, || {
            advise(Advice::LinuxDontNeed);
            advise(Advice::LinuxPopulateWrite)
        })
    });
    Ok(Space { touch: touched, populate, drop: dropped })
}
