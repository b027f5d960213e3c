//! The memory that malloc held in a run: the part `malloc` of the report.
//!
//! ```text
//! MallocFigures -- at_most, at_end: Held          all sizes together
//!               \- classes: [ClassFigures]        a size each: at_most, at_end: ClassHeld; events
//! ```
//! The figures are sums over processes. `at_end` is the state that a process published last. If the
//! process exited by itself (exit, _exit), this is the state at its end, and its `active_objs` were
//! never freed; otherwise it is the state up to 100 ms before its end, or longer with millions of
//! objects.

use highwater_mm::slab::{CacheReport, Event};
use highwater_session::{MallocReport, MallocStats};
use highwater_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// What malloc held.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MallocFigures {
    /// What each process held in the sample in which it held most.
    pub(crate) at_most: Held,
    /// What processes published last.
    pub(crate) at_end: Held,
    /// Sizes with objects, ascending.
    pub(crate) classes: Vec<ClassFigures>,
}

/// All blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Held {
    /// Blocks below 64 KiB in use.
    pub(crate) active_objs: u64,
    /// Their bytes, rounded up to size classes.
    pub(crate) active_bytes: u64,
    /// Bytes of their slabs.
    pub(crate) slab_bytes: u64,
    /// Blocks of 64 KiB and more.
    pub(crate) large_blocks: u64,
    /// Their bytes, in whole pages.
    pub(crate) large_bytes: u64,
}

/// Objects of one size. Names are those of /proc/slabinfo, where it has them.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ClassFigures {
    /// Name of the cache.
    pub(crate) name: String,
    /// Bytes of an object.
    pub(crate) objsize: u32,
    /// Objects of a slab.
    pub(crate) objperslab: u16,
    /// Pages of a slab.
    pub(crate) pagesperslab: u64,
    /// Of the sample in which each process held most in all sizes.
    pub(crate) at_most: ClassHeld,
    /// What processes published last.
    pub(crate) at_end: ClassHeld,
    /// Number of operations by kind, under the names of SLUB_STATS.
    pub(crate) events: BTreeMap<&'static str, u64>,
}

/// Objects of a size at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ClassHeld {
    /// In use by the program.
    pub(crate) active_objs: u64,
    /// Free, and cached by threads.
    pub(crate) at_hand_objs: u64,
    /// Objects of all slabs, free ones included.
    pub(crate) num_objs: u64,
    /// Slabs.
    pub(crate) num_slabs: u64,
    /// Slabs with free objects that no CPU has frozen.
    pub(crate) partial_slabs: u64,
    /// Bytes of the slabs.
    pub(crate) slab_bytes: u64,
}

impl MallocFigures {
    /// The figures of one process, or of the sum over several.
    pub(crate) fn of(MallocStats { now, at_most }: &MallocStats) -> MallocFigures {
        let of_size = |size| at_most.caches.iter().find(|cache| cache.size == size);
        let used = now.caches.iter().filter(|cache| cache.count(Event::AllocSlab) > 0);
        let classes = used.map(|cache| ClassFigures::of(cache, of_size(cache.size))).collect();
        MallocFigures { at_most: Held::of(at_most), at_end: Held::of(now), classes }
    }
}

impl Held {
    fn of(report: &MallocReport) -> Held {
        let sum = |part: fn(&CacheReport) -> u64| report.caches.iter().map(part).sum();
        Held {
            active_objs: sum(|cache| cache.used),
            active_bytes: sum(CacheReport::used_bytes),
            slab_bytes: Bytes::of_pages(sum(|cache| cache.pages)).0,
            large_blocks: report.large_blocks,
            large_bytes: Bytes::of_pages(report.large_pages).0,
        }
    }
}

impl ClassFigures {
    fn of(now: &CacheReport, most: Option<&CacheReport>) -> ClassFigures {
        ClassFigures {
            name: now.name.clone(),
            objsize: now.size,
            objperslab: now.slab_objects,
            pagesperslab: now.slab_pages,
            at_most: most.map_or_else(ClassHeld::default, ClassHeld::of),
            at_end: ClassHeld::of(now),
            events: Event::ALL.iter().map(|event| (event.name(), now.count(*event))).collect(),
        }
    }
}

impl ClassHeld {
    fn of(cache: &CacheReport) -> ClassHeld {
        ClassHeld {
            active_objs: cache.used,
            at_hand_objs: cache.at_hand,
            num_objs: cache.objects,
            num_slabs: cache.slabs,
            partial_slabs: cache.partial,
            slab_bytes: Bytes::of_pages(cache.pages).0,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use highwater_mm::slab::EVENTS;
    use highwater_session::malloc_cache_name;

    /// A process with objects of two sizes, of which one was used.
    pub(crate) fn process(at_most: u64, left: u64) -> MallocStats {
        let cache = |size: u32, used| {
            let slabs = u64::from(used > 0) * 4;
            let (slab_objects, objects) = ((32_768 / size) as u16, slabs * 32_768 / 64);
            let (slab_pages, pages, at_hand, partial) = (8, 8 * slabs, 2, 1);
            let (name, events) = (malloc_cache_name(size), [slabs; EVENTS]);
            CacheReport {
                name,
                size,
                slab_pages,
                slab_objects,
                slabs,
                pages,
                used,
                at_hand,
                objects,
                partial,
                events,
            }
        };
        let report = |used| MallocReport {
            caches: vec![cache(48, 0), cache(64, used)],
            large_blocks: 1,
            large_pages: 256,
        };
        MallocStats { now: report(left), at_most: report(at_most) }
    }

    #[test]
    fn sizes_are_summed_over_processes() {
        let mut both = process(1600, 3);
        both.merge(&process(400, 1));
        let figures = MallocFigures::of(&both);
        let large = (2, 2 << 20);
        assert_eq!((figures.at_end.active_objs, figures.at_end.active_bytes), (4, 256));
        assert_eq!((figures.at_most.large_blocks, figures.at_most.large_bytes), large);
        let [class] = &figures.classes[..] else { panic!("one size was used: {figures:?}") };
        assert_eq!(
            (class.name.as_str(), class.objperslab, class.pagesperslab),
            ("malloc-64", 512, 8)
        );
        let expected = ClassHeld {
            active_objs: 2000,
            at_hand_objs: 4,
            num_objs: 4096,
            num_slabs: 8,
            partial_slabs: 2,
            slab_bytes: 256 << 10,
        };
        assert_eq!((class.at_most, class.events["alloc_slab"]), (expected, 8));
    }
}
