//! Compaction of the kernels of 2012: two scanners alone, as five patches changed them.
//!
//! ```text
//!              contended, async   locks taken   scanners start                skip bits
//! vanilla      retries            early         free scanner where it found   none
//!                                               free frames, wraps around
//! lesslock     aborts             late          as vanilla                    none
//! revert       aborts             late          at the ends of the zone       none
//! cachefail    aborts             late          at the ends of the zone       used
//! skipuseless  aborts             late          behind skipped pageblocks     used
//! ```
//! A pass with `skipuseless` is today's [`super::pass`] without evacuation, in both modes.

use super::control::{Caller, Control, Outcome, contention};
use super::defer::Verdict;
use super::free_scanner;
use super::isolated::Isolated;
use super::migrate_scanner::{STRETCH, Step, decide, look};
use super::pass::{Emptied, empty, has_block, unsuitable};
use crate::config::history::CompactHistory;
use crate::lru::{Mode, ShardHold};
use crate::machine::{Machine, Node};
use crate::zone::{FreeScan, Level, Mobility, Scanner, Wanted};
use highwater_platform::Platform;
use highwater_units::{Order, Pfn};
use std::ops::Range;

/// Compacts a zone as a kernel of 2012.
pub(super) fn compact<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    wanted: (Order, Mobility),
    (mode, kernel): (Mode, CompactHistory),
    verdict: Verdict,
) -> Outcome {
    if mode == Mode::Sync {
        // Pages in batches cannot be isolated, and free frames on per-CPU lists do not merge.
        node.lru.drain(&m.frames, |orphans| m.free(orphans));
        node.zone.drain();
    }
    if let Some(outcome) = unsuitable(&node.zone, wanted.0) {
        return outcome;
    }
    if verdict == Verdict::Restart {
        node.zone.reset_skips(m.platform.now());
    }
    let mut pass = Pass::new(node, wanted, mode, kernel);
    let outcome = pass.run(m);
    pass.cc.release(m);
    outcome
}

/// How often the free scanner of [`CompactHistory::Vanilla`] has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    First,
    /// It has wrapped around to the end of the zone.
    Second,
}

struct Pass<'a, P: Platform> {
    cc: Control<'a, P>,
    kernel: CompactHistory,
    /// Where the free scanner started.
    start_free: Pfn,
    round: Round,
    /// Whether a lock was contended.
    contended: bool,
}

impl<'a, P: Platform> Pass<'a, P> {
    fn new(
        node: &'a Node<P>,
        wanted: (Order, Mobility),
        mode: Mode,
        kernel: CompactHistory,
    ) -> Pass<'a, P> {
        let scanners = node.zone.scanners();
        let ends = (scanners.start(Scanner::Migrate), scanners.start(Scanner::Free));
        let mut cc = match kernel {
            CompactHistory::Vanilla | CompactHistory::LessLock => {
                Control::at(node, wanted, mode, (ends.0, scanners.cached(Scanner::Free)))
            }
            CompactHistory::Revert | CompactHistory::CacheFail => {
                Control::at(node, wanted, mode, ends)
            }
            CompactHistory::SkipUseless => Control::new(node, wanted, mode),
        };
        // Only SkipUseless moves the cached positions.
        cc.found = [kernel != CompactHistory::SkipUseless; 2];
        Pass { start_free: cc.free, cc, kernel, round: Round::First, contended: false }
    }

    fn wraps_around(&self) -> bool {
        matches!(self.kernel, CompactHistory::Vanilla | CompactHistory::LessLock)
    }

    fn skips(&self, pageblock: u32) -> bool {
        self.has_skip_bits() && self.cc.node.zone.skips(pageblock)
    }

    fn has_skip_bits(&self) -> bool {
        matches!(self.kernel, CompactHistory::CacheFail | CompactHistory::SkipUseless)
    }

    fn run(&mut self, m: &Machine<P>) -> Outcome {
        let mut retries = 0;
        loop {
            if let Some(outcome) = self.finished(m) {
                return outcome;
            }
            let Some(isolated) = self.isolate_pages(m) else { return Outcome::Contended };
            if self.contended && isolated.frames == 0 {
                m.platform.relax(retries);
                retries += 1;
                continue;
            }
            retries = 0;
            if isolated.frames == 0 {
                continue;
            }
            if self.cc.targets.frames() < isolated.frames {
                self.isolate_free(m, isolated.frames);
            }
            if empty(m, &mut self.cc, isolated) == Emptied::OutOfTargets {
                return if self.contended { Outcome::Contended } else { Outcome::Partial };
            }
        }
    }

    /// The outcome of a pass that is over. A free scanner that wraps around starts a second time
    /// where the scanners meet, and ends where it first started.
    fn finished(&mut self, m: &Machine<P>) -> Option<Outcome> {
        let (wraps_around, cc) = (self.wraps_around(), &mut self.cc);
        let zone = &cc.node.zone;
        if cc.free <= cc.migrate {
            if wraps_around && self.round == Round::First {
                cc.free = zone.scanners().start(Scanner::Free);
                zone.scanners().cache(Scanner::Free, cc.free);
                self.round = Round::Second;
                return None;
            }
            zone.reset_skips(m.platform.now());
            return Some(Outcome::Complete);
        }
        if self.round == Round::Second && cc.free <= self.start_free {
            return Some(Outcome::Complete);
        }
        has_block(zone, cc.order, cc.mobility).then_some(Outcome::Partial)
    }

    /// The migrate scanner; `None` if a lock was contended and the pass aborts.
    fn isolate_pages(&mut self, m: &Machine<P>) -> Option<Isolated> {
        let zone = &self.cc.node.zone;
        let pageblock = zone.pageblock_of(self.cc.migrate);
        let frames = zone.frames_of(pageblock);
        let suits = self.cc.mode == Mode::Sync || zone.mobility(pageblock) == Mobility::Movable;
        if frames.end > self.cc.free.0 || self.skips(pageblock) || !suits {
            self.cc.migrate = Pfn(frames.end);
            return Some(Isolated::none());
        }
        let isolated = self.scan_pages(m, frames.end);
        if self.contended && self.kernel != CompactHistory::Vanilla {
            isolated.put_back(m, self.cc.node);
            return None;
        }
        if isolated.frames > 0 {
            self.cc.found[Scanner::Migrate as usize] = true;
        } else if self.cc.migrate.0 == frames.end && self.has_skip_bits() {
            self.cc.skip_pageblock(Scanner::Migrate, Pfn(frames.start));
        }
        Some(isolated)
    }

    fn scan_pages(&mut self, m: &Machine<P>, end: u32) -> Isolated {
        let (cc, early) = (&mut self.cc, self.kernel == CompactHistory::Vanilla);
        let (mut isolated, mut shard) = (Isolated::none(), None);
        let (mut scanned, mut charged) = (0, 0);
        self.contended = false;
        let mut charge = |scanned: u32| {
            m.platform.scans((scanned - charged) as usize);
            charged = scanned;
        };
        let mut at = cc.migrate.0;
        while at < end && isolated.frames < STRETCH as usize {
            let pfn = Pfn(at);
            if at.is_multiple_of(STRETCH)
                || shard.as_ref().is_some_and(|shard: &ShardHold<'_, P>| !shard.covers(pfn))
            {
                charge(scanned);
                shard = None;
            }
            let step = decide(look(m, &cc.node.zone, pfn), cc.order);
            if shard.is_none() && (early || step == Step::Isolate) {
                charge(scanned);
                shard = cc.node.lru.hold_shard(pfn, cc.mode);
                self.contended = shard.is_none();
                if self.contended {
                    break;
                }
            }
            scanned += 1;
            at += match (step, &mut shard) {
                (Step::Past(frames), _) => frames,
                (Step::Isolate, Some(shard)) => {
                    let list = shard.isolate(&m.frames, pfn);
                    list.map_or(1, |list| isolated.push(m, pfn, list))
                }
                (Step::Isolate, None) => 1,
            };
        }
        charge(scanned);
        drop(shard);
        cc.migrate = Pfn(at.min(end));
        Caller::Direct.count(m, Scanner::Migrate, scanned, isolated.frames as u32);
        isolated
    }

    /// The free scanner: takes all free frames of a pageblock, however few are wanted.
    fn isolate_free(&mut self, m: &Machine<P>, wanted: usize) {
        let zone = &self.cc.node.zone;
        let low = free_scanner::limit(&self.cc);
        let (mut highest, mut at) = (low, self.cc.free);
        while at > low && self.cc.targets.frames() < wanted && !self.contended {
            let pageblock = zone.pageblock_of(at);
            let frames = zone.frames_of(pageblock);
            let (first, mobility) = (Pfn(frames.start), zone.mobility(pageblock));
            if free_scanner::suits(mobility, zone.free_at(first), self.skips(pageblock)) {
                let scan = self.scan_free(m, frames);
                self.contended = scan.contended;
                if scan.isolated > 0 {
                    highest = highest.max(first);
                    self.cc.found[Scanner::Free as usize] = true;
                } else if !scan.contended && self.has_skip_bits() {
                    self.cc.skip_pageblock(Scanner::Free, first);
                }
            }
            at = free_scanner::below(zone, first).unwrap_or(low);
        }
        self.cc.free = highest;
        if self.wraps_around() {
            self.cache_free(highest);
        }
        if self.kernel == CompactHistory::Vanilla {
            self.contended = false;
        }
    }

    fn scan_free(&mut self, m: &Machine<P>, frames: Range<u32>) -> FreeScan {
        let zone = &self.cc.node.zone;
        let (contention, mark) = (contention(self.cc.mode), zone.marks().at(Level::Low));
        let targets = &mut self.cc.targets;
        let isolate = |block, order| {
            targets.push(block, order);
            Wanted::More
        };
        let scan = match self.kernel {
            CompactHistory::Vanilla => {
                zone.isolate_free_early(&m.platform, frames, contention, mark, isolate)
            }
            _ => zone.isolate_free(&m.platform, frames, contention, mark, isolate),
        };
        m.taken(scan.isolated as usize);
        Caller::Direct.count(m, Scanner::Free, scan.scanned, scan.isolated);
        scan
    }

    /// Caches where the free scanner of the next pass starts (compact_cached_free_pfn).
    fn cache_free(&self, highest: Pfn) {
        let scanners = self.cc.node.zone.scanners();
        // The first pass caches its position even if it found nothing: Linux 3.6 recognizes the
        // first pass by the initial value alone.
        let is_initial = scanners.cached(Scanner::Free) == scanners.start(Scanner::Free);
        let caches = match self.round {
            Round::First => is_initial,
            Round::Second => self.cc.targets.frames() > 0,
        };
        if caches {
            scanners.cache(Scanner::Free, highest);
        }
    }
}
