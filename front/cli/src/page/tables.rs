//! The tables of the page: malloc by size, locks, processes, counters. Locks: none.

use super::axis::short;
use crate::lock_figures::LockFigures;
use crate::malloc_figures::{ClassFigures, MallocFigures};
use crate::processes::{ByProcess, Events, ProcessFigures};
use crate::report::Report;
use highwater_command::{Unit, count, counted};
use highwater_mm::stats::Counter;
use highwater_units::Bytes;
use maud::{Markup, html};
use std::cmp::Reverse;

/// Most rows of each table; the JSON has all rows.
const SIZES_MAX: usize = 16;
const LOCKS_MAX: usize = 12;
const PROCESSES_MAX: usize = 50;

/// A table with its own scroll bar for narrow pages.
fn table(caption: &str, titles: &[&str], rows: Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for title in titles { th scope="col" { (title) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// A cell whose bar shows its share of the largest value.
fn bar(value: u64, most: u64, text: &str) -> Markup {
    let share = value as f64 / most.max(1) as f64 * 100.0;
    html! { td.bar { span style=(format!("width:{share:.1}%")) aria-hidden="true" {} (text) } }
}

fn nanos(nanos: u64) -> String {
    short(&Unit::Time.show(Some(nanos as f64)))
}

/// Malloc by size class.
pub(super) fn malloc(malloc: Option<&MallocFigures>) -> Markup {
    let Some(malloc) = malloc else {
        return html! { p { "No process used Highwater's malloc." } };
    };
    let used = |class: &ClassFigures| class.at_most.active_objs * u64::from(class.objsize);
    let mut classes: Vec<_> = malloc.classes.iter().collect();
    classes.sort_by_key(|class| Reverse(used(class)));
    let (shown, others) = classes.split_at(classes.len().min(SIZES_MAX));
    let most = shown.first().map_or(0, |class| used(class));
    let [objects, large, left] =
        [malloc.at_most.active_bytes, malloc.at_most.large_bytes, malloc.at_end.active_bytes]
            .map(Bytes);
    let blocks = counted(malloc.at_most.large_blocks, "block", "blocks");
    let rest: u64 = others.iter().map(|class| used(class)).sum();
    html! {
        p {
            "At most " (objects) " were in use in blocks below 64 KiB, and " (large) " in "
            (blocks) " of 64 KiB and more. At the end " (left) " in blocks below 64 KiB were not \
             freed."
        }
        @if !shown.is_empty() {
            (table(
                "Blocks below 64 KiB by size, those with most bytes first",
                &["Size", "In use at most", "Blocks", "Slabs", "Left at the end"],
                html! {
                    @for class in shown {
                        tr {
                            th scope="row" { (Bytes(class.objsize.into())) }
                            (bar(used(class), most, &Bytes(used(class)).to_string()))
                            td { (count(class.at_most.active_objs)) }
                            td { (Bytes(class.at_most.slab_bytes)) }
                            td { (count(class.at_end.active_objs)) }
                        }
                    }
                    @if !others.is_empty() {
                        tr {
                            th scope="row" { (others.len()) " more" }
                            td { (Bytes(rest)) } td {} td {} td {}
                        }
                    }
                }
            ))
        }
    }
}

/// Costs of locks.
pub(super) fn locks(locks: &[LockFigures]) -> Markup {
    let mut sorted: Vec<_> = locks.iter().collect();
    sorted.sort_by_key(|lock| (Reverse((lock.wait_ns, lock.hold_ns)), lock.name));
    let most = sorted.first().map_or(0, |lock| lock.wait_ns);
    let Some(first) = sorted.first() else {
        return html! { p { "No lock of the manager was sampled." } };
    };
    html! {
        p {
            @if first.wait_ns == 0 { "No thread waited for a lock of the manager." }
            @else {
                "Threads waited longest for " code { (first.name) } ": " (nanos(first.wait_ns))
                " in all."
            }
        }
        (table(
            "Locks of the manager, those with the longest waits first; one acquisition in 31 is \
             counted and timed",
            &["Lock", "Waited", "Contended", "Taken", "Held"],
            html! {
                @for lock in sorted.iter().take(LOCKS_MAX) {
                    tr {
                        th scope="row" { code { (lock.name) } }
                        (bar(lock.wait_ns, most, &nanos(lock.wait_ns)))
                        td { (count(lock.contended)) }
                        td { (count(lock.acquisitions)) }
                        td { (nanos(lock.hold_ns)) }
                    }
                }
            }
        ))
    }
}

/// The processes.
pub(super) fn processes(by_process: &ByProcess) -> Markup {
    let ByProcess { listed, not_listed, sum, .. } = by_process;
    let shown = &listed[..listed.len().min(PROCESSES_MAX)];
    let others = listed.len() - shown.len() + not_listed;
    let most = shown.first().map_or(0, |process| process.peak_paged_bytes);
    let name = |process: &ProcessFigures| match process.name.as_str() {
        "" => "?".to_owned(),
        name => name.to_owned(),
    };
    if shown.is_empty() {
        return html! { p { "No process was paged." } };
    }
    table(
        "Processes, those with the largest peaks first",
        &["Process", "PID", "Peak paged", "Minor", "Major", "Read", "Written", "Stalled"],
        html! {
            @for process in shown {
                tr {
                    th scope="row" { (name(process)) }
                    td { (process.pid) }
                    (bar(
                        process.peak_paged_bytes,
                        most,
                        &Bytes(process.peak_paged_bytes).to_string()
                    ))
                    (events(&process.events))
                }
            }
            @if others > 0 {
                tr { th scope="row" { (count(others as u64)) " more" } @for _ in 0..7 { td {} } }
            }
            @if shown.len() + others > 1 {
                tr.sum { th scope="row" { "Sum of all" } td {} td {} (events(sum)) }
            }
        },
    )
}

fn events(events: &Events) -> Markup {
    html! {
        td { (count(events.faults_minor)) }
        td { (count(events.faults_major)) }
        td { (Bytes(events.swapped_in_bytes)) }
        td { (Bytes(events.swapped_out_bytes)) }
        td { (format!("{:.2} s", events.stalled_seconds)) }
    }
}

/// All counters that are not 0.
pub(super) fn counters(report: &Report) -> Markup {
    let value = |counter: Counter| report.vmstat.get(counter.name()).copied().unwrap_or(0);
    let counted = Counter::ALL.into_iter().filter(|counter| value(*counter) > 0);
    table(
        "All counters that are not 0, summed over processes",
        &["Counter", "Value", "Meaning"],
        html! {
            @for counter in counted {
                tr {
                    th scope="row" { code { (counter.name()) } }
                    td { (count(value(counter))) }
                    td.text { (counter.meaning()) }
                }
            }
        },
    )
}
