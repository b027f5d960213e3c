//! Random transfers of a sealed file, and changes of the file behind the device's back, against a
//! model.

use super::*;
use crate::file::{FileDevice, Submission};
use crate::spec::Spec;
use crate::sys::Mapping;
use highwater_units::{IoFrames, Order, Pfn, Prng};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

const SLOTS: u32 = 256;
const FRAMES: u32 = 192;
const STEPS: u32 = 1_500;

/// The contents expected of a slot.
#[derive(Clone, Copy, Debug)]
struct Stored {
    seed: u64,
    /// The file was changed at this slot.
    changed: bool,
}

struct Setup {
    random: Prng,
    memory: Mapping,
    device: Sealed,
    /// The file, opened directly.
    raw: File,
    model: BTreeMap<u32, Stored>,
    /// Earlier pages of the file: slot and bytes.
    old: Vec<(u32, Vec<u8>)>,
    refused: u32,
}

impl Setup {
    fn new(seed: u64, cipher: Cipher, submission: Submission, dir: &std::path::Path) -> Setup {
        let size = Bytes::of_pages(SLOTS.into());
        let file = FileDevice::open(&Spec::Dir { path: dir.into(), size }, submission).unwrap();
        let path = format!("/proc/self/fd/{}", file.descriptors()[0]);
        let raw = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let device = Sealed::with(Box::new(file), cipher).unwrap();
        Setup {
            random: Prng::new(seed),
            memory: Mapping::new(FRAMES as usize * PAGE_SIZE).unwrap(),
            device,
            raw,
            model: BTreeMap::new(),
            old: Vec::new(),
            refused: 0,
        }
    }

    fn arena(&self) -> Arena {
        // SAFETY: as long as the mapping, which outlives all transfers.
        unsafe { Arena::new(self.memory.at(0), FRAMES) }
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.below(limit.into()) as u32
    }

    fn page(&mut self, frame: Pfn) -> &mut [u8] {
        // SAFETY: no transfer is under way, and the borrow lets the test hold one page at a time.
        unsafe { slice::from_raw_parts_mut(self.arena().address(frame), PAGE_SIZE) }
    }

    /// Transfers of slots and frames that do not overlap.
    fn batch(&mut self) -> Vec<Io> {
        let mut batch = Vec::new();
        let (mut slot, mut frame) = (self.below(SLOTS / 2), 0);
        loop {
            let left = (SLOTS - slot).min(FRAMES - frame);
            if left == 0 || batch.len() == 40 {
                return batch;
            }
            let order = Order(self.below(8) as u8);
            let (io, pages) = if self.random.percent(5) && order.frames() <= left {
                (Io::block(slot, Pfn(frame), order), order.frames())
            } else {
                let pages = 1 + self.below(left.min(16));
                (Io::new(slot, (frame..frame + pages).rev().map(Pfn).collect()), pages)
            };
            batch.push(io);
            (slot, frame) = ((slot + pages + self.below(4)).min(SLOTS), frame + pages);
            if self.random.percent(20) {
                return batch;
            }
        }
    }

    fn transfer(&mut self, direction: Direction, batch: &mut Vec<Io>) {
        let arena = self.arena();
        if self.random.percent(50) {
            // SAFETY: frames of the memory, which no other thread uses.
            let started = unsafe { self.device.start(arena, direction, batch) };
            // The slice may move.
            let mut moved = batch.clone();
            if let Some(started) = started {
                let _ = self.device.is_over(&started);
                // SAFETY: as above, with the transfers that were started.
                unsafe { self.device.finish(arena, started, &mut moved) };
            }
            *batch = moved;
        } else {
            // SAFETY: as above.
            unsafe {
                match direction {
                    Direction::Read => self.device.read(arena, batch),
                    Direction::Write => self.device.write(arena, batch),
                }
            }
        }
    }

    fn write(&mut self) {
        let mut batch = self.batch();
        for io in &batch {
            for (slot, frame) in (io.slot..).zip(io.frames.iter()) {
                let seed = self.random.next_u64();
                fill(self.page(frame), seed);
                self.model.insert(slot, Stored { seed, changed: false });
            }
        }
        self.transfer(Direction::Write, &mut batch);
        assert!(batch.iter().all(|io| io.result == Ok(())), "{batch:?}");
        for (slot, frame) in batch.iter().flat_map(|io| (io.slot..).zip(pages(&io.frames))) {
            let seed = self.model[&slot].seed;
            assert!(is_filled(self.page(frame), seed), "a frame was changed");
        }
    }

    fn read(&mut self) {
        let mut batch = self.batch();
        self.transfer(Direction::Read, &mut batch);
        for io in &batch {
            let slots = io.slot..io.slot + io.frames.len() as u32;
            let changed = |slot| self.model.get(&slot).is_some_and(|stored| stored.changed);
            if slots.clone().any(changed) {
                assert_eq!(io.result, Err(ALTERED), "slots {slots:?}");
                self.refused += 1;
                continue;
            }
            assert_eq!(io.result, Ok(()), "slots {slots:?}");
            for (slot, frame) in slots.zip(pages(&io.frames)) {
                let seed = self.model.get(&slot).map(|stored| stored.seed);
                let page = self.page(frame);
                match seed {
                    Some(seed) => assert!(is_filled(page, seed), "slot {slot}"),
                    None => assert!(page.iter().all(|byte| *byte == 0), "slot {slot}"),
                }
            }
        }
    }

    fn discard(&mut self) {
        let slot = self.below(SLOTS - 16);
        let pages = 1 + self.below(16);
        self.device.discard(slot, pages);
        self.model.retain(|stored, _| !(slot..slot + pages).contains(stored));
    }

    fn raw_page(&self, slot: u32) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_SIZE];
        self.raw.read_exact_at(&mut bytes, u64::from(slot) * PAGE_SIZE as u64).unwrap();
        bytes
    }

    /// Writes to the file behind the device's back; the change is not undone.
    fn change(&mut self, slot: u32, bytes: &[u8]) {
        if bytes != self.raw_page(slot) {
            self.raw.write_all_at(bytes, u64::from(slot) * PAGE_SIZE as u64).unwrap();
            self.model.entry(slot).and_modify(|stored| stored.changed = true);
        }
    }

    fn tamper(&mut self) {
        let kind = self.below(3);
        // A change made twice would undo itself.
        let intact = self.model.iter().filter(|(_, stored)| !stored.changed);
        let intact: Vec<u32> = intact.map(|(slot, _)| *slot).collect();
        let [Some(slot), Some(other)] = [(); 2].map(|()| {
            let at = self.random.below(intact.len().max(1) as u64) as usize;
            intact.get(at).copied()
        }) else {
            return;
        };
        let mut page = self.raw_page(slot);
        match kind {
            0 => {
                let at = self.random.below(PAGE_SIZE as u64) as usize;
                page[at] ^= 1 << self.below(8);
                self.change(slot, &page);
            }
            1 if slot != other => {
                let others = self.raw_page(other);
                self.change(slot, &others);
                self.change(other, &page);
            }
            _ => {
                let was = self.old.iter().position(|(old, _)| *old == slot);
                match was.map(|at| self.old.swap_remove(at)) {
                    Some((_, bytes)) => self.change(slot, &bytes),
                    None => self.old.push((slot, page)),
                }
            }
        }
    }

    fn step(&mut self) {
        match self.below(100) {
            0..35 => self.write(),
            35..75 => self.read(),
            75..82 => self.discard(),
            82..97 => self.tamper(),
            _ => {
                self.device.pause();
                self.device.resume();
            }
        }
    }
}

fn pages(frames: &IoFrames) -> impl Iterator<Item = Pfn> {
    frames.iter()
}

fn fill(page: &mut [u8], seed: u64) {
    let mut words = Prng::new(seed);
    page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&words.next_u64().to_ne_bytes()));
}

fn is_filled(page: &[u8], seed: u64) -> bool {
    let mut words = Prng::new(seed);
    page.chunks_exact(8).all(|word| word == words.next_u64().to_ne_bytes())
}

#[test]
fn every_change_of_the_file_is_found_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    for (seed, cipher) in (1..).zip([Cipher::Aegis, Cipher::XChaCha]) {
        for submission in [Submission::Auto, Submission::Plain] {
            let mut setup = Setup::new(seed, cipher, submission, dir.path());
            (0..STEPS).for_each(|_| setup.step());
            let refused = setup.refused;
            assert!(refused > 50, "seed {seed}: {refused} reads were refused");
            assert!(setup.device.altered());
        }
    }
}

#[test]
fn the_file_holds_no_page_as_it_was_and_tables_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(3, Cipher::of_cpu(), Submission::Auto, dir.path());
    let before = setup.device.tables();
    let mut batch = vec![Io::new(9, [Pfn(0), Pfn(1)].into_iter().collect())];
    (0..2).for_each(|frame| fill(setup.page(Pfn(frame)), 77));
    setup.transfer(Direction::Write, &mut batch);
    let [first, second] = [9, 10].map(|slot| setup.raw_page(slot));
    assert!(first != second && !is_filled(&first, 77) && !is_filled(&second, 77));
    // A page of the table, and two that were written.
    assert_eq!(setup.device.tables().0 - before.0, 3 * PAGE_SIZE as u64);
}

#[test]
fn a_device_that_forgot_its_keys_neither_reads_nor_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(4, Cipher::of_cpu(), Submission::Auto, dir.path());
    let mut batch = vec![Io::new(9, [Pfn(0)].into_iter().collect())];
    setup.transfer(Direction::Write, &mut batch);
    let sealed = setup.raw_page(9);
    setup.device.forget();
    for direction in [Direction::Read, Direction::Write] {
        setup.transfer(direction, &mut batch);
        assert_eq!(batch[0].result, Err(FORGOTTEN));
    }
    assert_eq!((setup.raw_page(9), setup.device.altered()), (sealed, false));
}
