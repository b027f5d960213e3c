//! How large slabs are, and how many are kept where: the rules of Linux 6.5 (mm/slub.c), and what
//! the seed changes of them.
//!
//! ```text
//! size ── calculate_order ──> order, objects of a slab
//!      ── set_cpu_partial ──> slabs on a CPU's partial list
//!      ── set_min_partial ──> slabs that a node keeps though they are empty
//! ```
//! All by pure functions: a cache computes them once.

use crate::config::{CpuPartial, NodePartial, SlabConfig, SlabOrder};
use highwater_units::{Order, PAGE_SIZE};

/// CPUs from which on a system counts as large (the seed's `nr_cpus >= 32`).
const LARGE_CPUS: usize = 32;

/// CPUs from which on a CPU's list is four times as long.
const VERY_LARGE_CPUS: usize = 128;

/// The settings, none of them left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// See [`SlabConfig::order`].
    pub order: SlabOrder,
    /// See [`SlabConfig::cpu_partial`].
    pub cpu_partial: CpuPartial,
    /// See [`SlabConfig::node_partial`].
    pub node_partial: NodePartial,
    /// See [`SlabConfig::sheaves`].
    pub sheaves: bool,
}

impl Resolved {
    /// What is open follows from the number of CPUs: systems that are not large are as Linux 6.5
    /// has them, memory included.
    pub fn new(config: SlabConfig, cpus: usize) -> Resolved {
        let large = cpus >= LARGE_CPUS;
        let order = if large { SlabOrder::Large } else { SlabOrder::Base };
        let cpu_partial = match cpus {
            VERY_LARGE_CPUS.. => CpuPartial::Quadruple,
            LARGE_CPUS.. => CpuPartial::Double,
            _ => CpuPartial::Single,
        };
        let node_partial = if large { NodePartial::Cpus } else { NodePartial::Fixed };
        Resolved {
            order: config.order.unwrap_or(order),
            cpu_partial: config.cpu_partial.unwrap_or(cpu_partial),
            node_partial: config.node_partial.unwrap_or(node_partial),
            sheaves: config.sheaves.unwrap_or(large),
        }
    }
}

/// What a cache was computed to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Bytes from one object to the next.
    pub size: u32,
    /// Pages of a slab.
    pub order: Order,
    /// Pages of a slab where memory is in pieces: what one object needs.
    pub order_min: Order,
    /// Objects of a slab of [`Sizing::order`].
    pub objects: u16,
    /// Slabs on a CPU's partial list from which on it is emptied.
    pub cpu_slabs: usize,
    /// Empty slabs go back where a node has so many partial ones.
    pub min_partial: u32,
    /// Objects of a sheaf.
    pub sheaf: usize,
}

impl Sizing {
    /// Of a cache of objects of `size` bytes, on a system of so many CPUs and memory nodes.
    pub fn new(size: u32, cpus: usize, nodes: usize, config: Resolved) -> Sizing {
        Sizing::of_order(size, slab_order(size, cpus, config.order), cpus, nodes, config)
    }

    /// The same, with slabs of this order.
    pub(super) fn of_order(
        size: u32,
        order: Order,
        cpus: usize,
        nodes: usize,
        config: Resolved,
    ) -> Sizing {
        let objects = objects_in(order, size);
        let keep = cpu_objects(size) * config.cpu_partial.factor();
        Sizing {
            size,
            order,
            order_min: Order::covering((size as usize).div_ceil(PAGE_SIZE) as u32),
            objects,
            cpu_slabs: (2 * keep).div_ceil(usize::from(objects)),
            min_partial: min_partial(size, cpus, nodes, config.node_partial),
            sheaf: sheaf_objects(size),
        }
    }
}

/// Slabs on a CPU's partial list at most, where callers have objects at hand.
const CPU_SLABS_AT_HAND: usize = 2;

impl Sizing {
    /// For callers who have objects at hand: what they keep need not be kept a second time, so
    /// CPUs have few partial slabs, and one that is empty is given back. Of large objects a slab
    /// has one or two, and to keep a dozen of them empty for each size took more than all else.
    pub(super) fn at_hand(self) -> Sizing {
        Sizing { cpu_slabs: self.cpu_slabs.min(CPU_SLABS_AT_HAND), min_partial: 0, ..self }
    }
}

/// Objects of a slab. A link has 16 bits, one of them spare (MAX_OBJS_PER_PAGE).
pub(super) fn objects_in(order: Order, size: u32) -> u16 {
    (((PAGE_SIZE << order.0) / size as usize) as u16).min(i16::MAX as u16)
}

/// The kernel's rule (calculate_order): as many objects as CPUs make worth while, and as little of
/// a slab left over as can be.
fn slab_order(size: u32, cpus: usize, rule: SlabOrder) -> Order {
    let fls = usize::BITS - cpus.leading_zeros();
    let (objects_min, most) = match rule {
        SlabOrder::Base => (4 * (fls + 1), Order(3)),
        SlabOrder::Large => (8 * (fls + 1), Order(4)),
    };
    let objects_min = objects_min.min(((PAGE_SIZE << most.0) / size as usize) as u32);
    for objects in (2..=objects_min).rev() {
        for fraction in [16, 8, 4] {
            if let Some(order) = order_for(size, objects, most, fraction) {
                return order;
            }
        }
    }
    Order::covering((size as usize).div_ceil(PAGE_SIZE) as u32)
}

/// The smallest order for so many objects that leaves no more than a part in `fraction` over.
fn order_for(size: u32, objects: u32, most: Order, fraction: usize) -> Option<Order> {
    let least = Order::covering((size as usize * objects as usize).div_ceil(PAGE_SIZE) as u32);
    let fits = |order: &u8| {
        let bytes = PAGE_SIZE << order;
        bytes % size as usize <= bytes / fraction
    };
    (least.0..=most.0).find(fits).map(Order)
}

/// Objects that a CPU's partial list is to have, if its slabs are half full (set_cpu_partial).
fn cpu_objects(size: u32) -> usize {
    match size {
        4096.. => 6,
        1024.. => 24,
        256.. => 52,
        _ => 120,
    }
}

/// The rule of MIN_PARTIAL and MAX_PARTIAL, 5 and 10, or by the CPUs of a node (the seed's).
fn min_partial(size: u32, cpus: usize, nodes: usize, rule: NodePartial) -> u32 {
    let least = match rule {
        NodePartial::Fixed => 5,
        NodePartial::Cpus => (1 << (cpus / nodes.max(1)).max(1).ilog2()).max(5),
    };
    (size.ilog2() / 2).clamp(least, 2 * least)
}

/// The rule of Linux 7.0, but for the rounding to what kmalloc has.
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

    const BASE: Resolved = Resolved {
        order: SlabOrder::Base,
        cpu_partial: CpuPartial::Single,
        node_partial: NodePartial::Fixed,
        sheaves: false,
    };

    #[track_caller]
    fn assert_sizing(size: u32, config: Resolved, [order, objects, slabs, keep]: [u32; 4]) {
        let sizing = Sizing::new(size, 224, 2, config);
        let found = [
            u32::from(sizing.order.0),
            u32::from(sizing.objects),
            sizing.cpu_slabs as u32,
            sizing.min_partial,
        ];
        assert_eq!(found, [order, objects, slabs, keep], "{size} bytes, {config:?}");
    }

    #[test]
    fn on_224_cpus_it_is_as_the_kernel_has_it() {
        for (size, expected) in [
            (256, [2, 64, 2, 5]),
            (184, [1, 44, 6, 5]),
            (64, [0, 64, 4, 5]),
            (512, [3, 64, 2, 5]),
            (1024, [3, 32, 2, 5]),
            (8192, [3, 4, 3, 6]),
            (40_000, [4, 1, 12, 7]),
        ] {
            assert_sizing(size, BASE, expected);
        }
    }

    #[test]
    fn the_seeds_changes_are_as_posted() {
        let (double, quadruple) = (CpuPartial::Double, CpuPartial::Quadruple);
        // The order patch keeps the number of slabs on a CPU's list.
        let order = Resolved { order: SlabOrder::Large, cpu_partial: double, ..BASE };
        assert_sizing(256, order, [3, 128, 2, 5]);
        assert_sizing(184, order, [2, 89, 6, 5]);
        assert_sizing(256, Resolved { cpu_partial: double, ..BASE }, [2, 64, 4, 5]);
        assert_sizing(184, Resolved { cpu_partial: double, ..BASE }, [1, 44, 11, 5]);
        assert_sizing(256, Resolved { cpu_partial: quadruple, ..BASE }, [2, 64, 7, 5]);
        assert_sizing(184, Resolved { cpu_partial: quadruple, ..BASE }, [1, 44, 22, 5]);
        assert_sizing(256, Resolved { node_partial: NodePartial::Cpus, ..BASE }, [2, 64, 2, 64]);
    }

    #[test]
    fn small_systems_are_as_before_and_large_ones_are_not() {
        for cpus in [1, 2, 4, 8, 16, 31] {
            assert_eq!(Resolved::new(SlabConfig::default(), cpus), BASE, "{cpus} CPUs");
            for size in [16, 64, 184, 256, 512, 1024, 4096] {
                let [ours, base] = [Resolved::new(SlabConfig::default(), cpus), BASE]
                    .map(|config| Sizing::new(size, cpus, 1, config));
                assert_eq!(ours, base, "{size} bytes, {cpus} CPUs");
            }
        }
        let large = |cpus| Resolved::new(SlabConfig::default(), cpus);
        assert_eq!(
            (large(32).cpu_partial, large(127).cpu_partial),
            (CpuPartial::Double, CpuPartial::Double)
        );
        assert_eq!(large(128).cpu_partial, CpuPartial::Quadruple);
        assert_eq!(
            (large(32).order, large(32).node_partial),
            (SlabOrder::Large, NodePartial::Cpus)
        );
        assert!(large(32).sheaves);
        let asked = SlabConfig { order: Some(SlabOrder::Large), ..SlabConfig::default() };
        assert_eq!(Resolved::new(asked, 2).order, SlabOrder::Large, "who asks gets it");
    }
}
