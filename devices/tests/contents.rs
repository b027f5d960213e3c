//! Reads return what was written, on every device, for all batches and threads.

mod common;

use common::{Frames, every_device, random_batch, read, write};
use highwater_devices::{Device, Spec};
use highwater_platform::{Io, IoError, Latency};
use highwater_units::{Bytes, LARGE_PAGES, Order, Pfn, Prng};

const SIZE: Bytes = Bytes(4 << 20);
const SLOTS: u32 = 1024;

/// Random batches on a range of slots, against a model of each slot's contents.
struct Check<'a> {
    device: &'a dyn Device,
    frames: &'a Frames,
    own: Vec<Pfn>,
    first: u32,
    model: Vec<u64>,
    random: Prng,
}

impl Check<'_> {
    fn step(&mut self) {
        let slots = self.model.len() as u64;
        let count = 1 + self.random.below(self.own.len() as u64) as usize;
        let start = self.random.below(slots) as u32;
        let rest = slots as u32 - start;
        let own = &self.own[..count];
        let mut batch = random_batch(&mut self.random, self.first + start, rest, own);
        if self.random.percent(50) {
            self.write(&mut batch);
        } else {
            self.read(&mut batch);
        }
    }

    fn write(&mut self, batch: &mut [Io]) {
        for (slot, pfn) in pages(batch) {
            let seed = self.random.next_u64() | 1;
            self.frames.fill(pfn, seed);
            self.model[(slot - self.first) as usize] = seed;
        }
        write(self.device, self.frames, batch);
        assert!(batch.iter().all(|io| io.result == Ok(())));
    }

    fn read(&mut self, batch: &mut [Io]) {
        pages(batch).for_each(|(_, pfn)| self.frames.fill(pfn, 0xdead));
        read(self.device, self.frames, batch);
        assert!(batch.iter().all(|io| io.result == Ok(())));
        for (slot, pfn) in pages(batch) {
            let expected = self.model[(slot - self.first) as usize];
            assert!(self.frames.holds(pfn, expected), "slot {slot} in frame {}", pfn.0);
        }
    }
}

fn pages(batch: &[Io]) -> impl Iterator<Item = (u32, Pfn)> + '_ {
    batch.iter().flat_map(|io| (io.slot..).zip(io.frames.iter()))
}

#[test]
fn random_batches_match_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(900);
    for (name, device) in every_device(dir.path(), SIZE) {
        println!("{name}");
        let mut check = Check {
            device: &*device,
            frames: &frames,
            own: (0..900).map(Pfn).collect(),
            first: 0,
            model: vec![0; SLOTS as usize],
            random: Prng::new(7),
        };
        (0..300).for_each(|_| check.step());
    }
}

#[test]
fn threads_do_not_disturb_each_other() {
    const THREADS: u32 = 8;
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(64 * THREADS);
    for (name, device) in every_device(dir.path(), SIZE) {
        println!("{name}");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let mut check = Check {
                    device: &*device,
                    frames: &frames,
                    own: (64 * thread..64 * (thread + 1)).map(Pfn).collect(),
                    first: SLOTS / THREADS * thread,
                    model: vec![0; (SLOTS / THREADS) as usize],
                    random: Prng::new(u64::from(thread)),
                };
                scope.spawn(move || (0..200).for_each(|_| check.step()));
            }
        });
    }
}

#[test]
fn devices_report_their_properties() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(16);
    for (name, device) in every_device(dir.path(), SIZE) {
        let info = device.info();
        let spec = Spec::parse(&info.name).unwrap();
        assert!(name.starts_with(&info.name) && info.size() == spec.capacity() && !info.read_only);
        let memory = matches!(spec, Spec::Ram { .. } | Spec::Zram { .. });
        let (tiered, compressed) = match &spec {
            Spec::Tier { fast, .. } => (true, matches!(**fast, Spec::Zram { .. })),
            spec => (false, matches!(spec, Spec::Zram { .. })),
        };
        // Incompressible pages bypass a compressing level.
        let fast = if compressed { 0 } else { 16 };
        assert_eq!(info.latency == Latency::Synchronous, memory);
        assert_eq!(device.resident(), Bytes(0));
        (0..16).for_each(|pfn| frames.fill(Pfn(pfn), 5));
        let mut batch = [Io::new(5, (0..16).map(Pfn).collect())];
        write(&*device, &frames, &mut batch);
        assert_eq!(
            device.resident(),
            match (memory, tiered) {
                (true, _) => Bytes::of_pages(16),
                (false, true) => Bytes::of_pages(fast),
                (false, false) => Bytes(0),
            }
        );
        assert_eq!(device.compression().is_some(), compressed);
        assert_eq!(device.tiering().map(|it| it.fast_pages), tiered.then_some(fast));
    }
}

#[test]
fn a_large_block_is_one_transfer() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(LARGE_PAGES as u32 + 16);
    let all = || (0..LARGE_PAGES as u32).map(Pfn);
    for (name, device) in every_device(dir.path(), SIZE) {
        // Unaligned frames, and in one batch with a run.
        let mut batch = [
            Io::block(77, Pfn(0), Order::LARGE),
            Io::new(700, (LARGE_PAGES as u32..).take(16).map(Pfn).collect()),
        ];
        pages(&batch).for_each(|(slot, pfn)| frames.fill(pfn, u64::from(slot) << 8 | 1));
        write(&*device, &frames, &mut batch);
        assert!(batch.iter().all(|io| io.result == Ok(())), "{name}: {batch:?}");
        all().for_each(|pfn| frames.fill(pfn, 0xdead));
        read(&*device, &frames, &mut batch[..1]);
        assert_eq!(batch[0].result, Ok(()), "{name}");
        for (slot, pfn) in pages(&batch[..1]) {
            assert!(frames.holds(pfn, u64::from(slot) << 8 | 1), "{name}: slot {slot}");
        }
        let mut outside = [Io::block(device.info().pages - 511, Pfn(0), Order::LARGE)];
        write(&*device, &frames, &mut outside);
        assert_eq!(outside[0].result, Err(IoError::Failed(libc::EINVAL)), "{name}");
    }
}

#[test]
fn transfers_outside_the_device_fail_and_the_rest_of_the_batch_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(4);
    let io = |slot, pfns: [u32; 2]| Io::new(slot, pfns.map(Pfn).into_iter().collect());
    let invalid = Err(IoError::Failed(libc::EINVAL));
    for (name, device) in every_device(dir.path(), SIZE) {
        let last = device.info().pages - 1;
        let mut batch = [io(0, [0, 1]), io(last, [0, 1]), io(u32::MAX, [0, 1]), io(9, [3, 4])];
        write(&*device, &frames, &mut batch);
        let results: Vec<_> = batch.iter().map(|io| io.result).collect();
        assert_eq!(results, [Ok(()), invalid, invalid, invalid], "{name}");
    }
}
