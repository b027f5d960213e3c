//! Samples of a session, and the rates between two of them.

use crate::session::Process;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_units::Bytes;
use std::time::Duration;

/// The processes of a session at one time.
pub(super) struct Sample {
    /// When the sample was taken: the time since the first sample.
    pub(super) at: Duration,
    pub(super) processes: Vec<Process>,
}

/// The last two samples.
pub(super) struct Samples {
    before: Option<Sample>,
    now: Sample,
}

/// A process in the table. Rates are per second; `None` in the first sample that has the process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) budget: Bytes,
    pub(super) resident: Bytes,
    pub(super) swap: Bytes,
    pub(super) minor: Option<f64>,
    pub(super) major: Option<f64>,
    pub(super) bytes_in: Option<f64>,
    pub(super) bytes_out: Option<f64>,
}

/// A process in the last sample and in the sample before.
pub(super) struct Change<'a> {
    pub(super) process: &'a Process,
    before: Option<&'a Snapshot>,
    seconds: f64,
}

impl Change<'_> {
    /// A counter now.
    pub(super) fn get(&self, counter: Counter) -> u64 {
        self.process.snapshot.get(counter)
    }

    /// A counter's increase; `None` after exec, when the counters restart at 0.
    fn increase(&self, counter: Counter) -> Option<u64> {
        self.get(counter).checked_sub(self.before?.get(counter))
    }

    /// A counter's increase per second.
    pub(super) fn rate(&self, counter: Counter) -> Option<f64> {
        self.increase(counter).map(|increase| increase as f64 / self.seconds)
    }

    /// Like `rate`, for a counter of pages, in bytes.
    pub(super) fn bytes_rate(&self, counter: Counter) -> Option<f64> {
        self.rate(counter).map(|pages| pages * Bytes::of_pages(1).0 as f64)
    }

    /// How much `part` increased per increase of `whole`; `None` if `whole` did not increase.
    pub(super) fn ratio(&self, part: Counter, whole: Counter) -> Option<f64> {
        let (part, whole) = (self.increase(part)?, self.increase(whole)?);
        (whole > 0).then(|| part as f64 / whole as f64)
    }

    fn row(&self) -> Row {
        let (process, major) = (self.process, self.rate(Counter::PgMajFault));
        let all = self.rate(Counter::PgFault);
        Row {
            pid: process.pid,
            name: process.name.clone(),
            budget: process.bytes(Counter::Frames),
            resident: process.bytes(Counter::Resident),
            swap: process.bytes(Counter::SlotsUsed),
            minor: all.zip(major).map(|(all, major)| (all - major).max(0.0)),
            major,
            bytes_in: self.bytes_rate(Counter::PswpIn),
            bytes_out: self.bytes_rate(Counter::PswpOut),
        }
    }
}

impl Samples {
    /// Begins with the first sample.
    pub(super) fn new(now: Sample) -> Samples {
        Samples { before: None, now }
    }

    /// Adds the next sample.
    pub(super) fn push(&mut self, next: Sample) {
        self.before = Some(std::mem::replace(&mut self.now, next));
    }

    /// The processes, by pid.
    pub(super) fn rows(&self) -> Vec<Row> {
        self.now.processes.iter().map(|process| self.change(process).row()).collect()
    }

    /// The process `pid`.
    pub(super) fn of(&self, pid: u32) -> Option<Change<'_>> {
        let process = self.now.processes.iter().find(|process| process.pid == pid)?;
        Some(self.change(process))
    }

    fn change<'a>(&'a self, process: &'a Process) -> Change<'a> {
        let before = self.before.as_ref();
        let then = before.map_or(Duration::ZERO, |sample| sample.at);
        let mut processes = before.into_iter().flat_map(|sample| &sample.processes);
        Change {
            process,
            before: processes.find(|it| it.pid == process.pid).map(|it| &it.snapshot),
            seconds: (self.now.at.saturating_sub(then)).as_secs_f64().max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A process with these counters.
    pub(in crate::top) fn process(pid: u32, name: &str, counts: &[(Counter, u64)]) -> Process {
        let mut snapshot = Snapshot::empty();
        counts.iter().for_each(|(counter, value)| snapshot.counters[*counter as usize] = *value);
        crate::session::tests::process(pid, name, snapshot)
    }

    fn counts(faults: u64, major: u64, pages_in: u64) -> [(Counter, u64); 4] {
        [
            (Counter::PgFault, faults),
            (Counter::PgMajFault, major),
            (Counter::PswpIn, pages_in),
            (Counter::SwapInIos, pages_in / 2),
        ]
    }

    #[test]
    fn rates_are_those_between_the_last_two_looks() {
        let sample = |at, counts: [(Counter, u64); 4]| Sample {
            at: Duration::from_secs(at),
            processes: vec![process(7, "sort", &counts)],
        };
        let mut samples = Samples::new(sample(0, counts(100, 10, 50)));
        assert_eq!((samples.rows()[0].minor, samples.rows()[0].bytes_in), (None, None));
        samples.push(sample(2, counts(300, 60, 150)));
        samples.push(sample(4, counts(500, 110, 350)));
        let row = &samples.rows()[0];
        assert_eq!((row.minor, row.major), (Some(75.0), Some(25.0)));
        assert_eq!((row.bytes_in, row.bytes_out), (Some(409_600.0), Some(0.0)));
        let change = samples.of(7).unwrap();
        assert_eq!(change.ratio(Counter::PswpIn, Counter::SwapInIos), Some(2.0));
        assert_eq!(change.ratio(Counter::PswpOut, Counter::SwapOutIos), None);
        // A new image of the process, and then a new process.
        samples.push(sample(5, counts(1, 0, 0)));
        assert_eq!(samples.rows()[0].minor, None);
        let new = vec![process(8, "sh", &counts(1, 0, 0))];
        samples.push(Sample { at: Duration::from_secs(6), processes: new });
        assert_eq!((samples.rows()[0].major, samples.of(7).is_none()), (None, true));
    }
}
