//! Where a server listens, as text and as a socket's address.

use rustls::pki_types::ServerName;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// How long each address of a name is tried.
const TRIAL: Duration = Duration::from_secs(2);

/// The place where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// HOST:PORT; an IPv6 address in brackets.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// HOST:PORT by TLS, or NAME=HOST:PORT.
    Tls {
        /// The name, or the address, that the server's certificate is for.
        name: String,
        /// Where to connect: that name, or an address of it.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket in the file system.
    Unix {
        /// Its path.
        path: PathBuf,
    },
}

impl Server {
    /// Reads HOST:PORT.
    ///
    /// # Errors
    /// The mistake, in a few words.
    pub(crate) fn parse_tcp(text: &str) -> Result<Server, String> {
        let (host, port) = text.rsplit_once(':').ok_or("port missing (HOST:PORT:SIZE)")?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let bad = || format!("port {port:?} is not a number from 1 to {}", u16::MAX);
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        match (host.strip_prefix('['), host.strip_suffix(']')) {
            _ if host.is_empty() => Err("host missing (HOST:PORT:SIZE)".to_owned()),
            (Some(rest), None) => Err(format!("']' is missing after {rest}")),
            (None, Some(rest)) => Err(format!("'[' is missing before {rest}")),
            _ if host.contains(':') && bare.is_none() => {
                Err(format!("an IPv6 address is in brackets: [{host}]"))
            }
            _ if host.contains([',', ';', '/', '[', ']']) => Err(format!("bad host {host:?}")),
            _ => Ok(Server::Tcp { host: host.to_owned(), port }),
        }
    }

    /// Reads HOST:PORT, or NAME=HOST:PORT if the certificate is for another name than the host's.
    ///
    /// # Errors
    /// The mistake, in a few words.
    pub(crate) fn parse_tls(text: &str) -> Result<Server, String> {
        let (name, place) = text.split_once('=').map_or((None, text), |(a, b)| (Some(a), b));
        let Server::Tcp { host, port } = Server::parse_tcp(place)? else {
            unreachable!("it reads HOST:PORT");
        };
        let name = name.unwrap_or(&host).to_owned();
        ServerName::try_from(name.as_str()).map_err(|_| format!("bad name {name:?}"))?;
        Ok(Server::Tls { name, host, port })
    }

    /// The server with an address in place of a name: the first that accepts a connection, or else
    /// the first.
    ///
    /// # Errors
    /// The name has no address, in some words.
    pub(crate) fn resolve(self) -> Result<Server, String> {
        Ok(match self {
            Server::Tcp { host, port } => Server::Tcp { host: address(host, port)?, port },
            Server::Tls { name, host, port } => {
                Server::Tls { name, host: address(host, port)?, port }
            }
            Server::Unix { path } => Server::Unix { path },
        })
    }

    /// Whether the server is at this address.
    pub(super) fn is_at(&self, at: IpAddr, port: u16) -> bool {
        match self {
            Server::Tcp { host, port: own } | Server::Tls { host, port: own, .. } => {
                *own == port && host.parse() == Ok(at)
            }
            Server::Unix { .. } => false,
        }
    }

    /// The address of its host, if it has one.
    pub(super) fn host(&self) -> Option<IpAddr> {
        match self {
            Server::Tcp { host, .. } | Server::Tls { host, .. } => host.parse().ok(),
            Server::Unix { .. } => Some(Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// Another server of the same cluster. Its certificate is for the same name.
    pub(super) fn sibling(&self, at: IpAddr, port: u16) -> Server {
        let host = at.to_string();
        match self {
            Server::Tcp { .. } | Server::Unix { .. } => Server::Tcp { host, port },
            Server::Tls { name, .. } => Server::Tls { name: name.clone(), host, port },
        }
    }
}

/// The address of a host: the first that accepts a connection, or else the first.
fn address(host: String, port: u16) -> Result<String, String> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(host);
    }
    let found = (host.as_str(), port).to_socket_addrs();
    let found = found.map_err(|_| format!("host {host:?} has no address"))?;
    let found: Vec<SocketAddr> = found.collect();
    let answers = |at: &&SocketAddr| TcpStream::connect_timeout(at, TRIAL).is_ok();
    let at = found.iter().find(answers).or(found.first());
    at.map(|at| at.ip().to_string()).ok_or_else(|| format!("host {host:?} has no address"))
}

/// HOST:PORT; an IPv6 address in brackets.
fn place(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A hash of a text (FNV-1a), never 0.
pub(super) fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Tls { name, host, port } if name != host => {
                write!(f, "{name}={}", place(host, *port))
            }
            Server::Tcp { host, port } | Server::Tls { host, port, .. } => {
                f.write_str(&place(host, *port))
            }
            Server::Unix { path } => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_a_cluster_differ_in_address_and_have_one_name() {
        let own = |text| Server::parse_tls(text).unwrap();
        let socket = Server::Unix { path: "/run/redis.sock".into() };
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        for (server, host, expected) in [
            (own("swap.lan:7"), at("10.0.0.2"), "swap.lan=10.0.0.2:8"),
            (Server::parse_tcp("10.0.0.1:7").unwrap(), at("0:0::1"), "[::1]:8"),
            (socket.clone(), socket.host().unwrap(), "127.0.0.1:8"),
        ] {
            let sibling = server.sibling(host, 8);
            assert_eq!(sibling.to_string(), expected);
            assert!(sibling.is_at(host, 8) && !sibling.is_at(host, 7) && !server.is_at(host, 8));
        }
        assert_eq!(own("swap.lan=[::1]:7").host(), Some(at("::1")));
    }
}
