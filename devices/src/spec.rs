//! Specifications of devices: `ram:SIZE`, `zram:SIZE[:lz4|zstd]`, `file:PATH:SIZE`,
//! `dir:PATH:SIZE`, `redis:HOST:PORT[,HOST:PORT...]:SIZE`, `rediss:` over TLS,
//! `redis+unix:PATH:SIZE`, `nbd:HOST:PORT[/EXPORT]:SIZE`, `nbds:HOST:PORT[/EXPORT]:SIZE`,
//! `nbd+unix:PATH[:/EXPORT]:SIZE`, `replicate:A+B`, `tier:FAST+SLOW`; for tests also
//! `flaky:FAULTS+SPEC`.

use crate::flaky::FaultPlan;
use crate::remote::{EXPORT_MAX, NBD_SIZE_MIN, Server};
use crate::size::{Exact, size};
use highwater_units::Bytes;
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// The smallest device: 1 MiB.
pub const SIZE_MIN: Bytes = Bytes(1 << 20);
/// The largest device: 2^32 pages, 16 TiB. (A number of pages has 32 bits, so the last page of a
/// device of exactly this size is not used.)
pub const SIZE_MAX: Bytes = Bytes(1 << 44);

/// Separates specifications in an environment variable, so no path may hold it.
const SEPARATOR: char = ';';
/// Slots of a `zram:` device for each page of its size.
const ZRAM_SLOTS_PER_PAGE: u32 = 3;
const KINDS: &str = "ram:SIZE, zram:SIZE[:lz4|zstd], file:PATH:SIZE, dir:PATH:SIZE, \
                     redis:HOST:PORT[,HOST:PORT...]:SIZE, redis+unix:PATH:SIZE, \
                     nbd:HOST:PORT[/EXPORT]:SIZE, nbd+unix:PATH[:/EXPORT]:SIZE, \
                     rediss: and nbds: by TLS, \
                     replicate:A+B, tier:FAST+SLOW";
/// Separates the levels of a tier, and replicas. The fast level has no path, so the slow level's
/// path may hold it. A text of replicas must divide into two devices in exactly one way.
const LEVELS: char = '+';

/// `ps` shows command lines.
const CREDENTIALS: &str = "user and password are given by HIGHWATER_REDIS_USER, and by \
                           HIGHWATER_REDIS_PASSWORD or HIGHWATER_REDIS_PASSWORD_FILE";

/// A device to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// Memory of this process beside the budget.
    Ram {
        /// The most memory that the pages take.
        size: Bytes,
    },
    /// Memory of this process beside the budget, compressed.
    Zram {
        /// The most memory that the compressed pages take.
        size: Bytes,
        /// The compression.
        algorithm: Algorithm,
    },
    /// A file that is created with this name and unlinked at once.
    File {
        /// The name, which must not exist.
        path: PathBuf,
        /// Its size.
        size: Bytes,
    },
    /// A file without a name in this directory.
    Dir {
        /// The directory.
        path: PathBuf,
        /// The file's size.
        size: Bytes,
    },
    /// A Redis or Valkey server, several of them, or a cluster.
    Redis {
        /// Where they listen. One server of a cluster is enough if it answers.
        servers: Vec<Server>,
        /// The most memory that the pages take, without the servers' overhead.
        size: Bytes,
    },
    /// An export of an NBD server.
    Nbd {
        /// Where it listens.
        server: Server,
        /// The export's name; empty: the default one.
        export: String,
        /// How much of it is used, from its start.
        size: Bytes,
    },
    /// Two devices with the same pages, of the same size.
    Replicate {
        /// A file or a server.
        first: Box<Spec>,
        /// Another one.
        second: Box<Spec>,
    },
    /// Two devices: pages that stay cold on the fast one are written back to the slow one.
    Tier {
        /// Memory, plain or compressed.
        fast: Box<Spec>,
        /// A file or a server, or two with the same pages.
        slow: Box<Spec>,
    },
    /// A device whose transfers fail, for tests.
    Flaky {
        /// Which transfers fail, and when.
        faults: FaultPlan,
        /// The device, a single one.
        device: Box<Spec>,
    },
}

/// Whether a specification may inject faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// No: the specification is a user's.
    Refused,
    /// Yes: the specification is a test's.
    Allowed,
}

/// A compression algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Fast: some microseconds to compress a page, one or two to decompress it.
    #[default]
    Lz4,
    /// Smaller by a quarter, and two to four times slower.
    Zstd,
}

impl Algorithm {
    const ALL: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

    fn name(self) -> &'static str {
        match self {
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
        }
    }
}

impl Spec {
    /// Reads `ram:SIZE`, `zram:SIZE[:lz4|zstd]`, `file:PATH:SIZE`, `dir:PATH:SIZE`,
    /// `redis:HOST:PORT[,HOST:PORT...]:SIZE`, `redis+unix:PATH:SIZE`,
    /// `nbd:HOST:PORT[/EXPORT]:SIZE`, `nbd+unix:PATH[:/EXPORT]:SIZE`, `replicate:A+B` of two of
    /// these except the first two, or `tier:FAST+SLOW` of one of the first two and one of the
    /// others. `rediss:` and `nbds:` use TLS, and take `NAME=HOST:PORT` if the certificate is for
    /// NAME. SIZE is a number with a binary unit (64M, 1.5G, 1GiB) and is cut to whole pages; PATH
    /// may contain ':' but no ';', and PATH of NBD no ":/".
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Spec, String> {
        Spec::parse_with(text, Injection::Refused)
    }

    /// [`Spec::parse`], which may also allow `flaky:FAULTS+SPEC`, alone or as a level of a tier.
    /// FAULTS is `KIND=once|always|N` of 1000 for some [kinds](crate::FaultKind), `after=N`
    /// transfers without faults, and `seed=N`, joined by commas.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse_with(text: &str, injection: Injection) -> Result<Spec, String> {
        let parsed = parse_kind(text).and_then(|spec| match injection {
            Injection::Refused if spec.is_flaky() => {
                Err("flaky: injects faults, for the tests of highwater-lab".to_owned())
            }
            Injection::Refused | Injection::Allowed => Ok(spec),
        });
        parsed.map_err(|message| format!("swap {:?}: {message}", shown(text)))
    }

    fn is_flaky(&self) -> bool {
        match self {
            Spec::Flaky { .. } => true,
            Spec::Tier { fast: first, slow: second } | Spec::Replicate { first, second } => {
                first.is_flaky() || second.is_flaky()
            }
            Spec::Ram { .. }
            | Spec::Zram { .. }
            | Spec::File { .. }
            | Spec::Dir { .. }
            | Spec::Redis { .. }
            | Spec::Nbd { .. } => false,
        }
    }

    /// Whether the device is one file or server, with or without faults.
    pub(crate) fn is_outside(&self) -> bool {
        match self {
            Spec::File { .. } | Spec::Dir { .. } | Spec::Redis { .. } | Spec::Nbd { .. } => true,
            Spec::Flaky { device, .. } => device.is_outside(),
            Spec::Ram { .. } | Spec::Zram { .. } | Spec::Replicate { .. } | Spec::Tier { .. } => {
                false
            }
        }
    }

    /// The specified size: for a tier, the sum of both levels; for replicas, the size of each.
    pub fn size(&self) -> Bytes {
        match self {
            Spec::Ram { size }
            | Spec::Zram { size, .. }
            | Spec::File { size, .. }
            | Spec::Dir { size, .. }
            | Spec::Redis { size, .. }
            | Spec::Nbd { size, .. } => *size,
            Spec::Tier { fast, slow } => Bytes(fast.size().0 + slow.size().0),
            Spec::Replicate { first: device, .. } | Spec::Flaky { device, .. } => device.size(),
        }
    }

    /// The most that the device can hold: more than its size if it compresses.
    pub fn capacity(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.pages()))
    }

    /// The devices that take room for its pages: itself, or both levels of a tier, the fast one
    /// first. Replicas take it together.
    pub fn levels(&self) -> Vec<&Spec> {
        match self {
            Spec::Tier { fast, slow } => [fast.levels(), slow.levels()].concat(),
            Spec::Flaky { device, .. } => device.levels(),
            Spec::Ram { .. }
            | Spec::Zram { .. }
            | Spec::File { .. }
            | Spec::Dir { .. }
            | Spec::Redis { .. }
            | Spec::Nbd { .. }
            | Spec::Replicate { .. } => vec![self],
        }
    }

    /// The specification with an address in place of each server's name.
    ///
    /// # Errors
    /// A name has no address, in one line.
    pub fn resolved(self) -> Result<Spec, String> {
        Ok(match self {
            Spec::Redis { servers, size } => {
                let servers = servers.into_iter().map(Server::resolve).collect::<Result<_, _>>()?;
                Spec::Redis { servers, size }
            }
            Spec::Nbd { server, export, size } => {
                Spec::Nbd { server: server.resolve()?, export, size }
            }
            Spec::Replicate { first, second } => Spec::Replicate {
                first: Box::new(first.resolved()?),
                second: Box::new(second.resolved()?),
            },
            Spec::Tier { fast, slow } => Spec::Tier { fast, slow: Box::new(slow.resolved()?) },
            Spec::Flaky { faults, device } => {
                Spec::Flaky { faults, device: Box::new(device.resolved()?) }
            }
            here => here,
        })
    }

    /// The number of slots.
    pub(crate) fn pages(&self) -> u32 {
        let per_page = match self {
            Spec::Tier { fast, slow } => return fast.pages().saturating_add(slow.pages()),
            Spec::Replicate { first: device, .. } | Spec::Flaky { device, .. } => {
                return device.pages();
            }
            Spec::Zram { .. } => u64::from(ZRAM_SLOTS_PER_PAGE),
            Spec::Ram { .. }
            | Spec::File { .. }
            | Spec::Dir { .. }
            | Spec::Redis { .. }
            | Spec::Nbd { .. } => 1,
        };
        u32::try_from(self.size().pages() * per_page).unwrap_or(u32::MAX)
    }
}

fn parse_kind(text: &str) -> Result<Spec, String> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "ram" => parse_size(rest).map(|size| Spec::Ram { size }),
        "zram" => parse_zram(rest),
        "file" => parse_place(rest).map(|(path, size)| Spec::File { path, size }),
        "dir" => parse_place(rest).map(|(path, size)| Spec::Dir { path, size }),
        "redis" | "rediss" | "redis+unix" if rest.contains('@') => Err(CREDENTIALS.to_owned()),
        "redis" => parse_redis(rest, Server::parse_tcp),
        "rediss" => parse_redis(rest, Server::parse_tls),
        "redis+unix" => parse_place(rest)
            .map(|(path, size)| Spec::Redis { servers: vec![Server::Unix { path }], size }),
        "nbd" => parse_nbd(rest, Server::parse_tcp),
        "nbds" => parse_nbd(rest, Server::parse_tls),
        "nbd+unix" => parse_nbd_unix(rest),
        "replicate" => parse_replicas(rest),
        "tier" => parse_tier(rest),
        "flaky" => parse_flaky(rest),
        "" => Err(format!("kind missing (there are {KINDS})")),
        kind => Err(format!("unknown kind {kind:?} (there are {KINDS})")),
    }
}

fn parse_tier(text: &str) -> Result<Spec, String> {
    let missing = || format!("slow level missing (FAST{LEVELS}SLOW)");
    let (fast, slow) = text.split_once(LEVELS).ok_or_else(missing)?;
    let fast = parse_kind(fast).map_err(|reason| format!("fast level: {reason}"))?;
    let slow = parse_kind(slow).map_err(|reason| format!("slow level: {reason}"))?;
    let is_slow = slow.is_outside() || matches!(slow, Spec::Replicate { .. });
    match (&fast, is_slow) {
        (Spec::Ram { .. } | Spec::Zram { .. }, true) => {
            Ok(Spec::Tier { fast: Box::new(fast), slow: Box::new(slow) })
        }
        (Spec::Ram { .. } | Spec::Zram { .. }, false) => {
            Err("the slow level is file:, dir:, redis:, nbd: or replicate:".into())
        }
        _ => Err("the fast level is ram: or zram:".into()),
    }
}

fn parse_replicas(text: &str) -> Result<Spec, String> {
    let halves = || text.match_indices(LEVELS).map(|(at, _)| (&text[..at], &text[at + 1..]));
    let parsed = |(first, second)| Some((parse_kind(first).ok()?, parse_kind(second).ok()?));
    let mut ways = halves().filter_map(parsed);
    match (ways.next(), ways.next()) {
        (Some((first, second)), None) => replicas(first, second),
        (Some(_), Some(_)) => Err(format!("a device too many (A{LEVELS}B)")),
        (None, _) => Err(no_replicas(halves())),
    }
}

/// Why a text cannot be divided into two devices.
fn no_replicas<'a>(halves: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut reason = format!("second replica missing (A{LEVELS}B)");
    for (first, second) in halves {
        match (parse_kind(first), parse_kind(second)) {
            (Ok(_), Err(wrong)) => return format!("second replica: {wrong}"),
            (Err(wrong), Ok(_)) => return format!("first replica: {wrong}"),
            // Not a fragment of a kind's name.
            (Err(wrong), Err(_)) if first.contains(':') => {
                reason = format!("first replica: {wrong}");
            }
            _ => {}
        }
    }
    reason
}

fn replicas(first: Spec, second: Spec) -> Result<Spec, String> {
    let (pages, others) = (first.pages(), second.pages());
    if !first.is_outside() || !second.is_outside() {
        return Err("a replica is file:, dir:, redis: or nbd:".into());
    }
    if pages != others {
        let [size, other] = [first.size(), second.size()].map(Exact);
        return Err(format!("the replicas differ in size ({size} and {other})"));
    }
    if first == second {
        return Err("both replicas are the same".into());
    }
    Ok(Spec::Replicate { first: Box::new(first), second: Box::new(second) })
}

fn parse_flaky(text: &str) -> Result<Spec, String> {
    let missing = || format!("device missing (FAULTS{LEVELS}SPEC)");
    let (faults, device) = text.split_once(LEVELS).ok_or_else(missing)?;
    let faults = FaultPlan::parse(faults)?;
    match parse_kind(device)? {
        Spec::Replicate { .. } | Spec::Tier { .. } | Spec::Flaky { .. } => {
            Err("faults are injected into a level or replica, and once".into())
        }
        device => Ok(Spec::Flaky { faults, device: Box::new(device) }),
    }
}

fn parse_zram(text: &str) -> Result<Spec, String> {
    let (size, name) = match text.split_once(':') {
        Some((size, name)) => (size, Some(name)),
        None => (text, None),
    };
    let known = |name| Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
    let algorithm = match name {
        None => Algorithm::default(),
        Some(name) => known(name)
            .ok_or_else(|| format!("unknown algorithm {name:?} (there are lz4, zstd)"))?,
    };
    Ok(Spec::Zram { size: parse_size(size)?, algorithm })
}

/// Reads where a server listens.
type ParseServer = fn(&str) -> Result<Server, String>;

fn parse_redis(text: &str, parse: ParseServer) -> Result<Spec, String> {
    let (places, size) = text.rsplit_once(':').ok_or("size missing (HOST:PORT:SIZE)")?;
    let size = parse_size(size)?;
    let servers = places.split(',').map(parse).collect::<Result<Vec<Server>, String>>()?;
    let mut named = HashSet::new();
    match servers.iter().find(|server| !named.insert(*server)) {
        Some(twice) => Err(format!("server {twice} is named twice")),
        None => Ok(Spec::Redis { servers, size }),
    }
}

fn parse_nbd(text: &str, parse: ParseServer) -> Result<Spec, String> {
    let (place, size) = text.rsplit_once(':').ok_or("size missing (HOST:PORT[/EXPORT]:SIZE)")?;
    let (server, export) = place.split_once('/').unwrap_or((place, ""));
    nbd(parse(server)?, export, parse_size(size)?)
}

fn parse_nbd_unix(text: &str) -> Result<Spec, String> {
    let (path, size) = parse_place(text)?;
    let place = path.to_string_lossy();
    let (path, export) = place.rsplit_once(":/").unwrap_or((&place, ""));
    if path.is_empty() {
        return Err("path missing (PATH[:/EXPORT]:SIZE)".to_owned());
    }
    nbd(Server::Unix { path: path.into() }, export, size)
}

fn nbd(server: Server, export: &str, size: Bytes) -> Result<Spec, String> {
    if size < NBD_SIZE_MIN {
        return Err(format!("size {} is under {}", Exact(size), Exact(NBD_SIZE_MIN)));
    }
    if export.len() > EXPORT_MAX || export.contains([SEPARATOR, '\0']) {
        let most = "bytes, or has ';' or a zero byte";
        return Err(format!("the export's name is longer than {EXPORT_MAX} {most}"));
    }
    Ok(Spec::Nbd { server, export: export.to_owned(), size })
}

/// A specification as shown in a message, without text that may be a password.
fn shown(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((before, after)) if before.contains("redis") => format!("...@{after}"),
        _ => text.to_owned(),
    }
}

fn parse_place(text: &str) -> Result<(PathBuf, Bytes), String> {
    let missing = || "size missing (PATH:SIZE)".to_owned();
    let (path, size) = text.rsplit_once(':').ok_or_else(missing)?;
    if path.is_empty() {
        return Err("path missing (PATH:SIZE)".to_owned());
    }
    if path.contains(SEPARATOR) {
        return Err(format!("the path may not contain {SEPARATOR:?}"));
    }
    Ok((PathBuf::from(path), parse_size(size)?))
}

fn parse_size(text: &str) -> Result<Bytes, String> {
    if text.is_empty() {
        return Err("size missing".to_owned());
    }
    match size(text).map_err(|reason| format!("bad size {text:?}: {reason}"))? {
        size if size < SIZE_MIN => Err(format!("size {text} is under {SIZE_MIN}")),
        size if size > SIZE_MAX => Err(format!("size {text} is over {SIZE_MAX}")),
        size => Ok(Bytes::of_pages(size.pages())),
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |f: &mut fmt::Formatter<'_>, kind: &str, path: &Path, size: &Bytes| {
            write!(f, "{kind}:{}:{}", path.display(), Exact(*size))
        };
        match self {
            Spec::Ram { size } => write!(f, "ram:{}", Exact(*size)),
            Spec::Zram { size, algorithm } => {
                write!(f, "zram:{}:{}", Exact(*size), algorithm.name())
            }
            Spec::File { path, size } => place(f, "file", path, size),
            Spec::Dir { path, size } => place(f, "dir", path, size),
            Spec::Redis { servers, size } => {
                let kind = match servers[0] {
                    Server::Tcp { .. } => "redis",
                    Server::Tls { .. } => "rediss",
                    Server::Unix { .. } => "redis+unix",
                };
                let servers: Vec<String> = servers.iter().map(Server::to_string).collect();
                write!(f, "{kind}:{}:{}", servers.join(","), Exact(*size))
            }
            Spec::Nbd { server, export, size } => {
                let (kind, slash) = match server {
                    Server::Tcp { .. } => ("nbd", "/"),
                    Server::Tls { .. } => ("nbds", "/"),
                    Server::Unix { .. } => ("nbd+unix", ":/"),
                };
                let slash = if export.is_empty() { "" } else { slash };
                write!(f, "{kind}:{server}{slash}{export}:{}", Exact(*size))
            }
            Spec::Replicate { first, second } => write!(f, "replicate:{first}{LEVELS}{second}"),
            Spec::Tier { fast, slow } => write!(f, "tier:{fast}{LEVELS}{slow}"),
            Spec::Flaky { faults, device } => write!(f, "flaky:{faults}{LEVELS}{device}"),
        }
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
