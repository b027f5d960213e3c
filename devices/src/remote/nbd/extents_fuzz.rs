//! Processes that take extents of an export and give them up, against a model.

use super::*;
use highwater_units::Prng;
use std::collections::BTreeMap;

const SEGMENTS: u32 = 12;

fn extents(path: &Path, export: &str, count: u64) -> (Extents, SlotSet) {
    let size = Bytes(FIRST + count * EXTENT as u64 + 77);
    let slots = SEGMENTS * SEGMENT - 5;
    (Extents::new(Some(path), export, size, slots).unwrap(), SlotSet::new(slots).unwrap())
}

#[test]
fn extents_have_one_process_and_come_back() {
    let mut random = Prng::new(17);
    let file = tempfile::NamedTempFile::new().unwrap();
    let count = 20;
    let all: Vec<_> = (0..3).map(|_| extents(file.path(), "a/swap", count)).collect();
    let _other = extents(file.path(), "b/swap", count).0.place(0, SEGMENT);
    let mut model: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    for step in 0..5_000 {
        let process = random.below(3) as usize;
        let (extents, stored) = &all[process];
        let segment = random.below(SEGMENTS.into()) as u32;
        let (first, pages) = (segment * SEGMENT, if segment == SEGMENTS - 1 { 507 } else { 512 });
        let slot = first + random.below(u64::from(pages)) as u32;
        match random.below(9) {
            0..5 => {
                stored.insert(slot, 1);
                let placed = extents.place(slot, 1);
                let had = model.contains_key(&(process, segment));
                let is_full = !had && model.len() as u64 == count;
                assert_eq!(
                    placed,
                    if is_full { Err(IoError::Full) } else { Ok(()) },
                    "step {step}"
                );
                if placed.is_ok() {
                    let start = extents.offset(first).unwrap();
                    assert_eq!(extents.offset(slot), Some(start + u64::from(slot - first) * 4096));
                    assert!((start - FIRST).is_multiple_of(EXTENT as u64));
                    assert!(start + EXTENT as u64 <= FIRST + count * EXTENT as u64);
                    let others = model.iter().filter(|(key, _)| **key != (process, segment));
                    assert!(others.map(|(_, it)| *it).all(|it| it != start), "step {step}");
                    assert_eq!(*model.entry((process, segment)).or_insert(start), start);
                } else {
                    stored.remove(slot, 1);
                }
            }
            5 if random.percent(5) => {
                stored.clear();
                extents.release_all();
                model.retain(|(owner, _), _| *owner != process);
            }
            _ => {
                if random.percent(70) {
                    stored.remove(first, pages);
                    model.remove(&(process, segment));
                }
                extents.release(segment, || stored.missing(first, pages) == pages);
            }
        }
        let own = model.keys().filter(|(owner, _)| *owner == process).count();
        assert_eq!(extents.ranges().count(), own, "step {step}");
    }
}

#[test]
fn the_last_holder_knows_that_it_is_and_descriptions_keep_extents() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (parent, _) = extents(file.path(), "swap", 2);
    let (other, _) = extents(file.path(), "swap", 2);
    parent.place(0, 2 * SEGMENT).unwrap();
    let child = parent.inherit();
    child.hold();
    assert_eq!(child.offset(5), parent.offset(5));
    assert!(!parent.let_go(), "the child reads on");
    assert!(!parent.leave());
    drop(parent);
    assert_eq!(other.place(0, 1), Err(IoError::Full));
    assert!(child.let_go() && !child.leave());
    drop(child);
    assert_eq!(other.place(0, 1), Ok(()));
    assert!(other.let_go() && other.leave());
}

/// A forked child knows the extents that were in use when it was forked.
#[test]
fn extents_that_another_process_has_now_are_not_given_back() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (parent, _) = extents(file.path(), "swap", 1);
    parent.place(0, 1).unwrap();
    let taken = Arc::new(SlotSet::new(1).unwrap());
    taken.insert(0, 1);
    let child = Extents { taken, ..parent.inherit() };
    assert_eq!(child.ranges().count(), 1);
    parent.release(0, || true);
    let (other, _) = extents(file.path(), "swap", 1);
    other.place(0, 1).unwrap();
    assert_eq!(child.ranges().count(), 0);
}

/// A process that outlives its run, or may not open the run's file, can go on and fork.
#[test]
fn without_the_file_of_the_run_no_extent_is_taken() {
    let size = Bytes(FIRST + 4 * EXTENT as u64);
    let gone = Extents::new(Some(Path::new("/gone/owner")), "swap", size, SEGMENT).unwrap();
    assert_eq!(gone.place(0, 1), Err(IoError::Full));
    gone.hold();
    assert!(!gone.let_go() && !gone.leave(), "others may use the export");
}
