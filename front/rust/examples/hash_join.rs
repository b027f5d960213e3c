//! Joins orders with their customers by a hash table that is larger than memory.
//!
//! `cargo run --release -p highwater --example hash_join -- --compare [DIR]`: larger, compared with
//! mmap.

#[allow(clippy::duplicate_mod, reason = "the tests have several examples")]
#[path = "beside/mod.rs"]
mod beside;

use beside::{Clock, Done, Mmap, Run, Way};
use highwater::{Advice, PagedVec};
use std::error::Error;
use std::fs::File;

/// The size of a join. The customer of every third order is in no table.
#[derive(Clone, Copy)]
struct Size {
    /// Slots of the hash table, 16 bytes each; a power of two.
    slots: usize,
    customers: u64,
    orders: u64,
    memory_mib: u64,
    swap: Swap,
}

/// The swap device for pages of the table.
#[derive(Clone, Copy)]
enum Swap {
    Zram,
    /// A file in the directory of the run.
    Disk,
}

/// A hash table of 16 MiB.
const SMALL: Size =
    Size { slots: 1 << 20, customers: 40_000, orders: 30_000, memory_mib: 4, swap: Swap::Zram };
/// A hash table of 128 MiB.
const LARGE: Size =
    Size { slots: 8 << 20, customers: 250_000, orders: 400_000, memory_mib: 32, swap: Swap::Disk };
/// The memory that the program takes besides the table's pages, in MiB.
const BESIDE_MIB: u64 = 16;

const COUNTRIES: u64 = 200;

/// An open-addressing hash table of customer and country. A customer of 0 is a free slot.
struct Table<'a>(&'a [[u64; 2]]);

impl Table<'_> {
    /// The slot of a customer, or the free slot where the customer belongs.
    fn slot(&self, customer: u64) -> usize {
        // Fibonacci hashing: the upper bits of the product.
        let hash = customer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.0.len().ilog2());
        let probes = (0..self.0.len()).map(|step| (hash as usize + step) % self.0.len());
        let is_its = |slot: &usize| [0, customer].contains(&self.0[*slot][0]);
        probes.into_iter().find(is_its).expect("a free slot")
    }

    fn get(&self, customer: u64) -> Option<u64> {
        let [found, country] = self.0[self.slot(customer)];
        (found == customer).then_some(country)
    }
}

/// The customer of an order.
fn customer(order: u64, size: Size) -> u64 {
    1 + order * 7919 % (size.customers * 3 / 2)
}

/// The number of orders of each country, and at the end that of unknown customers. One thread fills
/// the table; then all threads look up customers in it.
fn join(table: &mut [[u64; 2]], size: Size, threads: u64) -> Vec<u64> {
    for customer in 1..=size.customers {
        let slot = Table(table).slot(customer);
        table[slot] = [customer, customer % COUNTRIES];
    }
    let (table, share) = (Table(table), size.orders.div_ceil(threads));
    let count = |thread: u64| {
        let mut counts = vec![0; COUNTRIES as usize + 1];
        for order in thread * share..size.orders.min((thread + 1) * share) {
            counts[table.get(customer(order, size)).unwrap_or(COUNTRIES) as usize] += 1;
        }
        counts
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|thread| scope.spawn(move || count(thread))).collect();
        let parts = parts.into_iter().map(|part| part.join().expect("no panic"));
        let add = |sums: Vec<u64>, part: Vec<u64>| {
            sums.iter().zip(part).map(|(sum, count)| sum + count).collect()
        };
        parts.reduce(add).expect("a thread or more")
    })
}

/// Joins by a hash table in paged memory, or in a file mapped by mmap.
fn work(size: Size, run: &Run) -> Result<(Done, Vec<u64>), Box<dyn Error>> {
    let clock;
    let counts = match run.way {
        Way::Highwater => {
            let memory = beside::builder().memory(format!("{}M", size.memory_mib));
            let memory = match size.swap {
                Swap::Zram => memory.swap("zram:32M"),
                Swap::Disk => memory.swap(format!("dir:{}:256M", run.dir.display())),
            };
            let memory = memory.build()?;
            clock = Clock::start();
            let mut table = PagedVec::zeroed(&memory, size.slots)?;
            table.advise(Advice::Random);
            let counts = join(&mut table, size, run.threads as u64);
            let faults = memory.statistics()?.get("pgmajfault");
            assert!(faults > Some(0), "more than the budget");
            counts
        }
        Way::Mmap => {
            let path = run.dir.join("table");
            File::create(&path)?.set_len(size.slots as u64 * 16)?;
            clock = Clock::start();
            let mut table = Mmap::open(&path)?;
            join(slots_of(&mut table), size, run.threads as u64)
        }
    };
    let digest = counts.iter().fold(0u64, |sum, count| sum.wrapping_mul(31).wrapping_add(*count));
    Ok((clock.done(digest), counts))
}

/// The bytes of a mapping as slots.
fn slots_of(bytes: &mut [u8]) -> &mut [[u64; 2]] {
    let len = bytes.len() / 16;
    // SAFETY: a mapping is aligned to pages, and all bit patterns are valid numbers.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) }
}

/// Joins, and checks the result.
///
/// # Errors
/// Memory is refused.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    if beside::is_asked() {
        let work = |run: &Run| work(LARGE, run).expect("joined").0;
        return Ok(beside::compare(LARGE.memory_mib + BESIDE_MIB, work)?);
    }
    let dir = tempfile::tempdir()?;
    let run = Run { way: Way::Highwater, threads: 4, dir: dir.path().to_owned() };
    let (_, counts) = work(SMALL, &run)?;
    let mut expected = vec![0; COUNTRIES as usize + 1];
    for order in 0..SMALL.orders {
        let customer = customer(order, SMALL);
        let is_known = customer <= SMALL.customers;
        let country = if is_known { customer % COUNTRIES } else { COUNTRIES };
        expected[country as usize] += 1;
    }
    assert_eq!(counts, expected);
    println!("{} orders joined", SMALL.orders - counts[COUNTRIES as usize]);
    Ok(())
}
