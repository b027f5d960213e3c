//! Brings pages into memory that other processes access by process_vm_readv and
//! process_vm_writev (gate/peers.rs), and keeps them there meanwhile.
//!
//! ```text
//! balancer -- a request, and no thread --> "bring" thread: pins pages until the other is done
//!                                            \- no request for some time: ends
//! ```

use crate::process::{Process, SPACE, running};
use highwater_mm::{Fault, Pin};
use highwater_os::spawn;
use highwater_session::{Budget, Request, Share};
use highwater_uffd::Uffd;
use highwater_units::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::Duration;

/// How long the thread waits for another request.
const IDLE: Duration = Duration::from_secs(1);

/// Starts a thread if there is a request and no thread. Without one for lack of memory, the next
/// look tries again.
pub(crate) fn answer_requests(process: &'static Process, share: &'static Arc<Share>) {
    if share.requested().is_none() || process.brings.swap(true, AcqRel) {
        return;
    }
    let answer = move || {
        while let Some(posted) = share.wait_requested(IDLE) {
            let pins = process.pin(posted.request);
            if pins.is_empty() { share.refuse(posted) } else { share.hold(posted) }
        }
        process.brings.store(false, Release);
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
                // Also of a page that is mapped: it may be protected while those around it leave.
                let served = self.manager.fault(part.space, fault);
                pinned = served.and_then(|_| self.manager.pin(part.space, part.vpn, access)).ok();
            });
            pinned
        };
        let addresses = (first..first + count).map(|page| page as usize * PAGE_SIZE);
        addresses.take_while(|address| self.holds(*address)).map_while(pin).collect()
    }
}

/// Calls `act` while process `pid` holds pages in memory. `None`: it does not.
pub(crate) fn while_held<R>(pid: u32, request: Request, act: impl FnOnce() -> R) -> Option<R> {
    let process = running()?;
    if let Some(held) = process.share.as_ref().and_then(|share| share.request(pid, request)) {
        let done = act();
        drop(held);
        return Some(done);
    }
    let budget = process.others.of(pid, || process.in_helper(|| Budget::of_process(pid)))?;
    let held = budget.request(pid, request)?;
    let done = act();
    drop(held);
    Some(done)
}
