//! Random advice about forks against one mark per page.

use super::*;
use highwater_units::Prng;

const ADVICE: [libc::c_int; 4] =
    [libc::MADV_DONTFORK, libc::MADV_DOFORK, libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK];

#[test]
fn random_advice_matches_a_mark_per_page() {
    let mut random = Prng::new(5);
    let (mut inherited, mut model) = (Inherited::default(), [None; 64]);
    for _ in 0..5000 {
        let first = random.below(64);
        let end = first + 1 + random.below(64 - first);
        let range = Range { first: Vpn(first), end: Vpn(end) };
        let (from, to) = (first as usize, end as usize);
        match random.below(6) as usize {
            4 => {
                inherited.forget(range);
                model[from..to].fill(None);
            }
            5 => {
                let at = random.below(64 - (end - first) + 1);
                let target = Range { first: Vpn(at), end: Vpn(at + end - first) };
                if target.end <= range.first || range.end <= target.first {
                    inherited.forget(target);
                    inherited.carry(range, target.first);
                    model.copy_within(from..to, at as usize);
                }
            }
            kind => {
                inherited.advise(range, ADVICE[kind]);
                for mark in &mut model[from..to] {
                    *mark = Inheritance::advised(*mark, ADVICE[kind]);
                }
            }
        }
        let mut found = [None; 64];
        for (part, what) in inherited.in_child() {
            found[part.first.0 as usize..part.end.0 as usize].fill(Some(what));
        }
        assert_eq!(found, model);
    }
}
