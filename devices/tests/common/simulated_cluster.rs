//! A cluster of simulated Redis servers in this process, behind real sockets, with random faults:
//! connections that end before, between and after commands, late answers, commands that are held up
//! until their client has given up, servers that stand still, temporary errors, and hash slots that
//! move all the time.
//!
//! Its contents are those of a real Redis cluster: a command is carried out completely or not at
//! all, and not after CLIENT KILL has been answered. Each server has a replica, whose contents are
//! those of the server when WAIT last succeeded.

use highwater_units::Prng;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than the client waits for an answer in a cluster.
const HELD_UP: Duration = Duration::from_millis(1500);
const SLOTS: usize = 16_384;

/// The servers. They run until the process ends.
pub(crate) struct Cluster {
    world: Arc<World>,
}

/// How often each fault happens, per million commands.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) hang_ups: u64,
    pub(crate) delays: u64,
    pub(crate) held_up: u64,
    pub(crate) stops: u64,
    pub(crate) errors: u64,
    pub(crate) moves: u64,
}

struct World {
    /// Ports of the servers, followed by those of their replicas.
    ports: Vec<u16>,
    servers: usize,
    seed: u64,
    faults: Faults,
    state: Mutex<State>,
    connections: AtomicU64,
    happened: Happened,
}

/// How often each fault did happen.
#[derive(Default)]
struct Happened {
    hang_ups: AtomicU64,
    held_up: AtomicU64,
    stops: AtomicU64,
    errors: AtomicU64,
    redirections: AtomicU64,
    killed: AtomicU64,
    copies_read: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The server of a hash slot, if it differs from the initial one.
    owners: HashMap<usize, usize>,
    /// The server that a hash slot is moving to.
    moving: HashMap<usize, usize>,
    /// The keys of each server.
    keys: HashMap<(usize, Vec<u8>), Hash>,
    /// The keys of the replica of each server.
    copies: HashMap<(usize, Vec<u8>), Hash>,
    /// Keys that a server has changed since its replica was last up to date.
    lacking: HashSet<(usize, Vec<u8>)>,
    /// The time until which a server stands still.
    stopped: HashMap<usize, Instant>,
    /// Connections by number.
    ends: HashMap<u64, Arc<AtomicBool>>,
}

type Command = Vec<Vec<u8>>;
type Hash = HashMap<Vec<u8>, Vec<u8>>;

impl Cluster {
    pub(crate) fn start(servers: usize, seed: u64, faults: Faults) -> Cluster {
        let listeners: Vec<_> =
            (0..2 * servers).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let ports = listeners.iter().map(port).collect();
        let (state, connections) = (Mutex::default(), AtomicU64::new(0));
        let happened = Happened::default();
        let world = World { ports, servers, seed, faults, state, connections, happened };
        let world = Arc::new(world);
        for (node, listener) in listeners.into_iter().enumerate() {
            let world = world.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let world = world.clone();
                    thread::spawn(move || Connection::new(world, node, stream).serve());
                }
            });
        }
        Cluster { world }
    }

    pub(crate) fn places(&self) -> String {
        let servers = &self.world.ports[..self.world.servers];
        let places = servers.iter().map(|port| format!("127.0.0.1:{port}"));
        places.collect::<Vec<_>>().join(",")
    }

    /// The number of keys of all servers.
    pub(crate) fn keys(&self) -> usize {
        self.world.state.lock().unwrap().keys.len()
    }

    /// Hang-ups, commands held up, stops, errors, redirections, connections that were killed, reads
    /// from replicas.
    pub(crate) fn happened(&self) -> [u64; 7] {
        let Happened { hang_ups, held_up, stops, errors, redirections, killed, copies_read } =
            &self.world.happened;
        [hang_ups, held_up, stops, errors, redirections, killed, copies_read]
            .map(|count| count.load(SeqCst))
    }
}

/// The hash slot of a key, by the bits of the CRC.
fn hash_slot(key: &[u8]) -> usize {
    let step = |crc: u16, byte: &u8| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    };
    usize::from(key.iter().fold(0, step)) % SLOTS
}

impl World {
    fn share_of(&self, slot: usize) -> usize {
        slot * self.servers / SLOTS
    }

    fn owner(&self, state: &State, slot: usize) -> usize {
        state.owners.get(&slot).copied().unwrap_or_else(|| self.share_of(slot))
    }

    /// The description that `CLUSTER NODES` returns.
    fn description(&self) -> String {
        let state = self.state.lock().unwrap();
        let mut slots = vec![String::new(); self.servers];
        for slot in 0..SLOTS {
            slots[self.owner(&state, slot)].push_str(&format!(" {slot}"));
        }
        let lines = slots.iter().enumerate().map(|(node, slots)| {
            let [port, copy] = [node, node + self.servers].map(|node| self.ports[node]);
            let master = format!("m{node} 127.0.0.1:{port}@1 master - 0 0 1 connected{slots}");
            format!("{master}\ns{node} 127.0.0.1:{copy}@1 slave m{node} 0 0 1 connected\n")
        });
        lines.collect()
    }

    /// Begins to move a hash slot, or moves its keys, or ends the move.
    fn go_on_moving(&self, random: &mut Prng, slot: usize) {
        let state = &mut *self.state.lock().unwrap();
        let from = self.owner(state, slot);
        let Some(to) = state.moving.get(&slot).copied() else {
            let to = random.below(self.servers as u64) as usize;
            if to != from {
                state.moving.insert(slot, to);
            }
            return;
        };
        let of_slot = |(node, key): &&(usize, Vec<u8>)| *node == from && hash_slot(key) == slot;
        let keys: Vec<_> = state.keys.keys().filter(of_slot).cloned().collect();
        match keys.into_iter().next() {
            Some(key) => {
                let contents = state.keys.remove(&key).expect("found above");
                let moved = (to, key.1.clone());
                state.lacking.extend([key, moved.clone()]);
                state.keys.insert(moved, contents);
            }
            None => {
                state.moving.remove(&slot);
                state.owners.insert(slot, to);
            }
        }
    }
}

/// Where a command about a key is carried out.
enum Place {
    Here,
    Elsewhere(String),
}

impl State {
    fn place(&self, world: &World, node: usize, key: &[u8], asking: bool) -> Place {
        let slot = hash_slot(key);
        let owner = world.owner(self, slot);
        let at = |kind, to: usize| {
            Place::Elsewhere(format!("-{kind} {slot} 127.0.0.1:{}\r\n", world.ports[to]))
        };
        match self.moving.get(&slot) {
            Some(to) if node == owner && !self.keys.contains_key(&(node, key.to_vec())) => {
                at("ASK", *to)
            }
            Some(to) if node == *to && asking => Place::Here,
            _ if node == owner => Place::Here,
            _ => at("MOVED", owner),
        }
    }

    /// The replica of a server catches up.
    fn copy(&mut self, node: usize) {
        let of_node: Vec<_> = self.lacking.extract_if(|(of, _)| *of == node).collect();
        for key in of_node {
            match self.keys.get(&key) {
                Some(hash) => drop(self.copies.insert(key, hash.clone())),
                None => drop(self.copies.remove(&key)),
            }
        }
    }

    /// Carries a command out; returns the answer.
    fn execute(&mut self, node: usize, command: &Command) -> Vec<u8> {
        let key = (node, command[1].clone());
        if command[0] != b"HMGET" {
            self.lacking.insert(key.clone());
        }
        let number = |count: usize| format!(":{count}\r\n").into_bytes();
        match &command[0][..] {
            b"HSET" | b"SADD" => {
                let hash = self.keys.entry(key).or_default();
                let width = if command[0] == b"HSET" { 2 } else { 1 };
                for pair in command[2..].chunks(width) {
                    hash.insert(pair[0].clone(), pair[width - 1].clone());
                }
                number(0)
            }
            b"HMGET" => fields(self.keys.get(&key), &command[2..]),
            b"HDEL" | b"SREM" => {
                let hash = self.keys.entry(key.clone()).or_default();
                command[2..].iter().for_each(|field| drop(hash.remove(field)));
                if hash.is_empty() {
                    self.keys.remove(&key);
                }
                number(1)
            }
            b"SCARD" => number(self.keys.get(&key).map_or(0, HashMap::len)),
            b"UNLINK" => number(usize::from(self.keys.remove(&key).is_some())),
            b"EXPIRE" => number(usize::from(self.keys.contains_key(&key))),
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
}

/// The answer to HMGET.
fn fields(hash: Option<&Hash>, names: &[Vec<u8>]) -> Vec<u8> {
    let mut answer = format!("*{}\r\n", names.len()).into_bytes();
    for name in names {
        match hash.and_then(|hash| hash.get(name)) {
            Some(value) => {
                answer.extend(format!("${}\r\n", value.len()).bytes());
                answer.extend(value);
                answer.extend(b"\r\n");
            }
            None => answer.extend(b"$-1\r\n"),
        }
    }
    answer
}

struct Connection {
    world: Arc<World>,
    node: usize,
    stream: TcpStream,
    number: u64,
    /// The connection has been killed.
    ended: Arc<AtomicBool>,
    asking: bool,
    /// The connection may read from a replica.
    read_only: bool,
    random: Prng,
}

impl Connection {
    fn new(world: Arc<World>, node: usize, stream: TcpStream) -> Connection {
        stream.set_nodelay(true).unwrap();
        let number = world.connections.fetch_add(1, SeqCst) + 1;
        let ended = Arc::new(AtomicBool::new(false));
        world.state.lock().unwrap().ends.insert(number, ended.clone());
        let random = Prng::new(world.seed * 1_000_000 + number);
        Connection { world, node, stream, number, ended, asking: false, read_only: false, random }
    }

    fn strikes(&mut self, per_million: u64, count: impl Fn(&Happened) -> &AtomicU64) -> bool {
        let strikes = self.random.below(1_000_000) < per_million;
        count(&self.world.happened).fetch_add(strikes.into(), SeqCst);
        strikes
    }

    fn serve(mut self) {
        let mut input = BufReader::new(self.stream.try_clone().unwrap());
        while let Some(command) = read_command(&mut input) {
            if self.answer(&command).is_none() {
                break;
            }
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Answers a command; `None` if the connection ends.
    fn answer(&mut self, command: &Command) -> Option<()> {
        let faults = self.world.faults;
        if self.strikes(faults.hang_ups, |it| &it.hang_ups) {
            return None;
        }
        self.stand_still();
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let text = |text: String| format!("${}\r\n{text}\r\n", text.len()).into_bytes();
        let answer = match words[..] {
            [b"PING"] => b"+PONG\r\n".to_vec(),
            [b"ASKING"] => {
                self.asking = true;
                b"+OK\r\n".to_vec()
            }
            [b"READONLY" | b"READWRITE"] => {
                self.read_only = words[0] == b"READONLY";
                b"+OK\r\n".to_vec()
            }
            [b"CLIENT", b"ID"] => format!(":{}\r\n", self.number).into_bytes(),
            [b"CLIENT", b"KILL", b"ID", number] => self.kill(number),
            [b"INFO", b"server"] => text(format!("run_id:{}\r\n", self.node)),
            [b"INFO", b"cluster"] => text("cluster_enabled:1\r\n".to_owned()),
            [b"INFO", b"memory"] => text("maxmemory:0\r\n".to_owned()),
            [b"CLUSTER", b"NODES"] => text(self.world.description()),
            [b"WAIT", b"1", _] => self.wait(),
            _ => self.about_key(command)?,
        };
        if self.strikes(faults.hang_ups, |it| &it.hang_ups) {
            let part = self.random.below(answer.len() as u64) as usize;
            let _ = self.stream.write_all(&answer[..part]);
            return None;
        }
        self.stream.write_all(&answer).ok()
    }

    /// Waits as long as the server stands still.
    fn stand_still(&mut self) {
        let until = Instant::now() + HELD_UP;
        if self.strikes(self.world.faults.stops, |it| &it.stops) {
            self.world.state.lock().unwrap().stopped.insert(self.node, until);
        }
        let stopped = self.world.state.lock().unwrap().stopped.get(&self.node).copied();
        let left = stopped.map(|until| until.saturating_duration_since(Instant::now()));
        thread::sleep(left.unwrap_or_default());
    }

    /// Serves WAIT. Once in a while the replica is late.
    fn wait(&mut self) -> Vec<u8> {
        if self.random.below(50) == 0 {
            return b":0\r\n".to_vec();
        }
        self.world.state.lock().unwrap().copy(self.node);
        b":1\r\n".to_vec()
    }

    fn kill(&self, number: &[u8]) -> Vec<u8> {
        let number = std::str::from_utf8(number).unwrap().parse().unwrap();
        // Under the lock, so none of the connection's commands is being carried out.
        let state = self.world.state.lock().unwrap();
        match state.ends.get(&number).map(|ended| ended.swap(true, SeqCst)) {
            Some(false) => self.world.happened.killed.fetch_add(1, SeqCst),
            _ => return b"-ERR No such client\r\n".to_vec(),
        };
        b":1\r\n".to_vec()
    }

    fn about_key(&mut self, command: &Command) -> Option<Vec<u8>> {
        let faults = self.world.faults;
        let asking = std::mem::take(&mut self.asking);
        if self.random.below(1_000_000) < faults.delays {
            thread::sleep(Duration::from_micros(self.random.below(3000)));
        }
        if self.strikes(faults.held_up, |it| &it.held_up) {
            thread::sleep(HELD_UP);
        }
        if self.random.below(1_000_000) < faults.moves {
            let world = self.world.clone();
            world.go_on_moving(&mut self.random, hash_slot(&command[1]));
        }
        if self.strikes(faults.errors, |it| &it.errors) {
            let which = self.random.below(3) as usize;
            let errors = ["CLUSTERDOWN The cluster is down", "TRYAGAIN later", "LOADING its data"];
            return Some(format!("-{}\r\n", errors[which]).into_bytes());
        }
        let mut state = self.world.state.lock().unwrap();
        if self.ended.load(SeqCst) {
            return None;
        }
        if let Some(of) = self.node.checked_sub(self.world.servers) {
            let owner = self.world.owner(&state, hash_slot(&command[1]));
            if owner == of && self.read_only && command[0] == b"HMGET" {
                self.world.happened.copies_read.fetch_add(1, SeqCst);
                return Some(fields(state.copies.get(&(of, command[1].clone())), &command[2..]));
            }
        }
        match state.place(&self.world, self.node, &command[1], asking) {
            Place::Here => Some(state.execute(self.node, command)),
            Place::Elsewhere(answer) => {
                self.world.happened.redirections.fetch_add(1, SeqCst);
                Some(answer.into_bytes())
            }
        }
    }
}

/// An array of strings. `None`: the client has gone.
fn read_command(input: &mut BufReader<TcpStream>) -> Option<Command> {
    let words = read_number(input, '*')?;
    (0..words).map(|_| read_word(input)).collect()
}

fn read_word(input: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let length = read_number(input, '$')?;
    let mut word = vec![0; length + 2];
    input.read_exact(&mut word).ok()?;
    assert!(word.ends_with(b"\r\n"), "a word of {length} bytes");
    word.truncate(length);
    Some(word)
}

fn read_number(input: &mut BufReader<TcpStream>, kind: char) -> Option<usize> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|length| *length > 0)?;
    // A client that hangs up may leave a part of a line.
    let line = line.strip_suffix("\r\n")?;
    Some(line.strip_prefix(kind).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap())
}
