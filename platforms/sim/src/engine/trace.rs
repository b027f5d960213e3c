//! A run as bars over time, in Chrome's trace format: opens in ui.perfetto.dev.
//!
//! One process for the CPUs, a row each: what the thread on it does, and waits for locks; one for
//! the devices: their transfers. Times are microseconds with three decimals.

use highwater_platform::{LockClass, Phase};
use highwater_units::CpuId;
use serde::Serialize;
use std::io::{self, Write};

/// Bars kept at most: what comes later is counted only.
const BARS_MAX: usize = 2_000_000;

const CPUS: u32 = 1;
const DEVICES: u32 = 2;

/// A stretch of time in which something was under way.
pub(crate) struct Bar {
    name: String,
    process: u32,
    row: u32,
    begin: u64,
    nanos: u64,
    thread: String,
}

impl Bar {
    /// A thread did something until `end`.
    pub(super) fn phase(cpu: CpuId, thread: &str, phase: Phase, end: u64, nanos: u64) -> Bar {
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

    /// A device was at work on a transfer.
    pub(crate) fn transfer(device: u8, what: &str, pages: usize, begin: u64, end: u64) -> Bar {
        let name = format!("{what} {pages}");
        let (row, nanos, thread) = (u32::from(device), end - begin, String::new());
        Bar { name, process: DEVICES, row, begin, nanos, thread }
    }
}

/// The bars of a run.
#[derive(Default)]
pub struct Trace {
    bars: Vec<Bar>,
    dropped: u64,
}

/// An event as the format wants it.
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

impl Trace {
    pub(crate) fn add(&mut self, bar: Bar) {
        match self.bars.len() < BARS_MAX {
            true => self.bars.push(bar),
            false => self.dropped += 1,
        }
    }

    /// Bars that did not fit.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the trace, with the names of processes.
    ///
    /// # Errors
    /// The writer's.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for (pid, name) in [(CPUS, "CPUs"), (DEVICES, "devices")] {
            let args = Some(Args { name });
            let event =
                Event { name: "process_name", ph: "M", ts: 0.0, dur: 0.0, pid, tid: 0, args };
            serde_json::to_writer(&mut *to, &event)?;
            writeln!(to, ",")?;
        }
        for (index, bar) in self.bars.iter().enumerate() {
            if index > 0 {
                writeln!(to, ",")?;
            }
            serde_json::to_writer(&mut *to, &bar.event())?;
        }
        writeln!(to, "]}}")
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
