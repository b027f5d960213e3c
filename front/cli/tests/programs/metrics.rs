//! `--metrics`: what a client receives while a program runs, and what the program does not inherit.

use crate::common::highwater;
use crate::packages::is_installed;
use crate::place::Place;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long figures may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// A session of two processes that swap.
struct Served {
    run: Child,
    address: String,
}

impl Served {
    fn start(place: &Place) -> Served {
        let mut run = highwater();
        run.args(["run", "--metrics", "0", "--name", "scraped", "--paged", "16M"]);
        run.args(["--swap", "ram:512M", "--"]).args(place.c_program("watched", &["64"]));
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim_end().strip_prefix("highwater: metrics at http://");
        let address = url.and_then(|url| url.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        line.clear();
        BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Served { run, address }
    }

    /// Head and body of an answer.
    fn get(&self, request: &str) -> (String, String) {
        let mut server = TcpStream::connect(&self.address).unwrap();
        server.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        server.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let length = format!("Content-Length: {}\r\n", body.len());
        assert!(head.contains(&length) || request.starts_with("HEAD"), "{head}");
        (head.to_owned(), body.to_owned())
    }

    /// The samples, by name and labels.
    fn metrics(&self) -> (String, BTreeMap<String, f64>) {
        let (head, body) = self.get("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4;"));
        let parsed = parse(&body);
        (body, parsed)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Fails only if the run has ended too early, in a test that has failed.
        let _ = kill_process(Pid::from_child(&self.run), Signal::TERM);
        let _ = self.run.wait();
    }
}

/// Parses the text format strictly: a sample follows the help and type of its metric, and is
/// unique.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut described, mut samples) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, name, value) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            let known = described.entry(name.to_owned()).or_insert((false, ""));
            match kind {
                "HELP" => known.0 = true,
                "TYPE" => known.1 = value,
                _ => panic!("{line}"),
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = sample.split_once('{').expect("labels");
        assert!(labels.starts_with("session=\"scraped\"") && labels.ends_with('}'), "{line}");
        let base = ["_bucket", "_count", "_sum"].iter().find_map(|it| name.strip_suffix(it));
        let of = described.get(base.unwrap_or(name)).unwrap_or_else(|| panic!("no type: {line}"));
        assert!(of.0 && ["counter", "gauge", "histogram"].contains(&of.1), "{line}");
        assert_eq!(of.1 == "counter", name.ends_with("_total"), "{line}");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
    }
    samples
}

#[test]
fn prometheus_gets_the_figures_of_a_session() {
    let place = Place::new();
    let served = Served::start(&place);
    let (started, mut text, mut found) = (Instant::now(), String::new(), BTreeMap::new());
    let major = "highwater_faults_total{session=\"scraped\",kind=\"major\"}";
    while found.get(major).is_none_or(|faults| *faults < 100.0) {
        assert!(started.elapsed() < PATIENCE, "no faults: {text}");
        std::thread::sleep(Duration::from_millis(50));
        (text, found) = served.metrics();
    }
    for (sample, least, most) in [
        ("highwater_budget_bytes", 16777216.0, 16777216.0),
        ("highwater_resident_bytes", 1e6, 16777216.0),
        ("highwater_processes", 2.0, 2.0),
        ("highwater_swapped_out_bytes_total", 1e6, 1e12),
    ] {
        let value = found[&format!("{sample}{{session=\"scraped\"}}")];
        assert!((least..=most).contains(&value), "{sample} {value}: {text}");
    }
    let processes: Vec<_> =
        found.keys().filter(|it| it.starts_with("highwater_process_resident_bytes")).collect();
    assert!(processes.len() == 2 && processes[0].contains("process=\"watched\""), "{text}");
    let bucket = "highwater_fault_latency_seconds_bucket{session=\"scraped\",kind=\"major\",le=\"";
    let buckets: Vec<f64> =
        found.iter().filter(|(name, _)| name.starts_with(bucket)).map(|it| *it.1).collect();
    let count = found["highwater_fault_latency_seconds_count{session=\"scraped\",kind=\"major\"}"];
    assert_eq!(buckets.iter().copied().fold(0.0, f64::max), count, "{text}");

    let accept = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let (head, body) = served.get(accept);
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0") && body.ends_with("# EOF\n")
    );
    assert!(served.get("GET /other HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404 "));
    assert!(served.get("POST /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405 "));
    assert_eq!(served.get("HEAD /metrics HTTP/1.1\r\n\r\n").1, "");
    if is_installed("promtool") {
        let mut check = Command::new("promtool");
        check.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut check = check.spawn().unwrap();
        check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = check.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The sockets that a process has open.
fn sockets(pid: &str) -> BTreeSet<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = open.filter_map(|it| it.unwrap().path().read_link().ok());
    open.filter(|it| it.to_string_lossy().starts_with("socket:")).collect()
}

#[test]
fn a_program_inherits_no_socket_and_silent_clients_delay_nobody_for_long() {
    let place = Place::new();
    let served = Served::start(&place);
    let children = format!("/proc/{0}/task/{0}/children", served.run.id());
    let children = std::fs::read_to_string(children).unwrap();
    let program = children.split_whitespace().next().expect("a program");
    let (of_run, inherited) = (sockets(&served.run.id().to_string()), sockets(program));
    assert!(!of_run.is_empty(), "highwater run listens");
    assert!(of_run.is_disjoint(&inherited), "{of_run:?} {inherited:?}");
    // Clients that send nothing, or half of a request, do not keep others from an answer.
    let silent = TcpStream::connect(&served.address).unwrap();
    let mut half = TcpStream::connect(&served.address).unwrap();
    half.write_all(b"GET /metr").unwrap();
    assert!(served.get("GET / HTTP/1.1\r\n\r\n").1.contains("/metrics"));
    drop((silent, half));
    let taken = highwater()
        .args(["run", "--metrics", &served.address, "--", "true"])
        .output()
        .expect("highwater");
    let errors = String::from_utf8(taken.stderr).unwrap();
    assert_eq!((taken.status.code(), errors.lines().count()), (Some(2), 1), "{errors}");
    assert!(errors.contains("Address already in use"), "{errors}");
}
