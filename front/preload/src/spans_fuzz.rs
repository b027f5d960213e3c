//! Random ranges, cut up by random regions, against one mark per page.

use super::*;
use crate::regions::Regions;
use highwater_units::Prng;

const PAGES: u64 = 60;

/// How [`cut`] classifies a page in use.
fn holder_of(vpn: Vpn, used_as: Option<Use>) -> Holder {
    match used_as {
        None | Some(Use::Changing) => Holder::Unused,
        Some(Use::Foreign | Use::Locked) => Holder::Kernel,
        Some(used_as) => Holder::Served(Range { first: vpn, end: vpn.offset(1) }, used_as),
    }
}

#[test]
fn parts_cover_the_range_and_agree_with_every_page() {
    for seed in 0..200 {
        let mut random = Prng::new(seed);
        let mut regions = Regions::new(PAGES);
        let uses =
            [Use::Mapping, Use::Block, Use::Objects, Use::Foreign, Use::Locked, Use::Changing];
        for _ in 0..random.below(12) {
            let (at, pages) = (Vpn(random.below(PAGES)), 1 + random.below(9));
            let used_as = uses[random.below(uses.len() as u64) as usize];
            if at.0 + pages <= PAGES {
                regions.take_at(at, pages, used_as);
            }
        }
        let first = random.below(PAGES);
        let end = first + 1 + random.below(PAGES - first);
        let range = Range { first: Vpn(first), end: Vpn(end) };
        let mut found = regions.within(range);
        found.reverse();
        let parts = cut(range, &found);
        let mut at = range.first;
        for (part, holder) in parts {
            assert_eq!(part.first, at, "seed {seed}: no gap and no overlap");
            assert!(part.first < part.end, "seed {seed}: an empty part");
            for vpn in (part.first.0..part.end.0).map(Vpn) {
                let expected = holder_of(vpn, regions.find(vpn).map(|region| region.used_as));
                match (holder, expected) {
                    (Holder::Served(whole, used_as), Holder::Served(_, expected)) => {
                        assert_eq!((whole, used_as), (part, expected), "seed {seed}, {vpn:?}");
                    }
                    _ => assert_eq!(holder, expected, "seed {seed}, {vpn:?}"),
                }
            }
            at = part.end;
        }
        assert_eq!(at, range.end, "seed {seed}: all of the range");
    }
}
