//! Memory that the kernel pages, with its counters in Highwater's terms.

use super::{Mapping, Unavailable};
use crate::workload::Service;
use crate::workload::extent::Extent;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_units::PAGE_SIZE;
use procfs::ProcResult;
use procfs::process::Process;

/// Where pages come from and go to, and so what counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Swap devices: pswpin and pswpout of the machine, as no process has its own.
    Swap,
    /// A file: bytes this process read, and bytes it made dirty (written back later, by others).
    File,
}

/// A mapping served by the kernel. Fault counts are this process's.
pub struct Kernel {
    mapping: Mapping,
    traffic: Traffic,
}

impl Kernel {
    /// Serves `mapping`.
    ///
    /// # Errors
    /// /proc cannot be read: there would be nothing to count.
    pub fn new(mapping: Mapping, traffic: Traffic) -> Result<Kernel, Unavailable> {
        let kernel = Kernel { mapping, traffic };
        kernel.read_counters().map_err(|reason| Unavailable::because("/proc", reason))?;
        Ok(kernel)
    }

    fn read_counters(&self) -> ProcResult<Snapshot> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let (pages_in, pages_out) = match self.traffic {
            Traffic::Swap => {
                let all = procfs::vmstat()?;
                let pages = |name| all.get(name).map_or(0, |&count| count as u64);
                (pages("pswpin"), pages("pswpout"))
            }
            Traffic::File => {
                let io = process.io()?;
                let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
                (pages(io.read_bytes), pages(io.write_bytes))
            }
        };
        let mut snapshot = Snapshot::empty();
        for (counter, count) in [
            (Counter::PgFault, stat.minflt + stat.majflt),
            (Counter::PgMajFault, stat.majflt),
            (Counter::PswpIn, pages_in),
            (Counter::PswpOut, pages_out),
        ] {
            snapshot.counters[counter as usize] = count;
        }
        Ok(snapshot)
    }
}

impl Service for Kernel {
    type Target = Extent;

    fn target(&self) -> &Extent {
        self.mapping.extent()
    }

    fn counters(&self) -> Snapshot {
        self.read_counters().expect("/proc could be read when this began")
    }
}
