//! What the parts of a process's manager hold now, beside its counters: kswapd threads, free
//! blocks, swap devices, locks.
//!
//! ```text
//! words:  1 | kswapd threads | free blocks by order | devices | size, used, priority of each
//!           | acquisitions, contended, wait, hold of each lock class
//! ```
//! The words follow the snapshot in a process's statistics file. Locks: none.

use highwater_mm::{Manager, SwapUse, lock_class};
use highwater_platform::{LockClass, LockRecord, Platform};
use highwater_units::{Nanos, Order};

/// First word of what was published.
const PRESENT: u64 = 1;

/// Orders of blocks.
const ORDERS: usize = Order::MAX.0 as usize + 1;
/// Most devices that are published.
const DEVICES_MAX: usize = 16;
const DEVICE_WORDS: usize = 3;
const LOCKS: usize = lock_class::ALL.len();
const LOCK_WORDS: usize = 4;

/// The parts of a manager, or their sum over processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// kswapd threads of all nodes.
    pub kswapd_threads: u64,
    /// Free blocks of all nodes, by order (/proc/buddyinfo).
    pub free_blocks: [u64; ORDERS],
    /// The swap devices, by their place in the list of the run (/proc/swaps). Those that the
    /// process does not use have no pages.
    pub swaps: Vec<SwapUse>,
    /// Costs of locks, by [`lock_class::ALL`], as far as they were sampled.
    pub locks: [LockRecord; LOCKS],
}

impl Parts {
    /// Length in words.
    pub(crate) const WORDS: usize = 3 + ORDERS + DEVICES_MAX * DEVICE_WORDS + LOCKS * LOCK_WORDS;

    /// Those of a manager.
    pub fn of<P: Platform>(manager: &Manager<P>) -> Parts {
        let blocks = manager.blocks();
        let of_order = |order: usize| {
            let of_node = blocks.iter().map(|node| node.of(Order(order as u8)));
            of_node.map(u64::from).sum()
        };
        let locks = manager.lock_statistics();
        // By their place in the list of the run: only the devices of a parent come before.
        let inherited = manager.platform().devices().iter().rposition(|info| info.read_only);
        let first = inherited.map_or(0, |last| last + 1);
        let own = manager.swaps().into_iter().filter(|(device, _)| usize::from(*device) >= first);
        let swaps = own.map(|(_, swap)| swap).take(DEVICES_MAX).collect();
        Parts {
            kswapd_threads: manager.kswapd_threads().iter().map(|threads| *threads as u64).sum(),
            free_blocks: std::array::from_fn(of_order),
            swaps,
            locks: lock_class::ALL.map(|class| locks.class(class)),
        }
    }

    /// The costs of locks, with their classes.
    pub fn by_class(&self) -> impl Iterator<Item = (LockClass, &LockRecord)> {
        lock_class::ALL.into_iter().zip(&self.locks)
    }

    pub(crate) fn to_words(&self) -> Vec<u64> {
        let mut words = vec![PRESENT, self.kswapd_threads];
        words.extend(self.free_blocks);
        words.push(self.swaps.len() as u64);
        let locks_at = words.len() + DEVICES_MAX * DEVICE_WORDS;
        for swap in &self.swaps {
            words.extend([swap.pages, swap.used, swap.priority.map_or(0, |it| u64::from(it) + 1)]);
        }
        words.resize(locks_at, 0);
        for LockRecord { acquisitions, contended, wait, hold } in &self.locks {
            words.extend([*acquisitions, *contended, wait.0, hold.0]);
        }
        words
    }

    pub(crate) fn from_words(words: &[u64]) -> Option<Parts> {
        let [present, kswapd_threads, rest @ ..] = words.get(..Self::WORDS)? else { return None };
        let (free_blocks, rest) = rest.split_first_chunk::<ORDERS>()?;
        let (devices, rest) = rest.split_first()?;
        let (swaps, locks) = rest.split_at(DEVICES_MAX * DEVICE_WORDS);
        let (swaps, _) = swaps.as_chunks::<DEVICE_WORDS>();
        let (locks, _) = locks.as_chunks::<LOCK_WORDS>();
        let swap = |[pages, used, priority]: &[u64; DEVICE_WORDS]| SwapUse {
            pages: *pages,
            used: *used,
            priority: priority.checked_sub(1).map(|priority| priority as u16),
        };
        let lock = |[acquisitions, contended, wait, hold]: [u64; LOCK_WORDS]| LockRecord {
            acquisitions,
            contended,
            wait: Nanos(wait),
            hold: Nanos(hold),
        };
        (*present == PRESENT).then(|| Parts {
            kswapd_threads: *kswapd_threads,
            free_blocks: *free_blocks,
            swaps: swaps.iter().take(*devices as usize).map(swap).collect(),
            locks: std::array::from_fn(|class| lock(locks[class])),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn parts(number: u64) -> Parts {
        let swap = |priority| SwapUse { pages: 1000, used: number, priority };
        Parts {
            kswapd_threads: number,
            free_blocks: std::array::from_fn(|order| number << order),
            swaps: [None, Some(0), Some(u16::MAX)].map(swap).into(),
            locks: std::array::from_fn(|class| LockRecord {
                acquisitions: number,
                contended: class as u64,
                wait: Nanos(2),
                hold: Nanos(3),
            }),
        }
    }

    #[test]
    fn parts_survive_their_words() {
        for parts in [parts(7), Parts::default()] {
            let words = parts.to_words();
            assert_eq!(words.len(), Parts::WORDS);
            assert_eq!(Parts::from_words(&words), Some(parts));
            assert_eq!(Parts::from_words(&words[1..]), None);
        }
        assert_eq!(Parts::from_words(&[0; Parts::WORDS]), None);
        // A wrong number of devices is no panic.
        let mut words = parts(7).to_words();
        words[2 + ORDERS] = u64::MAX;
        assert_eq!(Parts::from_words(&words).map(|it| it.swaps.len()), Some(DEVICES_MAX));
    }
}
