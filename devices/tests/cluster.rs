//! Swap on several real redis-servers: independent ones, and a cluster whose keys move and whose
//! masters die.

mod common;

use common::Frames;
use common::check::{
    SIZE, SLOTS, TIME_LIMIT, await_that, fill, fill_run, read_on_in_a_child, read_run,
    use_by_threads,
};
use common::redis_cluster::Servers;
use highwater_devices::{Device, OpenOptions, Reason, RemoteOptions, Spec, open_with};
use highwater_platform::IoError;
use std::thread;
use std::time::{Duration, Instant};

fn open(places: &str, patience: Duration) -> Result<Box<dyn Device>, Reason> {
    let spec = Spec::parse(&format!("redis:{places}:{}", SIZE.0)).unwrap();
    let remote = RemoteOptions { patience, ..RemoteOptions::default() };
    let options = OpenOptions { remote, ..OpenOptions::default() };
    open_with(&spec, &options).map_err(|error| error.reason)
}

/// The key of the pages of slot 0.
fn first_segment(servers: &Servers) -> String {
    servers.keys().into_iter().find(|key| key.ends_with(":0")).expect("pages were written")
}

fn expect_pages(device: &dyn Device, frames: &Frames) {
    (0..SLOTS).step_by(16).for_each(|run| assert_eq!(read_run(device, frames, run), Ok(())));
}

#[test]
fn segments_are_spread_over_servers_and_over_the_masters_of_a_cluster() {
    for servers in [Servers::apart(2), Servers::cluster(3, 0)] {
        let Some(servers) = servers else { return };
        let device = open(&servers.places(), TIME_LIMIT).unwrap();
        let keeper = device.thread().map(thread::spawn).expect("a keeper");
        let drop_connections = || {
            servers.masters().iter().for_each(|node| drop(node.ask("client kill type normal")));
        };
        use_by_threads(&*device, 100, drop_connections);
        // One key for each of the four segments, and one for the holders.
        assert_eq!(servers.keys().len(), 5);
        let loads = servers.masters().iter().map(|node| node.ask("dbsize")).collect::<Vec<_>>();
        assert!(loads.iter().filter(|keys| *keys != "0").count() > 1, "{loads:?}");
        device.discard(0, SLOTS);
        await_that("pages are deleted", || servers.keys().len() == 1);
        drop(device);
        keeper.join().unwrap();
        assert_eq!(servers.keys(), Vec::<String>::new());
    }
}

#[test]
fn a_cluster_is_found_by_one_of_its_servers() {
    let Some(servers) = Servers::cluster(3, 0) else { return };
    let place = |index| format!("127.0.0.1:{}", servers.node(index).port);
    for places in [place(2), format!("127.0.0.1:1,{}", place(1))] {
        let device = open(&places, TIME_LIMIT).unwrap();
        let frames = Frames::new(SLOTS);
        fill(&*device, &frames, SLOTS).unwrap();
        expect_pages(&*device, &frames);
        assert_eq!(servers.keys().len(), 5);
        drop(device);
        assert_eq!(servers.keys(), Vec::<String>::new());
    }
    let gone = Err(Reason::Unreachable { errno: libc::ECONNREFUSED });
    assert_eq!(open("127.0.0.1:1", TIME_LIMIT).map(drop), gone);
    servers.node(1).ask("config set maxmemory-policy allkeys-lru");
    servers.node(1).ask("config set maxmemory 100mb");
    assert_eq!(open(&place(0), TIME_LIMIT).map(drop), Err(Reason::Evicts));
}

#[test]
fn pages_are_found_while_their_keys_move() {
    let Some(servers) = Servers::cluster(3, 0) else { return };
    let device = open(&servers.places(), TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, SLOTS).unwrap();
    let key = first_segment(&servers);
    for _ in 0..3 {
        let moving = servers.begin_to_move(&key);
        expect_pages(&*device, &frames);
        fill(&*device, &frames, 64).unwrap();
        use_by_threads(&*device, 20, || ());
        fill(&*device, &frames, SLOTS).unwrap();
        moving.end();
        expect_pages(&*device, &frames);
        fill(&*device, &frames, 64).unwrap();
        expect_pages(&*device, &frames);
    }
    drop(device);
    assert_eq!(servers.keys(), Vec::<String>::new());
}

#[test]
fn a_replica_has_the_pages_of_a_master_that_dies_or_stops() {
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let Some(servers) = Servers::cluster(3, 1) else { return };
        let device = open(&servers.places(), TIME_LIMIT).unwrap();
        let frames = Frames::new(SLOTS);
        fill(&*device, &frames, SLOTS).unwrap();
        let key = first_segment(&servers);
        servers.owner(&key).signal(signal);
        let began = Instant::now();
        assert_eq!(read_run(&*device, &frames, 0), Ok(()));
        println!("signal {signal}: {:?} until a replica had taken over", began.elapsed());
        expect_pages(&*device, &frames);
        use_by_threads(&*device, 50, || ());
        fill(&*device, &frames, SLOTS).unwrap();
        expect_pages(&*device, &frames);
    }
}

/// The cluster takes no server for dead, so no replica takes over.
#[test]
fn pages_of_a_master_that_stops_or_dies_are_read_from_its_replica_and_written_to_others() {
    let Some(servers) = Servers::patient_cluster(3, 1, "60000") else { return };
    let device = open(&servers.places(), TIME_LIMIT).unwrap();
    let keeper = device.thread().map(thread::spawn).expect("a keeper");
    let frames = Frames::new(SLOTS);
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        fill(&*device, &frames, SLOTS).unwrap();
        // If replicas are late, the keeper looks for them in this time.
        thread::sleep(Duration::from_millis(1500));
        let master = servers.owner(&first_segment(&servers));
        master.signal(signal);
        let began = Instant::now();
        assert_eq!(read_run(&*device, &frames, 0), Ok(()));
        let waited = began.elapsed();
        expect_pages(&*device, &frames);
        println!("signal {signal}: {waited:?}, all pages after {:?}", began.elapsed());
        // The slots of the stopped master accept no pages; the slots of others do.
        let write = |run| fill_run(&*device, &frames, run);
        let runs = (0..SLOTS).step_by(512);
        let (taken, busy): (Vec<u32>, Vec<u32>) = runs.partition(|run| write(*run) == Ok(()));
        assert!(busy.contains(&0) && !taken.is_empty(), "{taken:?} {busy:?}");
        taken.iter().for_each(|run| assert_eq!(read_run(&*device, &frames, *run), Ok(())));
        assert_eq!(read_run(&*device, &frames, 16), Ok(()));
        if signal == libc::SIGSTOP {
            master.signal(libc::SIGCONT);
            await_that("it takes pages again", || write(0) == Ok(()));
            busy.iter().for_each(|run| assert_eq!(write(*run), Ok(())));
            expect_pages(&*device, &frames);
        }
    }
    drop(device);
    keeper.join().unwrap();
}

#[test]
fn a_write_waits_for_a_replica_that_is_there() {
    let Some(servers) = Servers::cluster(3, 1) else { return };
    let device = open(&servers.places(), TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 16).unwrap();
    let master = servers.owner(&first_segment(&servers));
    let replicas = servers.replicas();
    let signal = |signal| replicas.iter().for_each(|node| node.signal(signal));
    signal(libc::SIGSTOP);
    thread::scope(|scope| {
        let writing = scope.spawn(|| fill(&*device, &frames, 16));
        thread::sleep(Duration::from_millis(200));
        assert!(!writing.is_finished(), "the master alone has the page");
        signal(libc::SIGCONT);
        assert_eq!(writing.join().unwrap(), Ok(()));
    });
    signal(libc::SIGSTOP);
    assert_eq!(fill(&*device, &frames, 16), Ok(()));
    signal(libc::SIGCONT);
    await_that("a replica has all", || master.ask("wait 1 1000") == "1");
    master.signal(libc::SIGKILL);
    assert_eq!(read_run(&*device, &frames, 0), Ok(()));
}

/// The cluster does not take the replicas for dead. Regression: with `replicate:`, the first write
/// gave the cluster up.
#[test]
fn replicas_that_stand_still_delay_one_write_and_not_the_next() {
    let Some(servers) = Servers::patient_cluster(3, 1, "60000") else { return };
    let file = tempfile::tempdir().unwrap();
    let size = SIZE.0;
    let dir = format!("dir:{}:{size}", file.path().display());
    let spec = format!("replicate:redis:{}:{size}+{dir}", servers.places());
    let both = open_with(&Spec::parse(&spec).unwrap(), &OpenOptions::default()).unwrap();
    let alone = open(&servers.places(), TIME_LIMIT).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*both, &frames, 16).unwrap();
    fill(&*alone, &frames, 16).unwrap();
    servers.replicas().iter().for_each(|node| node.signal(libc::SIGSTOP));
    for (device, least) in [(&alone, 250), (&both, 250)] {
        let began = Instant::now();
        assert_eq!(fill(&**device, &frames, 16), Ok(()));
        let waited = began.elapsed();
        (0..20).for_each(|_| assert_eq!(fill(&**device, &frames, 16), Ok(())));
        let twenty = began.elapsed() - waited;
        println!("a write took {waited:?}, the next 20 {twenty:?}");
        assert!(waited >= Duration::from_millis(least) && twenty < 4 * waited, "{waited:?}");
        assert_eq!(read_run(&**device, &frames, 0), Ok(()));
    }
    assert_eq!(both.replication().unwrap().lost, 0);
}

#[test]
fn the_pages_of_a_server_that_dies_alone_are_an_error_and_others_are_there() {
    let patience = Duration::from_millis(400);
    for servers in [Servers::apart(2), Servers::cluster(3, 0)] {
        let Some(servers) = servers else { return };
        let device = open(&servers.places(), patience).unwrap();
        let frames = Frames::new(SLOTS);
        fill(&*device, &frames, SLOTS).unwrap();
        let key = first_segment(&servers);
        for node in servers.masters() {
            node.ask("config set cluster-require-full-coverage no");
        }
        servers.owner(&key).signal(libc::SIGKILL);
        let gone = Err(IoError::Failed(libc::ECONNREFUSED));
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let began = Instant::now();
                let read = read_run(&*device, &frames, 0);
                (read, began.elapsed())
            });
            let frames = Frames::new(SLOTS);
            // Answers of other servers do not prolong the patience.
            while !reading.is_finished() {
                let others = (512..SLOTS).step_by(512).map(|run| read_run(&*device, &frames, run));
                assert!(others.filter(Result::is_ok).count() > 0);
            }
            let (read, lasted) = reading.join().unwrap();
            assert!(read == gone || read == Err(IoError::Failed(libc::EBUSY)), "{read:?}");
            assert!((patience..8 * patience).contains(&lasted), "{lasted:?}");
        });
    }
}

#[test]
fn a_forked_child_reads_from_a_cluster_after_its_parent_has_ended() {
    let Some(servers) = Servers::cluster(3, 0) else { return };
    let device = open(&servers.places(), TIME_LIMIT).unwrap();
    read_on_in_a_child(device, || servers.keys().len() == 2);
    await_that("keys are deleted", || servers.keys().is_empty());
}
