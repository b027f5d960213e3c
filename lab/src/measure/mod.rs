//! Costs of this computer: loops that measure them, and the machine file made of them.
//!
//! ```text
//! Shape::of_host ── CPUs to run on ──> times: lines, pages, tasks, flush ──> costs ──> file
//!   /sys, /proc                         medians of short runs            differences   text
//! ```
//! Threads are pinned to CPUs. Work of one thread is measured in CPU time, so that other programs
//! disturb it little; for work between two threads, the median excludes runs that were interrupted.
//! Threads that are measured share no locks, only atomic words.

mod costs;
mod file;
mod flush;
mod lines;
mod pages;
mod runs;
mod shape;
mod tasks;

pub use file::{Machine, Swap, Written};
pub use shape::Shape;

use crate::peer::Unavailable;
use highwater_units::CpuId;
use std::time::Duration;

/// Measured times, in ns unless stated otherwise. `None`: the computer has too few CPUs for it, or
/// the kernel does not offer it.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    atomic: f64,
    lock: f64,
    line_near: Option<f64>,
    line_far: Option<f64>,
    handover_near: Option<f64>,
    handover_far: Option<f64>,
    /// A ratio.
    smt_slowdown: Option<f64>,
    memory: f64,
    scan: f64,
    zero_page: f64,
    copy_page: f64,
    /// A ratio.
    remote_factor: Option<f64>,
    /// Pages that all CPUs copy together, in 10^6 bytes per second.
    copies_mb_per_s: f64,
    /// The first write to a page.
    touch: f64,
    /// A page of many that are mapped at once.
    populate: Option<f64>,
    drop: f64,
    flush: Option<flush::Flush>,
    shootdown_target: Option<f64>,
    switch: f64,
    woken: Option<tasks::Woken>,
}

/// The most measurements that there are.
const PARTS: u32 = 20;

/// Makes all measurements, in about this time.
fn times(shape: &Shape, time: Duration) -> Result<Times, Unavailable> {
    let part = time / PARTS;
    let [near, far, siblings] = [shape.near(), shape.far(), shape.siblings()];
    let transfer = |cpus: [CpuId; 2]| lines::transfer(part, cpus);
    let handover = |cpus: [CpuId; 2]| lines::handover(part, cpus);
    let first = shape.first();
    let memory = runs::on(first, || pages::memory(part));
    let space = runs::on(first, || pages::space(part))?;
    let flush = near.map(|[own, other]| flush::flush(part, own, &[other])).transpose()?;
    Ok(Times {
        atomic: runs::on(first, || lines::atomic(part)),
        lock: runs::on(first, || lines::lock(part)),
        line_near: near.map(transfer),
        line_far: far.map(transfer),
        handover_near: near.map(handover),
        handover_far: far.map(handover),
        smt_slowdown: siblings.map(|cpus| lines::slowdown(part, cpus)),
        memory: memory.random,
        scan: memory.scan,
        zero_page: memory.zero_page,
        copy_page: memory.copy_page,
        remote_factor: shape.remote().map(|cpus| pages::remote_factor(part, cpus)),
        copies_mb_per_s: pages::copies_mb_per_s(part, &shape.ids()),
        touch: space.touch,
        populate: space.populate,
        drop: space.drop,
        flush,
        shootdown_target: further(part, shape, flush)?,
        switch: runs::on(first, || tasks::switch(part, first)),
        woken: near.map(|cpus| tasks::woken(part, cpus)),
    })
}

/// The time that one more CPU adds to a flush.
fn further(
    time: Duration,
    shape: &Shape,
    one: Option<flush::Flush>,
) -> Result<Option<f64>, Unavailable> {
    let (Some([own, others @ ..]), Some(one)) = (shape.three(), one) else { return Ok(None) };
    let two = flush::flush(time, own, &others)?;
    Ok(Some(two.others - one.others))
}
