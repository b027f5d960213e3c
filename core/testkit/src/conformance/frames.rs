//! Frames: contiguous ranges, stable contents.

use highwater_platform::{Platform, WORDS_PER_FRAME};
use highwater_units::Pfn;

/// A value unique to a frame, word and salt.
pub(super) fn pattern(salt: u64, pfn: u32, word: usize) -> u64 {
    (salt << 44 | u64::from(pfn) << 16 | word as u64) + 1
}

/// Fills a whole frame.
pub(super) fn fill<P: Platform>(platform: &P, pfn: Pfn, salt: u64) {
    (0..WORDS_PER_FRAME).for_each(|word| platform.store(pfn, word, pattern(salt, pfn.0, word)));
}

/// Checks that a frame holds what [`fill`] put into the frame `origin`.
#[track_caller]
pub(super) fn assert_filled<P: Platform>(platform: &P, pfn: Pfn, origin: Pfn, salt: u64) {
    for word in 0..WORDS_PER_FRAME {
        let expected = pattern(salt, origin.0, word);
        assert_eq!(platform.load(pfn, word), expected, "word {word} of {pfn:?}");
    }
}

pub(super) fn check<P: Platform>(platform: &P) {
    let frames = ranges_have_no_holes(platform);
    let all: Vec<Pfn> = (0..frames).map(Pfn).collect();
    platform.populate(&all).expect("memory within the budget");
    contents_stay(platform, &all);
    contents_are_copied(platform, &all);
    zeros_are_known(platform, &all);
}

/// Returns the number of frames.
fn ranges_have_no_holes<P: Platform>(platform: &P) -> u32 {
    let ranges = platform.ranges();
    let mut next = 0;
    for range in &ranges {
        assert_eq!(range.first, Pfn(next), "ranges follow each other");
        assert!(range.frames > 0);
        next += range.frames;
    }
    for (index, range) in ranges.iter().enumerate() {
        assert!(ranges[..index].iter().all(|other| other.node != range.node), "one range a node");
    }
    assert!(next >= 64, "a world of 64 frames at least");
    assert_eq!(platform.ranges(), ranges, "ranges are constant");
    next
}

fn contents_stay<P: Platform>(platform: &P, all: &[Pfn]) {
    platform.zero(all);
    for pfn in all {
        assert!((0..WORDS_PER_FRAME).all(|word| platform.load(*pfn, word) == 0), "{pfn:?} is zero");
    }
    all.iter().for_each(|pfn| fill(platform, *pfn, 1));
    platform.populate(all).expect("memory that is there already");
    all.iter().for_each(|pfn| assert_filled(platform, *pfn, *pfn, 1));
    platform.zero(&[all[3], all[1], all[40]]);
    for pfn in all {
        if [1, 3, 40].contains(&pfn.0) {
            assert_eq!(platform.load(*pfn, WORDS_PER_FRAME - 1), 0, "{pfn:?} is zero");
        } else {
            assert_filled(platform, *pfn, *pfn, 1);
        }
    }
}

fn zeros_are_known<P: Platform>(platform: &P, all: &[Pfn]) {
    all.iter().for_each(|pfn| fill(platform, *pfn, 3));
    platform.zero(&[all[5], all[6], all[9]]);
    for (pfn, word) in [(all[6], 0), (all[9], WORDS_PER_FRAME - 1)] {
        platform.store(pfn, word, 1 << 63);
    }
    for pfn in all {
        assert_eq!(platform.is_zero(*pfn), *pfn == all[5], "{pfn:?}");
    }
}

fn contents_are_copied<P: Platform>(platform: &P, all: &[Pfn]) {
    all.iter().for_each(|pfn| fill(platform, *pfn, 2));
    for (from, to) in [(7, 8), (8, 3), (50, 2), (2, 60)].map(|(from, to)| (Pfn(from), Pfn(to))) {
        platform.copy_frame(from, to);
    }
    for pfn in all {
        let origin = match pfn.0 {
            8 | 3 => Pfn(7),
            2 | 60 => Pfn(50),
            _ => *pfn,
        };
        assert_filled(platform, *pfn, origin, 2);
    }
    // From now on a store to one does not change the other.
    platform.store(Pfn(60), 0, 1);
    platform.store(Pfn(50), 1, 2);
    assert_filled(platform, Pfn(2), Pfn(50), 2);
    assert_eq!(platform.load(Pfn(60), 1), pattern(2, 50, 1));
    assert_eq!(platform.load(Pfn(50), 0), pattern(2, 50, 0));
}
