//! `highwater ls`: lists this user's running sessions.
//!
//! ```text
//! session::running ---> Listed, one per session --- table, or JSON ---> standard output
//! ```

use crate::Refusal;
use crate::session::{self, Process, Session};
use clap::Args;
use highwater_command::{elapsed, print};
use highwater_mm::stats::Counter;
use highwater_units::Bytes;
use rustix::termios::{isatty, tcgetwinsize};
use serde::Serialize;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// List the running sessions of this user
///
/// Prints a line for each `highwater run`: its name and pid, the budget, the number of processes
/// that are served, the memory and swap that they use, how long it has been running, and its
/// command.
#[derive(Args)]
pub(crate) struct Ls {
    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
}

/// A session in the list. The names of the fields are the keys of the JSON and do not change.
#[derive(Clone, Debug, Serialize)]
struct Listed {
    name: Option<String>,
    pid: u32,
    command: Vec<String>,
    budget_bytes: u64,
    swap: Vec<String>,
    running_seconds: u64,
    /// None if the session's library is of another build.
    #[serde(flatten)]
    memory: Option<Memory>,
    #[serde(skip)]
    command_line: String,
}

/// Sums over the served processes that are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Memory {
    processes: usize,
    resident_bytes: u64,
    swap_used_bytes: u64,
}

impl Ls {
    /// Prints the list.
    pub(crate) fn execute(&self) -> Result<ExitCode, Refusal> {
        let listed: Vec<Listed> = session::running().iter().map(Listed::of).collect();
        if self.json {
            let text = serde_json::to_string_pretty(&listed).map_err(|error| {
                Refusal::new(format!("no JSON: {error}"), "call highwater ls without --json")
            })?;
            return Ok(print(text + "\n"));
        }
        Ok(print(table(&listed, terminal_width())))
    }
}

/// Columns of the terminal; `None` if standard output is not a terminal.
fn terminal_width() -> Option<usize> {
    let out = io::stdout();
    let size = isatty(&out).then(|| tcgetwinsize(&out).ok()).flatten();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

impl Listed {
    fn of(session: &Session) -> Listed {
        let description = &session.description;
        Listed {
            name: description.name.as_ref().map(ToString::to_string),
            pid: description.pid,
            command: description.command.clone(),
            budget_bytes: session.budget().0,
            swap: session.swap_in_use(),
            running_seconds: description.running().as_secs(),
            memory: session.processes().ok().as_deref().map(Memory::of),
            command_line: description.command_line(),
        }
    }

    fn cells(&self) -> [String; 8] {
        let of = |show: fn(Memory) -> String| self.memory.map_or("?".to_owned(), show);
        [
            self.name.clone().unwrap_or_else(|| "-".to_owned()),
            self.pid.to_string(),
            Bytes(self.budget_bytes).to_string(),
            of(|memory| memory.processes.to_string()),
            of(|memory| Bytes(memory.resident_bytes).to_string()),
            of(|memory| Bytes(memory.swap_used_bytes).to_string()),
            elapsed(Duration::from_secs(self.running_seconds)),
            self.command_line.clone(),
        ]
    }
}

impl Memory {
    fn of(processes: &[Process]) -> Memory {
        let sum = |counter| processes.iter().map(|process| process.bytes(counter).0).sum();
        Memory {
            processes: processes.len(),
            resident_bytes: sum(Counter::Resident),
            swap_used_bytes: sum(Counter::SlotsUsed),
        }
    }
}

const TITLES: [&str; 8] =
    ["NAME", "PID", "BUDGET", "PROCESSES", "RESIDENT", "SWAP", "RUNNING", "COMMAND"];

/// The list as text: a line for each session, cut at `width`.
fn table(listed: &[Listed], width: Option<usize>) -> String {
    let rows: Vec<_> =
        [TITLES.map(str::to_owned)].into_iter().chain(listed.iter().map(Listed::cells)).collect();
    let width_of = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 8] = std::array::from_fn(|column| width_of(column).unwrap_or(0));
    let line = |row: &[String; 8]| {
        let cells =
            row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
                0 | 6 => format!("{cell:<width$}"),
                7 => cell.clone(),
                _ => format!("{cell:>width$}"),
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        line.chars().take(width.unwrap_or(usize::MAX)).collect::<String>() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::{process, session};
    use highwater_mm::stats::Snapshot;

    fn listed() -> Vec<Listed> {
        let mut snapshot = Snapshot::empty();
        snapshot.counters[Counter::Resident as usize] = 1 << 13;
        snapshot.counters[Counter::SlotsUsed as usize] = 1 << 15;
        let sort = |pid| process(pid, "sort", snapshot.clone());
        let memory = Some(Memory::of(&[sort(1), sort(2)]));
        let mut sessions =
            [session(4711, Some("night")), session(12, None)].map(|it| Listed::of(&it));
        sessions[0].memory = memory;
        sessions[1].memory = None;
        sessions.into()
    }

    #[test]
    fn sessions_are_lines_of_a_table() {
        let text = table(&listed(), None);
        let expected = [
            "NAME    PID  BUDGET  PROCESSES  RESIDENT     SWAP  RUNNING     COMMAND",
            "night  4711  64 MiB          2    64 MiB  256 MiB  61 seconds  sort -S 1G",
            "-        12  64 MiB          ?         ?        ?  61 seconds  sort -S 1G",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let narrow = table(&listed(), Some(20));
        assert!(narrow.lines().all(|line| line.len() == 20), "{narrow}");
    }

    #[test]
    fn names_in_json_are_kept() {
        let json = serde_json::to_value(listed()).unwrap();
        assert_eq!((&json[0]["name"], &json[1]["name"]), (&"night".into(), &().into()));
        for key in [
            "pid",
            "budget_bytes",
            "running_seconds",
            "processes",
            "resident_bytes",
            "swap_used_bytes",
        ] {
            assert!(json[0][key].is_number(), "{key}");
        }
        assert_eq!(
            (&json[0]["command"][2], &json[0]["swap"][0]),
            (&"1G".into(), &"ram:1 GiB".into())
        );
    }
}
