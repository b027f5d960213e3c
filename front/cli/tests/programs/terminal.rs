//! A pseudo-terminal with a program on it, and the screen that the program draws.
//!
//! A thread reads what the program writes, until all its ends of the terminal are closed. Locks:
//! none.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const ROWS: NonZeroU16 = NonZeroU16::new(24).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(80).unwrap();
/// Time limit of everything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal of 80 columns and 24 rows.
pub(crate) struct Terminal {
    child: Child,
    keys: File,
    output: Receiver<Vec<u8>>,
    /// Reads the output, until the terminal hangs up.
    reader: Option<JoinHandle<()>>,
    hangs_up: Arc<AtomicBool>,
    parser: vt100::Parser,
}

/// Whether there is output within a short time.
fn has_output(terminal: &File) -> bool {
    let mut watched = [PollFd::new(terminal, PollFlags::IN)];
    let most = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    poll(&mut watched, Some(&most)).is_ok_and(|ready| ready > 0)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Needed after a failed test.
        let _ = self.child.kill();
    }
}

impl Terminal {
    /// Starts a command whose input, output and errors are the terminal's.
    pub(crate) fn start(command: &mut Command) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).expect("a pseudo-terminal");
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let path = ptsname(&controller, Vec::new()).unwrap();
        let open = || File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        command.stdin(open()).stdout(open()).stderr(open()).env("TERM", "xterm");
        let child = command.spawn().unwrap();
        // `command` holds ends of the terminal, too; the reader ends when the last end is closed.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let keys = File::from(controller);
        let mut reader = keys.try_clone().unwrap();
        let (sender, output) = channel();
        let hangs_up = Arc::new(AtomicBool::new(false));
        let stop = hangs_up.clone();
        let reader = Some(thread::spawn(move || {
            let mut piece = [0; 4096];
            while !stop.load(Relaxed) {
                if has_output(&reader) {
                    let Ok(len @ 1..) = reader.read(&mut piece) else { return };
                    let _ = sender.send(piece[..len].to_vec());
                }
            }
        }));
        let parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        Terminal { child, keys, output, reader, hangs_up, parser }
    }

    /// Closes the terminal, as a lost connection does: the program must end in order.
    pub(crate) fn hang_up(mut self) {
        self.hangs_up.store(true, Relaxed);
        self.reader.take().expect("it reads").join().expect("it does not panic");
        let nothing = File::open("/dev/null").expect("a file");
        drop(std::mem::replace(&mut self.keys, nothing));
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it goes on without its terminal");
            thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen is as expected, and returns its text.
    pub(crate) fn expect(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.parser.screen().contents();
            if is_so(&text) {
                return text;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(piece) => self.parser.process(&piece),
                Err(error) => panic!("{what}: {error}\n{text}"),
            }
        }
    }

    /// Whether no part of the screen has a colour.
    pub(crate) fn is_plain(&self) -> bool {
        let screen = self.parser.screen();
        let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| screen.cell(row, column));
        cells.all(|cell| {
            (cell.fgcolor(), cell.bgcolor()) == (vt100::Color::Default, vt100::Color::Default)
        })
    }

    /// Waits for the program's end: its status, and what is on the terminal then.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.parser.process(&piece),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill().unwrap();
                    panic!("still running:\n{}", self.parser.screen().contents());
                }
            }
        }
        assert!(!self.parser.screen().alternate_screen(), "the terminal was not restored");
        (self.child.wait().unwrap(), self.parser.screen().contents())
    }
}
