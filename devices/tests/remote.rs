//! Swap on a real redis-server: contents, forks, and servers that stop, end, lose data and fill up.

mod common;

use common::Frames;
use common::check::{
    SIZE, SLOTS, TIME_LIMIT, await_that, fill, open_another_service, read_on_in_a_child, read_run,
    read_through_a_stop, use_blocks, use_by_threads,
};
use highwater_devices::{
    Device, OpenOptions, Reason, RemoteOptions, Replication, Seal, Secret, Spec, open_with,
};
use highwater_platform::IoError;
use highwater_platform::testing::skip_or_fail;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Keys of a session without pages: one, the count of the session's holders.
const HOLDERS: &str = ":1";

/// A server on a socket; killed when dropped.
struct Server {
    process: Child,
    dir: TempDir,
}

impl Server {
    /// A server with these options; `None` if redis-server is not installed.
    fn start(options: &[&str]) -> Option<Server> {
        let dir = tempfile::tempdir().unwrap();
        let process = Server::launch(&dir, options)?;
        Some(Server { process, dir })
    }

    fn launch(dir: &TempDir, options: &[&str]) -> Option<Child> {
        let mut server = Command::new("redis-server");
        server.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        server.arg(dir.path().join("socket")).args(options).current_dir(dir.path());
        let Ok(process) = server.stdout(Stdio::null()).stdin(Stdio::null()).spawn() else {
            skip_or_fail("redis-server is not installed");
            return None;
        };
        await_that("redis-server answers", || {
            UnixStream::connect(dir.path().join("socket")).is_ok()
        });
        Some(process)
    }

    fn spec(&self) -> Spec {
        let socket = self.dir.path().join("socket");
        Spec::parse(&format!("redis+unix:{}:{}", socket.display(), SIZE.0)).unwrap()
    }

    fn open(&self, patience: Duration) -> Result<Box<dyn Device>, Reason> {
        self.open_as(RemoteOptions { patience, ..RemoteOptions::default() })
    }

    fn open_as(&self, remote: RemoteOptions) -> Result<Box<dyn Device>, Reason> {
        let options = OpenOptions { remote, ..OpenOptions::default() };
        open_with(&self.spec(), &options).map_err(|error| error.reason)
    }

    /// The first line of the answer to a command.
    fn ask(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("socket")).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n") && stream.read(&mut byte).unwrap() == 1 {
            answer.push(byte[0]);
        }
        String::from_utf8_lossy(&answer).trim_end().to_owned()
    }

    /// Waits until the server has this number of keys.
    fn await_keys(&self, count: &str) {
        await_that("keys are deleted", || self.ask("DBSIZE") == count);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn threads_find_what_they_wrote_while_the_server_drops_their_connections() {
    let Some(server) = Server::start(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    let keeper = device.thread().map(thread::spawn).expect("a keeper");
    assert!(device.thread().is_none());
    use_by_threads(&*device, 150, || drop(server.ask("CLIENT KILL TYPE normal")));
    let lifetime: u32 = server.ask("EVAL \"return redis.call('ttl', redis.call('randomkey'))\" 0")
        [1..]
        .parse()
        .unwrap();
    assert!((1..=900).contains(&lifetime), "a key lives {lifetime} s");
    device.discard(0, SLOTS);
    server.await_keys(HOLDERS);
    drop(device);
    keeper.join().unwrap();
    server.await_keys(":0");
}

/// One thread writes cold pages back, the other keeps the server's pages alive.
#[test]
fn a_tier_over_a_server_has_the_threads_of_both() {
    let Some(server) = Server::start(&[]) else { return };
    let spec = Spec::parse(&format!("tier:ram:1M+{}", server.spec())).unwrap();
    let device = open_with(&spec, &OpenOptions::default()).unwrap();
    assert_eq!(std::iter::from_fn(|| device.thread()).count(), 2);
}

/// Two servers, a device over both, and the number of the device's replicas that are lost.
fn replicas() -> Option<([Server; 2], Box<dyn Device>)> {
    let servers = [Server::start(&[])?, Server::start(&[])?];
    let spec = format!("replicate:{}+{}", servers[0].spec(), servers[1].spec());
    let device = open_with(&Spec::parse(&spec).unwrap(), &OpenOptions::default()).unwrap();
    Some((servers, device))
}

/// The name of the replica that is lost.
fn lost(device: &dyn Device) -> Option<String> {
    assert_eq!(device.replication().unwrap().lost, device.lost_replica().iter().len() as u64);
    device.lost_replica().map(|lost| lost.name)
}

#[test]
fn threads_go_on_without_a_server_that_dies_or_stops() {
    for (dead, signal) in [(0, libc::SIGKILL), (1, libc::SIGKILL), (0, libc::SIGSTOP)] {
        let Some((servers, device)) = replicas() else { return };
        assert_eq!(std::iter::from_fn(|| device.thread()).count(), 2, "a keeper for each");
        use_by_threads(&*device, 60, || ());
        assert_eq!(lost(&*device), None);
        servers[dead].signal(signal);
        let began = Instant::now();
        use_by_threads(&*device, 1, || ());
        // Each thread makes one transfer, which waits once.
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        use_by_threads(&*device, 60, || ());
        assert_eq!(lost(&*device), Some(servers[dead].spec().to_string()));
        let ending = Instant::now();
        drop(device);
        assert!(ending.elapsed() < Duration::from_secs(1), "{:?}", ending.elapsed());
        servers[1 - dead].await_keys(":0");
    }
}

#[test]
fn a_server_that_stops_for_a_moment_delays_no_read() {
    let Some((servers, device)) = replicas() else { return };
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, SLOTS).unwrap();
    for stopped in [0, 1, 0, 1] {
        servers[stopped].signal(libc::SIGSTOP);
        let took = (0..SLOTS).step_by(16).map(|run| {
            let began = Instant::now();
            assert_eq!(read_run(&*device, &frames, run), Ok(()));
            began.elapsed()
        });
        let longest = took.max().unwrap();
        servers[stopped].signal(libc::SIGCONT);
        println!("{stopped} stops: a read took {longest:?} at most");
        assert!(longest < Duration::from_millis(400), "{longest:?}");
        assert_eq!(fill(&*device, &frames, SLOTS), Ok(()));
    }
    let found = device.replication().unwrap();
    assert!(found.hedged_reads > 0 && found.lost == 0 && found.single_writes == 0, "{found:?}");
}

/// Replicas with pages. The first has stopped, was given up, and runs again.
fn first_given_up() -> Option<([Server; 2], Box<dyn Device>, Frames)> {
    let (servers, device) = replicas()?;
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 64).unwrap();
    servers[0].signal(libc::SIGSTOP);
    assert_eq!(fill(&*device, &frames, 16), Ok(()));
    servers[0].signal(libc::SIGCONT);
    Some((servers, device, frames))
}

#[test]
fn a_server_that_was_given_up_is_not_used_when_it_answers_again() {
    let Some((servers, device, frames)) = first_given_up() else { return };
    assert_eq!(lost(&*device), Some(servers[0].spec().to_string()));
    // The server carries out the requests that were under way.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(servers[0].ask("FLUSHALL"), "+OK");
    assert_eq!(fill(&*device, &frames, 128), Ok(()));
    assert_eq!(servers[0].ask("DBSIZE"), ":0");
    (0..128).step_by(16).for_each(|run| assert_eq!(read_run(&*device, &frames, run), Ok(())));
}

#[test]
fn a_server_that_was_given_up_keeps_nothing_if_it_answers_at_the_end() {
    let Some((servers, device, _)) = first_given_up() else { return };
    assert_ne!(servers[0].ask("DBSIZE"), ":0");
    drop(device);
    servers.iter().for_each(|server| server.await_keys(":0"));
}

#[test]
fn the_last_server_is_waited_for() {
    let Some((servers, device)) = replicas() else { return };
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 128).unwrap();
    servers[1].signal(libc::SIGKILL);
    assert_eq!(fill(&*device, &frames, 16), Ok(()));
    assert_eq!(lost(&*device), Some(servers[1].spec().to_string()));
    servers[0].signal(libc::SIGSTOP);
    thread::scope(|scope| {
        let reading = scope.spawn(|| read_run(&*device, &frames, 64));
        thread::sleep(Duration::from_secs(2));
        assert!(!reading.is_finished(), "a stopped server answers");
        servers[0].signal(libc::SIGCONT);
        assert_eq!(reading.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_forked_child_reads_from_the_replica_that_is_left() {
    let Some((servers, device)) = replicas() else { return };
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 16).unwrap();
    servers[0].signal(libc::SIGKILL);
    read_on_in_a_child(device, || servers[1].ask("DBSIZE") == ":2");
    servers[1].await_keys(":0");
}

#[test]
fn blocks_and_slots_that_were_never_written() {
    let Some(server) = Server::start(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    use_blocks(&*device);
    device.vacate();
    server.await_keys(HOLDERS);
}

#[test]
fn a_forked_child_reads_on_after_its_parent_has_ended() {
    let Some(server) = Server::start(&[]) else { return };
    read_on_in_a_child(server.open(TIME_LIMIT).unwrap(), || server.ask("DBSIZE") == ":2");
    server.await_keys(":0");
}

#[test]
fn a_server_that_stops_for_a_moment_is_waited_for() {
    let Some(server) = Server::start(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    read_through_a_stop(&*device, |signal| server.signal(signal));
}

#[test]
fn a_server_that_is_gone_is_an_error_after_the_patience() {
    let Some(mut server) = Server::start(&[]) else { return };
    let patience = Duration::from_millis(300);
    let device = server.open(patience).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 128).unwrap();
    server.kill();
    let began = Instant::now();
    let gone = Err(IoError::Failed(libc::ECONNREFUSED));
    assert_eq!(read_run(&*device, &frames, 0), gone);
    assert!(began.elapsed() >= patience, "{:?}", began.elapsed());
    assert_eq!(fill(&*device, &frames, 16), gone);
    // The restarted server is empty: its old pages are lost, which the device detects; new writes
    // stay.
    server.process = Server::launch(&server.dir, &[]).unwrap();
    let lost = Err(IoError::Failed(libc::ENODATA));
    assert_eq!(read_run(&*device, &frames, 64), lost);
    assert_eq!(fill(&*device, &frames, 16), Ok(()));
    assert_eq!(read_run(&*device, &frames, 0), Ok(()));
    server.ask("FLUSHALL");
    assert_eq!(read_run(&*device, &frames, 0), lost);
    assert!(!device.altered());
}

#[test]
fn a_server_that_is_full_takes_no_more_pages_and_keeps_those_it_has() {
    let Some(server) = Server::start(&["--maxmemory", "5mb"]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    assert_eq!(fill(&*device, &frames, SLOTS), Err(IoError::Full));
    assert_eq!(read_run(&*device, &frames, 0), Ok(()));
    assert_eq!(read_run(&*device, &frames, 256), Ok(()));
}

#[test]
fn a_page_that_the_server_changed_is_an_error() {
    let Some(server) = Server::start(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 32).unwrap();
    let script = "local k = redis.call('keys', '*:0')[1] \
                  redis.call('hset', k, '16', redis.call('hget', k, '17')) return 1";
    assert_eq!(server.ask(&format!("EVAL \"{script}\" 0")), ":1");
    assert_eq!(read_run(&*device, &frames, 0), Ok(()));
    assert_eq!(read_run(&*device, &frames, 16), Err(IoError::Failed(libc::EBADMSG)));
    assert!(device.altered());
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(mut server) = Server::start(&["--requirepass", "sesame"]) else { return };
    let with = |user: Option<&str>, password: &str| {
        let password = Some(Secret(password.to_owned()));
        let user = user.map(str::to_owned);
        server.open_as(RemoteOptions { user, password, ..RemoteOptions::default() }).map(drop)
    };
    assert_eq!(server.open(TIME_LIMIT).map(drop), Err(Reason::Denied));
    assert_eq!(with(None, "open"), Err(Reason::Denied));
    assert_eq!(with(Some("nobody"), "sesame"), Err(Reason::Denied));
    assert_eq!(with(None, &"long".repeat(100_000)), Err(Reason::Denied));
    assert_eq!(with(None, "sesame"), Ok(()));
    assert_eq!(with(Some("default"), "sesame"), Ok(()));
    let off = OpenOptions { seal: Seal::Off, ..OpenOptions::default() };
    let unsealed = open_with(&server.spec(), &off).map(drop).map_err(|error| error.reason);
    assert_eq!(unsealed, Err(Reason::Unsealed));
    server.kill();
    assert_eq!(
        server.open(TIME_LIMIT).map(drop),
        Err(Reason::Unreachable { errno: libc::ECONNREFUSED })
    );
    let options = ["--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru"];
    server.process = Server::launch(&server.dir, &options).unwrap();
    assert_eq!(server.open(TIME_LIMIT).map(drop), Err(Reason::Evicts));
    assert_eq!(server.ask("DBSIZE"), ":0");
}

/// Another service, which gives an answer that is not Redis's.
#[test]
fn another_service_is_not_taken_for_a_server() {
    let (words, options) = (b"HTTP/1.1 400 Bad Request\r\n\r\n", OpenOptions::default());
    let opened = open_another_service(words, &options, |port| format!("redis:127.0.0.1:{port}:1M"));
    assert_eq!(opened, Err(Reason::NotRedis));
}

/// A killed server may still accept a connection and then end it. Regression: a process of a run
/// that started at this time was not paged.
#[test]
fn a_process_of_a_run_starts_with_the_replica_that_does_not_hang_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("dir:{}:4M", dir.path().display());
    for server in ["redis:127.0.0.1", "nbd:127.0.0.1"] {
        let open = |run| {
            let remote = RemoteOptions { run, ..RemoteOptions::default() };
            let options = OpenOptions { remote, ..OpenOptions::default() };
            open_another_service(b"", &options, |port| {
                format!("replicate:{server}:{port}:4M+{file}")
            })
        };
        assert_eq!(open(None), Err(Reason::HangsUp), "{server}");
        let alone = Replication { lost: 1, ..Replication::default() };
        assert_eq!(open(Some(dir.path().join("run"))), Ok(Some(alone)), "{server}");
    }
}
