//! Programs that swap to several redis-servers, and to a cluster in which a master dies in mid run.

use crate::common::highwater;
use crate::inputs::random_lines;
use crate::place::{Place, note, program};
use crate::python::PYTHON;
use crate::redis_cluster::{Node, Servers};
use crate::remote::{expect_as_in_memory, expect_line};
use crate::replicas::{go_on, printed};
use crate::report::Report;
use crate::run::Run;
use crate::seal::{Waiting, without_limits};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Far above what any step takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// From the first keys until a master dies.
const A_WHILE: Duration = Duration::from_millis(300);

fn swap(servers: &Servers) -> String {
    format!("redis:{}:128M", servers.places())
}

/// The master with the most keys.
fn fullest(servers: &Servers) -> &Node {
    let keys = |node: &&Node| node.ask("dbsize").parse::<u64>().unwrap_or(0);
    servers.masters().into_iter().max_by_key(keys).expect("masters")
}

#[test]
fn sort_python_and_forks_on_several_servers() {
    let place = Place::beside_others();
    random_lines(&place.path("text"), 8 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let forks = place.c_program("forks", &["12"]);
    let lists = "lists = [list(range(n, n + 99)) for n in range(20000)]; \
                 print(sum(map(sum, lists)), sum(map(sum, reversed(lists))))";
    let python = program(PYTHON, &["-c", lists]);
    let (Some(apart), Some(cluster)) = (Servers::apart(2), Servers::cluster(3, 0)) else { return };
    for (what, program, servers, tier) in [
        ("sort", &sort, &apart, ""),
        ("sort, tier", &sort, &cluster, "tier:zram:1M+"),
        ("python", &python, &cluster, ""),
        ("forks", &forks, &cluster, ""),
    ] {
        expect_as_in_memory(&place, what, program, &format!("{tier}{}", swap(servers)), &[]);
        assert_eq!(servers.keys(), Vec::<String>::new());
    }
}

#[test]
fn sort_goes_on_when_a_master_of_a_cluster_dies_in_mid_run() {
    let place = Place::beside_others();
    random_lines(&place.path("text"), 16 * MIB);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let unlimited = place.run(&sort).expect_success("sort");
    let Some(servers) = Servers::cluster(3, 1) else { return };
    let mut command = highwater();
    command.args(["run", "--quiet", "--paged", "6M", "--report"]).arg(place.path("report.json"));
    command.args(["--swap", &swap(&servers), "--"]).args(&sort).env("LC_ALL", "C");
    let run = thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let began = Instant::now();
            while servers.keys().len() < 4 && began.elapsed() < TIME_LIMIT {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(A_WHILE);
            fullest(&servers).signal(libc::SIGKILL);
            // The keys are deleted at the end.
            servers.keys().len()
        });
        let run = Run::of(&mut command, &place.path(""), "limited", TIME_LIMIT);
        assert!(killer.join().unwrap() > 1, "the run was over before");
        run
    });
    let report = Report::read(&place.path("report.json"));
    note(&format!("a master dies: {:.1} s; {}", run.elapsed.as_secs_f64(), report.figures()));
    let run = run.expect_success("a master dies");
    assert!(run.text() == unlimited.text() && run.errors.is_empty(), "{}", run.errors);
    assert_eq!(servers.keys(), Vec::<String>::new());
}

/// No replica takes over before the program ends. On a slow machine the replica may be late when
/// the master stops; the program then waits until it takes over.
#[test]
fn a_program_goes_on_without_a_master_that_has_a_replica() {
    let place = Place::beside_others();
    let program = place.compile("stalls", "stalls", &[]);
    let unlimited = without_limits(&program);
    let (expected, _) = printed(unlimited.strip_prefix("filled\n").unwrap());
    let Some(servers) = Servers::patient_cluster(3, 1, "10000") else { return };
    let waiting = Waiting::start(&place, &program, &swap(&servers), &[]);
    let stops = fullest(&servers);
    let began = Instant::now();
    let ended = go_on(waiting, || stops.signal(libc::SIGSTOP));
    let took = began.elapsed();
    assert!(ended.status.success(), "{}", ended.errors);
    let (sum, stall) = printed(&ended.output);
    note(&format!("a master stops: a page took {stall:?} at most, the program {took:?}"));
    assert_eq!((sum, &ended.errors[..]), (expected, ""));
}

#[test]
fn a_master_of_a_cluster_that_dies_without_a_replica_ends_the_program_with_a_line() {
    let place = Place::beside_others();
    let program = place.compile("stalls", "stalls", &[]);
    let Some(servers) = Servers::cluster(3, 0) else { return };
    let waiting = Waiting::start(&place, &program, &swap(&servers), &["--remote-patience", "1"]);
    let dies = fullest(&servers);
    let ended = go_on(waiting, || dies.signal(libc::SIGKILL));
    let parts = ["a page could not be read: ", "check the disk or server", &swap(&servers)];
    expect_line("a master without a replica", &ended, &parts);
}
