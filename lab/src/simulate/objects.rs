//! Workloads of objects on a simulated machine: slabs over its memory, as numbers; no manager.

use super::experiment::{Experiment, TIME, Workload};
use super::prepare::Prepared;
use crate::subject::Virtual;
use crate::workload::objects::{hackbench, mmap1};
use crate::workload::outcome::Outcome;
use highwater_mm::slab::{PageRange, Slabs};
use highwater_platform::FrameRange;
use highwater_sim::{InjectedFaults, Sim, SimConfig, Vm};
use highwater_units::{Nanos, NodeId, Pfn};
use std::sync::Arc;
use std::time::Duration;

/// Runs the workload, which can fail only by a panic.
pub(super) fn carry_out(vm: &Vm, experiment: &Experiment, prepared: &Prepared) -> Outcome {
    let settings = &experiment.settings;
    let (recency, injected_faults) = (settings.recency, Arc::new(InjectedFaults::default()));
    let sim =
        Sim::new(vm, SimConfig { frames: vec![0], devices: Vec::new(), recency, injected_faults });
    let source = PageRange::new(Arc::new(sim), &ranges(&prepared.frames));
    let slabs = Slabs::new(source, &settings.config);
    let warm_up = Duration::from_secs_f64(settings.warm_up);
    let time = experiment.time.map_or(TIME, |time| Duration::from_nanos(time.0));
    let (tasks, work, world) = (experiment.tasks, settings.work, Virtual(vm));
    let outcome = match experiment.workload {
        Workload::Hackbench => {
            let work = work.unwrap_or(hackbench::WORK);
            let config = hackbench::Config { groups: tasks, work, warm_up, time };
            hackbench::run(&slabs, &world, &config)
        }
        _ => {
            let grace = Nanos((settings.grace * 1e6) as u64);
            let work = work.unwrap_or(mmap1::WORK);
            let switch = Nanos(experiment.machine.costs.context_switch);
            let config = mmap1::Config { threads: tasks, work, grace, switch, warm_up, time };
            mmap1::run(&slabs, &world, &config)
        }
    };
    outcome.expect("there is room for caches")
}

/// The numbers of each node's frames.
fn ranges(frames: &[u32]) -> Vec<FrameRange> {
    let mut first = Pfn(0);
    let range = |(node, frames): (usize, &u32)| {
        let range = FrameRange { node: NodeId(node as u8), first, frames: *frames };
        first = first.offset(*frames);
        range
    };
    frames.iter().enumerate().map(range).collect()
}
