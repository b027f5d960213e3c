//! The progress line, updated four times a second.

use crate::look::Look;
use highwater_command::{count, say};
use highwater_mm::stats::Counter;
use highwater_units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Interval between updates.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);
/// Interval between lines where they cannot be updated in place.
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
    bar: ProgressBar,
    started: Instant,
    /// Time and number of faults at the last update.
    counted: (Instant, u64),
    written: Instant,
}

impl Progress {
    /// The progress of a run that begins.
    pub(crate) fn start(mode: Mode) -> Progress {
        let now = Instant::now();
        let bar = match mode {
            Mode::Spinner => ProgressBar::new_spinner(),
            Mode::Lines | Mode::Off => ProgressBar::hidden(),
        };
        let template = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(template.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Progress { mode, bar, started: now, counted: (now, 0), written: now }
    }

    /// Whether nothing is shown.
    pub(crate) fn is_off(&self) -> bool {
        self.mode == Mode::Off
    }

    /// Updates the line; call it every [`PERIOD`].
    pub(crate) fn tick(&mut self, look: &Look) {
        if self.is_off() {
            return;
        }
        let now = Instant::now();
        let gauges = Gauges::of(look);
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
    pub(crate) fn hide(&self) {
        self.bar.finish_and_clear();
    }
}

/// The figures of the line.
struct Gauges {
    /// Faults of all processes, including those that have ended.
    faults: u64,
    swapped_in: Bytes,
    swapped_out: Bytes,
    /// Memory of the running processes.
    resident: Bytes,
}

impl Gauges {
    fn of(look: &Look) -> Gauges {
        Gauges {
            faults: look.all.get(Counter::PgFault),
            swapped_in: Bytes::of_pages(look.all.get(Counter::PswpIn)),
            swapped_out: Bytes::of_pages(look.all.get(Counter::PswpOut)),
            resident: look.resident(),
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
    use crate::look::tests::look;
    use highwater_mm::stats::Snapshot;

    #[test]
    fn a_line_has_the_figures_of_a_look() {
        let mut snapshot = Snapshot::empty();
        for (counter, value) in
            [(Counter::PgFault, 40), (Counter::Resident, 8), (Counter::PswpOut, 5)]
        {
            snapshot.counters[counter as usize] = value;
        }
        let line = Gauges::of(&look(1, &snapshot)).line(Duration::from_millis(61_200), 12_345);
        assert_eq!(
            line,
            "61 seconds, resident 32 KiB, swapped out 20 KiB, in 0 B, 12,345 faults/s"
        );
    }
}
