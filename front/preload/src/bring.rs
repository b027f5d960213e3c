//! Brings pages that other processes access by process_vm_readv and process_vm_writev
//! (gate/peers.rs) into memory, and keeps them there meanwhile.
//!
//! ```text
//! balancer -- the first request --> "bring" thread: pins pages until the other process is done
//! ```

use crate::process::{Process, SPACE, running};
use highwater_mm::{Fault, Pin};
use highwater_os::spawn;
use highwater_session::{Budget, Denied, Held, Request, Share, leader_of};
use highwater_uffd::Uffd;
use highwater_units::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::Duration;

/// How long the thread sleeps at a time.
const NAP: Duration = Duration::from_secs(3600);

/// Starts the thread at the first request. If there is no memory for it, the balancer's next look
/// tries again.
pub(crate) fn answer_requests(process: &'static Process, share: &'static Arc<Share>) {
    if share.requested().is_none() || process.brings.swap(true, AcqRel) {
        return;
    }
    let answer = move || loop {
        let Some(posted) = share.wait_requested(NAP) else { continue };
        let pins = process.pin(posted.request);
        if pins.is_empty() { share.refuse(posted) } else { share.hold(posted, pins.len() as u64) }
    };
    if spawn("bring", Box::new(answer)).is_err() {
        process.brings.store(false, Release);
    }
}

impl Process {
    /// Pins the requested pages, up to the first that cannot be.
    fn pin(&self, Request { first, count, access }: Request) -> Vec<Pin<'_, Uffd>> {
        let pin = |address: usize| {
            let mut pinned = None;
            self.owner.keep(SPACE, self.page(address), &mut |part| {
                let fault = Fault { vpn: part.vpn, access, within: part.within };
                // Also for a mapped page: it may be protected while pages around it are evicted.
                let served = self.manager.fault(part.space, fault);
                pinned = served.and_then(|_| self.manager.pin(part.space, part.vpn, access)).ok();
            });
            pinned
        };
        let addresses = (first..first + count).map(|page| page as usize * PAGE_SIZE);
        addresses.take_while(|address| self.holds(*address)).map_while(pin).collect()
    }
}

/// Calls `act` with the number of pages that process `pid`, or the process of thread `pid`, holds
/// in memory, while it holds them. `None`: it did not hold them long enough, and the act has to be
/// repeated.
///
/// # Errors
/// The process holds no page.
pub(crate) fn while_held<R>(
    pid: u32,
    request: Request,
    mut act: impl FnMut(u64) -> R,
) -> Result<Option<R>, Denied> {
    let process = running().ok_or(Denied::Absent)?;
    let mut of = |pid: u32| {
        let share = process.share.as_ref().ok_or(Denied::Absent)?;
        match share.request(pid, request) {
            Err(Denied::Absent) => {
                let open = || process.in_helper(|| Budget::of_process(pid));
                let budget = process.others.of(pid, open).ok_or(Denied::Absent)?;
                budget.request(pid, request).map(|held| during(held, &mut act))
            }
            held => held.map(|held| during(held, &mut act)),
        }
    };
    of(pid).or_else(|denied| match process.in_helper(|| leader_of(pid)) {
        Some(leader) if denied == Denied::Absent && leader != pid => of(leader),
        _ => Err(denied),
    })
}

fn during<R>(held: Held<'_>, act: &mut impl FnMut(u64) -> R) -> Option<R> {
    let done = act(held.count());
    held.end().then_some(done)
}
