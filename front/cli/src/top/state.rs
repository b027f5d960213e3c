//! The state that keys change: selection, order, and whether the screen is frozen.

use super::budget::Step;
use super::sample::Row;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;

/// A column by which processes are sorted: names and pids ascending, figures descending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Resident,
    Swap,
    Minor,
    Major,
    In,
    Out,
    Name,
    Pid,
}

impl Column {
    /// In the order of the key `s`.
    const ALL: [Column; 8] = [
        Column::Resident,
        Column::Swap,
        Column::Minor,
        Column::Major,
        Column::In,
        Column::Out,
        Column::Name,
        Column::Pid,
    ];

    /// Its title in the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Column::Resident => "RESIDENT",
            Column::Swap => "SWAP",
            Column::Minor => "MINOR/s",
            Column::Major => "MAJOR/s",
            Column::In => "IN/s",
            Column::Out => "OUT/s",
            Column::Name => "NAME",
            Column::Pid => "PID",
        }
    }

    fn next(self) -> Column {
        let at = Column::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Column::ALL[(at + 1) % Column::ALL.len()]
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let rate = |a: Option<f64>, b: Option<f64>| {
            b.unwrap_or(0.0).partial_cmp(&a.unwrap_or(0.0)).unwrap_or(Ordering::Equal)
        };
        match self {
            Column::Resident => b.resident.cmp(&a.resident),
            Column::Swap => b.swap.cmp(&a.swap),
            Column::Minor => rate(a.minor, b.minor),
            Column::Major => rate(a.major, b.major),
            Column::In => rate(a.bytes_in, b.bytes_in),
            Column::Out => rate(a.bytes_out, b.bytes_out),
            Column::Name => a.name.cmp(&b.name),
            Column::Pid => a.pid.cmp(&b.pid),
        }
    }
}

/// The figures of the selected process that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Panel {
    /// Budget, reclaim, swap and latencies of faults.
    #[default]
    Faults,
    /// Its swap devices.
    Devices,
    /// The locks of its manager.
    Locks,
}

impl Panel {
    fn next(self) -> Panel {
        match self {
            Panel::Faults => Panel::Devices,
            Panel::Devices => Panel::Locks,
            Panel::Locks => Panel::Faults,
        }
    }
}

/// The effect of a key, besides the new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Stay,
    Quit,
    /// The budget of the session is to change.
    Budget(Step),
}

/// The choices of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) sort: Column,
    /// The selected pid (not the row, so that the selection stays when the order changes); `None`:
    /// the first row is selected.
    selected: Option<u32>,
    pub(super) frozen: bool,
    pub(super) panel: Panel,
}

impl Default for State {
    fn default() -> State {
        State { sort: Column::Resident, selected: None, frozen: false, panel: Panel::default() }
    }
}

impl State {
    /// The rows in the chosen order; equal ones by pid.
    pub(super) fn ordered(&self, mut rows: Vec<Row>) -> Vec<Row> {
        rows.sort_by(|a, b| self.sort.compare(a, b).then(a.pid.cmp(&b.pid)));
        rows
    }

    /// The index of the selected row; `None` without rows.
    pub(super) fn index(&self, rows: &[Row]) -> Option<usize> {
        let selected = rows.iter().position(|row| Some(row.pid) == self.selected);
        selected.or((!rows.is_empty()).then_some(0))
    }

    /// Handles a key. `rows`: the rows that are shown.
    pub(super) fn press(&mut self, key: KeyEvent, rows: &[Row]) -> Flow {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Flow::Quit,
            KeyCode::Char('c') if control => return Flow::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(rows, |index| index.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(rows, |index| index + 1),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('d') => self.panel = self.panel.next(),
            KeyCode::Char('+') => return Flow::Budget(Step::Up),
            KeyCode::Char('-') => return Flow::Budget(Step::Down),
            KeyCode::Char(' ') => self.frozen = !self.frozen,
            _ => {}
        }
        Flow::Stay
    }

    fn select(&mut self, rows: &[Row], step: impl Fn(usize) -> usize) {
        if let Some(index) = self.index(rows) {
            self.selected = Some(rows[step(index).min(rows.len() - 1)].pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Bytes;

    fn row(pid: u32, resident: u64, major: Option<f64>) -> Row {
        Row {
            pid,
            name: format!("p{}", 9 - pid),
            budget: Bytes(0),
            resident: Bytes(resident),
            swap: Bytes(0),
            minor: None,
            major,
            bytes_in: None,
            bytes_out: None,
        }
    }

    fn rows() -> Vec<Row> {
        vec![row(1, 10, Some(5.0)), row(2, 30, None), row(3, 30, Some(7.0))]
    }

    fn order(state: &State) -> Vec<u32> {
        state.ordered(rows()).iter().map(|row| row.pid).collect()
    }

    #[test]
    fn a_key_sorts_by_the_next_column() {
        let mut state = State::default();
        let mut orders = vec![];
        for _ in Column::ALL {
            orders.push((state.sort.title(), order(&state)));
            assert_eq!(state.press(KeyCode::Char('s').into(), &rows()), Flow::Stay);
        }
        assert_eq!(state, State::default());
        assert_eq!(orders[0], ("RESIDENT", vec![2, 3, 1]));
        assert_eq!(orders[3], ("MAJOR/s", vec![3, 1, 2]));
        assert_eq!(orders[6], ("NAME", vec![3, 2, 1]));
        assert_eq!(orders[7], ("PID", vec![1, 2, 3]));
    }

    #[test]
    fn the_selection_stays_on_its_process_and_within_the_rows() {
        let mut state = State::default();
        let shown = state.ordered(rows());
        assert_eq!(state.index(&shown), Some(0));
        for (key, selected) in [
            (KeyCode::Up, 2),
            (KeyCode::Down, 3),
            (KeyCode::Down, 1),
            (KeyCode::Char('j'), 1),
            (KeyCode::Char('k'), 3),
        ] {
            state.press(key.into(), &shown);
            assert_eq!(shown[state.index(&shown).unwrap()].pid, selected);
        }
        assert_eq!(state.index(&rows()), Some(2), "in another order");
        assert_eq!((state.index(&rows()[..1]), state.index(&[])), (Some(0), None));
        state.press(KeyCode::Down.into(), &[]);
    }

    #[test]
    fn keys_freeze_and_quit() {
        let mut state = State::default();
        let mut press = |key: KeyEvent| state.press(key, &[]);
        assert_eq!(press(KeyCode::Char(' ').into()), Flow::Stay);
        assert_eq!(press(KeyCode::Char('c').into()), Flow::Stay);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for quit in [KeyCode::Char('q').into(), KeyCode::Esc.into(), interrupt] {
            assert_eq!(press(quit), Flow::Quit);
        }
        for (key, step) in [('+', Step::Up), ('-', Step::Down)] {
            assert_eq!(press(KeyCode::Char(key).into()), Flow::Budget(step));
        }
        assert!(state.frozen);
    }
}
