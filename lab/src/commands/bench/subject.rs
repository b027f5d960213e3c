//! One run in this process: whatever manages the memory, the same workload.

use super::common::{self, BenchError, Common, Platform, name_of};
use super::job::{Data, Job};
use highwater_devices::{Area, Injection, SIZE_MIN, Spec};
use highwater_lab::peer::{
    Cache, Kernel, Mapping, Order, Prepared, Reads, Traffic, Unavailable, cgroup, disk,
};
use highwater_lab::subject::{Copies, Faults, Guards, ServedBy, Setup};
use highwater_lab::workload::Service;
use highwater_lab::workload::figures::Figures;
use highwater_mm::Config;
use highwater_mm::config::KhugepagedConfig;
use highwater_os::HugePages;
use highwater_units::Bytes;
use serde::{Deserialize, Serialize};

/// A run's figures and whose they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// What managed the memory.
    pub(super) subject: String,
    /// What was measured.
    pub(super) figures: Figures,
}

/// Runs the workload on the platform of the command line.
pub(super) fn run(job: &impl Job) -> Result<Run, BenchError> {
    let args = job.common();
    if let Some(dir) = &args.join_cgroup {
        cgroup::join(dir).map_err(setup)?;
    }
    if job.data() == Data::File {
        return of_file(job);
    }
    match args.platform {
        Platform::Os => measure(job, &Guards::start(&args.setup()?).map_err(BenchError::Setup)?),
        Platform::Uffd => measure(job, &faults(args)?),
        Platform::None => measure(job, &anonymous(args).map_err(setup)?),
        Platform::Mmap => measure(job, &file(args, job.order()).map_err(setup)?),
        Platform::IoUring => bare_disk(job),
        Platform::Buffered | Platform::Direct => {
            let name = name_of(&args.platform);
            Err(BenchError::Setup(format!("--peer {name} reads files: give it to bench streams")))
        }
    }
}

/// A run over a file that is made for it.
fn of_file(job: &impl Job) -> Result<Run, BenchError> {
    let args = job.common();
    let prepared = || Prepared::new(&args.dir, args.set, args.seed).map_err(setup);
    let read = |cache| Reads::new(prepared()?, cache).map_err(setup);
    match args.platform {
        Platform::Os => {
            let file = prepared()?;
            let started = Copies::start(&args.setup()?, &file.path());
            measure(job, &started.map_err(BenchError::Setup)?)
        }
        Platform::Buffered => measure(job, &read(Cache::Through)?),
        Platform::Direct => measure(job, &read(Cache::Past)?),
        other => Err(BenchError::Setup(format!(
            "streams on {}: give --platform os, and --peer buffered or direct",
            name_of(&other)
        ))),
    }
}

fn bare_disk(job: &impl Job) -> Result<Run, BenchError> {
    let args = job.common();
    let mixed =
        || BenchError::Setup("--peer io-uring: give a workload of reads or writes alone".into());
    let pass = job.disk_pass().ok_or_else(mixed)?;
    let outcome = disk::run(&args.dir, args.set, pass, args.seed).map_err(|error| match error {
        disk::DiskError::Setup(reason) => setup(reason),
        disk::DiskError::Run(failure) => BenchError::Run(failure.to_string()),
        disk::DiskError::Transfer(what) => BenchError::Run(what),
    })?;
    Ok(Run { subject: name_of(&args.platform), figures: Figures::of(&outcome) })
}

fn setup(reason: Unavailable) -> BenchError {
    BenchError::Setup(reason.to_string())
}

fn faults(args: &Common) -> Result<Faults, BenchError> {
    let mapping = match args.mapping {
        common::Mapping::Auto => None,
        common::Mapping::Move => Some(highwater_uffd::Mapping::Move),
        common::Mapping::Copy => Some(highwater_uffd::Mapping::Copy),
    };
    let served_by = if args.in_thread { ServedBy::InThread } else { ServedBy::Handlers };
    Faults::start(&args.setup()?, mapping, served_by).map_err(BenchError::Setup)
}

fn anonymous(args: &Common) -> Result<Kernel, Unavailable> {
    let traffic = args.swap_device.clone().map_or(Traffic::None, Traffic::Device);
    Kernel::new(Mapping::anonymous(args.set)?, traffic)
}

fn file(args: &Common, order: Order) -> Result<Kernel, Unavailable> {
    Kernel::new(Mapping::file(&args.dir, args.set, order)?, Traffic::File)
}

impl Common {
    /// How Highwater is to be set up.
    fn setup(&self) -> Result<Setup, BenchError> {
        let parse =
            |text: &String| Area::parse_with(text, Injection::Allowed).map_err(BenchError::Setup);
        let mut swap = self.swap.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if swap.is_empty() {
            // The set fits once whole; clean copies in swap need no more than that.
            swap.push(Area::new(Spec::Ram { size: Bytes(self.set.0.max(SIZE_MIN.0)) }));
        }
        let usual = Config::default();
        let pages_to_scan = self.khugepaged.unwrap_or(usual.khugepaged.pages_to_scan);
        let khugepaged = KhugepagedConfig { pages_to_scan, ..usual.khugepaged };
        let config = Config {
            kswapd_threads: self.kswapd,
            large_pages: self.large_pages,
            khugepaged,
            ..usual
        };
        let huge_pages = HugePages::Auto;
        Ok(Setup { memory: self.memory, set: self.set, swap, seal: self.seal, config, huge_pages })
    }
}

fn measure<S: Service + Sync>(job: &impl Job, service: &S) -> Result<Run, BenchError> {
    let outcome = job.run(service).map_err(|failure| BenchError::Run(failure.to_string()))?;
    Ok(Run { subject: name_of(&job.common().platform), figures: Figures::of(&outcome) })
}
