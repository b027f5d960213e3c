//! Programs that swap to nbdkit, which stops, ends, loses its data or fills up in mid run: they go
//! on with the right contents, or end with one line.

use crate::common::highwater;
use crate::inputs::random_lines;
use crate::packages::is_installed;
use crate::place::{Place, note, program};
use crate::remote::{expect_as_in_memory, expect_line, expect_whole, go_on_without};
use crate::report::Report;
use crate::run::Run;
use crate::seal::{Waiting, without_limits};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Far above what any step takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const SIZE: u64 = 128 * MIB;
/// Bytes of the label, before the pages of swap.
const LABEL: u64 = 4096;
/// Arguments of nbdkit.
const FILE: &[&str] = &["file", "swap"];

/// nbdkit, killed when dropped.
pub(crate) struct Server {
    process: Child,
    dir: PathBuf,
    /// `None` if it listens on a socket of the file system.
    port: Option<u16>,
}

impl Server {
    /// A server of a file of 128 MiB, `swap`, with a socket beside it; `None` if not installed.
    pub(crate) fn start(place: &Place) -> Option<Server> {
        let dir = directory(place, "unix")?;
        Some(Server { process: launch(&dir, None, FILE)?, dir, port: None })
    }

    /// This server on a port.
    fn on_port(place: &Place) -> Option<Server> {
        let dir = directory(place, "tcp")?;
        // Another program may take a port that was free a moment ago.
        let started = (0..9).find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            launch(&dir, Some(port), FILE).map(|process| (process, port))
        });
        let (process, port) = started.expect("a port");
        Some(Server { process, dir, port: Some(port) })
    }

    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        self.kill();
        self.process = launch(&self.dir, None, arguments).expect("as before");
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub(crate) fn swap(&self) -> String {
        match self.port {
            Some(port) => format!("nbd:127.0.0.1:{port}:128M"),
            None => format!("nbd+unix:{}:128M", self.dir.join("socket").display()),
        }
    }

    /// Waits until the file is zero behind the label.
    pub(crate) fn await_nothing(&self) {
        let began = Instant::now();
        while self.bytes_left() > 0 {
            assert!(began.elapsed() < TIME_LIMIT, "{} bytes", self.bytes_left());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of bytes of the file behind the label that are not zero. The file is read in
    /// pieces: the peak of a child starts at the memory of this process.
    fn bytes_left(&self) -> usize {
        let file = File::open(self.dir.join("swap")).unwrap();
        let (mut piece, mut at, mut left) = ([0; 64 << 10], LABEL, 0);
        loop {
            match file.read_at(&mut piece, at).unwrap() {
                0 => return left,
                read => {
                    left += piece[..read].iter().filter(|byte| **byte != 0).count();
                    at += read as u64;
                }
            }
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A directory with the file; `None` if nbdkit is not installed.
fn directory(place: &Place, name: &str) -> Option<PathBuf> {
    is_installed("nbdkit").then(|| {
        let dir = place.path(name);
        std::fs::create_dir_all(&dir).unwrap();
        File::create(dir.join("swap")).unwrap().set_len(SIZE).unwrap();
        dir
    })
}

/// nbdkit, once it answers; `None` if it has ended.
fn launch(dir: &Path, port: Option<u16>, arguments: &[&str]) -> Option<Child> {
    let socket = dir.join("socket");
    // nbdkit does not replace an existing socket.
    let _ = std::fs::remove_file(&socket);
    let mut server = Command::new("nbdkit");
    // With more threads for a connection, nbdkit 1.32 may abort when a client hangs up: "Assertion
    // `sock >= 0' failed".
    server.args(["-f", "--exit-with-parent", "-t", "1"]);
    match port {
        Some(port) => server.args(["-i", "127.0.0.1", "-p", &port.to_string()]),
        None => server.arg("-U").arg(&socket),
    };
    server.args(arguments).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = server.stderr(Stdio::null()).spawn().unwrap();
    let answers = || match port {
        Some(port) => TcpStream::connect(("127.0.0.1", port)).is_ok(),
        None => UnixStream::connect(&socket).is_ok(),
    };
    let began = Instant::now();
    while process.try_wait().unwrap().is_none() {
        if answers() {
            return Some(process);
        }
        assert!(began.elapsed() < TIME_LIMIT, "nbdkit does not answer");
        thread::sleep(Duration::from_millis(20));
    }
    None
}

#[test]
fn sort_and_forks_on_an_export() {
    let place = Place::beside_others();
    let Some(unix) = Server::start(&place) else { return };
    let Some(tcp) = Server::on_port(&place) else { return };
    random_lines(&place.path("text"), 8 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let forks = place.c_program("forks", &["12"]);
    for (what, program, server, swap) in [
        ("sort, NBD", &sort, &unix, unix.swap()),
        ("sort, tier, NBD, TCP", &sort, &tcp, format!("tier:zram:4M+{}", tcp.swap())),
        ("forks, NBD", &forks, &unix, unix.swap()),
    ] {
        expect_as_in_memory(&place, what, program, &swap, &[]);
        server.await_nothing();
    }
}

#[test]
fn an_export_that_stops_or_comes_back_or_is_full_is_no_end() {
    let place = Place::new();
    let program = place.compile("seal", "seal", &[]);
    let expected = without_limits(&program);
    let error = ["--filter=error"];
    let full = ["error-pwrite=ENOSPC", "error-pwrite-rate=1", "error-pwrite-file=full"];
    let Some(mut server) = Server::start(&place) else { return };
    let waiting = Waiting::start(&place, &program, &server.swap(), &[]);
    server.signal(libc::SIGSTOP);
    let ended = go_on_without(waiting, Duration::from_secs(1), || server.signal(libc::SIGCONT));
    expect_whole(&ended, &expected);
    server.await_nothing();

    let waiting = Waiting::start(&place, &program, &server.swap(), &[]);
    server.kill();
    let ended = go_on_without(waiting, Duration::from_millis(300), || {
        server.restart(&[&error[..], FILE, &full].concat());
    });
    expect_whole(&ended, &expected);

    let second = format!("dir:{}:128M", place.path("").display());
    let waiting = Waiting::start(&place, &program, &server.swap(), &["--swap", &second]);
    File::create(server.dir.join("full")).unwrap();
    let ended = waiting.go_on();
    expect_whole(&ended, &expected);
    assert!(Report::read(&place.path("report.json")).number("/vmstat/swap_refused") > 0);
}

#[test]
fn an_export_that_ends_or_forgets_ends_the_program_with_a_line() {
    let place = Place::new();
    let program = place.compile("seal", "seal", &[]);
    let Some(mut server) = Server::start(&place) else { return };
    let name = server.swap();
    let waiting = Waiting::start(&place, &program, &name, &["--faults", "handlers"]);
    server.restart(&["memory", "128M"]);
    let changed = ["a page that was changed since it was written", &name];
    expect_line("forgotten", &waiting.go_on(), &changed);
    let waiting = Waiting::start(&place, &program, &name, &["--remote-patience", "1"]);
    drop(server);
    // The last error counts: a new connection is refused, or another of the old ones breaks.
    let ended = waiting.go_on();
    expect_line(
        "killed",
        &ended,
        &["a page could not be read: ", "check the disk or server", &name],
    );
    let errors = ["Connection refused", "Broken pipe"];
    assert!(errors.iter().any(|error| ended.errors.contains(error)), "{}", ended.errors);
}

#[test]
fn an_export_that_cannot_be_used_is_refused_before_the_program_runs() {
    let place = Place::new();
    let Some(mut server) = Server::start(&place) else { return };
    let named =
        ["--filter=exportname", "memory", "128M", "exportname=swap", "exportname-strict=true"];
    let socket = server.dir.join("socket");
    let swap = |end: &str| format!("nbd+unix:{}{end}", socket.display());
    for (arguments, swap, options, part) in [
        (&["memory", "16M"][..], swap(":128M"), &[][..], "the export has only 16 MiB"),
        (&["-r", "memory", "128M"], swap(":128M"), &[], "the export is read-only"),
        (&["pattern", "128M"], swap(":128M"), &[], "is read-only"),
        (&["memory", "128M"], swap(":128M"), &["--seal", "off"], "always sealed"),
        (&named, swap(":/other:128M"), &[], "has no such export"),
        (&named, swap(":/swap:128M"), &[], ""),
        (FILE, "nbd:127.0.0.1:1:16M".to_owned(), &[], "reached: Connection refused"),
        (FILE, swap(":128M"), &[], ""),
    ] {
        server.restart(arguments);
        let mut command = highwater();
        command.args(["run", "--quiet", "--paged", "16M", "--swap", &swap]).args(options);
        command.args(["--", "echo", "ran"]);
        let run = Run::of(&mut command, &place.path(""), "refused", TIME_LIMIT);
        let errors = run.errors.trim_end();
        note(&format!("{swap} {options:?} of {arguments:?}: {errors}"));
        if part.is_empty() {
            assert!(run.status.success() && run.text() == "ran\n", "{errors}");
            continue;
        }
        assert_eq!((run.status.code(), run.text()), (Some(2), String::new()), "{errors}");
        assert!(errors.contains(part) && errors.lines().count() == 1, "{errors}");
    }
}
