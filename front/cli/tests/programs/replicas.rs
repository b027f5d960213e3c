//! Programs that swap to two servers, one of which dies or stops in mid run: they go on with the
//! right contents. If both servers die, they end with one line.

use crate::common::highwater;
use crate::devices::devices;
use crate::inputs::random_lines;
use crate::nbd;
use crate::place::{Place, note, program};
use crate::remote::{self, expect_as_in_memory};
use crate::report::Report;
use crate::run::Run;
use crate::seal::{Ended, Waiting, without_limits};
use crate::shares::Session;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Far above what any step takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Far below the patience with a single server.
const STALL_MAX: Duration = Duration::from_secs(3);
/// Until a server dies.
const A_WHILE: Duration = Duration::from_millis(500);

/// A redis-server and nbdkit.
struct Servers {
    redis: remote::Server,
    nbd: nbd::Server,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Redis,
    Nbd,
}

impl Servers {
    fn start(place: &Place) -> Option<Servers> {
        let redis = remote::Server::start(place, &[])?;
        Some(Servers { redis, nbd: nbd::Server::start(place)? })
    }

    fn name(&self, which: Which) -> String {
        match which {
            Which::Redis => self.redis.swap(),
            Which::Nbd => self.nbd.swap(),
        }
    }

    fn swap(&self) -> String {
        format!("replicate:{}+{}", self.name(Which::Redis), self.name(Which::Nbd))
    }

    fn signal(&self, which: Which, signal: i32) {
        match which {
            Which::Redis => self.redis.signal(signal),
            Which::Nbd => self.nbd.signal(signal),
        }
    }

    fn signal_both(&self, signal: i32) {
        [Which::Redis, Which::Nbd].into_iter().for_each(|which| self.signal(which, signal));
    }
}

/// The line about a server that is given up.
fn given_up(servers: &Servers, which: Which) -> String {
    let other = if which == Which::Redis { Which::Nbd } else { Which::Redis };
    let (name, left) = (servers.name(which), servers.name(other));
    format!("highwater: swap {name} does not answer, and is given up; {left} goes on")
}

fn counted(place: &Place, counter: &str) -> u64 {
    Report::read(&place.path("report.json")).number(&format!("/vmstat/{counter}"))
}

#[test]
fn sort_and_forks_on_two_servers() {
    let place = Place::new();
    let Some(servers) = Servers::start(&place) else { return };
    random_lines(&place.path("text"), 8 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let forks = place.c_program("forks", &["12"]);
    let files = |name: &str| {
        let dir = place.path(name);
        std::fs::create_dir(&dir).unwrap();
        format!("dir:{}:128M", dir.display())
    };
    for (what, program, swap) in [
        ("sort, replicas", &sort, servers.swap()),
        ("sort, tier, replicas", &sort, format!("tier:zram:4M+{}", servers.swap())),
        ("forks, replicas", &forks, servers.swap()),
        ("sort, two files", &sort, format!("replicate:{}+{}", files("one"), files("two"))),
    ] {
        expect_as_in_memory(&place, what, program, &swap, &[]);
        assert_eq!(counted(&place, "replicas_lost"), 0, "{what}");
        assert_eq!(counted(&place, "replica_single_writes"), 0, "{what}");
        servers.redis.await_answer("dbsize", "0");
        servers.nbd.await_nothing();
    }
}

#[test]
fn sort_goes_on_without_a_server_that_dies_in_mid_run() {
    let place = Place::new();
    random_lines(&place.path("text"), 16 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    for (which, signal, tier) in
        [(Which::Nbd, libc::SIGKILL, "tier:zram:1M+"), (Which::Redis, libc::SIGSTOP, "")]
    {
        let Some(servers) = Servers::start(&place) else { return };
        let mut command = highwater();
        command.args(["run", "--quiet", "--paged", "6M", "--report"]);
        command.arg(place.path("report.json")).arg("--swap");
        command.arg(format!("{tier}{}", servers.swap())).arg("--").args(&sort);
        let run = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(A_WHILE);
                servers.signal(which, signal);
            });
            Run::of(command.env("LC_ALL", "C"), &place.path(""), "limited", TIME_LIMIT)
        });
        let what = format!("{which:?} gets signal {signal} in mid run");
        let seconds = run.elapsed.as_secs_f64();
        let report = Report::read(&place.path("report.json"));
        note(&format!("{what}: {seconds:.1} s; {}", report.figures()));
        let run = run.expect_success(&what);
        assert!(run.text() == unlimited.text(), "{what}");
        assert_eq!(run.errors.trim_end(), given_up(&servers, which), "{what}");
        assert_eq!(counted(&place, "replicas_lost"), 1, "{what}");
        assert!(counted(&place, "replica_single_writes") > 0, "{what}");
    }
}

/// Lets a program go on, and after a while sends a signal to a server.
pub(crate) fn go_on(waiting: Waiting, signal: impl FnOnce() + Send) -> Ended {
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(A_WHILE);
            signal();
        });
        waiting.go_on()
    })
}

/// The sum and the stall that the program prints.
pub(crate) fn printed(output: &str) -> (&str, Duration) {
    let (sum, stall) = output.trim_end().split_once('\n').expect("two lines");
    (sum, Duration::from_micros(stall.parse().unwrap()))
}

#[test]
fn a_server_that_dies_or_stops_stalls_a_program_for_a_moment() {
    let place = Place::new();
    let program = place.compile("stalls", "stalls", &[]);
    let unlimited = without_limits(&program);
    let (expected, _) = printed(unlimited.strip_prefix("filled\n").unwrap());
    for (which, signal) in [
        (Which::Redis, libc::SIGKILL),
        (Which::Nbd, libc::SIGKILL),
        (Which::Redis, libc::SIGSTOP),
        (Which::Nbd, libc::SIGSTOP),
    ] {
        let Some(servers) = Servers::start(&place) else { return };
        let waiting = Waiting::start(&place, &program, &servers.swap(), &[]);
        let began = Instant::now();
        let ended = go_on(waiting, || servers.signal(which, signal));
        let took = began.elapsed();
        let what = format!("{which:?} gets signal {signal}");
        assert!(ended.status.success(), "{what}: {}", ended.errors);
        let (sum, stall) = printed(&ended.output);
        let again = counted(&place, "replica_second_reads");
        note(&format!(
            "{what}: a page took {stall:?} at most, the program {took:?}; {again} again"
        ));
        assert_eq!(sum, expected, "{what}");
        assert_eq!(ended.errors.trim_end(), given_up(&servers, which), "{what}");
        assert!(stall < STALL_MAX, "{what}: {stall:?}");
    }
}

/// Pages that one server has lost, or returns corrupted, are read from the other.
#[test]
fn a_server_that_forgets_is_no_end() {
    let place = Place::new();
    let program = place.compile("seal", "seal", &[]);
    let expected = without_limits(&program);
    let Some(mut servers) = Servers::start(&place) else { return };
    for which in [Which::Redis, Which::Nbd] {
        let waiting = Waiting::start(&place, &program, &servers.swap(), &[]);
        match which {
            Which::Redis => assert_eq!(servers.redis.ask("flushall"), "OK"),
            Which::Nbd => servers.nbd.restart(&["memory", "128M"]),
        }
        let ended = waiting.go_on();
        let again = counted(&place, "replica_second_reads");
        note(&format!("{which:?} forgets: {again} reads made again, {:?}", ended.errors));
        assert!(ended.status.success(), "{}", ended.errors);
        assert_eq!(format!("filled\n{}", ended.output), expected);
        assert!(again > 0, "no page was needed from there");
    }
}

#[test]
fn the_last_server_is_waited_for_and_a_program_ends_when_both_die() {
    let place = Place::new();
    let program = place.compile("stalls", "stalls", &[]);
    let unlimited = without_limits(&program);
    let (expected, _) = printed(unlimited.strip_prefix("filled\n").unwrap());
    let Some(servers) = Servers::start(&place) else { return };
    let waiting = Waiting::start(&place, &program, &servers.swap(), &[]);
    let ended = go_on(waiting, || {
        servers.signal_both(libc::SIGSTOP);
        thread::sleep(Duration::from_secs(2));
        servers.signal_both(libc::SIGCONT);
    });
    assert!(ended.status.success(), "{}", ended.errors);
    let (sum, stall) = printed(&ended.output);
    note(&format!("both stop for 2 s: a page took {stall:?} at most"));
    assert_eq!((sum, ended.errors.trim_end().lines().count()), (expected, 1), "{}", ended.errors);
    assert!(stall > Duration::from_secs(1), "{stall:?}: a stopped server answers");
    drop(servers);

    let Some(servers) = Servers::start(&place) else { return };
    let waiting = Waiting::start(&place, &program, &servers.swap(), &["--remote-patience", "1"]);
    let began = Instant::now();
    let ended = go_on(waiting, || servers.signal_both(libc::SIGKILL));
    note(&format!("both die: {}, {:?}, {:?}", ended.status, ended.errors, began.elapsed()));
    let end = ended.errors.trim_end().lines().last().unwrap();
    assert!(!ended.status.success() && ended.output.is_empty(), "{}", ended.output);
    let parts = ["a page could not be read: ", "check the disk or server", &servers.swap()];
    assert!(parts.iter().all(|part| end.contains(part)), "{}", ended.errors);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_process_that_starts_later_uses_the_server_that_is_left() {
    let place = Place::new();
    let text = place.path("text");
    random_lines(&text, 8 * MIB);
    let script = place.path("later.sh");
    let sort = format!("sort -S 64M --parallel=2 {}", text.display());
    let lines = ["#!/bin/sh", "echo filled", "read line", "export LC_ALL=C", &sort, &sort, ""];
    std::fs::write(&script, lines.join("\n")).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let expected = without_limits(&script);
    for (which, signal) in [(Which::Redis, libc::SIGKILL), (Which::Nbd, libc::SIGSTOP)] {
        let Some(servers) = Servers::start(&place) else { return };
        let waiting = Waiting::start(&place, &script, &servers.swap(), &[]);
        servers.signal(which, signal);
        let ended = waiting.go_on();
        note(&format!("{which:?} gone at the start: {}, {:?}", ended.status, ended.errors));
        assert!(ended.status.success(), "{}", ended.errors);
        assert!(format!("filled\n{}", ended.output) == expected, "{which:?}");
        assert!(counted(&place, "pswpin") > 0);
        assert_eq!(
            counted(&place, "replicas_lost"),
            1,
            "{which:?}: two processes start without it"
        );
        assert_eq!(counted(&place, "replica_single_writes"), counted(&place, "pswpout"));
    }
}

/// Pages move off replicas while processes use them, also if one replica has died.
#[test]
fn replicas_are_removed_from_a_running_session() {
    let place = Place::new();
    let program = place.compile("devices", "devices", &[]);
    let Some(servers) = Servers::start(&place) else { return };
    let (swap, file) = (servers.swap(), format!("dir:{}:256M", place.path("").display()));
    for killed in [None, Some(Which::Redis)] {
        let mut session =
            Session::swapping("replicas", 24 * MIB, &[&swap], &[&program], &["2", "24"]);
        session.expect_line("started");
        if let Some(which) = killed {
            servers.signal(which, libc::SIGKILL);
        }
        for request in [format!("swap-add={file}"), format!("swap-remove={swap}")] {
            let expected = request.replacen('=', " = ", 1) + "\n";
            assert_eq!(session.ctl(&request), Some(expected), "{killed:?}");
        }
        session.until("all use the file", |_| devices(&session) == [file.clone()]);
        session.finish();
        session.expect_line("ended");
        session.end();
        servers.nbd.await_nothing();
        if killed.is_none() {
            servers.redis.await_answer("dbsize", "0");
        }
    }
}

#[test]
fn replicas_that_cannot_be_used_are_refused_before_the_program_runs() {
    let place = Place::new();
    let Some(servers) = Servers::start(&place) else { return };
    let redis = servers.redis.swap();
    let refused = |swap: &str, options: &[&str], part: &str| {
        let mut command = highwater();
        command.args(["run", "--quiet", "--paged", "16M", "--swap", swap]).args(options);
        command.args(["--", "echo", "ran"]);
        let run = Run::of(&mut command, Path::new(&place.path("")), "refused", TIME_LIMIT);
        let errors = run.errors.trim_end();
        note(&format!("{swap} {options:?}: {errors}"));
        assert_eq!((run.status.code(), run.text()), (Some(2), String::new()), "{errors}");
        assert!(errors.contains(part) && errors.lines().count() == 1, "{errors}");
    };
    for (swap, part) in [
        (format!("replicate:{redis}"), "second replica missing (A+B)"),
        (format!("replicate:{redis}+{redis}"), "both replicas are the same"),
        (format!("replicate:{redis}+dir:/var/tmp:64M"), "differ in size (128M and 64M)"),
        (format!("replicate:{redis}+zram:128M"), "a replica is file:, dir:, redis: or nbd:"),
        (format!("replicate:{redis}+dir:/nonexistent:128M"), "no such directory"),
        (format!("replicate:redis:127.0.0.1:1:128M+{redis}"), "reached: Connection refused"),
    ] {
        refused(&swap, &[], part);
    }
    refused(&servers.swap(), &["--seal", "off"], "always sealed");
    servers.nbd.signal(libc::SIGSTOP);
    refused(&servers.swap(), &[], "cannot be reached: Connection timed out");
}
