//! The table of lock classes: a line each. A platform counts, and the simulator charges, by class.
//!
//! A class that a machine's file does not list has the costs of its `default` section.

use highwater_platform::LockClass;

/// Declares a constant for each class, numbered in this order, and [`ALL`].
macro_rules! lock_classes {
    ($($class:ident $name:literal $doc:literal)*) => {
        #[allow(
            non_camel_case_types,
            clippy::upper_case_acronyms,
            reason = "named as the constants are"
        )]
        enum Id { $($class,)* }

        $(#[doc = $doc] pub const $class: LockClass = LockClass::new(Id::$class as u8, $name);)*

        /// All classes, in the order of their ids.
        pub const ALL: [LockClass; [$($name,)*].len()] = [$($class,)*];
    };
}

lock_classes! {
    SLOT_CACHE "slot_cache" "Slots that a CPU keeps."
    SWAP_INFO "swap_info" "All slots of a swap device, where one lock guards them (swap_info)."
    SWAP_CACHE "swap_cache" "A tree of the swap cache."
    SWAP_CLUSTER "swap_cluster" "Counts and swap cache of one cluster of slots."
    SWAP_DEVICE "swap_device" "Cluster lists of a swap device."
    SWAP_CPU "swap_cpu" "A CPU's current cluster."
    PER_CPU_FRAMES "per_cpu_frames" "Frames kept by a CPU."
    ZONE "zone" "The buddy allocator of a node."
    LRU_BATCH "lru_batch" "A CPU's pages on their way to a list."
    LRU "lru" "The LRU lists of a node."
    PREFETCH "prefetch" "Queues of readahead requests and of readahead in flight."
    SLAB_SHEAF "slab_sheaf" "Arrays of objects that a CPU keeps."
    SLAB_BARN "slab_barn" "Arrays of objects that some CPUs share."
    SLAB_CPU "slab_cpu" "What a CPU has of a cache of objects."
    SLAB_NODE "list_lock" "The partial slabs of a node."
    SLAB_RECORDS "slab_records" "Records that no slab has."
}
