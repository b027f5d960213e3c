//! A timeline of a run in Chrome's trace format; open it in ui.perfetto.dev.
//!
//! The process "CPUs" has one row per CPU with the phases of its threads and their lock waits. The
//! process "devices" has one row per device with its transfers. Times are microseconds with three
//! decimals. Consecutive bars of one thread in one phase are merged.

use highwater_platform::{LockClass, Phase};
use highwater_units::CpuId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Most bars to keep; later ones are only counted.
const BARS_MAX: usize = 2_000_000;

const CPUS: u32 = 1;
const DEVICES: u32 = 2;

/// A time interval with a name.
pub(crate) struct Bar {
    name: String,
    process: u32,
    row: u32,
    begin: u64,
    nanos: u64,
    thread: String,
}

impl Bar {
    /// Whether this is a phase of a thread.
    fn is_phase(&self) -> bool {
        !self.thread.is_empty()
    }

    /// A thread was in a phase until `end`.
    pub(super) fn phase(cpu: CpuId, thread: &str, phase: &Phase, end: u64, nanos: u64) -> Bar {
        let (name, thread) = (phase.name().to_owned(), thread.to_owned());
        let begin = end.saturating_sub(nanos);
        Bar { name, process: CPUS, row: u32::from(cpu.0), begin, nanos, thread }
    }

    /// A thread waited for a lock.
    pub(crate) fn wait(cpu: CpuId, class: LockClass, begin: u64, end: u64) -> Bar {
        let name = format!("wait {}", class.name());
        let (row, nanos, thread) = (u32::from(cpu.0), end - begin, String::new());
        Bar { name, process: CPUS, row, begin, nanos, thread }
    }

    /// A device performed a transfer.
    pub(crate) fn transfer(device: u8, what: &str, pages: usize, begin: u64, end: u64) -> Bar {
        let name = format!("{what} {pages}");
        let (row, nanos, thread) = (u32::from(device), end - begin, String::new());
        Bar { name, process: DEVICES, row, begin, nanos, thread }
    }
}

/// A new value of a counter.
struct Value {
    name: String,
    at: u64,
    value: u64,
}

/// The bars and counter values of a run.
pub struct Trace {
    bars: Vec<Bar>,
    /// All values: there are few.
    values: Vec<Value>,
    /// The last bar of each CPU's row.
    last: Vec<Option<usize>>,
    dropped: u64,
    kept: Kept,
}

/// When bars are recorded.
enum Kept {
    Always,
    /// While threads of this name run, with their current number.
    While(&'static str, usize),
}

/// An event in Chrome's format.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'a str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

#[derive(Serialize)]
struct Args<'a> {
    name: &'a str,
}

/// A counter value in Chrome's format, shown as a curve.
#[derive(Serialize)]
struct Counted<'a> {
    name: &'a str,
    ph: &'a str,
    ts: f64,
    pid: u32,
    args: Count,
}

#[derive(Serialize)]
struct Count {
    value: u64,
}

impl Trace {
    /// An empty trace. Records bars while threads named `threads` run, or always for `None`.
    pub(crate) fn new(threads: Option<&'static str>) -> Trace {
        let kept = threads.map_or(Kept::Always, |name| Kept::While(name, 0));
        Trace { bars: Vec::new(), values: Vec::new(), last: Vec::new(), dropped: 0, kept }
    }

    /// Called when a thread starts.
    pub(super) fn started(&mut self, thread: &str) {
        if let Kept::While(name, running) = &mut self.kept {
            *running += usize::from(*name == thread);
        }
    }

    /// Called when a thread ends.
    pub(super) fn ended(&mut self, thread: &str) {
        if let Kept::While(name, running) = &mut self.kept {
            *running -= usize::from(*name == thread);
        }
    }

    pub(crate) fn add(&mut self, bar: Bar) {
        if matches!(self.kept, Kept::While(_, 0)) || self.prolong(&bar) {
            return;
        }
        if self.bars.len() == BARS_MAX {
            self.dropped += 1;
            return;
        }
        if bar.is_phase() {
            let row = bar.row as usize;
            if self.last.len() <= row {
                self.last.resize(row + 1, None);
            }
            self.last[row] = Some(self.bars.len());
        }
        self.bars.push(bar);
    }

    /// Records a counter value.
    pub(super) fn add_value(&mut self, name: &str, at: u64, value: u64) {
        self.values.push(Value { name: name.to_owned(), at, value });
    }

    /// Extends the last bar of the row if `bar` continues it. Returns whether it did.
    fn prolong(&mut self, bar: &Bar) -> bool {
        let last = self.last.get(bar.row as usize).copied().flatten();
        let Some(last) = last.filter(|_| bar.is_phase()).map(|index| &mut self.bars[index]) else {
            return false;
        };
        let same = last.begin + last.nanos == bar.begin
            && (&last.name, &last.thread) == (&bar.name, &bar.thread);
        last.nanos += if same { bar.nanos } else { 0 };
        same
    }

    /// How many bars were not kept.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the trace, with the names of processes and rows.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let rows: BTreeSet<(u32, u32)> = self.bars.iter().map(|b| (b.process, b.row)).collect();
        for (pid, all, one) in [(CPUS, "CPUs", "CPU"), (DEVICES, "devices", "device")] {
            serde_json::to_writer(&mut *to, &Event::name("process_name", pid, 0, all))?;
            for (_, row) in rows.range((pid, 0)..(pid + 1, 0)) {
                let name = format!("{one} {row}");
                to.write_all(b",\n")?;
                serde_json::to_writer(&mut *to, &Event::name("thread_name", pid, *row, &name))?;
            }
            to.write_all(if pid == CPUS { b",\n" } else { b"" })?;
        }
        for bar in &self.bars {
            to.write_all(b",\n")?;
            serde_json::to_writer(&mut *to, &bar.event())?;
        }
        for Value { name, at, value } in &self.values {
            let (ph, ts, args) = ("C", *at as f64 / 1000.0, Count { value: *value });
            to.write_all(b",\n")?;
            serde_json::to_writer(&mut *to, &Counted { name, ph, ts, pid: CPUS, args })?;
        }
        writeln!(to, "]}}")
    }
}

impl<'a> Event<'a> {
    /// A metadata event that names a process or one of its rows.
    fn name(what: &'a str, pid: u32, tid: u32, name: &'a str) -> Event<'a> {
        Event { name: what, ph: "M", ts: 0.0, dur: 0.0, pid, tid, args: Some(Args { name }) }
    }
}

impl Bar {
    fn event(&self) -> Event<'_> {
        Event {
            name: &self.name,
            ph: "X",
            ts: self.begin as f64 / 1000.0,
            dur: self.nanos as f64 / 1000.0,
            pid: self.process,
            tid: self.row,
            args: (!self.thread.is_empty()).then_some(Args { name: &self.thread }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::PhaseKind;

    const FAULT: &Phase = &Phase::new(1, "fault", PhaseKind::Fault);
    const ALLOC: &Phase = &Phase::new(2, "alloc", PhaseKind::Other);

    fn bar(cpu: u16, thread: &str, phase: &Phase, begin: u64, end: u64) -> Bar {
        Bar::phase(CpuId(cpu), thread, phase, end, end - begin)
    }

    #[test]
    fn consecutive_bars_of_a_phase_are_merged() {
        let mut trace = Trace::new(None);
        trace.add(bar(0, "a", FAULT, 0, 10));
        trace.add(bar(1, "b", FAULT, 5, 10));
        trace.add(bar(0, "a", FAULT, 10, 25));
        trace.add(Bar::wait(CpuId(0), LockClass::new(9, "lru"), 12, 20));
        trace.add(bar(0, "a", ALLOC, 25, 30));
        trace.add(bar(0, "a", ALLOC, 31, 40));
        let spans: Vec<_> = trace.bars.iter().map(|bar| (bar.begin, bar.nanos)).collect();
        assert_eq!(spans, [(0, 25), (5, 5), (12, 8), (25, 5), (31, 9)]);
    }

    #[test]
    fn write_emits_json_with_names() {
        let mut trace = Trace::new(None);
        trace.add(bar(3, "task", FAULT, 1000, 3500));
        trace.add(Bar::transfer(1, "read", 4, 2000, 3000));
        trace.add_value("threads", 1500, 2);
        let mut text = Vec::new();
        trace.write(&mut text).expect("memory");
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let events = json["traceEvents"].as_array().expect("a list");
        let names: Vec<_> = events.iter().map(|e| e["name"].as_str().expect("a name")).collect();
        let expected = ["process_name", "thread_name"];
        assert_eq!(names, [&expected[..], &expected, &["fault", "read 4", "threads"]].concat());
        assert_eq!(events[1]["args"]["name"], "CPU 3");
        assert_eq!(events[3]["args"]["name"], "device 1");
        assert_eq!((events[4]["ts"].as_f64(), events[4]["dur"].as_f64()), (Some(1.0), Some(2.5)));
        assert_eq!((events[6]["ph"].as_str(), events[6]["ts"].as_f64()), (Some("C"), Some(1.5)));
        assert_eq!(events[6]["args"]["value"], 2);
    }

    #[test]
    fn bars_are_recorded_while_the_named_threads_run() {
        let mut trace = Trace::new(Some("task"));
        let mut count = |act: fn(&mut Trace)| {
            act(&mut trace);
            trace.add(bar(0, "a", FAULT, trace.bars.len() as u64 * 100, 1000));
            trace.bars.len()
        };
        assert_eq!(count(|trace| trace.started("fill")), 0);
        assert_eq!(count(|trace| trace.started("task")), 1);
        assert_eq!(count(|trace| trace.ended("fill")), 2);
        assert_eq!(count(|trace| trace.ended("task")), 2);
    }
}
