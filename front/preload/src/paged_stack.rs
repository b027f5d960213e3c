//! Makes stacks in paged memory present before the library takes a lock.
//!
//! ```text
//! Blocked::now, touch_stack (signals.rs) --- is this stack paged? --> touch_below
//! ```
//! A thread that holds the regions' lock, and faults on a new page of its own stack, would wait for
//! the helper, which needs that lock. Stacks of coroutines are often blocks of malloc.
//!
//! Locking: the regions' lock is taken and released. The stack that this needs is touched before.

use crate::gate;
use crate::process::{self, Process};
use crate::signals::{self, Stacks};
use highwater_units::Vpn;
use std::ptr::with_exposed_provenance_mut;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Maximum stack of the library while it holds a lock.
const STACK_BYTES: usize = 8 << 10;

/// Stack that is needed to look a region up.
const STACK_BYTES_MIN: usize = 1 << 10;

/// Touches paged stacks from now on.
pub(crate) fn learn() {
    signals::touch(Stacks { hold: |address| holding(address).is_some(), touch_below });
}

fn holding(address: usize) -> Option<&'static Process> {
    process::already_running().filter(|process| process.holds(address))
}

/// Touches the stack that the library needs below an address. The pages below a short stack are not
/// touched, for they may be closed, or free. Writes to the pages of an array would not do: the
/// compiler keeps single bytes of it.
#[cold]
#[inline(never)]
fn touch_below(here: usize) {
    let Some(process) = holding(here) else { return };
    touch(here - STACK_BYTES_MIN);
    let regions = process.regions.read().unwrap_or_else(PoisonError::into_inner);
    let region = regions.find(process.page(here)).map(|region| region.range);
    drop(regions);
    let Some(region) = region else { return };
    let first = process.page(here - STACK_BYTES).max(region.first);
    let below = (first.0..process.page(here).0).rev().map(|page| process.address(Vpn(page)).addr());
    for page in below {
        if !gate::is_writable(page) {
            return;
        }
        touch(page);
    }
}

/// Makes a page present, and changes nothing. Not a fetch_or of 0: the compiler makes that a load.
fn touch(address: usize) {
    let byte = with_exposed_provenance_mut::<u8>(address);
    // SAFETY: a byte of this thread's stack, which nothing else accesses; an exchange of 0 for 0
    // changes nothing.
    let _ = unsafe { AtomicU8::from_ptr(byte) }.compare_exchange(0, 0, Relaxed, Relaxed);
}
