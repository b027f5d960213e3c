//! One run in this process: whatever manages the memory, the same workload.

use super::{Platform, Pmbench, Trouble, Visits, name_of};
use highwater_devices::{SIZE_MIN, Spec};
use highwater_lab::peer::{Kernel, Mapping, Order, Traffic, Unavailable, cgroup};
use highwater_lab::subject::{Faults, Guards, ServedBy, Setup};
use highwater_lab::workload::Service;
use highwater_lab::workload::figures::Figures;
use highwater_lab::workload::pmbench;
use highwater_mm::Config;
use highwater_units::Bytes;
use serde::{Deserialize, Serialize};

/// A run's figures and whose they are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// What managed the memory.
    pub(super) subject: String,
    /// What was measured.
    pub(super) figures: Figures,
}

/// Runs the workload on the platform asked for.
pub(super) fn run(args: &Pmbench) -> Result<Run, Trouble> {
    if let Some(dir) = &args.join_cgroup {
        cgroup::join(dir).map_err(setup)?;
    }
    match args.platform {
        Platform::Os => measure(args, &Guards::start(&args.setup()?).map_err(Trouble::Setup)?),
        Platform::Uffd => measure(args, &faults(args)?),
        Platform::None => measure(args, &anonymous(args).map_err(setup)?),
        Platform::Mmap => measure(args, &file(args).map_err(setup)?),
    }
}

fn setup(reason: Unavailable) -> Trouble {
    Trouble::Setup(reason.to_string())
}

fn faults(args: &Pmbench) -> Result<Faults, Trouble> {
    let mapping = match args.mapping {
        super::Mapping::Auto => None,
        super::Mapping::Move => Some(highwater_uffd::Mapping::Move),
        super::Mapping::Copy => Some(highwater_uffd::Mapping::Copy),
    };
    let served_by = if args.in_thread { ServedBy::InThread } else { ServedBy::Handlers };
    Faults::start(&args.setup()?, mapping, served_by).map_err(Trouble::Setup)
}

fn anonymous(args: &Pmbench) -> Result<Kernel, Unavailable> {
    let traffic = args.swap_device.clone().map_or(Traffic::None, Traffic::Device);
    Kernel::new(Mapping::anonymous(args.set)?, traffic)
}

fn file(args: &Pmbench) -> Result<Kernel, Unavailable> {
    let order = match args.pattern {
        Visits::Uniform | Visits::Normal => Order::Random,
        Visits::Sequential => Order::Ascending,
    };
    Kernel::new(Mapping::file(&args.dir, args.set, order)?, Traffic::File)
}

impl Pmbench {
    /// How Highwater is to be set up.
    fn setup(&self) -> Result<Setup, Trouble> {
        let parse = |text: &String| Spec::parse(text).map_err(Trouble::Setup);
        let mut swap = self.swap.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if swap.is_empty() {
            // The set fits once whole; clean copies in swap need no more than that.
            swap.push(Spec::Ram { size: Bytes(self.set.0.max(SIZE_MIN.0)) });
        }
        let config = Config { kswapd_threads: self.kswapd.into(), ..Config::default() };
        Ok(Setup { memory: self.memory, set: self.set, swap, config })
    }
}

fn measure<S: Service>(args: &Pmbench, service: &S) -> Result<Run, Trouble> {
    let outcome = pmbench::run(service, &args.config());
    let outcome = outcome.map_err(|failure| Trouble::Run(failure.to_string()))?;
    Ok(Run { subject: name_of(&args.platform), figures: Figures::of(&outcome) })
}
