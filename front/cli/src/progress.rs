//! The progress line, updated four times a second.

use highwater_command::{count, say};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::read_all;
use highwater_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between updates.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);
/// Interval between lines that cannot be updated in place.
const LINE_PERIOD: Duration = Duration::from_secs(2);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A line updated in place, on a terminal.
    Spinner,
    /// A new line at intervals, for a log.
    Lines,
    Off,
}

/// The progress of a run.
pub(crate) struct Progress {
    mode: Mode,
    run_dir: PathBuf,
    bar: ProgressBar,
    started: Instant,
    /// Time and number of faults at the last update.
    counted: (Instant, u64),
    written: Instant,
}

impl Progress {
    /// Begins to show the processes that publish in `run_dir`.
    pub(crate) fn start(mode: Mode, run_dir: &Path) -> Progress {
        let now = Instant::now();
        let bar = match mode {
            Mode::Spinner => ProgressBar::new_spinner(),
            Mode::Lines | Mode::Off => ProgressBar::hidden(),
        };
        let template = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(template.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let run_dir = run_dir.to_owned();
        Progress { mode, run_dir, bar, started: now, counted: (now, 0), written: now }
    }

    /// Updates the line; call it every [`PERIOD`]. `ended`: of all processes that have ended.
    pub(crate) fn tick(&mut self, ended: &Snapshot) {
        if self.mode == Mode::Off {
            return;
        }
        let now = Instant::now();
        let gauges = Gauges::of(ended, &read_all(&self.run_dir), is_alive);
        let (before, faults) = self.counted;
        let rate = gauges.faults.saturating_sub(faults) as f64 / (now - before).as_secs_f64();
        self.show(now, &gauges.line(now - self.started, rate as u64));
        self.counted = (now, gauges.faults);
    }

    fn show(&mut self, now: Instant, line: &str) {
        match self.mode {
            Mode::Spinner => {
                self.bar.set_message(line.to_owned());
                self.bar.tick();
            }
            Mode::Lines if now - self.written >= LINE_PERIOD => {
                self.written = now;
                say(line);
            }
            Mode::Lines | Mode::Off => {}
        }
    }

    /// Removes the line.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// Whether there is a process of this pid.
pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The figures of the line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Gauges {
    /// Over all processes, ended ones included.
    faults: u64,
    swapped_in: Bytes,
    swapped_out: Bytes,
    /// Over running processes.
    resident: Bytes,
}

impl Gauges {
    fn of(ended: &Snapshot, processes: &[(u32, Snapshot)], alive: impl Fn(u32) -> bool) -> Gauges {
        let all = |counter| processes.iter().map(move |(_, process)| process.get(counter));
        let sum = |counter| ended.get(counter) + all(counter).sum::<u64>();
        // Of a process that called exec, only the last image holds memory.
        let images: BTreeMap<u32, &Snapshot> =
            processes.iter().map(|(pid, process)| (*pid, process)).collect();
        let living = images.iter().filter(|(pid, _)| alive(**pid));
        Gauges {
            faults: sum(Counter::PgFault),
            swapped_in: Bytes::of_pages(sum(Counter::PswpIn)),
            swapped_out: Bytes::of_pages(sum(Counter::PswpOut)),
            resident: Bytes::of_pages(living.map(|(_, image)| image.get(Counter::Resident)).sum()),
        }
    }

    fn line(&self, elapsed: Duration, faults_per_second: u64) -> String {
        format!(
            "{}, resident {}, swapped out {}, in {}, {} faults/s",
            highwater_command::elapsed(elapsed),
            self.resident,
            self.swapped_out,
            self.swapped_in,
            count(faults_per_second),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(faults: u64, resident: u64) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        snapshot.counters[Counter::PgFault as usize] = faults;
        snapshot.counters[Counter::Resident as usize] = resident;
        snapshot.counters[Counter::PswpOut as usize] = 1;
        snapshot
    }

    #[test]
    fn events_of_all_and_memory_of_the_living_count() {
        let processes =
            [(1, process(10, 100)), (2, process(20, 200)), (2, process(5, 7)), (3, process(1, 1))];
        let gauges = Gauges::of(&process(4, 50), &processes, |pid| pid != 1);
        assert_eq!((gauges.faults, gauges.resident), (40, Bytes::of_pages(8)));
        let line = gauges.line(Duration::from_millis(61_200), 12_345);
        assert_eq!(
            line,
            "61 seconds, resident 32 KiB, swapped out 20 KiB, in 0 B, 12,345 faults/s"
        );
    }
}
