//! Memory that the kernel pages, with its counters in Highwater's terms.

use super::{Mapping, Unavailable};
use crate::workload::Service;
use crate::workload::extent::Extent;
use crate::workload::host::Host;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_platform::LockStatistics;
use highwater_units::Bytes;
use procfs::process::Process;
use procfs::{ProcError, ProcResult};

/// Where pages are read from and written to, which decides how they are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Not counted: memory without limit.
    None,
    /// A swap device of our own, by its name among block devices.
    Device(String),
    /// A file: bytes this process read, and bytes it made dirty (written back later, by others).
    File,
}

/// Bytes in a sector of /proc/diskstats, on any device.
const SECTOR_SIZE: u64 = 512;

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
        let (bytes_in, bytes_out) = match &self.traffic {
            Traffic::None => (0, 0),
            Traffic::Device(name) => {
                let disks = procfs::diskstats()?;
                let ours = disks.iter().find(|disk| disk.name == *name);
                let ours = ours.ok_or_else(|| ProcError::NotFound(Some(name.into())))?;
                (ours.sectors_read * SECTOR_SIZE, ours.sectors_written * SECTOR_SIZE)
            }
            Traffic::File => {
                let io = process.io()?;
                (io.read_bytes, io.write_bytes)
            }
        };
        let mut snapshot = Snapshot::empty();
        for (counter, count) in [
            (Counter::PgFault, stat.minflt + stat.majflt),
            (Counter::PgMajFault, stat.majflt),
            (Counter::PswpIn, Bytes(bytes_in).pages()),
            (Counter::PswpOut, Bytes(bytes_out).pages()),
        ] {
            snapshot.counters[counter as usize] = count;
        }
        Ok(snapshot)
    }
}

impl Service for Kernel {
    type Target = Extent;
    type World = Host;

    fn target(&self) -> &Extent {
        self.mapping.extent()
    }

    fn world(&self) -> &Host {
        &Host
    }

    fn counters(&self) -> Snapshot {
        self.read_counters().expect("/proc could be read when this began")
    }

    fn locks(&self) -> Option<LockStatistics> {
        None
    }
}
