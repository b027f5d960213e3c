//! Random operations on the table of regions against one mark per page.

use super::*;
use highwater_units::Prng;

const PAGES: u64 = 200;

/// The regions agree with one mark per page, and partition the range.
fn check(regions: &Regions, model: &[Option<Use>]) {
    for (vpn, expected) in model.iter().enumerate() {
        let found = regions.find(Vpn(vpn as u64)).map(|region| region.used_as);
        assert_eq!(found, *expected, "page {vpn}");
    }
    let used = model.iter().filter(|page| page.is_some()).count() as u64;
    assert_eq!(regions.free.check() + used, PAGES);
    let is_own = |vpn: &u64| !model[*vpn as usize].is_some_and(Use::is_kernels);
    let parts = regions.own_parts(Vpn(PAGES));
    let own: Vec<u64> = parts.iter().flat_map(|(first, end)| first.0..end.0).collect();
    assert_eq!(own, (0..PAGES).filter(is_own).collect::<Vec<_>>());
    let locked = model.iter().filter(|page| **page == Some(Use::Locked)).count() as u64;
    assert_eq!(regions.locked_pages(), locked);
}

fn replace(regions: &mut Regions, model: &mut [Option<Use>], range: Range, used_as: Use) {
    let marks = &mut model[range.first.0 as usize..range.end.0 as usize];
    let changing = marks.contains(&Some(Use::Changing));
    let replaced = regions.replace(range);
    assert_eq!(replaced.is_none(), changing);
    let Some(replaced) = replaced else { return };
    let pages = |r: &Region| r.range.end.0 - r.range.first.0;
    let used = marks.iter().filter(|mark| mark.is_some()).count();
    assert_eq!(replaced.iter().map(pages).sum::<u64>(), used as u64);
    assert_eq!(regions.find(range.first).map(|region| region.range), Some(range));
    assert!(regions.await_change(range.first));
    regions.settle(range, used_as);
    marks.fill(Some(used_as));
}

fn change(regions: &mut Regions, model: &mut [Option<Use>], range: Range, used_as: Use) {
    let marks = &mut model[range.first.0 as usize..range.end.0 as usize];
    let found = regions.within(range);
    let inside = |page: &u64| {
        found.iter().any(|region| (region.range.first.0..region.range.end.0).contains(page))
    };
    let expected = marks.iter().filter(|mark| mark.is_some()).count();
    assert_eq!((range.first.0..range.end.0).filter(inside).count(), expected);
    let paged = |mark: &Option<Use>| matches!(mark, Some(Use::Mapping | Use::Block));
    assert_eq!(regions.covers(range), marks.iter().all(paged));
    assert_eq!(regions.is_mapped(range), marks.iter().all(|mark| *mark == Some(Use::Mapping)));
    if expected == marks.len() && !marks.contains(&Some(Use::Changing)) {
        regions.change(range, used_as);
        marks.fill(Some(used_as));
    }
}

/// Some regions stay in the state of a change, as if a thread were slow.
fn leave(regions: &mut Regions, model: &mut [Option<Use>], range: Range, random: &mut Prng) {
    for left in regions.leave(range) {
        let marks = &mut model[left.range.first.0 as usize..left.range.end.0 as usize];
        assert!(marks.iter().all(|mark| *mark == Some(left.used_as)));
        marks.fill(Some(Use::Changing));
        if random.below(4) > 0 {
            assert_eq!(regions.release(left.range).len(), 1);
            marks.fill(None);
        }
    }
}

#[test]
fn random_operations_match_a_mark_per_page() {
    for seed in 0..40 {
        let mut random = Prng::new(seed);
        let mut regions = Regions::new(PAGES);
        let mut model = vec![None; PAGES as usize];
        for _ in 0..400 {
            let uses = [Use::Mapping, Use::Block, Use::Foreign, Use::Locked];
            let used_as = uses[random.below(uses.len() as u64) as usize];
            let (at, pages) = (random.below(PAGES), 1 + random.below(20));
            match random.below(7) {
                5 | 6 if at + pages <= PAGES => {
                    let range = Range { first: Vpn(at), end: Vpn(at + pages) };
                    match random.below(2) {
                        0 => replace(&mut regions, &mut model, range, used_as),
                        _ => leave(&mut regions, &mut model, range, &mut random),
                    }
                }
                4 if at + pages <= PAGES => {
                    let range = Range { first: Vpn(at), end: Vpn(at + pages) };
                    change(&mut regions, &mut model, range, used_as);
                }
                0 => {
                    let align = 1 << random.below(4);
                    if let Some(range) = regions.take(pages, align, used_as) {
                        assert_eq!(range.first.0 % align, 0);
                        let taken = &mut model[range.first.0 as usize..range.end.0 as usize];
                        assert!(taken.iter().all(Option::is_none) && taken.len() as u64 == pages);
                        taken.fill(Some(used_as));
                    }
                }
                1 if at + pages <= PAGES => {
                    let marks = &mut model[at as usize..(at + pages) as usize];
                    let free = marks.iter().all(Option::is_none);
                    assert_eq!(regions.take_at(Vpn(at), pages, used_as), free);
                    if free {
                        marks.fill(Some(used_as));
                    }
                }
                2 => {
                    if let Some(region) = regions.find(Vpn(at)) {
                        let end = region.range.end.0;
                        if end + pages <= PAGES {
                            let marks = &mut model[end as usize..(end + pages) as usize];
                            let free = marks.iter().all(Option::is_none);
                            assert_eq!(regions.grow(region, pages), free);
                            if free {
                                marks.fill(Some(region.used_as));
                            }
                        }
                    }
                }
                _ => {
                    let end = (at + pages).min(PAGES);
                    regions.release(Range { first: Vpn(at), end: Vpn(end) });
                    model[at as usize..end as usize].fill(None);
                }
            }
            check(&regions, &model);
        }
    }
}
