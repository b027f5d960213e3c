//! The label in the first page of an export says that it is swap of Highwater, and whether it is in
//! use.
//!
//! ```text
//! "Highwater swap 1"   beat: 0, or a number that changes while processes use the export
//! run, name: the claim of these processes   zeros
//! ```
//! A server that was stopped for a while carries out late the requests of an earlier session. So a
//! label that changes once, or several times in quick succession, does not count as in use for that
//! alone.
//!
//! Processes of a run share an export by locks that belong to its name. A server may serve one
//! export under several names: then two devices of the run would use the same extents. The claim in
//! the label shows this.
//!
//! An export without a label is accepted if its first pages are zeros: file systems, partition
//! tables and volume managers write there.

use crate::error::Reason;
use crate::remote::nbd::link::{Failure, Link};
use crate::remote::server::hash;
use crate::remote::verdict::Problem;
use highwater_units::PAGE_SIZE;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::read_to_string;
use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

/// How often the beat changes.
pub(super) const BEAT: Duration = Duration::from_secs(2);
/// The time between two reads of a beat.
const LOOK: Duration = Duration::from_millis(200);
/// Reads of the same beat after which the export counts as unused: 5 s.
const STILL: u32 = 25;
/// Reads after the first change in which further changes count as delayed together with it: 1 s.
const BURST: u32 = 5;
/// Pages that are zeros in an empty export: up to the label of btrfs at 64 KiB, the last one.
const BLANK_PAGES: u64 = 17;

/// The time of the start in /proc/self/stat, counted from the field behind the name.
const START_FIELD: usize = 19;

const MAGIC: &[u8; 16] = b"Highwater swap 1";

type Page = [u8; PAGE_SIZE];

/// The state of an export, by its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Zeros.
    Blank,
    /// Swap of Highwater that nobody uses.
    Idle,
    /// Swap of Highwater that was in use when it was written: the beat, and the claim.
    Busy(u64, Claim),
    /// Data.
    Other,
}

/// How processes use an export. Processes with equal claims share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// A hash of the run's file, or of this process if it is alone; `None`: unknown.
    run: Option<NonZero<u64>>,
    /// A hash of the name of the server and the export; of a process that is alone, a random number
    /// for each device, because its devices share no locks.
    name: u64,
}

impl Claim {
    /// The claim of a process of the run that has this file, or of a process that is alone.
    pub(super) fn new(run: Option<&Path>, name: &str) -> Claim {
        let (run, name) = match run {
            Some(file) => (Some(file.to_string_lossy().into_owned()), hash(name)),
            None => (this_process(), random()),
        };
        Claim { run: run.and_then(|run| NonZero::new(hash(&run))), name }
    }

    /// Whether another device of the run, or of the process, made the claim `other`.
    fn excludes(self, other: Claim) -> bool {
        self.run.is_some() && self.run == other.run && self.name != other.name
    }
}

/// A text that no other process has, on any machine: the boot, the process's number, and the time
/// of its start.
fn this_process() -> Option<String> {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stat = read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain blanks.
    let start = stat.rsplit_once(')')?.1.split_whitespace().nth(START_FIELD)?.to_owned();
    Some(format!("{} {} {start}", boot.trim(), std::process::id()))
}

fn standing(page: &Page) -> Standing {
    let number = |index: usize| {
        let bytes = page[MAGIC.len() + 8 * index..].first_chunk();
        u64::from_le_bytes(*bytes.expect("a page is longer"))
    };
    match page.first_chunk() {
        Some(MAGIC) => match number(0) {
            0 => Standing::Idle,
            beat => {
                let run = NonZero::new(number(1));
                Standing::Busy(beat, Claim { run, name: number(2) })
            }
        },
        _ if is_zero(page) => Standing::Blank,
        _ => Standing::Other,
    }
}

fn is_zero(page: &Page) -> bool {
    page.iter().all(|byte| *byte == 0)
}

/// The label of an export; `None`: nobody uses it.
fn label(used: Option<(u64, Claim)>) -> Page {
    let (beat, run, name) =
        used.map_or((0, 0, 0), |(beat, by)| (beat, by.run.map_or(0, NonZero::get), by.name));
    let mut page = [0; PAGE_SIZE];
    page[..MAGIC.len()].copy_from_slice(MAGIC);
    let numbers = [beat, run, name].map(u64::to_le_bytes).concat();
    page[MAGIC.len()..][..numbers.len()].copy_from_slice(&numbers);
    page
}

/// Reads the first page, and refuses the export if that page holds other data: a server that was
/// restarted may serve another export under that name.
pub(super) fn look(link: &mut Link) -> Result<Standing, Failure> {
    match standing(&link.read(0)?) {
        Standing::Other => Err(Failure::Unfit(Reason::HoldsData)),
        swap => Ok(swap),
    }
}

/// Refuses an export that another device of the run, or of this process, uses.
pub(super) fn check_claim(found: Standing, own: Claim) -> Result<(), Failure> {
    match found {
        Standing::Busy(_, claim) if own.excludes(claim) => Err(Failure::Unfit(Reason::InUse)),
        _ => Ok(()),
    }
}

/// Refuses an export with this state if it holds data behind its first page, or is in use.
pub(super) fn check(link: &mut Link, found: Standing) -> Result<(), Failure> {
    let beat = match found {
        Standing::Idle => return Ok(()),
        Standing::Other => return Err(Failure::Unfit(Reason::HoldsData)),
        Standing::Blank => {
            for page in 1..BLANK_PAGES {
                if !is_zero(&link.read(page * PAGE_SIZE as u64)?) {
                    return Err(Failure::Unfit(Reason::HoldsData));
                }
            }
            return Ok(());
        }
        Standing::Busy(beat, _) => beat,
    };
    let mut watch = Watch { beat, same: 0, changed: None };
    loop {
        std::thread::sleep(LOOK);
        let Standing::Busy(beat, _) = look(link)? else { return Ok(()) };
        match watch.sees(beat) {
            Sight::Unclear => {}
            Sight::Still => return Ok(()),
            Sight::Beats => return Err(Failure::Unfit(Reason::InUse)),
        }
    }
}

/// A beat that is watched. Reads are counted instead of time, because the watcher itself may be
/// stopped for a while.
struct Watch {
    beat: u64,
    /// Reads of this beat so far.
    same: u32,
    /// Reads since the first change.
    changed: Option<u32>,
}

/// Whether somebody uses the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    Unclear,
    Still,
    Beats,
}

impl Watch {
    fn sees(&mut self, beat: u64) -> Sight {
        self.changed = self.changed.map(|looks| looks + 1);
        if beat == self.beat {
            self.same += 1;
            return if self.same < STILL { Sight::Unclear } else { Sight::Still };
        }
        (self.beat, self.same) = (beat, 0);
        match *self.changed.get_or_insert(0) {
            ..=BURST => Sight::Unclear,
            _ => Sight::Beats,
        }
    }
}

/// Tells others that the export is in use.
pub(super) fn beat(link: &mut Link, claim: Claim) -> Result<(), Problem> {
    // Without random bytes the beat says that the export is in use, but does not change.
    link.write(0, &label(Some((random().max(1), claim))))
}

/// A random number; 0 if the system has none.
fn random() -> u64 {
    let mut random = [0; 8];
    let _ = getrandom(&mut random, GetRandomFlags::empty());
    u64::from_ne_bytes(random)
}

/// Tells others that the export is not in use.
pub(super) fn rest(link: &mut Link) -> Result<(), Problem> {
    link.write(0, &label(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expects that these beats lead to this decision, after this number of reads.
    #[track_caller]
    fn assert_found(beats: impl IntoIterator<Item = u64>, expected: (Sight, usize)) {
        let mut watch = Watch { beat: 1, same: 0, changed: None };
        let sights = beats.into_iter().map(|beat| watch.sees(beat));
        let mut found = (1..).zip(sights).filter(|(_, sight)| *sight != Sight::Unclear);
        assert_eq!(found.next().map(|(looks, sight)| (sight, looks)), Some(expected));
    }

    #[test]
    fn a_beat_changes_again_and_again() {
        let still = STILL as usize;
        let runs = |runs: &[(u64, usize)]| {
            let run = |(beat, looks): &(u64, usize)| std::iter::repeat_n(*beat, *looks);
            runs.iter().flat_map(run).collect::<Vec<u64>>()
        };
        assert_found(runs(&[(1, 99)]), (Sight::Still, still));
        assert_found(runs(&[(1, 24), (2, 99)]), (Sight::Still, 25 + still));
        assert_found(runs(&[(1, 3), (2, 2), (3, 3), (4, 99)]), (Sight::Still, 9 + still));
        assert_found(runs(&[(1, 3), (2, 6), (3, 9)]), (Sight::Beats, 10));
        assert_found(runs(&[(1, 20), (2, 20), (3, 9)]), (Sight::Beats, 41));
        assert_found(2.., (Sight::Beats, 7));
    }

    #[test]
    fn a_claim_excludes_other_names_in_its_run() {
        let claim = |run: Option<&str>, name| Claim::new(run.map(Path::new), name);
        let own = claim(Some("/run"), "server/a");
        assert!(own.excludes(claim(Some("/run"), "server/b")));
        for other in [Some("/run"), Some("/other"), None].map(|run| claim(run, "server/a")) {
            assert!(!own.excludes(other), "{other:?}");
        }
        assert!(!own.excludes(claim(Some("/other"), "server/b")));
        let alone = claim(None, "server/a");
        assert!(alone.excludes(claim(None, "server/b")) && alone.excludes(claim(None, "server/a")));
        assert!(!alone.excludes(alone));
        assert!(!Claim { run: None, name: 1 }.excludes(Claim { run: None, name: 2 }));
    }

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let claims = [Claim::new(None, "a"), Claim::new(Some(Path::new("/run")), "a")];
        assert_eq!(standing(&label(None)), Standing::Idle);
        for claim in claims {
            assert_eq!(standing(&label(Some((7, claim)))), Standing::Busy(7, claim));
        }
        assert_eq!(standing(&[0; PAGE_SIZE]), Standing::Blank);
        for at in [0, 510, 1080, PAGE_SIZE - 1] {
            let mut page = [0; PAGE_SIZE];
            page[at] = 0x55;
            assert_eq!(standing(&page), Standing::Other, "a byte at {at}");
        }
    }
}
