//! Joins two tables by a hash table that is larger than memory: orders by their customers.

use highwater::{Error, Memory, PagedBox};

/// The slots of the hash table, 16 bytes each: 16 MiB.
const SLOTS: usize = 1 << 20;
const CUSTOMERS: u64 = 120_000;
const ORDERS: u64 = 120_000;

/// An open-addressing hash table of customer and country. A customer of 0 is a free slot.
struct Countries(PagedBox<[[u64; 2]]>);

impl Countries {
    /// The slot of a customer, or the free one where it belongs.
    fn slot(&self, customer: u64) -> usize {
        // Fibonacci hashing: the upper bits of the product.
        let hash = customer.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.ilog2());
        let probes = (0..SLOTS).map(|step| (hash as usize + step) % SLOTS);
        let is_its = |slot: &usize| [0, customer].contains(&self.0[*slot][0]);
        probes.into_iter().find(is_its).expect("a free slot")
    }

    fn insert(&mut self, customer: u64, country: u64) {
        let slot = self.slot(customer);
        self.0[slot] = [customer, country];
    }

    fn get(&self, customer: u64) -> Option<u64> {
        let [found, country] = self.0[self.slot(customer)];
        (found == customer).then_some(country)
    }
}

/// Joins, and checks the result.
///
/// # Errors
/// Memory is refused.
pub(crate) fn main() -> Result<(), Error> {
    let memory = Memory::builder().memory("6M").swap("zram:32M").build()?;
    let mut countries = Countries(PagedBox::zeroed(&memory, SLOTS)?);
    for customer in 1..=CUSTOMERS {
        countries.insert(customer, customer % 200);
    }
    let mut by_country = [0u64; 200];
    let mut strangers = 0;
    for order in 0..ORDERS {
        // Every third customer of an order is in no table.
        let customer = 1 + order * 7919 % (CUSTOMERS * 3 / 2);
        match countries.get(customer) {
            Some(country) => by_country[country as usize] += 1,
            None => strangers += 1,
        }
    }
    let expected = |customer: u64| customer <= CUSTOMERS;
    let orders = (0..ORDERS).map(|order| 1 + order * 7919 % (CUSTOMERS * 3 / 2));
    let known: Vec<u64> = orders.filter(|customer| expected(*customer)).collect();
    assert_eq!(strangers, ORDERS - known.len() as u64);
    for (country, orders) in by_country.iter().enumerate() {
        let of = known.iter().filter(|customer| **customer % 200 == country as u64).count() as u64;
        assert_eq!(*orders, of, "country {country}");
    }
    let faults = memory.statistics()?.get("pgmajfault");
    println!("{} orders joined; {faults:?} faults read from swap", known.len());
    assert!(faults > Some(0), "more than the budget");
    Ok(())
}
