//! Programs that swap to a redis-server, which stops, ends, loses its data or fills up in mid run:
//! they go on with the right contents, or end with one line.

use crate::common::highwater;
use crate::inputs::random_lines;
use crate::packages::is_installed;
use crate::place::{Place, note, program};
use crate::report::Report;
use crate::run::{Program, Run};
use crate::seal::{Ended, Waiting, without_limits};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Far above what any step takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A server, killed when dropped.
pub(crate) struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    /// A server in a directory; `None` if redis-server is not installed.
    pub(crate) fn start(place: &Place, options: &[&str]) -> Option<Server> {
        if !is_installed("redis-server") || !is_installed("redis-cli") {
            return None;
        }
        let socket = place.path("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(&socket).args(options).current_dir(place.path(""));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let server = Server { process, socket };
        let began = Instant::now();
        // A server with a password answers that it wants it.
        while server.ask("ping").is_empty() {
            assert!(began.elapsed() < TIME_LIMIT, "redis-server does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    pub(crate) fn swap(&self) -> String {
        format!("redis+unix:{}:128M", self.socket.display())
    }

    pub(crate) fn ask(&self, command: &str) -> String {
        let mut client = Command::new("redis-cli");
        client.arg("-s").arg(&self.socket).args(command.split(' '));
        let answer = client.stderr(Stdio::null()).output().expect("redis-cli").stdout;
        String::from_utf8_lossy(&answer).trim_end().to_owned()
    }

    pub(crate) fn await_answer(&self, command: &str, answer: &str) {
        let began = Instant::now();
        while self.ask(command) != answer {
            assert!(began.elapsed() < TIME_LIMIT, "{command}: {}", self.ask(command));
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks that a run ended with one line that has all of these parts.
pub(crate) fn expect_line(what: &str, ended: &Ended, parts: &[&str]) {
    note(&format!("{what}: {}, {:?}", ended.status, ended.errors));
    let errors = ended.errors.trim_end();
    assert!(!ended.status.success() && ended.output.is_empty(), "{what}: {}", ended.output);
    assert_eq!(errors.lines().count(), 1, "{what}: {errors}");
    assert!(parts.iter().all(|part| errors.contains(part)), "{what}: {errors}");
}

/// Checks that a program in 6 MiB, with swap on a server, prints the same as without limits.
pub(crate) fn expect_as_in_memory(
    place: &Place,
    what: &str,
    program: &Program,
    swap: &str,
    variables: &[(&str, &Path)],
) {
    let unlimited = place.run(program).expect_success(what);
    let mut command = highwater();
    command.args(["run", "--quiet", "--paged", "6M", "--swap", swap, "--report"]);
    command.arg(place.path("report.json")).arg("--").args(program).env("LC_ALL", "C");
    command.envs(variables.iter().copied());
    let run = Run::of(&mut command, &place.path(""), "limited", TIME_LIMIT).expect_success(what);
    let report = Report::read(&place.path("report.json"));
    let seconds = run.elapsed.as_secs_f64();
    note(&format!("{what} on a server: {seconds:.1} s; {}", report.figures()));
    assert!(run.text() == unlimited.text() && run.errors.is_empty(), "{what}: {}", run.errors);
    report.expect_swapping();
}

/// Checks that a program went on with the right contents, and printed no message.
pub(crate) fn expect_whole(ended: &Ended, expected: &str) {
    assert!(ended.status.success() && ended.errors.is_empty(), "{}", ended.errors);
    assert_eq!(format!("filled\n{}", ended.output), expected);
}

/// Lets a program go on that needs a server, and brings the server back after a while.
pub(crate) fn go_on_without(waiting: Waiting, most: Duration, bring_back: impl FnOnce()) -> Ended {
    thread::scope(|scope| {
        let going = scope.spawn(|| waiting.go_on());
        thread::sleep(most);
        assert!(!going.is_finished(), "no page was on the server");
        bring_back();
        going.join().unwrap()
    })
}

#[test]
fn sort_and_forks_on_a_server() {
    let place = Place::beside_others();
    let Some(server) = Server::start(&place, &[]) else { return };
    random_lines(&place.path("text"), 8 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let forks = place.c_program("forks", &["12"]);
    for (what, program, swap) in [
        ("sort", &sort, server.swap()),
        ("sort, tier", &sort, format!("tier:zram:4M+{}", server.swap())),
        ("forks", &forks, server.swap()),
    ] {
        expect_as_in_memory(&place, what, program, &swap, &[]);
        server.await_answer("dbsize", "0");
    }
}

#[test]
fn a_server_that_stops_or_is_full_is_no_end() {
    let place = Place::beside_others();
    let program = place.compile("seal", "seal", &[]);
    let expected = without_limits(&program);
    let Some(server) = Server::start(&place, &[]) else { return };
    let waiting = Waiting::start(&place, &program, &server.swap(), &[]);
    server.signal(libc::SIGSTOP);
    let ended = go_on_without(waiting, Duration::from_secs(1), || server.signal(libc::SIGCONT));
    expect_whole(&ended, &expected);
    server.await_answer("dbsize", "0");

    server.ask("config set maxmemory 5mb");
    let second = format!("dir:{}:128M", place.path("").display());
    let waiting = Waiting::start(&place, &program, &server.swap(), &["--swap", &second]);
    assert_ne!(server.ask("dbsize"), "0");
    let ended = waiting.go_on();
    expect_whole(&ended, &expected);
    assert!(Report::read(&place.path("report.json")).number("/vmstat/swap_refused") > 0);
}

#[test]
fn a_server_that_ends_or_forgets_ends_the_program_with_a_line() {
    let place = Place::beside_others();
    let program = place.compile("seal", "seal", &[]);
    let Some(server) = Server::start(&place, &[]) else { return };
    let waiting = Waiting::start(&place, &program, &server.swap(), &["--faults", "handlers"]);
    assert_eq!(server.ask("flushall"), "OK");
    let name = server.swap();
    let lost = ["a page could not be read: No data available", "check the disk or server", &name];
    expect_line("flushall", &waiting.go_on(), &lost);
    server.await_answer("dbsize", "0");
    let waiting = Waiting::start(&place, &program, &name, &["--remote-patience", "1"]);
    drop(server);
    let gone = ["a page could not be read: Connection refused", "check the disk or server", &name];
    expect_line("killed", &waiting.go_on(), &gone);
}

#[test]
fn a_server_that_cannot_be_used_is_refused_before_the_program_runs() {
    let place = Place::beside_others();
    let Some(server) = Server::start(&place, &["--requirepass", "sesame"]) else { return };
    let missing = format!("redis+unix:{}:16M", place.path("nothing").display());
    let swap = server.swap();
    let password_file = place.path("password");
    std::fs::write(&password_file, "sesame\n").unwrap();
    let file = password_file.to_string_lossy();
    let (none, right) = (("HIGHWATER_REDIS_USER", ""), ("HIGHWATER_REDIS_PASSWORD", "sesame"));
    for (swap, options, variable, part) in [
        (&missing[..], &[][..], none, "cannot be reached: No such file or directory"),
        ("redis:127.0.0.1:1:16M", &[], none, "cannot be reached: Connection refused"),
        (&swap, &[], none, "accepts no such user and password"),
        (&swap, &["--seal", "off"], right, "always sealed"),
        (&swap, &["--remote-patience", "0"], right, "not a number of seconds"),
        ("redis:me:sesame@host:1:1M", &[], none, "HIGHWATER_REDIS_PASSWORD_FILE"),
        (&swap, &[], ("HIGHWATER_REDIS_PASSWORD_FILE", "nowhere"), "cannot be read: No such file"),
        (&swap, &[], right, ""),
        (&swap, &[], ("HIGHWATER_REDIS_PASSWORD_FILE", &file), ""),
    ] {
        let mut command = highwater();
        command.args(["run", "--quiet", "--paged", "16M", "--swap", swap]).args(options);
        command.args(["--", "echo", "ran"]).env(variable.0, variable.1);
        let run = Run::of(&mut command, &place.path(""), "refused", TIME_LIMIT);
        let errors = run.errors.trim_end();
        note(&format!("{swap} {options:?} {}: {errors}", variable.0));
        if part.is_empty() {
            assert!(run.status.success() && run.text() == "ran\n", "{errors}");
            continue;
        }
        assert_eq!((run.status.code(), run.text()), (Some(2), String::new()), "{errors}");
        assert!(errors.contains(part) && errors.lines().count() == 1, "{errors}");
        assert!(!errors.contains("sesame"), "{errors}");
    }
}
