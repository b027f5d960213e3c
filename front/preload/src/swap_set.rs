//! Follows the list of the run's swap devices: opens those that its user adds, and moves pages off
//! those that are removed.
//!
//! ```text
//! "balance" thread: the list has changed --> "swapset" thread, until all changes are carried out
//!   decide: what the user wants, and the part that the device has --> a Task
//! ```
//! A device of the list has the number of its place, after the devices of ancestors. A removal is
//! made step by step, so that another change is noticed meanwhile. Slots that forked children read
//! stay until the children have left them: while a device is removed, each process also leaves the
//! devices of its ancestors, and lets the ancestors know.
//!
//! Locking: devices are added, and pipes of ancestors closed, while no fork is under way.

use crate::forking::exclude;
use crate::process::{Process, SPACE};
use crate::remote::Remote;
use crate::swap_room;
use highwater_devices::{Area, Device, RemoteOptions};
use highwater_mm::{FaultError, SwapPart, Swapoff, SwapoffOutcome};
use highwater_os::{spawn, sys};
use highwater_session::{OWNER_FILE, Settings, Share, SwapFailure, SwapItem, Wanted};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long the thread waits for others: children that read slots, or a device that is slow.
const PAUSE: Duration = Duration::from_millis(5);

/// The devices of a new process by their places; `None`: vacant.
fn areas(settings: &Settings, share: Option<&Share>) -> Vec<Option<Area>> {
    let used = |item: Option<SwapItem>| {
        item.filter(|item| item.wanted == Wanted::Used).map(|item| item.area)
    };
    match share {
        Some(share) => share.swap_items().1.into_iter().map(used).collect(),
        // A budget of its own: nobody changes its devices.
        None => settings.swap.iter().cloned().map(Some).collect(),
    }
}

/// Opens the devices of a new process, which goes without an added one that it cannot open.
///
/// # Errors
/// A device that the run began with cannot be opened.
pub(crate) fn open_all(
    settings: &Settings,
    share: Option<&Share>,
) -> Result<Vec<Option<Box<dyn Device>>>, String> {
    let one = |area: Area| match open(&area, settings) {
        Err(_) if !settings.swap.contains(&area) => Ok(None),
        opened => opened.map(Some),
    };
    areas(settings, share).into_iter().map(|area| area.map_or(Ok(None), one)).collect()
}

/// Opens a device of the list.
///
/// # Errors
/// One line that says what is wrong.
fn open(area: &Area, settings: &Settings) -> Result<Box<dyn Device>, String> {
    let run = settings.run_dir.as_ref().map(|dir| dir.join(OWNER_FILE));
    let remote = RemoteOptions { run, ..settings.remote.clone() };
    let opened = area.open_wrapped(settings.seal, &remote, &Remote::of);
    opened.map_err(|error| error.to_string())
}

/// The next act on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Nothing,
    /// Open it.
    Open,
    /// Use it again: it was removed.
    Return,
    /// Use it again: its removal was cancelled.
    Stay,
    /// Remove it.
    Begin,
    /// Go on.
    Step,
}

fn decide(wanted: Wanted, part: SwapPart) -> Task {
    match (wanted, part) {
        (Wanted::Used, SwapPart::Vacant) => Task::Open,
        (Wanted::Used, SwapPart::Removed) => Task::Return,
        (Wanted::Used, SwapPart::Leaving) => Task::Stay,
        (Wanted::Used, SwapPart::Used) => Task::Nothing,
        (Wanted::Gone, SwapPart::Vacant | SwapPart::Removed) => Task::Nothing,
        (Wanted::Gone, SwapPart::Used) => Task::Begin,
        (Wanted::Gone, SwapPart::Leaving) => Task::Step,
    }
}

/// How far the work on a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// It is as the user wants it.
    Done,
    /// Others have to act first.
    Waits,
    /// There is more to do.
    Moves,
}

/// Starts a thread that follows the list, if the list has changed and no thread does it yet. If
/// there is no memory for a thread, the balancer's next look tries again.
pub(crate) fn follow_changes(process: &'static Process, share: &'static Arc<Share>) {
    if share.has_followed_swap() || process.follows_swap.swap(true, AcqRel) {
        return;
    }
    let follow = move || {
        Follower { process, share, removals: Vec::new(), refused: Vec::new() }.run();
        process.follows_swap.store(false, Release);
    };
    if spawn("swapset", Box::new(follow)).is_err() {
        process.follows_swap.store(false, Release);
    }
}

struct Follower {
    process: &'static Process,
    share: &'static Arc<Share>,
    /// Removals under way.
    removals: Vec<Swapoff>,
    /// Devices that cannot be opened.
    refused: Vec<u8>,
}

impl Follower {
    /// Carries out all changes.
    fn run(mut self) {
        self.process.adopt();
        while !self.share.has_followed_swap() {
            let (change, items) = self.share.swap_items();
            let each = items.iter().enumerate();
            let each = each.filter_map(|(place, item)| Some((place, item.as_ref()?)));
            let own = each.map(|(place, item)| self.carry_out(place, item)).max();
            let is_leaving = |item: &Option<SwapItem>| {
                item.as_ref().is_some_and(|item| item.wanted == Wanted::Gone)
            };
            let leaving = items.iter().rposition(is_leaving);
            let inherited = leaving.map_or(Progress::Done, |place| self.leave(place));
            match own.unwrap_or(Progress::Done).max(inherited) {
                Progress::Done => self.share.follow_swap(change),
                Progress::Waits => sys::sleep(PAUSE),
                Progress::Moves => {}
            }
        }
    }

    fn carry_out(&mut self, place: usize, item: &SwapItem) -> Progress {
        let manager = &self.process.manager;
        let device = (self.process.inherited + place) as u8;
        match decide(item.wanted, manager.swap_part(device)) {
            Task::Nothing => {
                self.removals.retain(|removal| removal.device() != device);
                // If it is wanted again, it is opened again.
                self.refused.retain(|refused| *refused != device);
                Progress::Done
            }
            Task::Open => self.open(place, device, item),
            Task::Return => {
                // An error: another thread has done it.
                let _ = manager.swapon(device);
                Progress::Moves
            }
            Task::Stay => {
                manager.cancel_swapoff(device);
                Progress::Moves
            }
            Task::Begin => {
                self.removals.retain(|removal| removal.device() != device);
                match manager.swapoff(device) {
                    Ok(begun) => self.removals.push(begun),
                    Err(refused) => {
                        self.share.fail_swap(place, SwapFailure::NoRoom(refused.missing));
                    }
                }
                Progress::Moves
            }
            Task::Step => self.step(place, device),
        }
    }

    /// Opens a device. A process that cannot goes without it.
    fn open(&mut self, place: usize, device: u8, item: &SwapItem) -> Progress {
        if self.refused.contains(&device) {
            return Progress::Done;
        }
        let Process { manager, settings, .. } = self.process;
        let opened = open(&item.area, settings).and_then(|opened| {
            swap_room::share_one(self.share, item.level, opened.as_ref()).map(|()| opened)
        });
        let opening = opened.map(|opened| {
            exclude(|| {
                manager.platform().devices().add(device, opened);
                // It was vacant, and has pages.
                let _ = manager.swapon(device);
            });
        });
        if opening.is_err() {
            self.refused.push(device);
        }
        self.share.note_swap_opening(place, opening.as_ref().copied().map_err(String::as_str));
        Progress::Moves
    }

    fn step(&mut self, place: usize, device: u8) -> Progress {
        let manager = &self.process.manager;
        let Some(removal) = self.removals.iter_mut().find(|it| it.device() == device) else {
            // Begun by a thread that has ended: anew.
            manager.cancel_swapoff(device);
            return Progress::Moves;
        };
        self.process.reporter.children().release_ended(manager);
        match manager.swapoff_step(removal) {
            SwapoffOutcome::Moving => Progress::Moves,
            SwapoffOutcome::Held => Progress::Waits,
            SwapoffOutcome::Removed => Progress::Moves,
            SwapoffOutcome::NoRoom { left } => {
                self.share.fail_swap(place, SwapFailure::NoRoom(left));
                Progress::Moves
            }
            SwapoffOutcome::Failed { left, .. } => {
                self.share.fail_swap(place, SwapFailure::Unreadable(left));
                Progress::Moves
            }
        }
    }

    /// Moves the contents off the devices of ancestors, and closes the pipes that tell the
    /// ancestors that this process may read their slots.
    fn leave(&self, place: usize) -> Progress {
        let process = self.process;
        let holds = || process.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if process.inherited == 0 || holds().is_empty() {
            return Progress::Done;
        }
        match process.manager.leave_devices(SPACE, process.inherited as u8) {
            Ok(()) => {
                exclude(|| holds().drain(..).for_each(close));
                Progress::Moves
            }
            Err(error) => {
                let pages = process.manager.platform().pages_in_use();
                self.share.fail_swap(
                    place,
                    match error {
                        FaultError::OutOfMemory => SwapFailure::NoRoom(pages),
                        _ => SwapFailure::Unreadable(pages),
                    },
                );
                Progress::Waits
            }
        }
    }
}

/// Closes the end of an ancestor's pipe, which is on no list any more.
fn close(hold: RawFd) {
    // SAFETY: it was opened for this process, which has no other use for it.
    drop(unsafe { OwnedFd::from_raw_fd(hold) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_becomes_what_the_user_wants() {
        use SwapPart::{Leaving, Removed, Used, Vacant};
        for (part, to_use, to_remove) in [
            (Vacant, Task::Open, Task::Nothing),
            (Used, Task::Nothing, Task::Begin),
            (Leaving, Task::Stay, Task::Step),
            (Removed, Task::Return, Task::Nothing),
        ] {
            let tasks = [Wanted::Used, Wanted::Gone].map(|wanted| decide(wanted, part));
            assert_eq!(tasks, [to_use, to_remove], "{part:?}");
        }
    }
}
