//! Adds and removes swap devices of a running session.
//!
//! ```text
//! add     open it once as a check -> into the list -> wait until all processes use it
//!                                                 \-> none of them can: off the list
//! remove  is there room elsewhere? -> off the list -> wait until all have moved their pages
//!                                                 \-> one has failed: all use it again
//! ```
//! The processes act on the list by themselves: a removal continues even if this command is ended.

use crate::Refusal;
use crate::session::Process;
use crate::swap::{in_memory, open};
use highwater_command::{counted, say_bare};
use highwater_devices::{Area, Seal, Server, Spec};
use highwater_mm::stats::Counter;
use highwater_session::{
    Budget, SWAP_LEVELS_MAX, SwapFailure, SwapInUse, SwapItem, SwapOpenings, Wanted,
};
use highwater_units::Bytes;
use std::io::IsTerminal;
use std::path::absolute;
use std::slice;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval between two checks of the list.
const LOOK: Duration = Duration::from_millis(10);
/// Interval between two checks of counters, and between two lines on a terminal.
const LINE: Duration = Duration::from_secs(1);
/// A removal is cancelled if for this long no process has read a page and no page has left the
/// device. Even a slow disk reads some pages in this time.
const STILL: Duration = Duration::from_secs(10);
/// A removal is cancelled if no page has left the device for this long. A child that moves pages
/// inherited from its parent off the device frees none of them before the last: this is the time
/// for 8 GiB at 30 MB/s.
const STUCK: Duration = Duration::from_secs(300);

/// Whether a text names a device: by its path, or by its specification with or without options.
fn names(text: &str, device: &Spec) -> bool {
    let path = match device {
        Spec::Dir { path, .. }
        | Spec::File { path, .. }
        | Spec::Nbd { server: Server::Unix { path }, .. } => Some(path),
        Spec::Redis { servers, .. } => match &servers[..] {
            [Server::Unix { path }] => Some(path),
            _ => None,
        },
        Spec::Ram { .. }
        | Spec::Zram { .. }
        | Spec::Nbd { .. }
        | Spec::Replicate { .. }
        | Spec::Tier { .. }
        | Spec::Flaky { .. } => None,
    };
    let is_path = absolute(text).is_ok_and(|text| path == Some(&text));
    is_path || Area::parse(text).is_ok_and(|given| given.spec == *device)
}

/// Refuses a device that cannot be added to a running session.
pub(super) fn check_new(area: &Area, budget: &Budget) -> Result<(), Refusal> {
    if let Spec::Tier { .. } = area.spec {
        let what = "a tier cannot be added to a running session";
        return Err(Refusal::new(what, "add both of its devices, with priorities"));
    }
    if let Spec::Redis { .. } | Spec::Nbd { .. } | Spec::Replicate { .. } = area.spec {
        let what = "servers and replicas cannot be added to a running session";
        return Err(Refusal::new(what, "give it to highwater run"));
    }
    let same = |item: &SwapItem| item.wanted == Wanted::Used && item.area.spec == area.spec;
    if budget.swap_items().iter().flatten().any(same) {
        let what = format!("{} is a swap device of this session already", area.spec);
        return Err(Refusal::new(what, "see 'highwater ctl swap'"));
    }
    // The session may encrypt the device, which has further requirements.
    open(area, Seal::On).map(drop)
}

/// Adds a device, and waits until all processes use it. Returns the line to print.
pub(super) fn add(area: &Area, budget: &Budget) -> Result<String, Refusal> {
    let is_back = |item: &SwapItem| item.wanted == Wanted::Gone && item.area == *area;
    let items = budget.swap_items();
    let known = items.iter().position(|item| item.as_ref().is_some_and(is_back));
    let change = match known {
        Some(place) => Some(budget.want_swap(place, Wanted::Used)),
        None => budget.add_swap(area),
    };
    let Some(change) = change else {
        let what = format!("a session has at most {SWAP_LEVELS_MAX} swap devices in its life");
        return Err(Refusal::new(what, "add one again that was removed, with the same size"));
    };
    await_all(change, budget);
    let all_have_looked = budget.swap_behind(change) == 0;
    let items = budget.swap_items();
    let is_it = |item: &SwapItem| item.area == *area;
    let place = items.iter().position(|item| item.as_ref().is_some_and(is_it));
    let openings = place.map(|place| (place, budget.swap_openings(place)));
    let cannot = match openings {
        Some((place, SwapOpenings { opened: 0, refused: 1.., reason })) if all_have_looked => {
            await_all(budget.want_swap(place, Wanted::Gone), budget);
            let what = format!("no process of the session can use {reason}");
            return Err(Refusal::new(what, "name a device that they can use"));
        }
        Some((_, SwapOpenings { refused: few @ 1.., reason, .. })) => {
            let few = counted(few, "process", "processes");
            Some(format!("; {few} cannot use it: {reason}"))
        }
        _ => None,
    };
    let is_in_memory = in_memory(slice::from_ref(area)).is_some();
    let warning = is_in_memory.then_some("; it is in memory, which the limit does not count");
    let (cannot, warning) = (cannot.unwrap_or_default(), warning.unwrap_or_default());
    Ok(format!("swap-add = {area}{cannot}{warning}\n"))
}

/// Waits until all processes have carried out a change, but not for stopped ones.
fn await_all(change: u64, budget: &Budget) {
    let began = Instant::now();
    while budget.swap_behind(change) > 0 && began.elapsed() < STILL {
        sleep(LOOK);
    }
}

/// The place in the list of the device that a text names, if it can be removed.
pub(super) fn check_old(text: &str, budget: &Budget) -> Result<usize, Refusal> {
    let used = budget.swap_in_use();
    let mut named = used.iter().filter(|device| names(text, &device.area.spec));
    let (Some(found), further) = (named.next(), named.next()) else {
        let is_level = |spec: &&Spec| spec.levels().into_iter().any(|level| names(text, level));
        if let Some(tier) = used.iter().map(|device| &device.area.spec).find(is_level) {
            return Err(tier_stays(format!("'{text}' is part of {tier}: a tier")));
        }
        let all: Vec<String> = used.iter().map(|device| device.area.spec.to_string()).collect();
        let what = format!("'{text}' is no swap device of this session");
        return Err(Refusal::new(what, format!("there are {}", all.join(", "))));
    };
    match (&found.area.spec, further) {
        (_, Some(_)) => {
            let what = format!("'{text}' names several swap devices");
            Err(Refusal::new(what, "name one by its path and size, as 'highwater ctl swap' does"))
        }
        (Spec::Tier { .. }, None) => Err(tier_stays("a tier".to_owned())),
        (_, None) if used.len() == 1 => {
            let what = format!("{} is the only swap device", found.area.spec);
            Err(Refusal::new(what, "add another one before, by swap-add=SPEC"))
        }
        (_, None) => Ok(found.place),
    }
}

fn tier_stays(it: String) -> Refusal {
    let what = format!("{it} cannot be removed from a running session");
    Refusal::new(what, "devices can that are given by themselves, such as --swap dir:/var/tmp:8G")
}

/// Pages of the processes on the device at `place`.
fn pages_on(place: usize, processes: &[Process]) -> u64 {
    let parts = processes.iter().filter_map(|process| process.parts.as_ref());
    parts.filter_map(|parts| parts.swaps.get(place)).map(|swap| swap.used).sum()
}

/// Pages for which memory and the devices at other places have room.
fn room_besides(place: usize, budget: &Budget) -> u64 {
    let used = budget.swap_in_use();
    let others = used.iter().filter(|device| device.place != place);
    let slots: u64 = others.map(SwapInUse::slots_left).sum();
    let spare: u64 = budget.members().iter().map(|member| member.claim.spare).sum();
    slots.saturating_add(budget.pages_left()).saturating_add(spare)
}

/// Reads what the processes of the session have published.
type Processes<'a> = &'a dyn Fn() -> Result<Vec<Process>, Refusal>;

/// Removes a device: waits until all processes have moved their pages. Returns the line to print.
pub(super) fn remove(
    place: usize,
    budget: &Budget,
    processes: Processes<'_>,
) -> Result<String, Refusal> {
    let items = budget.swap_items();
    let Some(SwapItem { area, .. }) = &items[place] else { return Ok(String::new()) };
    let (pages, room) = (pages_on(place, &processes()?), room_besides(place, budget));
    if pages > room {
        return Err(no_room(area, pages - room));
    }
    let change = budget.want_swap(place, Wanted::Gone);
    let mut waiting = Waiting::new(area);
    while budget.swap_behind(change) > 0 {
        sleep(LOOK);
        if let Some(failure) = budget.swap_failure(place) {
            return Err(refusal(area, failure));
        }
        if waiting.is_over(budget.swap_claimed(place), processes) {
            budget.fail_swap(place, SwapFailure::Cancelled);
        }
    }
    match budget.swap_failure(place) {
        Some(failure) => Err(refusal(area, failure)),
        None => Ok(format!("swap-remove = {}\n", area.spec)),
    }
}

fn no_room(area: &Area, missing: u64) -> Refusal {
    let missing = Bytes::of_pages(missing);
    let what = format!(
        "{} stays: memory and other swap devices lack room for {missing} of its pages",
        area.spec
    );
    Refusal::new(what, "add a device by swap-add=SPEC, or raise memory=SIZE")
}

fn refusal(area: &Area, failure: SwapFailure) -> Refusal {
    match failure {
        SwapFailure::NoRoom(pages) => no_room(area, pages),
        SwapFailure::Unreadable(pages) => {
            let left = Bytes::of_pages(pages);
            let what = format!("{} stays: a page of the {left} left cannot be read", area.spec);
            Refusal::new(what, "see the system's log for errors of the disk")
        }
        SwapFailure::Cancelled => {
            let what = format!("{} stays: its last pages did not move", area.spec);
            Refusal::new(what, "children that read them may be of another user; try again later")
        }
    }
}

/// The state of a removal while this command waits for it.
struct Waiting<'a> {
    area: &'a Area,
    /// Pages left on the device, and when their number last fell.
    left: (u64, Instant),
    /// Pages that all processes have read, and when their number last rose.
    read: (u64, Instant),
    looked_at: Instant,
}

impl Waiting<'_> {
    fn new(area: &Area) -> Waiting<'_> {
        let now = Instant::now();
        Waiting { area, left: (u64::MAX, now), read: (0, now), looked_at: now }
    }

    /// Whether to give up, because no pages have moved for too long. `left`: pages that are left.
    /// Shows progress on a terminal.
    fn is_over(&mut self, left: u64, processes: Processes<'_>) -> bool {
        let now = Instant::now();
        if left < self.left.0 {
            self.left = (left, now);
        }
        if now - self.looked_at > LINE {
            self.looked_at = now;
            let known = processes().unwrap_or_default();
            let read = known.iter().map(|process| process.snapshot.get(Counter::PswpIn)).sum();
            if read > self.read.0 {
                self.read = (read, now);
            }
            if std::io::stderr().is_terminal() {
                let left = Bytes::of_pages(left);
                say_bare(format_args!("{left} left on {}", self.area.spec));
            }
        }
        let moved_at = self.left.1.max(self.read.1);
        now - moved_at > STILL || now - self.left.1 > STUCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_session::Scope;

    fn area(text: &str) -> Area {
        Area::parse(text).unwrap()
    }

    fn budget(dir: &std::path::Path, devices: &[&str]) -> Budget {
        let budget = Budget::create(dir, Scope::Everything, 25_600, 51_200).unwrap();
        devices.iter().for_each(|text| assert!(budget.add_swap(&area(text)).is_some()));
        budget
    }

    #[test]
    fn devices_are_named_by_path_or_specification() {
        let dir = tempfile::tempdir().unwrap();
        let all =
            ["dir:/a:1G,priority=3", "ram:1M", "tier:ram:1M+dir:/b:1M", "dir:/c:1M", "dir:/c:2M"];
        let budget = budget(dir.path(), &all);
        for (text, expected) in [
            ("/a", Ok(0)),
            ("dir:/a:1G", Ok(0)),
            ("dir:/a:1G,priority=3", Ok(0)),
            ("ram:1M", Ok(1)),
            ("ram:1024K", Ok(1)),
            ("dir:/c:2M", Ok(4)),
            ("/c", Err("names several")),
            ("/b", Err("'/b' is part of tier:ram:1M+dir:/b:1M: a tier cannot be removed")),
            ("dir:/b:1M", Err("is part of tier:ram:1M+dir:/b:1M")),
            ("/d", Err("is no swap device")),
            ("tier:ram:1M+dir:/b:1M", Err("a tier cannot be removed")),
        ] {
            let found = check_old(text, &budget);
            match (found, expected) {
                (Ok(place), Ok(expected)) => assert_eq!(place, expected, "{text}"),
                (Err(refusal), Err(part)) => {
                    let line = refusal.to_string();
                    assert!(line.contains(part) && line.lines().count() == 1, "{line}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_last_device_and_one_without_room_elsewhere_stay() {
        let dir = tempfile::tempdir().unwrap();
        let budget = budget(dir.path(), &["ram:1M", "ram:2M"]);
        let removed = || remove(0, &budget, &|| Ok(Vec::new()));
        assert_eq!(removed(), Ok("swap-remove = ram:1M\n".to_owned()), "nobody uses it");
        assert!(check_old("ram:2M", &budget).unwrap_err().to_string().contains("the only"));
        assert!(check_new(&area("ram:2M"), &budget).is_err());
        assert!(check_new(&area("tier:ram:1M+dir:/b:1M"), &budget).is_err());
        assert_eq!(check_new(&area("ram:1M"), &budget), Ok(()));
        assert_eq!(add(&area("ram:1M"), &budget), Ok("swap-add = ram:1M\n".to_owned()));
        assert_eq!(check_old("ram:1M", &budget), Ok(0), "at its place");
        let lacks = no_room(&area("ram:1M"), 256).to_string();
        assert!(lacks.contains("lack room for 1 MiB") && lacks.lines().count() == 1, "{lacks}");
    }

    #[test]
    fn a_directory_in_memory_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let budget = budget(dir.path(), &["ram:1M"]);
        let note = "; it is in memory, which the limit does not count\n";
        let added = ["dir:/dev/shm:1M", "dir:/proc/self:1M"].map(|text| add(&area(text), &budget));
        assert_eq!(added.map(|line| line.unwrap().ends_with(note)), [true, false]);
    }
}
