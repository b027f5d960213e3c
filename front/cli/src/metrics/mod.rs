//! Metrics for Prometheus: `--metrics ADDRESS:PORT`.
//!
//! ```text
//! Watch --- every 250 ms: Look ---> Board --- exposition: text
//!                                               ^
//! thread "metrics": accept --- answer: GET /metrics
//! ```
//! Connections are served one at a time, each for a bounded time. No server library is used:
//! tiny_http starts a thread for each connection and panics if it cannot, and a panic of this
//! process ends the program that it runs.
//!
//! Locks: that of the board (`exposition`).

mod answer;
mod exposition;

use crate::Refusal;
pub(crate) use exposition::Board;
use exposition::Exposition;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Pause after a connection could not be accepted, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    /// A port alone means that port of the loopback address. A name is looked up; of its addresses,
    /// IPv4 is preferred, as for loopback.
    fn from_str(text: &str) -> Result<Address, String> {
        let refused = |reason: &str| format!("'{text}' {reason}; give for example 127.0.0.1:9400");
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Address((Ipv4Addr::LOCALHOST, port).into()));
        }
        let found = text.to_socket_addrs().map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => refused("is neither PORT nor ADDRESS:PORT"),
            _ => refused(&format!("cannot be looked up: {error}")),
        });
        let first = found?.min_by_key(SocketAddr::is_ipv6);
        first.map(Address).ok_or_else(|| refused("names no known host"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A listening port. Programs do not inherit it.
pub(crate) struct Port(TcpListener);

impl Port {
    /// Takes a port.
    pub(crate) fn open(address: Address) -> Result<Port, Refusal> {
        TcpListener::bind(address.0).map(Port).map_err(|error| {
            let what = format!("metrics cannot be served at {address}: {error}");
            Refusal::new(what, "give another address and port; port 0 is any that is free")
        })
    }

    /// The address of the metrics.
    ///
    /// # Errors
    /// The system does not return the address of the port.
    pub(crate) fn url(&self) -> io::Result<String> {
        let address = self.0.local_addr()?;
        let reachable = match address.ip() {
            ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        Ok(format!("http://{}/metrics", SocketAddr::new(reachable, address.port())))
    }
}

/// Serves the last look on the board, until the end of this process. `session`: the name of the
/// session, or its pid.
///
/// # Errors
/// No thread can be started.
pub(crate) fn serve(port: Port, session: String) -> io::Result<Arc<Board>> {
    let board = Arc::new(Board::default());
    let exposition = Exposition::new(session, Arc::clone(&board));
    thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        loop {
            match port.0.accept() {
                // A client that goes away, or is too slow, gets no answer.
                Ok((client, _)) => drop(answer::answer(client, &exposition)),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    })?;
    Ok(board)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_on_loopback_unless_said() {
        let address = |text: &str| text.parse::<Address>().map(|it| it.to_string());
        for (text, expected) in [
            ("9400", "127.0.0.1:9400"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("0.0.0.0:9400", "0.0.0.0:9400"),
            ("[::1]:9400", "[::1]:9400"),
            ("localhost:9400", "127.0.0.1:9400"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected));
        }
        for text in ["", ":9400", "65536", "localhost", "1.2.3.4", "-1", "1.2.3.4:x"] {
            assert!(address(text).unwrap_err().contains("for example 127.0.0.1:9400"), "{text}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_refused() {
        let port = Port::open("0".parse().unwrap()).unwrap();
        let taken = port.0.local_addr().unwrap().to_string();
        let refusal = Port::open(taken.parse().unwrap()).err().expect("it is taken").to_string();
        assert!(refusal.contains(&taken) && refusal.contains("another address"), "{refusal}");
        assert_eq!(port.url().unwrap(), format!("http://{taken}/metrics"));
    }
}
