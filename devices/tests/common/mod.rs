//! Frames to transfer, and the devices that the tests run over.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod check;
pub(crate) mod redis_cluster;
pub(crate) mod simulated_cluster;

use highwater_devices::{
    Algorithm, Arena, Device, OpenOptions, SIZE_MIN, Seal, Spec, Submission, open_with,
};
use highwater_platform::Io;
use highwater_units::{Bytes, FrameList, PAGE_SIZE, Pfn, Prng};
use std::path::Path;

/// An arena for a test.
pub(crate) struct Frames {
    base: *mut u64,
    frames: u32,
}

// SAFETY: a test's threads use frames that are apart.
unsafe impl Sync for Frames {}

const WORDS: usize = PAGE_SIZE / 8;

impl Frames {
    pub(crate) fn new(frames: u32) -> Frames {
        let (len, protection) = (frames as usize * PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Frames { base: base.cast(), frames }
    }

    pub(crate) fn arena(&self) -> Arena {
        // SAFETY: page-aligned, and mapped while `self` lives.
        unsafe { Arena::new(self.base.cast(), self.frames) }
    }

    /// Fills a frame so that every word of it depends on `seed`.
    pub(crate) fn fill(&self, pfn: Pfn, seed: u64) {
        assert!(pfn.0 < self.frames);
        for word in 0..WORDS {
            // SAFETY: within the frame.
            unsafe { self.base.add(pfn.index() * WORDS + word).write(word_of(seed, word)) };
        }
    }

    /// Whether a frame holds the contents of [`Frames::fill`]; seed 0 is a page of zeros.
    pub(crate) fn holds(&self, pfn: Pfn, seed: u64) -> bool {
        assert!(pfn.0 < self.frames);
        // SAFETY: within the frame.
        let word = |word: usize| unsafe { self.base.add(pfn.index() * WORDS + word).read() };
        (0..WORDS).all(|index| word(index) == word_of(seed, index))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.base.cast(), self.frames as usize * PAGE_SIZE) };
    }
}

/// A page by its seed: filled with one word, incompressible, or compressible to less than half.
fn word_of(seed: u64, word: usize) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    match seed % 4 {
        0 => seed.wrapping_mul(ODD),
        1 => (seed ^ (word as u64) << 32).wrapping_mul(ODD).rotate_left(29).wrapping_mul(ODD),
        _ => seed.wrapping_mul(ODD) ^ (word / 8) as u64,
    }
}

pub(crate) fn write(device: &dyn Device, frames: &Frames, batch: &mut [Io]) {
    // SAFETY: the frames are populated, and the test keeps others off them.
    unsafe { device.write(frames.arena(), batch) }
}

pub(crate) fn read(device: &dyn Device, frames: &Frames, batch: &mut [Io]) {
    // SAFETY: as above.
    unsafe { device.read(frames.arena(), batch) }
}

/// Transfers of one to 16 random slots among the `slots` from `first` on, without overlap. The
/// `frames` are in shuffled order: some are adjacent, and most runs are broken.
pub(crate) fn random_batch(random: &mut Prng, first: u32, slots: u32, frames: &[Pfn]) -> Vec<Io> {
    let mut pool = shuffled_runs(random, frames);
    let mut batch = Vec::new();
    let mut slot = first;
    while slot < first + slots && !pool.is_empty() {
        let most = 16.min(first + slots - slot).min(pool.len() as u32);
        let len = 1 + random.below(u64::from(most)) as u32;
        let list: FrameList = pool.drain(..len as usize).collect();
        batch.push(Io::new(slot, list));
        slot += len + random.below(12) as u32;
    }
    let turn = random.below(batch.len() as u64) as usize;
    batch.rotate_left(turn);
    batch
}

fn shuffled_runs(random: &mut Prng, frames: &[Pfn]) -> Vec<Pfn> {
    let mut runs = Vec::new();
    let mut rest = frames;
    while !rest.is_empty() {
        let len = 1 + random.below(rest.len().min(9) as u64) as usize;
        let (run, others) = rest.split_at(len);
        runs.insert(random.below(runs.len() as u64 + 1) as usize, run);
        rest = others;
    }
    runs.concat()
}

/// Every kind of device, with both kinds of submission, sealed and not, over files in `dir`.
pub(crate) fn every_device(dir: &Path, size: Bytes) -> Vec<(String, Box<dyn Device>)> {
    let slow = Spec::Dir { path: dir.to_owned(), size };
    let tier = |fast| Spec::Tier { fast: Box::new(fast), slow: Box::new(slow.clone()) };
    let specs = [
        Spec::Ram { size },
        Spec::Zram { size, algorithm: Algorithm::Lz4 },
        Spec::Zram { size, algorithm: Algorithm::Zstd },
        tier(Spec::Ram { size: SIZE_MIN }),
        tier(Spec::Zram { size: SIZE_MIN, algorithm: Algorithm::Lz4 }),
        Spec::Dir { path: dir.to_owned(), size },
        Spec::File { path: dir.join("swap"), size },
        Spec::Replicate {
            first: Box::new(slow.clone()),
            second: Box::new(Spec::File { path: dir.join("other"), size }),
        },
    ];
    let options = [
        (Submission::Auto, Seal::On),
        (Submission::Plain, Seal::On),
        (Submission::Auto, Seal::Off),
    ];
    // Memory is not sealed.
    let used = |spec: &Spec| match spec {
        Spec::Ram { .. } | Spec::Zram { .. } => 2,
        _ => options.len(),
    };
    let ways = |spec: Spec| {
        options.into_iter().take(used(&spec)).map(move |options| (spec.clone(), options))
    };
    let open = |(spec, (submission, seal)): (Spec, (Submission, Seal))| {
        let name = format!("{spec} {submission:?} seal {seal}");
        let options = OpenOptions { submission, seal, ..OpenOptions::default() };
        (name, open_with(&spec, &options).unwrap())
    };
    specs.into_iter().flat_map(ways).map(open).collect()
}
