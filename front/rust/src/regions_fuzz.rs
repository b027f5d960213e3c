//! Random operations on the table of mappings, compared with a model that has one mark per page.

use super::*;
use highwater_units::Prng;

const PAGES: u64 = 200;

/// Checks that the mappings agree with the model, which has the number of a mapping in each of its
/// pages, and that used and free pages make up the range.
fn check(regions: &Regions, model: &[Option<u32>]) {
    for (vpn, expected) in model.iter().enumerate() {
        let found = regions.find(Vpn(vpn as u64));
        assert_eq!(found.is_some(), expected.is_some(), "page {vpn}");
        let same = |page: u64| model[page as usize] == *expected;
        assert!(found.is_none_or(|Region { range, .. }| (range.first.0..range.end.0).all(same)));
    }
    let used = model.iter().filter(|page| page.is_some()).count() as u64;
    assert_eq!((regions.reserved(), regions.free.check()), (used, PAGES - used));
}

fn marks(model: &mut [Option<u32>], first: Vpn, end: Vpn) -> &mut [Option<u32>] {
    &mut model[first.0 as usize..end.0 as usize]
}

/// Extends, cuts or removes the mapping of a page, or changes its advice.
fn change(regions: &mut Regions, model: &mut [Option<u32>], region: Region, random: &mut Prng) {
    let Region { range, .. } = region;
    let number = model[range.first.0 as usize];
    match random.below(4) {
        0 => {
            let end = range.end.offset(1 + random.below(10));
            if end.0 <= PAGES {
                let free = marks(model, range.end, end).iter().all(Option::is_none);
                assert_eq!(regions.extend(range, end), free);
                if free {
                    marks(model, range.end, end).fill(number);
                }
            }
        }
        1 if range.end.0 - range.first.0 > 1 => {
            let end = range.first.offset(1 + random.below(range.end.0 - range.first.0 - 1));
            regions.cut(range, end);
            marks(model, end, range.end).fill(None);
        }
        2 => {
            regions.advise(range, Advice::Random);
            let file = Some(SpaceId(random.below(9) as u16));
            regions.set_file(range, file);
            let found = regions.find(range.first).map(|region| (region.advice, region.file));
            assert_eq!(found, Some((Advice::Random, file)));
        }
        _ => {
            regions.remove(range);
            marks(model, range.first, range.end).fill(None);
        }
    }
}

#[test]
fn random_operations_match_a_mark_per_page() {
    for seed in 0..40 {
        let mut random = Prng::new(seed);
        let mut regions = Regions::new(PAGES);
        let mut model = vec![None; PAGES as usize];
        for step in 0..400 {
            match regions.find(Vpn(random.below(PAGES))) {
                Some(region) => change(&mut regions, &mut model, region, &mut random),
                None => {
                    let (pages, align) = (1 + random.below(20), 1 << random.below(4));
                    if let Some(range) = regions.add(pages, align) {
                        assert_eq!(range.first.0 % align, 0);
                        let taken = marks(&mut model, range.first, range.end);
                        assert!(taken.iter().all(Option::is_none) && taken.len() as u64 == pages);
                        taken.fill(Some(step));
                    }
                }
            }
            check(&regions, &model);
        }
    }
}
