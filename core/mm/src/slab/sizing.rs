//! How large slabs are, and how many empty or partial ones CPUs and nodes keep.
//!
//! ```text
//! CPUs, nodes -- Rules::new ----> Rules
//! size, Rules -- slab_order ----> order, objects of a slab
//!             |- cpu_objects ---> slabs on a CPU's partial list
//!             \- min_partial ---> empty slabs that a node keeps
//! ```
//! Pure functions, evaluated once for each cache. Below 32 CPUs the rules are those of Linux 6.5
//! (mm/slub.c). From 32 CPUs on slabs are larger and more of them are kept, so that CPUs rarely
//! take a node's list_lock.

use crate::config::Config;
use highwater_units::{Order, PAGE_SIZE};

/// With this many CPUs or more, the rules differ from Linux 6.5.
const LARGE_CPUS: usize = 32;

/// With this many CPUs or more, a CPU's partial list is four times as long.
const VERY_LARGE_CPUS: usize = 128;

/// The common part of the sizing of all caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Objects that a slab should have, at least.
    pub(super) objects_min: u32,
    /// The largest order of a slab of several objects.
    pub(super) order_max: Order,
    /// The factor for the objects of a CPU's partial slabs.
    pub(super) cpu_partial: usize,
    /// Empty slabs that a node keeps, at least.
    pub(super) node_partial: u32,
    /// Whether CPUs keep arrays of objects in front of slabs.
    pub(super) sheaves: bool,
}

impl Rules {
    /// The rules for a system of this many CPUs and memory nodes.
    pub fn new(config: &Config, cpus: usize, nodes: usize) -> Rules {
        let large = cpus >= LARGE_CPUS;
        let rules = Rules {
            objects_min: if large { objects_large(cpus) } else { objects_base(cpus) },
            order_max: if large { ORDER_MAX_LARGE } else { ORDER_MAX_BASE },
            cpu_partial: match cpus {
                VERY_LARGE_CPUS.. => 4,
                LARGE_CPUS.. => 2,
                _ => 1,
            },
            node_partial: if large { node_partial(cpus, nodes) } else { NODE_PARTIAL_BASE },
            sheaves: config.slab.sheaves.unwrap_or(large),
        };
        #[cfg(feature = "history")]
        let rules = rules.of_history(config.history.slab, cpus, nodes);
        rules
    }
}

/// The largest orders of slabs below 32 CPUs, and from there on.
pub(super) const ORDER_MAX_BASE: Order = Order(3);
pub(super) const ORDER_MAX_LARGE: Order = Order(4);

/// Empty slabs that a node keeps below 32 CPUs (MIN_PARTIAL).
pub(super) const NODE_PARTIAL_BASE: u32 = 5;

/// Objects of a slab below 32 CPUs: 8, and 4 more with each doubling of CPUs (calculate_order).
pub(super) fn objects_base(cpus: usize) -> u32 {
    4 * (usize::BITS - cpus.leading_zeros() + 1)
}

/// From 32 CPUs on: twice as many.
pub(super) fn objects_large(cpus: usize) -> u32 {
    2 * objects_base(cpus)
}

/// Empty slabs that a node keeps from 32 CPUs on: as many as it has CPUs, rounded down to a power
/// of two.
pub(super) fn node_partial(cpus: usize, nodes: usize) -> u32 {
    (1 << (cpus / nodes.max(1)).max(1).ilog2()).max(NODE_PARTIAL_BASE)
}

/// The sizing of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Bytes from one object to the next.
    pub size: u32,
    /// Pages of a slab.
    pub order: Order,
    /// Pages of a slab when memory is fragmented: what one object needs.
    pub order_min: Order,
    /// Objects of a slab of [`Sizing::order`].
    pub objects: u16,
    /// Slabs on a CPU's partial list at which it is emptied.
    pub cpu_slabs: usize,
    /// A node gives an empty slab back if its list has this many slabs.
    pub min_partial: u32,
    /// Objects of a sheaf.
    pub sheaf: usize,
}

impl Sizing {
    /// The sizing of a cache of objects of `size` bytes.
    pub fn new(size: u32, rules: Rules) -> Sizing {
        Sizing::of_order(size, slab_order(size, rules), rules)
    }

    /// The sizing of a cache whose slabs have the given order.
    pub(super) fn of_order(size: u32, order: Order, rules: Rules) -> Sizing {
        let objects = objects_in(order, size);
        let keep = cpu_objects(size) * rules.cpu_partial;
        Sizing {
            size,
            order,
            order_min: Order::covering((size as usize).div_ceil(PAGE_SIZE) as u32),
            objects,
            cpu_slabs: (2 * keep).div_ceil(usize::from(objects)),
            min_partial: min_partial(size, rules.node_partial),
            sheaf: sheaf_objects(size),
        }
    }
}

/// Most slabs on a CPU's partial list, if callers reserve objects.
const CPU_SLABS_RESERVED: usize = 2;

impl Sizing {
    /// For callers that reserve objects and so keep free ones themselves: CPUs keep few partial
    /// slabs, nodes no empty ones. A slab has only one or two large objects; a dozen empty slabs of
    /// each size took more memory than everything else.
    pub(super) fn for_reserving(self) -> Sizing {
        Sizing { cpu_slabs: self.cpu_slabs.min(CPU_SLABS_RESERVED), min_partial: 0, ..self }
    }
}

/// Objects of a slab; a link has 15 bits (MAX_OBJS_PER_PAGE).
pub(super) fn objects_in(order: Order, size: u32) -> u16 {
    (((PAGE_SIZE << order.0) / size as usize) as u16).min(i16::MAX as u16)
}

/// The order of a slab (calculate_order): enough objects for the CPUs, and little memory left over.
fn slab_order(size: u32, rules: Rules) -> Order {
    let fitting = ((PAGE_SIZE << rules.order_max.0) / size as usize) as u32;
    let objects_min = rules.objects_min.min(fitting);
    for objects in (2..=objects_min).rev() {
        for fraction in [16, 8, 4] {
            if let Some(order) = order_for(size, objects, rules.order_max, fraction) {
                return order;
            }
        }
    }
    Order::covering((size as usize).div_ceil(PAGE_SIZE) as u32)
}

/// The smallest order for this many objects that wastes at most one part in `fraction`.
fn order_for(size: u32, objects: u32, most: Order, fraction: usize) -> Option<Order> {
    let least = Order::covering((size as usize * objects as usize).div_ceil(PAGE_SIZE) as u32);
    let fits = |order: &u8| {
        let bytes = PAGE_SIZE << order;
        bytes % size as usize <= bytes / fraction
    };
    (least.0..=most.0).find(fits).map(Order)
}

/// Free objects of a CPU's partial list, if its slabs are half full (set_cpu_partial).
fn cpu_objects(size: u32) -> usize {
    match size {
        4096.. => 6,
        1024.. => 24,
        256.. => 52,
        _ => 120,
    }
}

/// Empty slabs that a node keeps: from `least` to twice as many, by object size.
fn min_partial(size: u32, least: u32) -> u32 {
    (size.ilog2() / 2).clamp(least, 2 * least)
}

/// Objects of a sheaf, as in Linux 7.0 but not rounded to kmalloc sizes.
fn sheaf_objects(size: u32) -> usize {
    match size {
        4096.. => 4,
        1024.. => 12,
        256.. => 28,
        _ => 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(cpus: usize) -> Rules {
        Rules::new(&Config::default(), cpus, 2)
    }

    /// Below 32 CPUs, the number of CPUs determines only the number of objects of a slab.
    #[test]
    fn rules_of_small_systems_are_those_of_linux_6_5() {
        for (cpus, objects_min) in [(1, 8), (2, 12), (4, 16), (8, 20), (16, 24), (31, 24)] {
            let expected = Rules {
                objects_min,
                order_max: Order(3),
                cpu_partial: 1,
                node_partial: 5,
                sheaves: false,
            };
            assert_eq!(rules(cpus), expected, "{cpus} CPUs");
        }
    }

    #[test]
    fn rules_of_large_systems_keep_more() {
        for (cpus, objects_min, cpu_partial, node_partial) in
            [(32, 56, 2, 16), (127, 64, 2, 32), (128, 72, 4, 64), (224, 72, 4, 64)]
        {
            let order_max = Order(4);
            let sheaves = true;
            let expected = Rules { objects_min, order_max, cpu_partial, node_partial, sheaves };
            assert_eq!(rules(cpus), expected, "{cpus} CPUs");
        }
    }

    #[test]
    fn slabs_of_sizes() {
        for (cpus, size, [order, objects, slabs, keep]) in [
            (2, 64, [0, 64, 4, 5]),
            (2, 256, [0, 16, 7, 5]),
            (2, 40_000, [4, 1, 12, 7]),
            (224, 64, [1, 128, 8, 64]),
            (224, 256, [3, 128, 4, 64]),
            (224, 8192, [4, 8, 6, 64]),
        ] {
            let sizing = Sizing::new(size, rules(cpus));
            let found = [
                u32::from(sizing.order.0),
                u32::from(sizing.objects),
                sizing.cpu_slabs as u32,
                sizing.min_partial,
            ];
            assert_eq!(found, [order, objects, slabs, keep], "{size} bytes, {cpus} CPUs");
        }
    }
}
