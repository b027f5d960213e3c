//! Real redis-servers on ports of this machine: independent ones, or a cluster. The tests of
//! programs use them, too.

use highwater_platform::testing::skip_or_fail;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time a server of a cluster is silent before the others take it for dead, in milliseconds.
const NODE_TIMEOUT: &str = "300";

/// Far above what any step takes.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Servers; killed when dropped.
pub(crate) struct Servers {
    nodes: Vec<Node>,
    _dir: TempDir,
}

/// A server.
pub(crate) struct Node {
    process: Child,
    pub(crate) port: u16,
}

impl Servers {
    /// Servers that know nothing of each other; `None` if redis-server is not installed.
    pub(crate) fn apart(count: usize) -> Option<Servers> {
        Servers::start(count, &[])
    }

    /// A cluster of masters, each with this number of replicas.
    pub(crate) fn cluster(masters: usize, replicas: usize) -> Option<Servers> {
        Servers::patient_cluster(masters, replicas, NODE_TIMEOUT)
    }

    /// A cluster that takes a server for dead after this many milliseconds.
    pub(crate) fn patient_cluster(
        masters: usize,
        replicas: usize,
        node_timeout: &str,
    ) -> Option<Servers> {
        let count = masters * (1 + replicas);
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", node_timeout];
        let servers = Servers::start(count, &options)?;
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create", "--cluster-yes", "--cluster-replicas"]);
        create.arg(replicas.to_string());
        create.args(servers.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        let created = create.output().expect("redis-cli");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let is_whole = |node: &Node| {
            let replication = node.ask("info replication");
            node.ask("cluster info").contains("cluster_state:ok")
                && node.ask("cluster nodes").matches("slave ").count() == masters * replicas
                && match replication.contains("role:master") {
                    true => replication.contains(&format!("connected_slaves:{replicas}")),
                    false => replication.contains("master_link_status:up"),
                }
        };
        await_state("a cluster", || servers.nodes.iter().all(is_whole));
        Some(servers)
    }

    fn start(count: usize, options: &[&str]) -> Option<Servers> {
        let dir = tempfile::tempdir().unwrap();
        let nodes = (0..count).map(|_| Node::start(&dir, options));
        Some(Servers { nodes: nodes.collect::<Option<_>>()?, _dir: dir })
    }

    /// HOST:PORT of each server, separated by commas.
    pub(crate) fn places(&self) -> String {
        let places = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        places.collect::<Vec<_>>().join(",")
    }

    /// The servers that run and have keys of their own.
    pub(crate) fn masters(&self) -> Vec<&Node> {
        let is_master = |node: &&Node| node.ask("role").starts_with("master");
        self.nodes.iter().filter(is_master).collect()
    }

    /// The servers that have a copy of another server's keys.
    pub(crate) fn replicas(&self) -> Vec<&Node> {
        self.nodes.iter().filter(|node| node.ask("role").starts_with("slave")).collect()
    }

    /// The master that has a key.
    pub(crate) fn owner(&self, key: &str) -> &Node {
        let has = |node: &&Node| node.ask(&format!("exists {key}")) == "1";
        self.masters().into_iter().find(has).expect("the key is somewhere")
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = |node: &Node| -> Vec<String> {
            node.ask("keys *").lines().map(str::to_owned).collect()
        };
        self.masters().into_iter().flat_map(keys).filter(|key| !key.is_empty()).collect()
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// Begins to move a key's hash slot to another master, and moves this key first: from here on
    /// the key's server answers ASK.
    pub(crate) fn begin_to_move(&self, key: &str) -> Move<'_> {
        let from = self.owner(key);
        let to = self.masters().into_iter().find(|node| node.port != from.port).expect("another");
        let slot = from.ask(&format!("cluster keyslot {key}"));
        to.expect_ok(&format!("cluster setslot {slot} importing {}", from.id()));
        from.expect_ok(&format!("cluster setslot {slot} migrating {}", to.id()));
        from.expect_ok(&format!("migrate 127.0.0.1 {} {key} 0 5000", to.port));
        Move { servers: self, to, slot }
    }
}

/// A hash slot that has begun to move.
pub(crate) struct Move<'a> {
    servers: &'a Servers,
    to: &'a Node,
    slot: String,
}

impl Move<'_> {
    /// From here on the old server answers MOVED.
    pub(crate) fn end(self) {
        let (slot, id) = (self.slot, self.to.id());
        self.to.expect_ok(&format!("cluster setslot {slot} node {id}"));
        for node in self.servers.masters() {
            node.expect_ok(&format!("cluster setslot {slot} node {id}"));
        }
    }
}

impl Node {
    fn start(dir: &TempDir, options: &[&str]) -> Option<Node> {
        let [port, bus] = free_ports();
        let mut server = Command::new("redis-server");
        server.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
        server.args(["--repl-diskless-sync-delay", "0", "--port"]);
        server.arg(port.to_string()).args(options).current_dir(dir.path());
        if !options.is_empty() {
            server.args(["--cluster-port", &bus.to_string()]);
            server.args(["--cluster-config-file", &format!("{port}.conf")]);
        }
        let Ok(process) = server.stdout(Stdio::null()).stdin(Stdio::null()).spawn() else {
            skip_or_fail("redis-server is not installed");
            return None;
        };
        let node = Node { process, port };
        // Another process may have taken the port.
        let own = format!("process_id:{}", node.process.id());
        await_state("redis-server answers", || node.ask("info server").contains(&own));
        Some(node)
    }

    /// The answer to a command, as text.
    pub(crate) fn ask(&self, command: &str) -> String {
        let mut client = Command::new("redis-cli");
        client.args(["-p", &self.port.to_string()]).args(command.split(' '));
        let answer = client.stderr(Stdio::null()).output().expect("redis-cli").stdout;
        String::from_utf8_lossy(&answer).trim_end().to_owned()
    }

    fn expect_ok(&self, command: &str) {
        let answer = self.ask(command);
        assert_eq!(answer, "OK", "{command}");
    }

    fn id(&self) -> String {
        self.ask("cluster myid")
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two ports that are free at present.
fn free_ports() -> [u16; 2] {
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().port())
}

fn await_state(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIME_LIMIT, "{what}: not within {TIME_LIMIT:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
