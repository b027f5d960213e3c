//! A forked child reads the pages that its parent swapped out, while the parent continues.

mod common;

use common::{Frames, every_device, read, write};
use highwater_devices::{Device, Spec, open};
use highwater_platform::{Io, IoError};
use highwater_units::{Bytes, Pfn};

const SIZE: Bytes = Bytes(4 << 20);

/// 16 slots in two transfers, which use a ring where there are rings.
fn run_in_two(slot: u32) -> [Io; 2] {
    [0, 8].map(|at| Io::new(slot + at, (at..at + 8).map(Pfn).collect()))
}

/// Writes `runs` runs of 16 slots. Page `n` of the device is filled from `seed + n`.
fn write_slots(device: &dyn Device, frames: &Frames, seed: u64, runs: u32) {
    for slot in (0..runs).map(|run| run * 16) {
        (0..16).for_each(|i| frames.fill(Pfn(i), seed + u64::from(slot + i)));
        let mut batch = run_in_two(slot);
        write(device, frames, &mut batch);
        assert!(batch.iter().all(|io| io.result == Ok(())));
    }
}

fn slots_hold(device: &dyn Device, frames: &Frames, seed: u64, runs: u32) -> bool {
    (0..runs).map(|run| run * 16).all(|slot| {
        let mut batch = run_in_two(slot);
        read(device, frames, &mut batch);
        let right = |i| frames.holds(Pfn(i), seed + u64::from(slot + i));
        batch.iter().all(|io| io.result == Ok(())) && (0..16).all(right)
    })
}

/// Runs `check` in a forked child while `meanwhile` runs here; returns the result of `check`.
fn holds_in_child(check: impl FnOnce() -> bool, meanwhile: impl FnOnce()) -> bool {
    // SAFETY: the child makes system calls and allocates, and leaves by _exit.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child without running what belongs to the parent.
        0 => unsafe { libc::_exit(i32::from(!check())) },
        child => {
            meanwhile();
            let mut status = 0;
            // SAFETY: a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status == 0
        }
    }
}

/// The checks of a child on an inherited device, and of its own child.
fn child_sees(device: &dyn Device, frames: &Frames, generations: u32) -> bool {
    let inherited = device.inherit();
    inherited.pause();
    let mut refused = run_in_two(0);
    write(&*inherited, frames, &mut refused);
    inherited.info().read_only
        && refused[0].result == Err(IoError::Failed(libc::EROFS))
        && slots_hold(&*inherited, frames, 1, 32)
        && (generations == 0
            || holds_in_child(|| child_sees(&*inherited, frames, generations - 1), || ()))
}

#[test]
fn children_read_the_slots_of_their_parents() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(16);
    for (name, device) in every_device(dir.path(), SIZE) {
        write_slots(&*device, &frames, 1, 32);
        // The parent may fill slots that were free at the fork, and still uses its rings.
        let go_on = || {
            device.resume();
            for round in 0..50 {
                (0..16).for_each(|i| frames.fill(Pfn(i), round + 1000));
                let mut batch = run_in_two(600);
                write(&*device, &frames, &mut batch);
                read(&*device, &frames, &mut batch);
                assert!(frames.holds(Pfn(3), round + 1000) && batch[0].result == Ok(()));
            }
        };
        device.pause();
        assert!(holds_in_child(|| child_sees(&*device, &frames, 2), go_on), "{name}");
        assert!(slots_hold(&*device, &frames, 1, 32), "{name} after the fork");
    }
}

#[test]
fn memory_of_a_child_keeps_what_the_parent_overwrites() {
    for spec in ["ram:4M", "zram:4M:lz4", "zram:4M:zstd"] {
        let device = open(&Spec::parse(spec).unwrap()).unwrap();
        let frames = Frames::new(16);
        write_slots(&*device, &frames, 1, 32);
        let child = || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            slots_hold(&*device.inherit(), &frames, 1, 32)
        };
        let go_on = || {
            device.discard(0, 512);
            write_slots(&*device, &frames, 5001, 16);
        };
        assert!(holds_in_child(child, go_on), "{spec}");
    }
}
