//! Swap on real NBD servers: contents, forks, exports that processes share, and servers that stop,
//! end, lose their data, fail and fill up.

mod common;

use common::check::{
    SLOTS, TIME_LIMIT, await_that, fill, open_another_service, read_on_in_a_child, read_run,
    read_through_a_stop, use_blocks, use_by_threads,
};
use common::{Frames, read, write};
use highwater_devices::{Device, OpenOptions, Reason, RemoteOptions, Seal, Spec, open_with};
use highwater_platform::testing::skip_or_fail;
use highwater_platform::{Io, IoError};
use highwater_units::{Bytes, PAGE_SIZE, Pfn};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Room for [`SLOTS`] in extents of 512, and the label.
const SIZE: Bytes = Bytes(10 << 20);
/// Arguments of nbdkit for 16 MiB of memory.
const MEMORY: &[&str] = &["memory", "16M"];
/// Pages in a run of [`fill`].
const RUN: u32 = 16;

/// A server on a socket; killed when dropped.
struct Server {
    process: Child,
    dir: TempDir,
}

impl Server {
    /// nbdkit with these arguments; `None` if it is not installed.
    fn start(arguments: &[&str]) -> Option<Server> {
        Server::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    fn start_in(dir: TempDir, arguments: &[&str]) -> Option<Server> {
        let process = Server::launch(&dir, arguments)?;
        Some(Server { process, dir })
    }

    /// nbdkit with these options that serves 16 MiB of a file.
    fn of_file(options: &[&str]) -> Option<Server> {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("swap")).unwrap().set_len(16 << 20).unwrap();
        Server::start_in(dir, &[options, &["file", "swap"]].concat())
    }

    fn launch(dir: &TempDir, arguments: &[&str]) -> Option<Child> {
        let socket = dir.path().join("socket");
        // nbdkit does not replace an existing socket.
        let _ = std::fs::remove_file(&socket);
        let mut server = Command::new("nbdkit");
        server.args(["-f", "--exit-with-parent", "-U"]).arg(&socket).args(arguments);
        Server::spawn(dir, server)
    }

    fn spawn(dir: &TempDir, mut server: Command) -> Option<Child> {
        let silent = server.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut process) = silent.stdin(Stdio::null()).spawn() else {
            skip_or_fail(format!("{} is not installed", server.get_program().display()));
            return None;
        };
        let socket = dir.path().join("socket");
        await_that("the server answers", || {
            assert!(process.try_wait().unwrap().is_none(), "it has ended: {server:?}");
            socket.exists() && UnixStream::connect(&socket).is_ok()
        });
        Some(process)
    }

    fn restart(&mut self, arguments: &[&str]) {
        self.kill();
        self.process = Server::launch(&self.dir, arguments).unwrap();
    }

    fn spec(&self) -> Spec {
        self.spec_of("", SIZE)
    }

    fn spec_of(&self, export: &str, size: Bytes) -> Spec {
        let socket = self.dir.path().join("socket");
        Spec::parse(&format!("nbd+unix:{}:/{export}:{}", socket.display(), size.0)).unwrap()
    }

    fn open(&self, patience: Duration) -> Result<Box<dyn Device>, Reason> {
        self.open_with(RemoteOptions { patience, ..RemoteOptions::default() })
    }

    fn open_with(&self, remote: RemoteOptions) -> Result<Box<dyn Device>, Reason> {
        let options = OpenOptions { remote, ..OpenOptions::default() };
        open_with(&self.spec(), &options).map_err(|error| error.reason)
    }

    fn try_open(&self, spec: &Spec) -> Result<(), Reason> {
        open_with(spec, &OpenOptions::default()).map(drop).map_err(|error| error.reason)
    }

    /// Bytes of the file behind the label that are not zero.
    fn bytes_left(&self) -> usize {
        let mut bytes = Vec::new();
        File::open(self.dir.path().join("swap")).unwrap().read_to_end(&mut bytes).unwrap();
        bytes[PAGE_SIZE..].iter().filter(|byte| **byte != 0).count()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn signal(&self, signal: i32) {
        let (pid, mut status) = (self.process.id() as i32, 0);
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        if signal == libc::SIGSTOP {
            // The server answers until its last thread has stopped.
            // SAFETY: as above.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
        }
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The contents are in a file, so a server that is started again still has them.
#[test]
fn threads_find_what_they_wrote_while_the_server_is_killed_and_started_anew() {
    let Some(mut server) = Server::of_file(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    let keeper = device.thread().map(thread::spawn).expect("a keeper");
    let mut kills = 0;
    use_by_threads(&*device, 150, || {
        if kills < 3 {
            server.restart(&["file", "swap"]);
            kills += 1;
        }
    });
    assert_ne!(kills, 0);
    assert_ne!(server.bytes_left(), 0);
    device.discard(0, SLOTS);
    await_that("freed slots are trimmed", || server.bytes_left() == 0);
    drop(device);
    keeper.join().unwrap();
}

/// nbdkit refuses a second client here.
#[test]
fn a_server_without_coherent_connections_gets_one() {
    let filters = ["--filter=limit", "--filter=multi-conn"];
    let options = ["limit=1", "multi-conn-mode=disable"];
    let Some(server) = Server::start(&[&filters, MEMORY, &options].concat()) else { return };
    let mut device = None;
    await_that("the connection of the start is over", || {
        device = server.open(TIME_LIMIT).ok();
        device.is_some()
    });
    let device = device.expect("just opened");
    use_by_threads(&*device, 60, || {});
}

#[test]
fn requests_are_as_long_as_the_server_permits() {
    let filter = ["--filter=blocksize-policy"];
    let options =
        ["blocksize-minimum=4096", "blocksize-maximum=12K", "blocksize-error-policy=error"];
    let Some(server) = Server::start(&[&filter, MEMORY, &options].concat()) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    use_by_threads(&*device, 40, || {});
}

#[test]
fn another_server_of_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    File::create(dir.path().join("swap")).unwrap().set_len(16 << 20).unwrap();
    let mut qemu = Command::new("qemu-nbd");
    qemu.args(["-f", "raw", "-t", "-e", "0", "--discard=unmap", "-x", "some/export"]);
    qemu.arg("-k").arg(dir.path().join("socket")).arg("swap");
    let Some(process) = Server::spawn(&dir, qemu) else { return };
    let server = Server { process, dir };
    let spec = server.spec_of("some/export", SIZE);
    assert_eq!(server.try_open(&server.spec_of("other", SIZE)), Err(Reason::NoExport));
    let device = open_with(&spec, &OpenOptions::default()).unwrap();
    use_by_threads(&*device, 60, || {});
    drop(device);
    assert_eq!(server.bytes_left(), 0);
}

#[test]
fn blocks_and_slots_that_were_never_written() {
    let Some(server) = Server::of_file(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    use_blocks(&*device);
    device.vacate();
    assert_eq!(server.bytes_left(), 0);
    let frames = Frames::new(512);
    assert_eq!(fill(&*device, &frames, 512), Ok(()));
    assert_eq!(read_run(&*device, &frames, 64), Ok(()));
}

/// Like two processes of a run: both have slots from 0 on.
#[test]
fn devices_of_a_run_share_an_export_and_leave_nothing() {
    let Some(server) = Server::of_file(&[]) else { return };
    let file = server.path("locks");
    File::create(&file).unwrap();
    let open = || {
        let run = Some(file.clone());
        server.open_with(RemoteOptions { run, ..RemoteOptions::default() }).unwrap()
    };
    let (first, second) = (open(), open());
    let frames = Frames::new(SLOTS);
    let half = SLOTS / 4;
    assert_eq!(fill(&*first, &frames, half), Ok(()));
    assert_eq!(fill(&*second, &frames, half), Ok(()));
    (0..half).step_by(16).for_each(|run| assert_eq!(read_run(&*first, &frames, run), Ok(())));
    assert_eq!(fill(&*second, &frames, SLOTS), Err(IoError::Full));
    (0..half).step_by(16).for_each(|run| assert_eq!(read_run(&*first, &frames, run), Ok(())));
    drop(first);
    assert_eq!(fill(&*second, &frames, 3 * SLOTS / 4), Ok(()));
    drop(second);
    assert_eq!(server.bytes_left(), 0);
}

/// nbdkit serves its export under every name.
#[test]
fn devices_of_a_process_have_exports_of_their_own() {
    let Some(server) = Server::start(MEMORY) else { return };
    let [a, b] = ["a", "b"].map(|export| server.spec_of(export, SIZE));
    let pair = Spec::Replicate { first: Box::new(a.clone()), second: Box::new(b.clone()) };
    assert_eq!(server.try_open(&pair), Err(Reason::InUse));
    let first = open_with(&a, &OpenOptions::default()).unwrap();
    for spec in [&a, &b] {
        assert_eq!(server.try_open(spec), Err(Reason::InUse));
    }
    drop(first);
    assert_eq!(server.try_open(&b), Ok(()), "no device uses it any more");
}

#[test]
fn devices_of_a_run_have_exports_of_their_own() {
    let Some(mut server) = Server::start(MEMORY) else { return };
    let run = server.path("locks");
    File::create(&run).unwrap();
    let remote = RemoteOptions { run: Some(run), ..RemoteOptions::default() };
    let options = OpenOptions { remote, ..OpenOptions::default() };
    let open = |spec: &Spec| open_with(spec, &options).map_err(|error| error.reason);
    let [a, b] = ["a", "b"].map(|export| server.spec_of(export, SIZE));
    let pair = Spec::Replicate { first: Box::new(b.clone()), second: Box::new(a.clone()) };
    let first = open(&a).unwrap();
    assert_eq!(open(&b).err(), Some(Reason::InUse));
    let second = open(&a).expect("another process of the run");
    drop(first);
    assert_eq!(open(&b).err(), Some(Reason::InUse));
    server.restart(MEMORY);
    drop(second);
    assert_eq!(open(&pair).err(), Some(Reason::InUse));
    assert_eq!(open(&b).err(), None, "no device uses it any more");
}

#[test]
fn a_forked_child_reads_on_after_its_parent_has_ended() {
    let Some(server) = Server::of_file(&[]) else { return };
    read_on_in_a_child(server.open(TIME_LIMIT).unwrap(), || server.bytes_left() > 0);
    assert_eq!(server.bytes_left(), 0);
}

#[test]
fn a_server_that_stops_for_a_moment_is_waited_for() {
    let Some(server) = Server::start(MEMORY) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    read_through_a_stop(&*device, |signal| server.signal(signal));
}

#[test]
fn a_server_that_is_gone_or_forgets_is_an_error() {
    let Some(mut server) = Server::start(MEMORY) else { return };
    let patience = Duration::from_millis(300);
    let device = server.open(patience).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 128).unwrap();
    server.kill();
    let began = Instant::now();
    let gone = Err(IoError::Failed(libc::ECONNREFUSED));
    assert_eq!(read_run(&*device, &frames, 0), gone);
    assert!(began.elapsed() >= patience, "{:?}", began.elapsed());
    assert_eq!(fill(&*device, &frames, RUN), gone);
    // The restarted server is empty: the old pages read as zeros, and the device detects that.
    server.restart(MEMORY);
    assert!(!device.altered());
    assert_eq!(read_run(&*device, &frames, 64), Err(IoError::Failed(libc::EBADMSG)));
    assert!(device.altered());
    assert_eq!(fill(&*device, &frames, RUN), Ok(()));
    assert_eq!(read_run(&*device, &frames, 0), Ok(()));
}

#[test]
fn errors_of_the_server_are_those_of_a_disk() {
    let error = |kind: &str| format!("error-{kind}-file=fail-{kind}");
    let options = ["error-pread=EIO", "error-pread-rate=1", "error-pwrite-rate=1"];
    let Some(server) = Server::start(
        &[].into_iter()
            .chain(["--filter=error"])
            .chain(MEMORY.iter().copied())
            .chain(options)
            .chain(["error-pwrite=ENOSPC", &error("pread"), &error("pwrite")])
            .collect::<Vec<_>>(),
    ) else {
        return;
    };
    let device = server.open(TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 128).unwrap();
    File::create(server.path("fail-pwrite")).unwrap();
    assert_eq!(fill(&*device, &frames, RUN), Err(IoError::Full));
    assert_eq!(read_run(&*device, &frames, 64), Ok(()));
    File::create(server.path("fail-pread")).unwrap();
    assert_eq!(read_run(&*device, &frames, 64), Err(IoError::Failed(libc::EIO)));
    std::fs::remove_file(server.path("fail-pread")).unwrap();
    assert_eq!(read_run(&*device, &frames, 64), Ok(()));
}

#[test]
fn a_page_that_the_server_changed_is_an_error() {
    let Some(server) = Server::of_file(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 32).unwrap();
    let file = File::options().read(true).write(true).open(server.path("swap")).unwrap();
    let (mut page, start) = ([0; PAGE_SIZE], 256 << 10);
    let offset = |slot: u64| start + slot * PAGE_SIZE as u64;
    file.read_exact_at(&mut page, offset(17)).unwrap();
    file.write_all_at(&page, offset(16)).unwrap();
    assert_eq!(read_run(&*device, &frames, 0), Ok(()));
    assert_eq!(read_run(&*device, &frames, 16), Err(IoError::Failed(libc::EBADMSG)));
    assert!(device.altered());
}

#[test]
fn an_export_that_somebody_uses_or_that_holds_data_is_refused() {
    let Some(server) = Server::of_file(&[]) else { return };
    let device = server.open(TIME_LIMIT).unwrap();
    let keeper = device.thread().map(thread::spawn).expect("a keeper");
    assert_eq!(server.try_open(&server.spec()), Err(Reason::InUse));
    drop(device);
    keeper.join().unwrap();
    assert_eq!(server.try_open(&server.spec()), Ok(()));
    let file = File::options().write(true).open(server.path("swap")).unwrap();
    for offset in [0, 1080, 64 << 10] {
        file.set_len(0).and_then(|()| file.set_len(16 << 20)).unwrap();
        file.write_all_at(b"data", offset).unwrap();
        assert_eq!(server.try_open(&server.spec()), Err(Reason::HoldsData), "at {offset}");
    }
}

/// A stopped server, once continued, carries out requests of a session that has ended meanwhile.
#[test]
fn a_label_that_is_written_late_is_of_nobody() {
    let Some(server) = Server::of_file(&[]) else { return };
    let file = File::options().write(true).open(server.path("swap")).unwrap();
    let label = |beat: u8| file.write_all_at(&[&b"Highwater swap 1"[..], &[beat]].concat(), 0);
    label(1).unwrap();
    let opened = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(1));
            label(2).unwrap();
            thread::sleep(Duration::from_millis(300));
            label(3).unwrap();
        });
        server.try_open(&server.spec())
    });
    assert_eq!(opened, Ok(()));
}

/// A stopped server, once continued, carries out a write that was given up. If the slot has a newer
/// page by then, reading the newer page is an error, and never returns the older page.
#[test]
fn a_page_that_is_written_late_is_noticed() {
    // With several threads for a connection, one may see its end before another begins the write.
    let Some(server) = Server::of_file(&["--threads=1"]) else { return };
    let device = server.open(Duration::from_millis(300)).unwrap();
    let frames = Frames::new(1);
    let transfer = || [Io::new(0, [Pfn(0)].into_iter().collect())];
    let write_page = |seed| {
        frames.fill(Pfn(0), seed);
        let mut batch = transfer();
        write(&*device, &frames, &mut batch);
        batch[0].result
    };
    let read_page = || {
        let mut batch = transfer();
        read(&*device, &frames, &mut batch);
        batch[0].result
    };
    let pages = || std::fs::read(server.path("swap")).unwrap().split_off(PAGE_SIZE);
    assert_eq!(write_page(1), Ok(()));
    let before = pages();
    server.signal(libc::SIGSTOP);
    assert_eq!(write_page(3), Err(IoError::Failed(libc::ETIMEDOUT)));
    assert!(pages() == before);
    server.signal(libc::SIGCONT);
    await_that("the server writes the page that was given up", || pages() != before);
    let late = pages();
    await_that("the server is used again", || write_page(5) == Ok(()));
    assert!(read_page() == Ok(()) && frames.holds(Pfn(0), 5));
    // Imitates a slower thread of the server, which writes the page only now.
    let file = File::options().write(true).open(server.path("swap")).unwrap();
    file.write_all_at(&late, PAGE_SIZE as u64).unwrap();
    assert_eq!(read_page(), Err(IoError::Failed(libc::EBADMSG)));
    assert_eq!(write_page(7), Ok(()));
    assert!(read_page() == Ok(()) && frames.holds(Pfn(0), 7));
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(mut server) = Server::start(MEMORY) else { return };
    let options = OpenOptions { seal: Seal::Off, ..OpenOptions::default() };
    let unsealed = open_with(&server.spec(), &options).map(drop).map_err(|error| error.reason);
    assert_eq!(unsealed, Err(Reason::Unsealed));
    let large = server.spec_of("", Bytes(17 << 20));
    let small = Reason::SmallExport { size: Bytes(16 << 20) };
    assert_eq!(server.try_open(&large), Err(small));
    server.kill();
    let gone = Reason::Unreachable { errno: libc::ECONNREFUSED };
    assert_eq!(server.try_open(&server.spec()), Err(gone));
    std::fs::write(server.path("keys.psk"), "me:0123456789abcdef\n").unwrap();
    let blocks = ["blocksize-minimum=8K", "blocksize-preferred=8K"];
    for (arguments, reason) in [
        (&["-r", "memory", "16M"][..], Reason::ReadOnlyExport),
        (&["full", "16M"], Reason::ServerFull),
        (&["--tls=require", "--tls-psk=keys.psk", "memory", "16M"], Reason::WantsTls),
        (&["--filter=blocksize-policy", "memory", "16M", blocks[0], blocks[1]], Reason::BlockSize),
        (&["--filter=exportname", "memory", "16M", "exportname-strict=true"], Reason::NoExport),
        (&["--oldstyle", "memory", "16M"], Reason::OldNbd),
    ] {
        server.restart(arguments);
        let refused = server.try_open(&server.spec());
        assert_eq!(refused, Err(reason), "{arguments:?}");
    }
}

/// Another service that sends first.
#[test]
fn another_service_is_not_taken_for_a_server() {
    let (words, options) = (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", OpenOptions::default());
    let opened =
        open_another_service(words, &options, |port| format!("nbd:127.0.0.1:{port}/swap:4M"));
    assert_eq!(opened, Err(Reason::NotNbd));
}

/// Other services that answer lines, as Redis does, and are known before the connection fails.
#[test]
fn a_service_that_waits_for_a_line_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = thread::spawn(move || {
        [(); 2].map(|()| listener.accept().unwrap().0).map(|mut stream| {
            thread::spawn(move || {
                let is_line = stream.read(&mut [0; 100]).is_ok_and(|length| length > 0);
                is_line && stream.write_all(b"+PONG\r\n").is_ok()
            })
        })
    });
    let spec = Spec::parse(&format!("nbd:127.0.0.1:{port}/swap:4M")).unwrap();
    let opened = open_with(&spec, &OpenOptions::default());
    assert_eq!(opened.map(drop).map_err(|error| error.reason), Err(Reason::NotNbd));
    let answered = service.join().unwrap().map(|connection| connection.join().unwrap());
    assert_eq!(answered, [false, true], "only the second connection is asked by a line");
}
