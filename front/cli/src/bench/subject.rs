//! One run in this process: whatever manages the memory, the same workload.

use super::{Platform, Pmbench, Trouble, Visits, name_of};
use highwater_lab::peer::{Kernel, Mapping, Order, Traffic, Unavailable, cgroup};
use highwater_lab::workload::Service;
use highwater_lab::workload::figures::Figures;
use highwater_lab::workload::pmbench;
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
        Platform::Os | Platform::Uffd => Err(Trouble::Setup(format!(
            "--platform {} is not part of this build",
            name_of(&args.platform)
        ))),
        Platform::None => measure(args, &anonymous(args).map_err(setup)?),
        Platform::Mmap => measure(args, &file(args).map_err(setup)?),
    }
}

fn setup(reason: Unavailable) -> Trouble {
    Trouble::Setup(reason.to_string())
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

fn measure<S: Service>(args: &Pmbench, service: &S) -> Result<Run, Trouble> {
    let outcome = pmbench::run(service, &args.config());
    let outcome = outcome.map_err(|failure| Trouble::Run(failure.to_string()))?;
    Ok(Run { subject: name_of(&args.platform), figures: Figures::of(&outcome) })
}
