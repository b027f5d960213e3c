//! `highwater top`: shows a running session, from another terminal.
//!
//! ```text
//! run_dir/<pid>.<n> --- once a second ---> Samples \
//!                            keys -------> State    +--- screen::draw, a pure function ---> frame
//!                         NO_COLOR ------> Palette /         \- detail: the selected process
//! ```
//! The processes publish these files anyway, ten times a second: this command costs them nothing.
//! This file reads the keyboard and draws; `budget.rs` changes the budget; the others only compute.
//! Locks: none.

mod budget;
mod detail;
mod palette;
mod sample;
mod screen;
mod state;

use crate::Refusal;
use crate::session::{self, Process, Session};
use clap::Args;
use highwater_command::say;
use palette::Palette;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sample::{Sample, Samples};
use screen::Shown;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use state::{Flow, State};
use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Interval between samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Time until the second sample, with which the first rates are known.
const PERIOD_FIRST: Duration = Duration::from_millis(250);

const KEYS: &str = "\
Keys:
  up, down   select a process to show in detail
  s          sort by the next column
  d          show the next detail of the selected process: faults, swap devices, locks
  space      freeze the screen, or resume
  +, -       change the budget by an eighth, between 4 MiB for each process and --memory-max; with
             --memory-per-process alone there is no shared budget: the last line has 'budget fixed'
  q          quit
Columns:
  BUDGET     memory that the process may use for pages
  RESIDENT   the part of it that is in use
  SWAP       swap in use
  MINOR/s    page faults served from memory      MAJOR/s  page faults that waited for swap
  IN/s OUT/s bytes read from swap and written to it
In detail:
  free       free memory, from 0 to twice the high watermark; m, l and h mark the watermarks min,
             low and high: below low, kswapd frees memory up to high; below min, the program's
             threads free memory, too
  in, out    rate of transfers with swap, and pages and time of one transfer
  latency    latencies of page faults since the start of the process, by powers of two: # major,
             + minor, . few
  device     a swap device, the swap of the process on it, its priority
  locks      locks of the manager, sampled: one acquisition in 31 is timed; longest waits first";

/// Show a running session: its processes, their memory, faults and swap
///
/// Reads statistics that the processes publish, which does not slow them down. Two keys change the
/// budget.
#[derive(Args)]
#[command(after_long_help = KEYS)]
pub(crate) struct Top {
    /// Name of the session, or pid of its 'highwater run' [default: the only session]
    #[arg(value_name = "PID|NAME")]
    session: Option<String>,
}

/// Why the screen was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// By a key or signal.
    Quit,
    SessionEnded,
}

impl Top {
    /// Shows the session until it ends, or the user quits.
    pub(crate) fn execute(&self) -> Result<ExitCode, Refusal> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            let what = "highwater top needs a terminal for input and output";
            return Err(Refusal::new(what, "use highwater ls --json in scripts"));
        }
        let session = session::choose(session::running(), self.session.as_deref())?;
        let processes = session.processes()?;
        let failed = |error: io::Error| {
            Refusal::new(format!("the terminal fails: {error}"), "try another terminal")
        };
        let quit = quit_signals().map_err(failed)?;
        // Not dropped: if the terminal is gone, that prints an error, and panics because standard
        // error is gone, too.
        let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(failed)?);
        let left = watch(&mut terminal, &session, processes, &quit);
        let _ = (terminal.show_cursor(), ratatui::try_restore());
        match left.map_err(failed)?? {
            Left::Quit => {}
            Left::SessionEnded => {
                say(format_args!("session {} has ended", session.description.title()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A flag that signals set, so that the terminal is restored before this program ends.
fn quit_signals() -> io::Result<Arc<AtomicBool>> {
    let quit = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, quit.clone())?;
    }
    Ok(quit)
}

/// The screen, and what it shows.
struct View<'a> {
    session: &'a Session,
    samples: Samples,
    state: State,
    palette: Palette,
    /// When the first sample was taken.
    started: Instant,
    /// How long the session had been running at the last sample.
    running: Duration,
    /// The session's budget, in words.
    budget: String,
    /// Whether its processes share it.
    is_shared: bool,
    /// The effect of the last key, in words.
    notice: Option<String>,
}

impl View<'_> {
    fn draw(&self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let View { session, samples, state, palette, running, .. } = self;
        let rows = state.ordered(samples.rows());
        let description = &session.description;
        let (running, palette) = (*running, *palette);
        let (budget, is_shared) = (&self.budget, self.is_shared);
        let (rows, notice, swap) = (&rows, self.notice.as_deref(), &session.swap());
        let shown =
            Shown { description, budget, is_shared, notice, swap, running, rows, samples, palette };
        terminal.draw(|frame| screen::draw(frame, &shown, state)).map(drop)
    }

    /// Handles all events that have arrived.
    fn heed_all(&mut self) -> io::Result<Flow> {
        while event::poll(Duration::ZERO)? {
            if self.heed()? == Flow::Quit {
                return Ok(Flow::Quit);
            }
        }
        Ok(Flow::Stay)
    }

    /// Handles a key, or a new size of the terminal, which takes effect in the next frame.
    fn heed(&mut self) -> io::Result<Flow> {
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let rows = self.state.ordered(self.samples.rows());
                let flow = self.state.press(key, &rows);
                self.notice = match flow {
                    Flow::Budget(step) => Some(budget::change(self.session, step)),
                    Flow::Stay | Flow::Quit => None,
                };
                self.budget = self.session.budget_text();
                Ok(flow)
            }
            _ => Ok(Flow::Stay),
        }
    }

    /// Takes the next sample. A frozen screen stays as it is, even after the end of the session.
    fn look(&mut self) -> Result<Option<Left>, Refusal> {
        if self.state.frozen {
            return Ok(None);
        }
        if !self.session.is_running() {
            return Ok(Some(Left::SessionEnded));
        }
        let processes = self.session.processes()?;
        self.running = self.session.description.running();
        self.budget = self.session.budget_text();
        self.samples.push(Sample { at: self.started.elapsed(), processes });
        Ok(None)
    }
}

/// The reason why a wait for keys ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Keys,
    Nothing,
    /// The terminal is gone.
    HungUp,
}

/// Waits for keys. Without this check, crossterm would read end of file for ever from a terminal
/// that is gone.
fn wait(until: Instant) -> io::Result<Input> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let input = io::stdin();
    let mut watched = [PollFd::new(&input, PollFlags::IN)];
    match poll(&mut watched, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => Ok(Input::Nothing),
        Ok(_) if watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => {
            Ok(Input::HungUp)
        }
        Ok(_) => Ok(Input::Keys),
        Err(error) => Err(error.into()),
    }
}

/// Draws, handles keys and takes samples. The outer error is an error of the terminal.
fn watch(
    terminal: &mut DefaultTerminal,
    session: &Session,
    first: Vec<Process>,
    quit: &AtomicBool,
) -> io::Result<Result<Left, Refusal>> {
    let samples = Samples::new(Sample { at: Duration::ZERO, processes: first });
    let (state, palette) = (State::default(), Palette::of_environment());
    let (started, running) = (Instant::now(), session.description.running());
    let (budget, is_shared) = (session.budget_text(), session.shared_budget().is_some());
    let notice = None;
    let mut view =
        View { session, samples, state, palette, started, running, budget, is_shared, notice };
    let mut due = started + PERIOD_FIRST;
    while !quit.load(Relaxed) {
        let drawn = view.draw(terminal);
        match wait(due)? {
            // Then drawing may have failed, too.
            Input::HungUp => break,
            _ if drawn.is_err() => return drawn.map(|()| Ok(Left::Quit)),
            Input::Keys if view.heed_all()? == Flow::Quit => break,
            Input::Keys => continue,
            Input::Nothing if Instant::now() < due => continue,
            Input::Nothing => {}
        }
        due = Instant::now() + PERIOD;
        if let Some(left) = view.look().transpose() {
            return Ok(left);
        }
    }
    Ok(Ok(Left::Quit))
}
