//! redis-server with more keys than memory, filled and read back by redis-benchmark.
//!
//! A key is a number, and its value that number eight times over, so that every answer can be
//! checked: a script in the server compares, and redis-benchmark fails if a value was wrong.

use crate::packages::is_installed;
use crate::place::{Limits, Place, note, program};
use crate::report::Report;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Time limit for a server to answer.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a server.
const HOUR: Duration = Duration::from_secs(3600);
/// Sets a key, and counts new ones.
const FILL: &str = "if redis.call('set', 'key:' .. ARGV[1], string.rep(ARGV[1], 8), 'nx') \
                    then redis.call('incr', 'made') end";
/// Checks the value of a key, if it exists.
const READ: &str = "local value = redis.call('get', 'key:' .. ARGV[1]) \
                    if value and value ~= string.rep(ARGV[1], 8) \
                    then return redis.error_reply('WRONG value of key ' .. ARGV[1]) end";

/// The load: number of requests that make keys, of requests that read them, and of possible keys.
struct Load {
    requests: u32,
    keys: u32,
    reads: u32,
}

/// A server that listens on a socket; killed when dropped.
struct Server {
    socket: PathBuf,
}

impl Server {
    /// Waits until the server answers.
    fn at(socket: PathBuf) -> Server {
        let server = Server { socket };
        let started = Instant::now();
        while server.ask(&["ping"]) != "PONG" {
            assert!(started.elapsed() < TIME_LIMIT, "redis-server does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// The answer to a command; empty if there is none.
    fn ask(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-s").arg(&self.socket).args(command).output();
        let text = output.expect("redis-cli").stdout;
        String::from_utf8_lossy(&text).trim_end().to_owned()
    }

    /// Runs a script `requests` times, each with a random number below `keys`.
    fn load(&self, requests: u32, keys: u32, script: &str) {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.arg("-s").arg(&self.socket).args(["-q", "-P", "32", "-c", "8"]);
        benchmark.args(["-n", &requests.to_string(), "-r", &keys.to_string()]);
        let output = benchmark.args(["eval", script, "0", "__rand_int__"]).output();
        let output = output.expect("redis-benchmark");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {errors}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ask(&["shutdown", "nosave"]);
    }
}

fn serve(place: &Place, limits: &Limits, socket: &Path) -> Report {
    let socket = socket.to_string_lossy();
    let line = ["--port", "0", "--unixsocket", &socket, "--save", "", "--appendonly", "no"];
    place
        .run_with_time_limit(limits, &program("redis-server", &line), HOUR)
        .expect_success("redis");
    place.report()
}

/// Fills a server, reads the keys back, and shuts it down. The number of keys must be equal to the
/// number made.
fn use_server(server: &Server, load: &Load) -> u64 {
    server.load(load.requests, load.keys, FILL);
    let made: u64 = server.ask(&["get", "made"]).parse().expect("a number");
    server.load(load.reads, load.keys, READ);
    let kept: u64 = server.ask(&["dbsize"]).parse().expect("a number");
    assert_eq!(kept, made + 1, "keys, and the counter");
    made
}

fn keep_keys(limits: &Limits, load: &Load) {
    if !is_installed("redis-server") || !is_installed("redis-benchmark") {
        return;
    }
    let place = Place::beside_others();
    let socket = place.path("redis.sock");
    let (report, made) = thread::scope(|scope| {
        let running = scope.spawn(|| serve(&place, limits, &socket));
        let made = use_server(&Server::at(socket.clone()), load);
        (running.join().expect("the server ends well"), made)
    });
    note(&format!("redis-server, {made} keys: {}", report.figures()));
    report.expect_swapping();
    let paged = report.number("/paged_peak_bytes");
    assert!(paged > 2 * limits.memory, "only {paged} bytes of keys");
    report.expect_bounds(limits.memory, paged);
}

/// 73 MB of keys in 24 MiB; with HIGHWATER_LARGE=1, 300 MB in 96 MiB, which takes minutes.
#[test]
fn redis_keeps_its_keys() {
    let (memory, times) = match std::env::var_os("HIGHWATER_LARGE") {
        None => (24 * MIB, 1),
        Some(_) => (96 * MIB, 4),
    };
    let load = Load { requests: times * 600_000, keys: times * 700_000, reads: times * 10_000 };
    keep_keys(&Limits::of(memory), &load);
}
