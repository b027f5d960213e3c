//! Contents are read back as they were stored, with more memory in use than the budget.

use crate::common::{PAGE, WAYS, memory};
use highwater::{Advice, Memory, PagedBox, PagedVec};
use highwater_units::Prng;
use std::thread;

fn counted(memory: &Memory, name: &str) -> u64 {
    memory.statistics().expect("this process").get(name).expect("a counter")
}

#[test]
fn a_vector_larger_than_the_budget_keeps_its_elements() {
    for way in WAYS {
        let memory = memory(way);
        let mut squares = PagedVec::new(&memory);
        for number in 0..5_000_000u64 {
            squares.push(number * number).expect("room");
        }
        squares.advise(Advice::Random);
        let mut random = Prng::new(7);
        for _ in 0..30_000 {
            let index = random.below(5_000_000);
            assert_eq!(squares[index as usize], index * index, "{way:?}");
        }
        squares.advise(Advice::Detect);
        assert!(squares.iter().enumerate().all(|(n, square)| *square == (n * n) as u64));
        assert!(counted(&memory, "pswpin") > 5_000, "{way:?}");
        assert!(counted(&memory, "nr_resident_peak") <= 8 << 20 >> 12, "{way:?}");
    }
}

#[test]
fn threads_share_a_slice() {
    for way in WAYS {
        let memory = memory(way);
        let mut words: PagedBox<[u64]> = PagedBox::zeroed(&memory, 4 << 20).expect("room");
        thread::scope(|scope| {
            for (part, words) in words.chunks_mut(1 << 20).enumerate() {
                scope.spawn(move || {
                    for round in 0..3u64 {
                        for (index, word) in words.iter_mut().enumerate() {
                            assert_eq!(*word, round * (index as u64 + part as u64));
                            *word += index as u64 + part as u64;
                        }
                    }
                });
            }
        });
        let sum: u64 = words.iter().sum();
        let of = |part: u64| (0..1u64 << 20).map(|index| 3 * (index + part)).sum::<u64>();
        assert_eq!(sum, (0..4).map(of).sum::<u64>());
    }
}

/// A vector that moves in order to grow is not copied; pages that it gives up are free.
#[test]
fn a_vector_grows_beside_others() {
    let memory = memory(WAYS[0]);
    let mut vectors: Vec<PagedVec<u32>> = (0..5).map(|_| PagedVec::new(&memory)).collect();
    for number in 0..600_000u32 {
        for (index, vector) in vectors.iter_mut().enumerate() {
            vector.push(number ^ index as u32).expect("room");
        }
    }
    let before = counted(&memory, "pswpin");
    for (index, vector) in vectors.iter_mut().enumerate() {
        vector.reserve(900_000).expect("room");
        assert!(vector.capacity() >= 1_500_000 && vector.len() == 600_000);
        vector.shrink_to_fit().expect("less");
        assert!(vector.capacity() < 601_025, "whole pages");
        let expected = |number: usize| number as u32 ^ index as u32;
        assert!((0..600_000).all(|number| vector[number] == expected(number)), "vector {index}");
        assert_eq!(vector.pop(), Some(expected(599_999)));
    }
    assert!(counted(&memory, "pswpin") > before);
    let left = memory.left().expect("this process");
    drop(vectors);
    let freed = memory.left().expect("this process") - left;
    assert_eq!(freed, (5 * (600_000 * 4usize).next_multiple_of(PAGE)) as u64);
}

#[test]
fn added_and_discarded_bytes_are_zeros() {
    let memory = memory(WAYS[1]);
    let mut mapping = memory.map(10 * PAGE + 100).expect("room");
    assert!(mapping.iter().all(|byte| *byte == 0));
    mapping.fill(7);
    mapping.resize(5 * PAGE + 50).expect("less");
    mapping.resize(12 * PAGE).expect("room");
    let kept = 5 * PAGE + 50;
    assert!(mapping[..kept].iter().all(|byte| *byte == 7));
    assert!(mapping[kept..].iter().all(|byte| *byte == 0));
    mapping.fill(9);
    for (from, to) in [(100, 200), (300, 5 * PAGE + 1), (6 * PAGE, 8 * PAGE), (9 * PAGE, 9 * PAGE)]
    {
        mapping.discard(from..to).expect("inside");
        assert!(mapping[from..to].iter().all(|byte| *byte == 0), "{from}..{to}");
    }
    assert_eq!((mapping[99], mapping[200], mapping[5 * PAGE + 1], mapping[8 * PAGE]), (9, 9, 9, 9));
    mapping.resize(0).expect("nothing");
    assert!(mapping.is_empty() && mapping.page(0).is_err());
    mapping.resize(3).expect("room");
    assert_eq!(&mapping[..], [0; 3]);
}

/// Random calls against a vector of the standard library.
#[test]
fn random_calls_match_a_vector() {
    for way in WAYS {
        for seed in 0..4 {
            let mut random = Prng::new(seed);
            let memory = memory(way);
            let filler = PagedVec::<u8>::zeroed(&memory, 16 << 20).expect("room");
            let mut paged = PagedVec::<u16>::new(&memory);
            let mut model = Vec::<u16>::new();
            for step in 0..300u16 {
                let at = random.below(model.len() as u64 + 1) as usize;
                let count = (random.below(9000) as usize).min(model.len() - at);
                match random.below(16) {
                    0 => paged.truncate(at),
                    1 => paged.shrink_to_fit().expect("less"),
                    2..=5 => {
                        let more: Vec<u16> =
                            (0..random.below(9000)).map(|n| n as u16 ^ step).collect();
                        paged.extend_from_slice(&more).expect("room");
                        model.extend(more);
                    }
                    6..=9 => {
                        let new = vec![step; count];
                        paged.write_at(at, &new).expect("inside");
                        model[at..at + count].fill(step);
                    }
                    10..=14 => {
                        let mut found = vec![0; count];
                        paged.read_at(at, &mut found).expect("inside");
                        assert_eq!(found, model[at..at + count], "seed {seed}, step {step}");
                    }
                    // The pages of `filler` displace those of `paged`.
                    _ => assert!(filler.iter().step_by(PAGE).all(|byte| *byte == 0)),
                }
                model.truncate(paged.len());
                assert_eq!(paged.len(), model.len());
            }
            assert_eq!(paged[..], model, "seed {seed}");
        }
    }
}
