//! The sentences of the page. Locks: none.

use super::axis::short;
use crate::report::{Latency, Report};
use crate::summary;
use crate::verdict::LimitedBy;
use highwater_command::{Unit, count, counted, time};
use highwater_units::{Bytes, Nanos};
use std::time::{Duration, UNIX_EPOCH};

/// The verdict in words.
pub(super) struct Verdict {
    /// The CSS class of its box.
    pub(super) kind: &'static str,
    pub(super) title: String,
    pub(super) advice: Vec<String>,
}

/// The command as it is typed in a shell.
pub(super) fn command_line(command: &[String]) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = |part: &String| match part.chars().all(is_plain) && !part.is_empty() {
        true => part.clone(),
        false => format!("'{}'", part.replace('\'', r"'\''")),
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// How the run ended, when and how long it took.
pub(super) fn outcome(report: &Report) -> String {
    let started = UNIX_EPOCH + Duration::from_millis(report.started_ms);
    let end = summary::ending(report);
    let seconds = seconds(report.elapsed_seconds);
    format!("{end} after {seconds}; started {}", httpdate::fmt_http_date(started))
}

fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 1.0 => format!("{short:.2} s"),
        middle if middle < 600.0 => format!("{middle:.1} s"),
        long => highwater_command::elapsed(Duration::from_secs_f64(long)),
    }
}

/// What limited the run, and what to change.
pub(super) fn verdict(report: &Report) -> Verdict {
    let found = &report.verdict;
    let &crate::verdict::Verdict { limited_by, stalled_percent, budget_bytes, option, .. } = found;
    if report.processes == 0 && limited_by != LimitedBy::Unpaged {
        let title = "No memory was paged".to_owned();
        let advice =
            "None of the processes asked for 64 KiB at once, or for 1 MiB in small blocks.";
        return Verdict { kind: "fine", title, advice: vec![advice.to_owned()] };
    }
    let waited = format!("A thread waited for memory {stalled_percent} % of the time.");
    let (title, unknown) = match limited_by {
        LimitedBy::Kernel => (
            "The kernel ended a process for lack of memory",
            "A smaller --memory leaves room in the container for what it does not count.",
        ),
        LimitedBy::Full => (
            "Memory and swap were full",
            "More swap, or more memory, would hold what was asked for.",
        ),
        LimitedBy::Nothing => {
            let title = "Memory did not slow the program".to_owned();
            return Verdict { kind: "fine", title, advice: vec![waited] };
        }
        LimitedBy::Unpaged => {
            let title = "The run needed more than the limit".to_owned();
            return Verdict { kind: "slow", title, advice: vec![waited, sentence(found)] };
        }
        LimitedBy::SwapReads => (
            "Reads from swap limited this run",
            "More memory or a faster swap device would help; how much memory cannot be told from \
             this run.",
        ),
        LimitedBy::Reclaim => (
            "Freeing memory limited this run",
            "More memory would help; how much cannot be told from this run.",
        ),
    };
    let advice = match budget_bytes {
        Some(bytes) => {
            let mib = bytes >> 20;
            format!("With {option} {mib}M, many reads from swap would not have been made.")
        }
        None => unknown.to_owned(),
    };
    let compressed = found.zram.as_ref().map(|zram| {
        let (options, times, compresses) = (zram.options(option), zram.times, zram.compresses);
        format!(
            "With {options}, the run would be {times:.1} times as fast: the data compresses \
             {compresses:.1} times.",
        )
    });
    let advice = [waited, advice].into_iter().chain(compressed).collect();
    Verdict { kind: "slow", title: title.to_owned(), advice }
}

/// The verdict of the summary as a sentence.
fn sentence(verdict: &crate::verdict::Verdict) -> String {
    let text = verdict.to_string();
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// Figures at a glance: name, value, and a text to compare the value with.
pub(super) fn tiles(report: &Report) -> [(&'static str, String, String); 6] {
    let faults = report.faults_minor + report.faults_major;
    let bytes = |bytes| Bytes(bytes).to_string();
    let (some, elapsed) = (report.pressure.some.total_seconds, report.elapsed_seconds);
    [
        ("Time", seconds(elapsed), format!("{} waiting for memory", seconds(some))),
        (
            "Peak memory",
            bytes(report.peak_resident.bytes),
            format!("budget {}", Bytes(report.budget_bytes)),
        ),
        ("Peak demand", bytes(report.paged_peak_bytes), "in memory and swap".to_owned()),
        (
            "Major faults",
            Unit::Count.show(Some(report.faults_major as f64)),
            format!("of {} page faults", Unit::Count.show(Some(faults as f64))),
        ),
        (
            "Read from swap",
            bytes(report.swap_in.bytes),
            format!("{} written", Bytes(report.swap_out.bytes)),
        ),
        (
            "Major fault, p99",
            quantile(&report.fault_latency_major, report.fault_latency_major.p99_ns),
            format!(
                "half of them up to {}",
                quantile(&report.fault_latency_major, report.fault_latency_major.p50_ns)
            ),
        ),
    ]
}

fn quantile(latency: &Latency, nanos: u64) -> String {
    if latency.count == 0 { "-".to_owned() } else { short(&time(Nanos(nanos))) }
}

/// The run in sentences.
pub(super) fn story(report: &Report) -> Vec<String> {
    if report.processes == 0 {
        return Vec::new();
    }
    let [peak, budget, demand, read, written] = [
        report.peak_resident.bytes,
        report.budget_bytes,
        report.paged_peak_bytes,
        report.swap_in.bytes,
        report.swap_out.bytes,
    ]
    .map(Bytes);
    let served = counted(report.processes as u64, "process", "processes");
    let share = match (report.processes, report.budget_is_shared) {
        (1, _) => "",
        (_, true) => " for all together",
        (_, false) => " each",
    };
    let devices = match report.swap.as_slice() {
        [] => "no swap device".to_owned(),
        devices => devices.join(", "),
    };
    let [kswapd, manager] =
        [report.kswapd_cpu_seconds, report.manager_cpu_seconds].map(|it| format!("{it:.2} s"));
    vec![
        format!(
            "Highwater served {served} with a budget of {budget}{share}. No process took more than \
             {peak} of memory, or had more than {demand} in memory and swap together."
        ),
        format!(
            "{} page faults were served from memory, and {} waited for swap ({devices}): {read} \
             were read, and {written} written.",
            count(report.faults_minor),
            count(report.faults_major),
        ),
        format!(
            "Freeing memory took kswapd {kswapd} of the {manager} of CPU time of Highwater's \
             threads. Threads of the program had to free memory themselves {}.",
            counted(report.direct_reclaims, "time", "times"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{report, two_processes};
    use crate::verdict::{Shortage, Zram};

    #[test]
    fn the_verdict_names_limit_and_remedy() {
        let mut report = report(&two_processes());
        let zram = Zram {
            times: 1.94,
            compresses: 3.0,
            swap: "tier:zram:25M:lz4+dir:/x:1G".to_owned(),
            swap_bytes: 25 << 20,
            budget_bytes: 84 << 20,
        };
        let shortage = Some(Shortage {
            excess_bytes: 6 << 20,
            unpaged_bytes: 70 << 20,
            pages_bytes: 0,
            why: None,
        });
        for (limited_by, budget_bytes, zram, title, remedy) in [
            (LimitedBy::Nothing, None, None, "Memory did not slow", "waited for memory 46 %"),
            (LimitedBy::SwapReads, Some(68 << 20), None, "Reads from swap", "--memory 68M"),
            (LimitedBy::SwapReads, None, None, "Reads from swap", "cannot be told"),
            (LimitedBy::SwapReads, None, Some(zram), "Reads from swap", "dir:/x:1G, the run would"),
            (LimitedBy::Reclaim, None, None, "Freeing memory", "cannot be told"),
            (LimitedBy::Full, None, None, "Memory and swap were full", "More swap"),
            (LimitedBy::Kernel, None, None, "The kernel ended", "A smaller --memory"),
            (LimitedBy::Unpaged, Some(72 << 20), None, "The run needed", "needed 6 MiB more"),
        ] {
            report.verdict = crate::verdict::Verdict {
                limited_by,
                stalled_percent: 46,
                budget_bytes,
                option: "--memory",
                zram,
                shortage: shortage.clone().filter(|_| limited_by == LimitedBy::Unpaged),
            };
            let found = verdict(&report);
            assert!(found.title.starts_with(title), "{}", found.title);
            assert!(found.advice.last().unwrap().contains(remedy), "{:?}", found.advice);
        }
        report.processes = 0;
        assert_eq!(verdict(&report).title, "The run needed more than the limit");
        report.verdict.limited_by = LimitedBy::Nothing;
        assert_eq!(verdict(&report).title, "No memory was paged");
    }

    #[test]
    fn a_command_is_quoted_where_a_shell_needs_it() {
        let command = ["sort", "-S", "1G", "", "it's", "a b.txt", "größe"].map(str::to_owned);
        assert_eq!(command_line(&command), r"sort -S 1G '' 'it'\''s' 'a b.txt' größe");
    }

    #[test]
    fn the_story_has_the_figures() {
        let mut report = report(&two_processes());
        report.started_ms = 784_111_777_000;
        assert_eq!(
            outcome(&report),
            "exit status 3 after 12.3 s; started Sun, 06 Nov 1994 08:49:37 GMT"
        );
        let story = story(&report).join(" ");
        for part in ["2 processes", "budget of 128 MiB each", "2,500 waited", "16 MiB", "0.31 s"] {
            assert!(story.contains(part), "{part}: {story}");
        }
    }
}
