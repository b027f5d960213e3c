//! The screen, as a pure function of samples and state. It is ASCII and needs 80 columns; further
//! rows and columns show more.
//!
//! ```text
//! heading    2 lines: the session, and sums over its processes
//! table      the processes, scrolled to the selected one
//! detail     the selected process, as far as there is room
//! keys       1 line
//! ```

use super::detail;
use super::palette::Palette;
use super::sample::{Row, Samples};
use super::state::State;
use crate::session::Description;
use highwater_command::{Unit, counted, elapsed, short_size as short};
use highwater_units::Bytes;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Table, TableState};
use std::time::Duration;

/// On a small screen, the table shrinks to this many rows, including its titles, before the detail
/// gets less room.
const TABLE_ROWS_MIN: u16 = 4;

/// The contents of the screen.
pub(super) struct Shown<'a> {
    pub(super) description: &'a Description,
    /// The budget of the session now, in words.
    pub(super) budget: &'a str,
    /// Whether the processes share the budget, so that it can be changed.
    pub(super) is_shared: bool,
    /// The effect of the last key, in words, if it did more than change the state.
    pub(super) notice: Option<&'a str>,
    /// The swap devices by place.
    pub(super) swap: &'a [String],
    /// How long the session has been running.
    pub(super) running: Duration,
    /// The processes of `samples`, in the order of the state.
    pub(super) rows: &'a [Row],
    pub(super) samples: &'a Samples,
    pub(super) palette: Palette,
}

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, shown: &Shown<'_>, state: &State) {
    let area = frame.area();
    let selected = state.index(shown.rows);
    let change = selected.and_then(|index| shown.samples.of(shown.rows[index].pid));
    let width = usize::from(area.width);
    let detail = change
        .map(|change| detail::lines(&change, width, shown.palette, (state.panel, shown.swap)));
    let detail = detail.unwrap_or_else(|| vec![Line::from("no process is served yet")]);
    let free = area.height.saturating_sub(3);
    let wanted = shown.rows.len() as u16 + 1;
    let table_rows = wanted.min(free.saturating_sub(detail.len() as u16).max(TABLE_ROWS_MIN));
    let [heading, table, below, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(table_rows),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_heading(frame, heading, shown);
    let mut scrolled = TableState::new().with_selected(selected);
    frame.render_stateful_widget(process_table(shown, state, area.width), table, &mut scrolled);
    frame.render_widget(Paragraph::new(Text::from(detail)), below);
    frame.render_widget(Paragraph::new(key_line(shown, state)).style(shown.palette.bar()), keys);
}

fn draw_heading(frame: &mut Frame<'_>, area: Rect, shown: &Shown<'_>) {
    let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let running = format!(" running {}", elapsed(shown.running));
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(running.len() as u16)])
            .areas(first);
    let description = shown.description;
    let session = format!("{}  {}", description.title(), description.command_line());
    frame.render_widget(Line::styled(session, shown.palette.title()), left);
    frame.render_widget(Paragraph::new(running).alignment(Alignment::Right), right);
    frame.render_widget(Paragraph::new(sums(shown)), second);
}

/// Sums over the processes.
fn sums(shown: &Shown<'_>) -> String {
    let bytes = |of: fn(&Row) -> Bytes| Bytes(shown.rows.iter().map(|row| of(row).0).sum());
    let rate = |of: fn(&Row) -> Option<f64>| -> Option<f64> { shown.rows.iter().map(of).sum() };
    format!(
        "{} {}; resident {}, swap {}, minor {}/s, major {}/s",
        counted(shown.rows.len() as u64, "process", "processes"),
        shown.budget,
        short(bytes(|row| row.resident)),
        short(bytes(|row| row.swap)),
        rate_text(rate(|row| row.minor)),
        rate_text(rate(|row| row.major)),
    )
}

fn key_line(shown: &Shown<'_>, state: &State) -> String {
    if let Some(notice) = shown.notice {
        return notice.to_owned();
    }
    let sorted = state.sort.title();
    let freeze = if state.frozen { "FROZEN" } else { "freeze" };
    let budget = if shown.is_shared { "+/- budget" } else { "budget fixed" };
    format!("q quit  up/down select  s sort: {sorted}  d detail  space {freeze}  {budget}")
}

/// A rate in at most 6 characters.
fn rate_text(rate: Option<f64>) -> String {
    Unit::Rate.show(rate).replace(' ', "")
}

const TITLES: [&str; 9] =
    ["NAME", "PID", "BUDGET", "RESIDENT", "SWAP", "MINOR/s", "MAJOR/s", "IN/s", "OUT/s"];
const WIDTHS: [u16; 9] = [15, 7, 6, 9, 6, 8, 8, 6, 6];

/// How many columns fit on a screen. Columns are never cut: a figure without its last digits would
/// be wrong.
fn columns_in(width: u16) -> usize {
    let ends = WIDTHS.iter().scan(0, |end, width| {
        *end += width + 1;
        Some(*end - 1)
    });
    ends.take_while(|end| *end <= width).count().max(1)
}

fn process_table<'a>(shown: &Shown<'a>, state: &State, width: u16) -> Table<'a> {
    let columns = columns_in(width);
    let widths = WIDTHS[..columns].iter().copied().map(Constraint::Length);
    let rows = shown.rows.iter().map(|row| line(&cells(row)[..columns]));
    let titles = TITLES.map(|title| match title == state.sort.title() {
        true => format!("*{title}"),
        false => title.to_owned(),
    });
    Table::new(rows, widths)
        .header(line(&titles[..columns]).style(shown.palette.bar()))
        .row_highlight_style(shown.palette.bar())
}

/// A line of the table: the name to the left, figures to the right.
fn line<'a>(cells: &[String]) -> ratatui::widgets::Row<'a> {
    let aligned = cells.iter().enumerate().map(|(column, cell)| {
        let alignment = if column == 0 { Alignment::Left } else { Alignment::Right };
        Cell::from(Text::from(cell.clone()).alignment(alignment))
    });
    ratatui::widgets::Row::new(aligned)
}

fn cells(row: &Row) -> [String; 9] {
    let bytes_rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |it| short(Bytes(it as u64)));
    [
        if row.name.is_empty() { "?".to_owned() } else { row.name.clone() },
        row.pid.to_string(),
        short(row.budget),
        short(row.resident),
        short(row.swap),
        rate_text(row.minor),
        rate_text(row.major),
        bytes_rate(row.bytes_in),
        bytes_rate(row.bytes_out),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::super::sample::tests::process;
    use super::super::state::Flow;
    use super::*;
    use crate::session::Process;
    use crate::session::tests::session;
    use highwater_mm::SwapUse;
    use highwater_mm::stats::{Counter, Stats};
    use highwater_session::Parts;
    use highwater_units::{CpuId, Nanos};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;
    use ratatui::crossterm::event::KeyCode;
    use ratatui::style::Color;

    const MIB: u64 = 256;

    /// A process that swaps, after `seconds`.
    fn sort(seconds: u64) -> Process {
        let counts = [
            (Counter::PgFault, 5000 * seconds),
            (Counter::PgMajFault, 1250 * seconds),
            (Counter::PswpIn, 3 * MIB * seconds),
            (Counter::SwapInIos, MIB * seconds),
            (Counter::SwapInNanos, 256 * 90_000 * seconds),
            (Counter::PswpOut, 2 * MIB * seconds),
            (Counter::SwapOutIos, 32 * seconds),
            (Counter::SwapOutNanos, 32 * 1_500_000 * seconds),
            (Counter::PgScanKswapd, 2000 * seconds),
            (Counter::PgStealKswapd, 1000 * seconds),
            (Counter::AllocStall, 3 * seconds),
            (Counter::PsiSome10, 1234),
            (Counter::PsiFull10, 100),
            (Counter::Frames, 64 * MIB),
            (Counter::Resident, 60 * MIB),
            (Counter::Free, 3 * MIB),
            (Counter::WatermarkMin, MIB),
            (Counter::WatermarkLow, 2 * MIB),
            (Counter::WatermarkHigh, 3 * MIB),
            (Counter::SlotsUsed, 100 * MIB),
            (Counter::SlotsTotal, 400 * MIB),
            (Counter::ZramPages, 90 * MIB),
            (Counter::ZramBytes, 30 << 20),
        ];
        let stats = Stats::new(1);
        (0..40).for_each(|_| stats.minor_fault(CpuId(0), Nanos(3000)));
        (0..20).for_each(|_| stats.major_fault(CpuId(0), Nanos(90_000)));
        stats.major_fault(CpuId(0), Nanos(2_000_000));
        let mut process = process(4711, "sort", &counts);
        let histograms = stats.snapshot();
        (process.snapshot.minor, process.snapshot.major) = (histograms.minor, histograms.major);
        process
    }

    fn samples(others: u32) -> Samples {
        let sample = |seconds| Sample {
            at: Duration::from_secs(seconds),
            processes: (1..=others)
                .map(|pid| process(pid, "sh", &[(Counter::Frames, 64 * MIB)]))
                .chain([sort(seconds)])
                .collect(),
        };
        let mut samples = Samples::new(sample(0));
        samples.push(sample(1));
        samples
    }

    fn buffer((width, height): (u16, u16), samples: &Samples, state: &State) -> Buffer {
        let session = session(7, Some("demo"));
        let shown = Shown {
            description: &session.description,
            budget: "of 64 MiB",
            is_shared: true,
            notice: None,
            swap: &["ram:1G".to_owned()],
            running: Duration::from_secs(61),
            rows: &state.ordered(samples.rows()),
            samples,
            palette: Palette::Plain,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &shown, state)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn text(size: (u16, u16), samples: &Samples, state: &State) -> Vec<String> {
        let buffer = buffer(size, samples, state);
        let lines = buffer.content.chunks(usize::from(size.0));
        let line = lines.map(|cells| cells.iter().map(|cell| cell.symbol()).collect::<String>());
        line.map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_of_80_columns_has_everything() {
        let expected = [
            "demo (7)  sort -S 1G                                          running 61 seconds",
            "2 processes of 64 MiB; resident 60M, swap 100M, minor 3.75k/s, major 1.25k/s",
            "NAME                PID BUDGET *RESIDENT   SWAP  MINOR/s  MAJOR/s   IN/s  OUT/s",
            "sort               4711    64M       60M   100M    3.75k    1.25k     3M     2M",
            "sh                    1    64M         0      0     0.00     0.00      0      0",
            "-- sort (4711) -----------------------------------------------------------------",
            "budget   [##############################---] 60M of 64M in use",
            "free     [#####m#####l####h----------------] 3M; m 1M l 2M h 3M",
            "reclaim  kswapd scans 2.00 k, frees 1.00 k pages/s; direct reclaims 3.00/s",
            "stalled  a thread 12.3% of the last 10 s, all threads 1.0%",
            "swap     [########-------------------------] 100M of 400M",
            "         in 3M/s, 3.0 pages, 90.0 us; out 2M/s, 16.0 pages, 1.5 ms",
            "  zram   at most 90 MiB in 30 MiB",
            "latency  + minor p50 3.1 us, p99 3.1 us; # major p50 90.1 us, p99 2.1 ms",
            "         ++++",
            "         ++++",
            "         ++++                     ####",
            "         ++++                     ####                ....",
            "         2u   4u   8u   16u  32u  64u  128u 256u 512u 1m",
        ];
        let found = text((80, 24), &samples(1), &State::default());
        assert_eq!(found[..expected.len()], expected);
        assert_eq!(
            found[23],
            "q quit  up/down select  s sort: RESIDENT  d detail  space freeze  +/- budget"
        );
    }

    #[test]
    fn the_table_scrolls_and_detail_follows_the_selection() {
        let (samples, mut state) = (samples(30), State::default());
        let press = |state: &mut State, key: KeyCode, times: u32| {
            let rows = state.ordered(samples.rows());
            (0..times).for_each(|_| assert_eq!(state.press(key.into(), &rows), Flow::Stay));
        };
        press(&mut state, KeyCode::Down, 20);
        press(&mut state, KeyCode::Char(' '), 1);
        let found = text((80, 24), &samples, &state);
        assert!(found.iter().any(|line| line.starts_with("sh                   20 ")), "{found:?}");
        assert!(found.iter().any(|line| line.starts_with("-- sh (20) --")), "{found:?}");
        assert!(found[23].contains("space FROZEN"), "{found:?}");
    }

    #[test]
    fn a_terminal_of_any_size_shows_what_fits() {
        let samples = samples(3);
        for (width, height) in (1..30).flat_map(|n| [(n, 24), (80, n), (4 * n, n)]) {
            let found = text((width, height), &samples, &State::default());
            assert!(width < 60 || height < 7 || found[0].starts_with("demo (7)"), "{found:?}");
        }
        let narrow = text((60, 24), &samples, &State::default());
        assert!(narrow[2].ends_with("MINOR/s") && narrow[3].ends_with("5k"), "{narrow:?}");
        let wide = text((200, 50), &samples, &State::default());
        assert!(wide[2].len() > 78 && wide[0].ends_with("61 seconds"), "{wide:?}");
    }

    #[test]
    fn the_last_line_says_whether_the_budget_can_change_and_what_a_key_did() {
        let (session, samples) = (session(7, None), samples(1));
        let line = |is_shared, notice| {
            let mut state = State::default();
            state.frozen = true;
            let shown = Shown {
                description: &session.description,
                budget: "of 64 MiB",
                is_shared,
                notice,
                swap: &[],
                running: Duration::ZERO,
                rows: &samples.rows(),
                samples: &samples,
                palette: Palette::Plain,
            };
            let text = key_line(&shown, &state);
            assert!(text.len() <= 80, "{text}");
            text
        };
        assert!(line(true, None).contains("space FROZEN  +/- budget"));
        assert!(line(false, None).contains("space FROZEN  budget fixed"));
        assert_eq!(line(true, Some("budget set to 72 MiB")), "budget set to 72 MiB");
    }

    #[test]
    fn the_detail_shows_devices_and_locks_in_turns() {
        let mut samples = samples(1);
        let mut process = sort(2);
        let swaps = vec![SwapUse { pages: 256 * MIB, used: MIB, priority: Some(5) }];
        let mut parts = Parts { swaps, ..Parts::default() };
        parts.locks[0].acquisitions = 31;
        process.parts = Some(parts);
        samples.push(Sample { at: Duration::from_secs(2), processes: vec![process] });
        let mut state = State::default();
        let mut detail = || {
            let rows = samples.rows();
            assert_eq!(state.press(KeyCode::Char('d').into(), &rows), Flow::Stay);
            text((80, 24), &samples, &state)[5].clone()
        };
        let lock = highwater_mm::lock_class::ALL[0].name();
        assert_eq!(detail(), "process 4711 ram:1G = 1 MiB of 256 MiB, priority 5");
        assert!(detail().starts_with(&format!("{lock} = 31 taken")));
        assert!(detail().starts_with("budget "));
    }

    #[test]
    fn a_session_without_processes_says_so() {
        let samples = Samples::new(Sample { at: Duration::ZERO, processes: vec![] });
        let found = text((80, 24), &samples, &State::default());
        assert_eq!(&found[1][..23], "0 processes of 64 MiB; ");
        assert_eq!(found[3], "no process is served yet");
    }

    #[test]
    fn without_colours_the_screen_has_none() {
        let buffer = buffer((80, 24), &samples(3), &State::default());
        let plain =
            |cell: &ratatui::buffer::Cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset);
        assert!(buffer.content.iter().all(plain));
    }
}
