//! What `highwater run` and the library inside the program agree on.
//!
//! ```text
//! highwater run --- Settings, as environment variables ---> library in each process of the run
//!               <-- StatsFile, one per process, in run_dir --
//!               --- Budget, in run_dir: how much memory and swap each process may use ---
//! ```
//! The library reads this inside arbitrary programs: nothing here panics or prints.

mod abandoned;
mod arbitration;
mod balance;
mod budget;
mod choices;
mod code;
mod entry;
#[cfg(test)]
mod entry_model;
mod family;
mod host;
#[cfg(test)]
mod hostile;
mod malloc_stats;
mod parts;
mod requests;
mod settings;
mod share;
mod shared_pages;
mod split;
mod stats_file;
mod swap_dir;
mod swap_list;
mod swap_room;
mod tuning;
mod turns;

pub use abandoned::{
    HELPER_NAME, OWNER_FILE, RUN_DIR_PREFIX, leave_run_dir, open_run_dir, remove_if_abandoned,
};
pub use arbitration::{Claim, targets};
pub use balance::{Borrowed, Excess, Misses, Times, give_excess};
pub use budget::{Activity, BUDGET_FILE, Budget, Compacted, FLOOR, MARGIN, Member, Scope};
pub use choices::{
    FaultThreads, LargePages, Malloc, MapFiles, Mapping, SystemCalls, come_as_signals,
};
pub use code::Code;
pub use host::{
    CgroupVersion, HostMemory, MemoryLimit, default_memory, host_memory, may_name_executable,
    oom_kills,
};
pub use malloc_stats::{MALLOC_SIZES_MAX, MallocReport, MallocStats, malloc_cache_name};
pub use parts::Parts;
pub use requests::{Denied, Held, Posted, REQUEST_MAX, Request, leader_of};
pub use settings::{
    LOADER, RANGE, RANGE_AND_OWN, RUN_DIR, STATIC_PROGRAM, Settings, check_carried,
};
pub use share::{Aim, Besides, Forked, Share};
pub use split::{Costs, Distances, Split, Window};
pub use stats_file::{
    Image, Name, OtherBuild, Published, StatsFile, read_all, read_published, take_ended,
    unpublished,
};
pub use swap_dir::{default_swap, file_system_name, free_space, is_in_memory};
pub use swap_list::{SwapFailure, SwapInUse, SwapItem, SwapOpenings, Wanted};
pub use swap_room::{SWAP_LEVELS_MAX, SwapRoom};
pub use tuning::Tuning;
