//! The metrics of a look (`look.rs`), as text. Names follow Prometheus's conventions: base units,
//! `_total`.
//!
//! The number of time series is bounded: there are sums over the session, and figures of the
//! [`PROCESSES_MAX`] processes with the most pages in memory.
//!
//! Locks: that of the board, held to exchange a pointer.

use crate::look::Look;
use crate::session::Process;
use highwater_mm::stats::{Counter, HistogramSnapshot};
use highwater_units::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Most processes that have figures of their own.
const PROCESSES_MAX: usize = 32;
const PREFIX: &str = "highwater";

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    OpenMetrics,
    /// For clients that do not ask for OpenMetrics.
    Prometheus,
}

impl Text {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Text::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Text::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The last look, which is served.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Option<Arc<Look>>>);

impl Board {
    /// Replaces the look.
    pub(crate) fn show(&self, look: Look) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(look));
    }

    fn last(&self) -> Option<Arc<Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The metrics that a session exposes.
pub(super) struct Exposition(Registry);

impl Exposition {
    /// The metrics of a session. `session`: its name or pid.
    pub(super) fn new(session: String, board: Arc<Board>) -> Exposition {
        let labels = [(Cow::Borrowed("session"), Cow::Owned(session))];
        let mut registry = Registry::with_prefix_and_labels(PREFIX, labels.into_iter());
        registry.register_collector(Box::new(board));
        Exposition(registry)
    }

    /// The text.
    pub(super) fn text(&self, format: Text) -> String {
        let mut out = String::new();
        let encoded = match format {
            Text::OpenMetrics => text::encode(&mut out, &self.0),
            Text::Prometheus => prometheus_text::encode(&mut out, &self.0),
        };
        // Writing to a string does not fail.
        encoded.map_or(String::new(), |()| out)
    }
}

impl Collector for Board {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(look) = self.last() else { return Ok(()) };
        for metric in METRICS {
            metric.encode(&mut encoder, &look)?;
        }
        latency(&mut encoder, &look)
    }
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Whole(u64),
    Seconds(f64),
}

type Labels = Vec<(&'static str, String)>;

/// A metric, and the function that returns its values.
struct Metric {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    values: fn(&Look) -> Vec<(Labels, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

impl Metric {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, look: &Look) -> fmt::Result {
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
        };
        let values = (self.values)(look);
        if values.is_empty() {
            return Ok(());
        }
        let unit = self.unit.as_ref();
        let mut metric = encoder.encode_descriptor(self.name, self.help, unit, kind)?;
        for (labels, value) in values {
            let mut family = metric.encode_family(&labels)?;
            match (self.kind, value) {
                (Kind::Counter, Value::Whole(value)) => {
                    family.encode_counter::<Labels, _, u64>(&value, None)?;
                }
                (Kind::Counter, Value::Seconds(value)) => {
                    family.encode_counter::<Labels, _, u64>(&value, None)?;
                }
                (Kind::Gauge, Value::Whole(value)) => family.encode_gauge(&value)?,
                (Kind::Gauge, Value::Seconds(value)) => family.encode_gauge(&value)?,
            }
        }
        Ok(())
    }
}

/// A value without further labels.
fn one(value: u64) -> Vec<(Labels, Value)> {
    vec![(Vec::new(), Value::Whole(value))]
}

/// A value for each of two values of a label.
fn split(label: &'static str, values: [(&str, Value); 2]) -> Vec<(Labels, Value)> {
    values.map(|(kind, value)| (vec![(label, kind.to_owned())], value)).into()
}

fn count(look: &Look, counter: Counter) -> Value {
    Value::Whole(look.all.get(counter))
}

fn bytes(look: &Look, counter: Counter) -> Value {
    Value::Whole(Bytes::of_pages(look.all.get(counter)).0)
}

fn seconds(look: &Look, counter: Counter, per_second: f64) -> Value {
    Value::Seconds(look.all.get(counter) as f64 / per_second)
}

/// A value for each of the processes with the most pages in memory.
fn each(look: &Look, value: fn(&Process) -> u64) -> Vec<(Labels, Value)> {
    let mut processes: Vec<&Process> = look.living.iter().collect();
    processes.sort_by_key(|process| (Reverse(process.bytes(Counter::Resident)), process.pid));
    processes.truncate(PROCESSES_MAX);
    let of = |process: &Process| {
        let labels = vec![("pid", process.pid.to_string()), ("process", process.name.clone())];
        (labels, Value::Whole(value(process)))
    };
    processes.into_iter().map(of).collect()
}

const METRICS: &[Metric] = &[
    Metric {
        name: "budget",
        help: "Memory that all processes may use together, or each of them.",
        unit: Some(Unit::Bytes),
        kind: Kind::Gauge,
        values: |look| one(look.budget.0),
    },
    Metric {
        name: "resident",
        help: "Pages in memory.",
        unit: Some(Unit::Bytes),
        kind: Kind::Gauge,
        values: |look| one(look.resident().0),
    },
    Metric {
        name: "unpaged",
        help: "Memory that counts towards the budget and cannot be paged.",
        unit: Some(Unit::Bytes),
        kind: Kind::Gauge,
        values: |look| one(look.unpaged.0),
    },
    Metric {
        name: "swap_used",
        help: "Swap slots in use.",
        unit: Some(Unit::Bytes),
        kind: Kind::Gauge,
        values: |look| one(look.swap_used().0),
    },
    Metric {
        name: "processes",
        help: "Processes that are served and run.",
        unit: None,
        kind: Kind::Gauge,
        values: |look| one(look.living.len() as u64),
    },
    Metric {
        name: "faults",
        help: "Page faults: minor ones served from memory, major ones waited for a device.",
        unit: None,
        kind: Kind::Counter,
        values: |look| {
            let [all, major] =
                [Counter::PgFault, Counter::PgMajFault].map(|counter| look.all.get(counter));
            let minor = Value::Whole(all.saturating_sub(major));
            split("kind", [("minor", minor), ("major", Value::Whole(major))])
        },
    },
    Metric {
        name: "swapped_in",
        help: "Read from swap.",
        unit: Some(Unit::Bytes),
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), bytes(look, Counter::PswpIn))],
    },
    Metric {
        name: "swapped_out",
        help: "Written to swap.",
        unit: Some(Unit::Bytes),
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), bytes(look, Counter::PswpOut))],
    },
    Metric {
        name: "swap_errors",
        help: "Transfers with swap devices that failed.",
        unit: None,
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), count(look, Counter::SwapIoErrors))],
    },
    Metric {
        name: "reclaimed",
        help: "Memory freed, by kswapd or directly by threads of the program.",
        unit: Some(Unit::Bytes),
        kind: Kind::Counter,
        values: |look| {
            let kswapd = bytes(look, Counter::PgStealKswapd);
            split("by", [("kswapd", kswapd), ("direct", bytes(look, Counter::PgStealDirect))])
        },
    },
    Metric {
        name: "direct_reclaims",
        help: "Times a thread of the program freed memory itself.",
        unit: None,
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), count(look, Counter::AllocStall))],
    },
    Metric {
        name: "stalled",
        help: "Time in which a thread (some), or all that could have run (full), waited for \
               memory, summed over processes.",
        unit: Some(Unit::Seconds),
        kind: Kind::Counter,
        values: |look| {
            let some = seconds(look, Counter::PsiSomeMicros, 1e6);
            split("kind", [("some", some), ("full", seconds(look, Counter::PsiFullMicros, 1e6))])
        },
    },
    Metric {
        name: "manager_cpu",
        help: "CPU time of Highwater's threads, kswapd's included.",
        unit: Some(Unit::Seconds),
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), seconds(look, Counter::HelperNanos, 1e9))],
    },
    Metric {
        name: "kswapd_cpu",
        help: "CPU time of the threads that free memory in the background.",
        unit: Some(Unit::Seconds),
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), seconds(look, Counter::KswapdNanos, 1e9))],
    },
    Metric {
        name: "out_of_memory",
        help: "Processes that were ended because memory and swap were full.",
        unit: None,
        kind: Kind::Counter,
        values: |look| vec![(Vec::new(), count(look, Counter::OutOfMemory))],
    },
    Metric {
        name: "process_resident",
        help: "Pages of a process in memory; of the processes with most.",
        unit: Some(Unit::Bytes),
        kind: Kind::Gauge,
        values: |look| each(look, |process| process.bytes(Counter::Resident).0),
    },
    Metric {
        name: "process_swap_used",
        help: "Swap slots of a process in use; of the processes with most pages in memory.",
        unit: Some(Unit::Bytes),
        kind: Kind::Gauge,
        values: |look| each(look, |process| process.bytes(Counter::SlotsUsed).0),
    },
    Metric {
        name: "process_major_faults",
        help: "Faults of a process that waited for a device; of the processes with most pages in \
               memory.",
        unit: None,
        kind: Kind::Counter,
        values: |look| each(look, |process| process.snapshot.get(Counter::PgMajFault)),
    },
];

/// The latencies of faults, as histograms with a bucket for each power of two of nanoseconds.
fn latency(encoder: &mut DescriptorEncoder<'_>, look: &Look) -> fmt::Result {
    let help = "Latency of page faults.";
    let unit = Some(&Unit::Seconds);
    let mut metric =
        encoder.encode_descriptor("fault_latency", help, unit, MetricType::Histogram)?;
    for (kind, latencies) in [("minor", &look.all.minor), ("major", &look.all.major)] {
        let labels: Labels = vec![("kind", kind.to_owned())];
        let mut family = metric.encode_family(&labels)?;
        let sum = latencies.mean().0 as f64 * latencies.count() as f64 / 1e9;
        family.encode_histogram::<Labels>(sum, latencies.count(), &buckets(latencies), None)?;
    }
    Ok(())
}

/// The first and last power of two of nanoseconds that ends a bucket: 256 ns and 17 s.
const POWERS: std::ops::RangeInclusive<u32> = 8..=34;

/// The buckets: the upper end of each in seconds, and its number of faults.
fn buckets(latencies: &HistogramSnapshot) -> Vec<(f64, u64)> {
    let counts: Vec<(u64, u64)> =
        latencies.by_power_of_two().map(|(least, count)| (least.0, count)).collect();
    let within = |from: u64, to: u64| -> u64 {
        counts.iter().filter(|(least, _)| (from..to).contains(least)).map(|(_, count)| count).sum()
    };
    let bucket = |power: u32| {
        let from = if power == *POWERS.start() { 0 } else { 1 << (power - 1) };
        ((1u64 << power) as f64 / 1e9, within(from, 1 << power))
    };
    let finite = POWERS.map(bucket);
    finite.chain([(f64::INFINITY, within(1 << POWERS.end(), u64::MAX))]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::look;
    use highwater_mm::stats::{Snapshot, Stats};
    use highwater_units::{CpuId, Nanos};
    use std::collections::BTreeSet;
    use std::path::Path;

    fn snapshot() -> Snapshot {
        let stats = Stats::new(1);
        for (counter, value) in [
            (Counter::PgFault, 10),
            (Counter::PgMajFault, 4),
            (Counter::PswpIn, 3),
            (Counter::Resident, 2),
            (Counter::PsiSomeMicros, 1_500_000),
        ] {
            stats.add(CpuId(0), counter, value);
        }
        for nanos in [1, 100, 300, 1500, 1 << 36] {
            stats.major_fault(CpuId(0), Nanos(nanos));
        }
        stats.snapshot()
    }

    fn text(look: Look, format: Text) -> String {
        let board = Arc::new(Board::default());
        board.show(look);
        Exposition::new("de\"mo".to_owned(), board).text(format)
    }

    #[test]
    fn both_formats_have_names_units_and_escaped_labels() {
        let both = [Text::OpenMetrics, Text::Prometheus].map(|it| text(look(7, &snapshot()), it));
        for text in &both {
            for line in [
                "highwater_budget_bytes{session=\"de\\\"mo\"} 16777216\n",
                "highwater_resident_bytes{session=\"de\\\"mo\"} 8192\n",
                "highwater_faults_total{session=\"de\\\"mo\",kind=\"minor\"} 6\n",
                "highwater_swapped_in_bytes_total{session=\"de\\\"mo\"} 12288\n",
                "highwater_stalled_seconds_total{session=\"de\\\"mo\",kind=\"some\"} 1.5\n",
                "highwater_process_resident_bytes{session=\"de\\\"mo\",pid=\"7\",process=\"sort\"} \
                 8192\n",
                "highwater_fault_latency_seconds_count{session=\"de\\\"mo\",kind=\"major\"} 5\n",
            ] {
                assert!(text.contains(line), "{line}{text}");
            }
        }
        for text in &both {
            assert_eq!(text.matches("le=\"+Inf\"").count(), 2, "one of each kind: {text}");
            assert!(!text.contains("e308"), "{text}");
        }
        assert!(both[0].ends_with("# EOF\n"));
        assert!(both[1].contains("# TYPE highwater_faults_total counter\n"), "{}", both[1]);
    }

    #[test]
    fn buckets_add_up() {
        let found = buckets(&snapshot().major);
        assert_eq!(found.iter().map(|(_, count)| count).sum::<u64>(), 5);
        let filled: Vec<(f64, u64)> = found.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(256e-9, 2), (512e-9, 1), (2048e-9, 1), (f64::INFINITY, 1)]);
    }

    #[test]
    fn the_number_of_processes_is_bounded() {
        let mut many = look(1, &snapshot());
        many.living = (1..=100)
            .map(|pid| {
                let mut snapshot = Snapshot::empty();
                snapshot.counters[Counter::Resident as usize] = u64::from(pid);
                crate::session::tests::process(pid, "a", snapshot)
            })
            .collect();
        let text = text(many, Text::Prometheus);
        let found = text.matches("highwater_process_resident_bytes{").count();
        assert_eq!(found, PROCESSES_MAX);
        assert!(text.contains("pid=\"100\"") && !text.contains("pid=\"68\""), "{text}");
    }

    #[test]
    fn before_the_first_look_there_is_nothing() {
        let exposition = Exposition::new(String::new(), Arc::new(Board::default()));
        assert_eq!(exposition.text(Text::OpenMetrics), "# EOF\n");
    }

    /// The metrics by the names of their samples, and their help.
    fn names() -> BTreeSet<String> {
        let text = text(look(7, &snapshot()), Text::Prometheus);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
    }

    fn page(name: &str) -> String {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        std::fs::read_to_string(docs.join(name)).expect("a page")
    }

    /// The names of metrics in a text.
    fn named(text: &str) -> BTreeSet<String> {
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        text.split(word).filter(|it| it.starts_with("highwater_")).map(str::to_owned).collect()
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_there_are() {
        fn expressions(value: &serde_json::Value, found: &mut Vec<String>) {
            match value {
                serde_json::Value::Object(object) => {
                    let asks = ["expr", "query", "definition"];
                    let texts = asks.iter().filter_map(|key| object.get(*key)?.as_str());
                    found.extend(texts.map(str::to_owned));
                    object.values().for_each(|value| expressions(value, found));
                }
                serde_json::Value::Array(array) => {
                    array.iter().for_each(|value| expressions(value, found));
                }
                _ => {}
            }
        }
        let dashboard = serde_json::from_str(&page("grafana.json")).expect("JSON");
        let mut found = Vec::new();
        expressions(&dashboard, &mut found);
        assert!(found.len() >= 10, "{found:?}");
        let (asked, there) = (named(&found.join("\n")), names());
        let missing: Vec<_> = asked.difference(&there).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_metric_is_documented() {
        let text = text(look(7, &snapshot()), Text::Prometheus);
        let page = page("metrics.md");
        for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
            let (name, help) = line.split_once(' ').expect("a help text");
            let row = page.lines().find(|row| row.starts_with(&format!("| `{name}`")));
            assert!(row.is_some_and(|row| row.contains(help)), "{name} in docs/metrics.md: {help}");
        }
    }
}
