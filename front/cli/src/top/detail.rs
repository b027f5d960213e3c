//! The selected process: budget and watermarks, reclaim, swap, latency of faults. The most
//! important lines come first, because the screen may not have room for all.

use super::palette::Palette;
use super::sample::Change;
use super::state::Panel;
use crate::ctl::show;
use highwater_command::{Unit, short_size as short, time};
use highwater_mm::stats::{Counter, HistogramSnapshot};
use highwater_units::{Bytes, Nanos};
use ratatui::text::Line;
use std::slice;

/// Width of the words before bars and figures.
const LABEL: usize = 9;
/// Room for the figures after a bar.
const FIGURES: usize = 36;
/// Width of a bar of the histogram, with the blank after it.
const COLUMN: usize = 5;
/// Height of the histogram.
const BARS: usize = 4;

/// The lines, for a screen of this width. `swap`: the devices by place.
pub(super) fn lines(
    change: &Change<'_>,
    width: usize,
    palette: Palette,
    (panel, swap): (Panel, &[String]),
) -> Vec<Line<'static>> {
    let process = change.process;
    let title = format!("-- {} ({}) ", process.name, process.pid);
    let rule = Line::styled(format!("{title:-<width$}"), palette.title());
    let body = match panel {
        Panel::Faults => faults(change, width, palette),
        Panel::Devices => text(&show::swap(slice::from_ref(process), swap)),
        Panel::Locks => text(&show::locks(slice::from_ref(process))),
    };
    [vec![rule], body].concat()
}

fn text(lines: &str) -> Vec<Line<'static>> {
    lines.lines().map(|line| Line::from(line.to_owned())).collect()
}

fn faults(change: &Change<'_>, width: usize, palette: Palette) -> Vec<Line<'static>> {
    let process = change.process;
    let [min, low, _] = marks(change);
    let free = change.get(Counter::Free);
    let stalled = change.get(Counter::PsiSome10) > 1000;
    let alert = |when: bool, text: String| match when {
        true => Line::styled(text, palette.alert()),
        false => Line::from(text),
    };
    let mut lines = vec![
        Line::from(budget(change, width)),
        alert(free < low && min > 0, watermarks(change, width)),
        Line::from(reclaim(change)),
        alert(stalled, stalls(change)),
        Line::from(swap(change, width)),
        Line::from(traffic(change)),
    ];
    lines.extend(devices(change).map(Line::from));
    lines.push(Line::from(latency(change)));
    let (minor, major) = (&process.snapshot.minor, &process.snapshot.major);
    lines.extend(histogram(minor, major, width).into_iter().map(Line::from));
    lines
}

fn marks(change: &Change<'_>) -> [u64; 3] {
    [Counter::WatermarkMin, Counter::WatermarkLow, Counter::WatermarkHigh].map(|it| change.get(it))
}

fn pages(count: u64) -> Bytes {
    Bytes::of_pages(count)
}

/// A bar from 0 to `whole`, filled up to `part`, with letters at marks.
fn bar(part: u64, whole: u64, marks: &[(u64, char)], width: usize) -> String {
    let cells = width.saturating_sub(LABEL + FIGURES + 2).max(10);
    let cell = |value: u64| (value as u128 * cells as u128 / whole.max(1) as u128) as usize;
    let filled = cell(part).min(cells);
    let mut bar: Vec<char> = (0..cells).map(|at| if at < filled { '#' } else { '-' }).collect();
    for (mark, letter) in marks {
        bar[cell(*mark).min(cells - 1)] = *letter;
    }
    format!("[{}]", bar.into_iter().collect::<String>())
}

fn budget(change: &Change<'_>, width: usize) -> String {
    let (used, all) = (change.get(Counter::Resident), change.get(Counter::Frames));
    let bar = bar(used, all, &[], width);
    format!("budget   {bar} {} of {} in use", short(pages(used)), short(pages(all)))
}

/// Free memory, as a bar from 0 to twice the high watermark.
fn watermarks(change: &Change<'_>, width: usize) -> String {
    let (free, [min, low, high]) = (change.get(Counter::Free), marks(change));
    let bar = bar(free, 2 * high, &[(min, 'm'), (low, 'l'), (high, 'h')], width);
    let [free, min, low, high] = [free, min, low, high].map(|frames| short(pages(frames)));
    format!("free     {bar} {free}; m {min} l {low} h {high}")
}

fn reclaim(change: &Change<'_>) -> String {
    let rate = |counter| Unit::Rate.show(change.rate(counter));
    format!(
        "reclaim  kswapd scans {}, frees {} pages/s; direct reclaims {}/s",
        rate(Counter::PgScanKswapd),
        rate(Counter::PgStealKswapd),
        rate(Counter::AllocStall),
    )
}

fn stalls(change: &Change<'_>) -> String {
    let share = |counter| change.get(counter) as f64 / 100.0;
    let (some, full) = (share(Counter::PsiSome10), share(Counter::PsiFull10));
    format!("stalled  a thread {some:.1}% of the last 10 s, all threads {full:.1}%")
}

fn swap(change: &Change<'_>, width: usize) -> String {
    let (used, all) = (change.get(Counter::SlotsUsed), change.get(Counter::SlotsTotal));
    let bar = bar(used, all, &[], width);
    format!("swap     {bar} {} of {}", short(pages(used)), short(pages(all)))
}

/// Traffic with the devices: speed, pages of one transfer, and how long it took.
fn traffic(change: &Change<'_>) -> String {
    let of = |word: &str, [pages, ios, nanos]: [Counter; 3]| {
        let speed = change.bytes_rate(pages).map_or("-".to_owned(), |it| short(Bytes(it as u64)));
        let each = change.ratio(pages, ios).zip(change.ratio(nanos, ios));
        let each =
            each.map(|(pages, took)| format!(", {pages:.1} pages, {}", time(Nanos(took as u64))));
        format!("{word} {speed}/s{}", each.unwrap_or_default())
    };
    format!(
        "         {}; {}",
        of("in", [Counter::PswpIn, Counter::SwapInIos, Counter::SwapInNanos]),
        of("out", [Counter::PswpOut, Counter::SwapOutIos, Counter::SwapOutNanos]),
    )
}

/// Contents of compressed and two-level devices, if there are any.
fn devices(change: &Change<'_>) -> impl Iterator<Item = String> {
    let of = |counter| pages(change.get(counter));
    let (zram, fast, slow) = (of(Counter::ZramPages), of(Counter::TierFast), of(Counter::TierSlow));
    let compressed = (zram.0 > 0)
        .then(|| format!("  zram   at most {zram} in {}", Bytes(change.get(Counter::ZramBytes))));
    let back = of(Counter::TierWriteback);
    let tiers = (fast.0 + slow.0 > 0)
        .then(|| format!("  tiers  at most {fast} fast, {slow} slow; {back} written back"));
    compressed.into_iter().chain(tiers)
}

fn latency(change: &Change<'_>) -> String {
    let of = |faults: &HistogramSnapshot| match faults.count() {
        0 => "none".to_owned(),
        _ => format!("p50 {}, p99 {}", time(faults.quantile(0.5)), time(faults.quantile(0.99))),
    };
    let snapshot = &change.process.snapshot;
    format!("latency  + minor {}; # major {}", of(&snapshot.minor), of(&snapshot.major))
}

/// Latencies by powers of two, as bars over their labels; no lines if there were no faults.
fn histogram(minor: &HistogramSnapshot, major: &HistogramSnapshot, width: usize) -> Vec<String> {
    let powers = minor.by_power_of_two().zip(major.by_power_of_two());
    let powers: Vec<Power> =
        powers.map(|((least, minor), (_, major))| Power { least, minor, major }).collect();
    let powers = fitted(&powers, (width.saturating_sub(LABEL) / COLUMN).max(1));
    let most = powers.iter().map(Power::all).max().unwrap_or(0);
    if most == 0 {
        return Vec::new();
    }
    let line = |cell: &dyn Fn(&Power) -> String| {
        let cells = powers.iter().map(|power| format!("{:<COLUMN$}", cell(power)));
        " ".repeat(LABEL) + &cells.collect::<String>()
    };
    let bars = (0..BARS).rev().map(|level| line(&|power| power.at(level, most).repeat(COLUMN - 1)));
    bars.chain([line(&|power| label(power.least))]).collect()
}

/// The faults that took from `least` to less than twice as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Power {
    least: Nanos,
    minor: u64,
    major: u64,
}

impl Power {
    fn all(&self) -> u64 {
        self.minor + self.major
    }

    /// The mark of the bar at a level, 0 being the bottom: major faults below minor faults, and a
    /// dot if there are too few faults for a mark.
    fn at(&self, level: usize, most: u64) -> &'static str {
        let (levels, most) = (BARS as u128, u128::from(most));
        let height = |count: u64| ((u128::from(count) * levels + most / 2) / most) as usize;
        match level {
            level if level < height(self.major) => "#",
            level if level < height(self.all()) => "+",
            0 if self.all() > 0 => ".",
            _ => " ",
        }
    }
}

/// The powers from the first to the last with faults. If there are more than `columns`, the fastest
/// ones are merged.
fn fitted(powers: &[Power], columns: usize) -> Vec<Power> {
    let has_any = |power: &Power| power.all() > 0;
    let Some(first) = powers.iter().position(has_any) else { return Vec::new() };
    let end = powers.iter().rposition(has_any).unwrap_or(first) + 1;
    let begin = first.max(end.saturating_sub(columns));
    let mut fitted = powers[begin..end].to_vec();
    for power in &powers[first..begin] {
        fitted[0].minor += power.minor;
        fitted[0].major += power.major;
    }
    fitted
}

/// A power of two of nanoseconds in at most four characters; 1024 ns are 1u.
fn label(nanos: Nanos) -> String {
    match nanos.0 {
        nanos if nanos < 1 << 10 => format!("{nanos}n"),
        nanos if nanos < 1 << 20 => format!("{}u", nanos >> 10),
        nanos if nanos < 1 << 30 => format!("{}m", nanos >> 20),
        nanos => format!("{}s", nanos >> 30),
    }
}
