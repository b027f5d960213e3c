//! Compressed memory: its use, its limit, and the memory that it frees.

mod common;

use common::{Frames, read, write};
use highwater_devices::{Compression, Device, Spec, open};
use highwater_platform::{Io, IoError};
use highwater_units::{Bytes, FrameList, Pfn};

/// Seeds of pages that are incompressible, filled with one word, or compress to a third.
const RANDOM: u64 = 1;
const SAME: u64 = 4;
const REGULAR: u64 = 2;

fn device(spec: &str) -> Box<dyn Device> {
    open(&Spec::parse(spec).unwrap()).unwrap()
}

fn put(device: &dyn Device, frames: &Frames, slot: u32, seed: u64) -> Result<(), IoError> {
    frames.fill(Pfn(0), seed);
    let mut batch = [Io::new(slot, FrameList::one(Pfn(0)))];
    write(device, frames, &mut batch);
    batch[0].result
}

fn holds(device: &dyn Device, frames: &Frames, slot: u32, seed: u64) -> bool {
    frames.fill(Pfn(0), 99);
    let mut batch = [Io::new(slot, FrameList::one(Pfn(0)))];
    read(device, frames, &mut batch);
    batch[0].result == Ok(()) && frames.holds(Pfn(0), seed)
}

#[test]
fn the_limit_holds_and_freed_slots_make_room() {
    for spec in ["zram:1M:lz4", "zram:1M:zstd"] {
        let (device, frames) = (device(spec), Frames::new(1));
        let seed = |slot: u32| RANDOM + 4 * u64::from(slot);
        let fits = (0..).find(|slot| put(&*device, &frames, *slot, seed(*slot)).is_err());
        let fits = fits.unwrap();
        assert_eq!(fits, 256, "{spec}: pages as they are, to the last");
        assert_eq!(put(&*device, &frames, 300, seed(300)), Err(IoError::Full));
        assert_eq!(put(&*device, &frames, 301, SAME), Ok(()), "takes nothing");
        let Compression { pages, incompressible, used, limit, .. } = device.compression().unwrap();
        assert_eq!((pages, incompressible, used, limit), (257, 256, Bytes(1 << 20), used));
        device.discard(100, 1);
        assert_eq!(put(&*device, &frames, 300, seed(300)), Ok(()));
        assert_eq!(put(&*device, &frames, 302, seed(302)), Err(IoError::Full));
        let kept = (0..fits).filter(|slot| *slot != 100).chain([300]);
        kept.for_each(|slot| assert!(holds(&*device, &frames, slot, seed(slot)), "slot {slot}"));
    }
}

#[test]
fn a_refused_transfer_leaves_no_contents() {
    let (device, frames) = (device("zram:1M"), Frames::new(16));
    for slot in 0..250 {
        assert_eq!(put(&*device, &frames, slot, RANDOM + 4 * u64::from(slot)), Ok(()));
    }
    (0..16).for_each(|pfn| frames.fill(Pfn(pfn), RANDOM + 4 * u64::from(pfn)));
    let mut batch = [
        Io::new(400, (0..16).map(Pfn).collect()),
        Io::new(500, [0, 1].map(Pfn).into_iter().collect()),
    ];
    write(&*device, &frames, &mut batch);
    assert_eq!(batch.map(|io| io.result), [Err(IoError::Full), Ok(())]);
    assert_eq!(device.compression().unwrap().pages, 252);
}

#[test]
fn pages_of_one_word_take_nothing_and_regular_ones_little() {
    let (device, frames) = (device("zram:4M"), Frames::new(1));
    (0..3072).for_each(|slot| put(&*device, &frames, slot, SAME * u64::from(slot)).unwrap());
    let all_same = device.compression().unwrap();
    assert_eq!((all_same.pages, all_same.same_filled, all_same.used), (3072, 3072, Bytes(0)));
    assert!((0..3072).all(|slot| holds(&*device, &frames, slot, SAME * u64::from(slot))));
    for slot in 0..1024 {
        put(&*device, &frames, slot, REGULAR + 4 * u64::from(slot)).unwrap();
    }
    let Compression { pages, same_filled, incompressible, used, .. } =
        device.compression().unwrap();
    assert_eq!((pages, same_filled, incompressible), (3072, 2048, 0));
    assert!(used < Bytes(3 << 20), "{used} for 4 MiB");
}

#[test]
fn overwritten_and_discarded_slots_take_nothing() {
    let (device, frames) = (device("zram:1M"), Frames::new(1));
    for round in 0..20 {
        for slot in 0..200 {
            let seed = u64::from(round * 7 + slot);
            assert_eq!(put(&*device, &frames, slot, seed), Ok(()), "round {round}");
        }
    }
    assert_eq!(device.compression().unwrap().pages, 200);
    device.discard(0, 3 * 256);
    let Compression { pages, same_filled, incompressible, used, .. } =
        device.compression().unwrap();
    assert_eq!((pages, same_filled, incompressible), (0, 0, 0));
    assert!(used <= Bytes(128 << 10) && used == device.resident(), "{used} kept");
}
