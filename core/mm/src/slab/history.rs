//! Sizing rules that do not follow from the number of CPUs: Linux 6.5, and the patches of 2023
//! against contention on list_lock. Also a count that their experiment needs.

use super::Slabs;
use super::sizing::{
    NODE_PARTIAL_BASE, ORDER_MAX_BASE, ORDER_MAX_LARGE, Rules, node_partial, objects_base,
    objects_large,
};
use super::source::SlabPages;
use crate::config::history::{CpuPartial, NodePartial, SlabHistory, SlabOrder};
use std::sync::atomic::Ordering::Relaxed;

impl Rules {
    /// These rules with those that the settings fix.
    pub(super) fn of_history(mut self, history: SlabHistory, cpus: usize, nodes: usize) -> Rules {
        match history.order {
            None => {}
            Some(SlabOrder::Base) => {
                (self.objects_min, self.order_max) = (objects_base(cpus), ORDER_MAX_BASE);
            }
            Some(SlabOrder::Large) => {
                (self.objects_min, self.order_max) = (objects_large(cpus), ORDER_MAX_LARGE);
            }
        }
        match history.cpu_partial {
            None => {}
            Some(CpuPartial::Single) => self.cpu_partial = 1,
            Some(CpuPartial::Double) => self.cpu_partial = 2,
            Some(CpuPartial::Quadruple) => self.cpu_partial = 4,
        }
        match history.node_partial {
            None => {}
            Some(NodePartial::Fixed) => self.node_partial = NODE_PARTIAL_BASE,
            Some(NodePartial::Cpus) => self.node_partial = node_partial(cpus, nodes),
        }
        self
    }
}

impl<S: SlabPages> Slabs<S> {
    /// How often each cache refilled a CPU's list from a node that is not the CPU's own.
    pub fn from_other_nodes(&self) -> Vec<u64> {
        self.caches().map(|cache| cache.from_other.load(Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizing::Sizing;
    use super::*;
    use crate::config::Config;

    const BASE: SlabHistory = SlabHistory {
        order: Some(SlabOrder::Base),
        cpu_partial: Some(CpuPartial::Single),
        node_partial: Some(NodePartial::Fixed),
    };

    fn rules(history: SlabHistory, cpus: usize) -> Rules {
        let mut config = Config::default();
        (config.history.slab, config.slab.sheaves) = (history, Some(false));
        Rules::new(&config, cpus, 2)
    }

    #[track_caller]
    fn assert_sizing(size: u32, history: SlabHistory, [order, objects, slabs, keep]: [u32; 4]) {
        let sizing = Sizing::new(size, rules(history, 224));
        let found = [
            u32::from(sizing.order.0),
            u32::from(sizing.objects),
            sizing.cpu_slabs as u32,
            sizing.min_partial,
        ];
        assert_eq!(found, [order, objects, slabs, keep], "{size} bytes, {history:?}");
    }

    #[test]
    fn base_on_224_cpus_is_linux_6_5() {
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
    fn the_patches_of_2023_are_as_posted() {
        let double = Some(CpuPartial::Double);
        let quadruple = Some(CpuPartial::Quadruple);
        // The order patch doubles the objects, so that the number of slabs on a CPU's list stays.
        let order = SlabHistory { order: Some(SlabOrder::Large), cpu_partial: double, ..BASE };
        assert_sizing(256, order, [3, 128, 2, 5]);
        assert_sizing(184, order, [2, 89, 6, 5]);
        assert_sizing(256, SlabHistory { cpu_partial: double, ..BASE }, [2, 64, 4, 5]);
        assert_sizing(184, SlabHistory { cpu_partial: double, ..BASE }, [1, 44, 11, 5]);
        assert_sizing(256, SlabHistory { cpu_partial: quadruple, ..BASE }, [2, 64, 7, 5]);
        assert_sizing(184, SlabHistory { cpu_partial: quadruple, ..BASE }, [1, 44, 22, 5]);
        let cpus = Some(NodePartial::Cpus);
        assert_sizing(256, SlabHistory { node_partial: cpus, ..BASE }, [2, 64, 2, 64]);
    }

    #[test]
    fn small_systems_have_the_base_by_default() {
        for cpus in [1, 2, 4, 8, 16, 31] {
            assert_eq!(Rules::new(&Config::default(), cpus, 2), rules(BASE, cpus), "{cpus} CPUs");
        }
        let order = Some(SlabOrder::Large);
        let large = rules(SlabHistory { order, ..SlabHistory::default() }, 2);
        assert_ne!(large, rules(BASE, 2), "a setting holds on a small system");
    }
}
