//! Keys of slabs, and of the workloads that are of objects.

use super::Key;
use super::words::*;
use highwater_units::Nanos;

pub(super) const SLAB_ORDER: Key = Key {
    name: "slab_order",
    values: "auto, base or large",
    help: "pages of a slab of objects: up to 8, or 16; auto: by the number of CPUs",
    take: |s, text| {
        s.config.history.slab.order = auto_word(text, &SLAB_ORDERS)?;
        Some(())
    },
    show: |s| name_or_auto(&SLAB_ORDERS, s.config.history.slab.order),
};

pub(super) const SLAB_CPU_PARTIAL: Key = Key {
    name: "slab_cpu_partial",
    values: "auto, 1x, 2x or 4x",
    help: "objects on a CPU's partial slabs: so many times 6 to 120, by their size",
    take: |s, text| {
        s.config.history.slab.cpu_partial = auto_word(text, &CPU_PARTIALS)?;
        Some(())
    },
    show: |s| name_or_auto(&CPU_PARTIALS, s.config.history.slab.cpu_partial),
};

pub(super) const SLAB_NODE_PARTIAL: Key = Key {
    name: "slab_node_partial",
    values: "auto, fixed or cpus",
    help: "slabs that a node keeps though they are empty: 5 to 10, or as many as it has CPUs",
    take: |s, text| {
        s.config.history.slab.node_partial = auto_word(text, &NODE_PARTIALS)?;
        Some(())
    },
    show: |s| name_or_auto(&NODE_PARTIALS, s.config.history.slab.node_partial),
};

pub(super) const SLAB_SHEAVES: Key = Key {
    name: "slab_sheaves",
    values: "auto, off or on",
    help: "whether CPUs keep arrays of objects, in front of slabs",
    take: |s, text| {
        s.config.slab.sheaves = auto_word(text, &SWITCHES)?;
        Some(())
    },
    show: |s| name_or_auto(&SWITCHES, s.config.slab.sheaves),
};

pub(super) const WORK: Key = Key {
    name: "work",
    values: "auto, or 0 to 1000000 ns",
    help: "what an operation of mmap1 or hackbench takes beside its objects",
    take: |s, text| {
        s.work = auto_or(text, 0..=1_000_000)?.map(Nanos);
        Some(())
    },
    show: |s| auto(s.work.map(|work| work.0)),
};

pub(super) const GRACE: Key = Key {
    name: "grace",
    values: "0.01 to 1000 ms",
    help: "from one end of a grace period to the next, for what mmap1 frees",
    take: |s, text| {
        s.grace = number(text, 0.01..=1000.0)?;
        Some(())
    },
    show: |s| s.grace.to_string(),
};
