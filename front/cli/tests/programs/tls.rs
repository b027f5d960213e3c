//! Programs that swap over TLS, to servers that are set up by the commands of docs/remote.md.

use crate::inputs::random_lines;
use crate::packages::is_installed;
use crate::place::{Place, program};
use crate::remote::expect_as_in_memory;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/remote.md");
/// The name that the page's certificate is for.
const NAME: &str = "swap.lan";
/// Far above what a server takes to answer.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The block of commands of the page that begins with these words.
fn block(start: &str) -> String {
    let page = fs::read_to_string(PAGE).expect("a page");
    let mut blocks = page.split("\n```sh\n").skip(1);
    let block = blocks.find(|text| text.starts_with(start)).expect(start);
    block.split("\n```").next().unwrap_or_default().replace("\\\n", " ")
}

/// A server, killed when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Starts it by the page's line for this program, on a port of its own.
    fn start(place: &Place, program: &str, port_of_page: &str) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let lines = block("redis-server");
        let line = lines.lines().find(|line| line.starts_with(program)).expect(program);
        let line = line.replace(port_of_page, &port.to_string());
        let line = line.replace("nbdkit ", "nbdkit -f --exit-with-parent ");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {line}")]).current_dir(place.path(""));
        let shell = shell.stdin(Stdio::null()).stdout(Stdio::null());
        let server = Server { process: shell.spawn().unwrap(), port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < TIME_LIMIT, "{line}: no answer");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn swap(&self, kind: &str) -> String {
        format!("{kind}:{NAME}=127.0.0.1:{}:128M", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn sort_and_forks_by_tls_as_documented() {
    if !["openssl", "redis-server", "nbdkit"].into_iter().all(is_installed) {
        return;
    }
    let place = Place::new();
    let mut shell = Command::new("sh");
    shell.args(["-euc", &block("new=")]).current_dir(place.path(""));
    let made = shell.output().expect("sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let redis = Server::start(&place, "redis-server", "6379");
    let nbd = Server::start(&place, "nbdkit", "10809");
    random_lines(&place.path("text"), 8 << 20);
    let sort = program("sort", &["-S", "64M", "--parallel=2", "text"]);
    let forks = place.c_program("forks", &["6"]);
    let authority = place.path("ca-cert.pem");
    let (redis_swap, nbd_swap) = (redis.swap("rediss"), nbd.swap("nbds"));
    for (what, program, swap) in [
        ("forks, Redis, TLS", &forks, redis_swap.clone()),
        ("sort, tier, NBD, TLS", &sort, format!("tier:zram:4M+{nbd_swap}")),
        ("sort, replicas, TLS", &sort, format!("replicate:{redis_swap}+{nbd_swap}")),
    ] {
        expect_as_in_memory(&place, what, program, &swap, &[("HIGHWATER_TLS_CA", &authority)]);
    }
}
