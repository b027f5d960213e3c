//! A connected socket whose calls end in time.
//!
//! System calls are made through rustix, not through the C library: the preload library replaces
//! some of its functions, and others are cancellation points.

use crate::remote::server::Server;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_nodelay, set_tcp_quickack,
    set_tcp_user_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How long a connection, or an answer, may take if the request can be repeated on a new
/// connection.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// When the system acknowledges what a TCP socket has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// With the next bytes that are sent, or after 40 ms.
    Delayed,
    /// Before the socket waits for the rest of an answer: a server without TCP_NODELAY (qemu-nbd
    /// before 8.1) holds the rest back until the first part is acknowledged.
    Prompt,
}

/// A connected socket. Errors are error numbers of the system.
pub(super) struct Socket {
    fd: OwnedFd,
    deadline: Duration,
    acks: Acks,
    /// Whether bytes were received since bytes were last sent.
    received: Cell<bool>,
}

impl Socket {
    /// Connects to a server. `acks` has no effect on Unix sockets.
    pub(super) fn connect(server: &Server, deadline: Duration, acks: Acks) -> Result<Socket, i32> {
        let made = match server {
            Server::Tcp { host, port } | Server::Tls { host, port, .. } => {
                let host: IpAddr = host.parse().map_err(|_| libc::EADDRNOTAVAIL)?;
                let family = match host {
                    IpAddr::V4(_) => AddressFamily::INET,
                    IpAddr::V6(_) => AddressFamily::INET6,
                };
                Socket::made(family, deadline, acks).and_then(|socket| {
                    set_tcp_nodelay(&socket.fd, true)?;
                    set_socket_keepalive(&socket.fd, true)?;
                    connect(&socket.fd, &SocketAddr::new(host, *port)).map(|()| socket)
                })
            }
            Server::Unix { path } => Socket::made(AddressFamily::UNIX, deadline, Acks::Delayed)
                .and_then(|socket| {
                    connect(&socket.fd, &SocketAddrUnix::new(path.as_path())?).map(|()| socket)
                }),
        };
        made.map_err(errno)
    }

    fn made(family: AddressFamily, deadline: Duration, acks: Acks) -> Result<Socket, Errno> {
        let made = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_timeouts(&made, deadline)?;
        Ok(Socket { fd: made, deadline, acks, received: Cell::new(false) })
    }

    /// Sets how long an answer may take.
    pub(super) fn set_deadline(&mut self, deadline: Duration) -> Result<(), i32> {
        if self.deadline == deadline {
            return Ok(());
        }
        self.deadline = deadline;
        set_timeouts(&self.fd, deadline).map_err(errno)
    }

    /// Sends all bytes.
    pub(super) fn send(&self, mut bytes: &[u8]) -> Result<(), i32> {
        let began = Instant::now();
        self.received.set(false);
        while !bytes.is_empty() {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
            self.in_time(began)?;
        }
        Ok(())
    }

    /// Receives some bytes, at least one.
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, i32> {
        let began = Instant::now();
        // The last send acknowledged all bytes received before it. The system turns this option off
        // by itself, so it is set before each later receive.
        if self.received.replace(true) && self.acks == Acks::Prompt {
            let _ = set_tcp_quickack(&self.fd, true);
        }
        loop {
            match recv(&self.fd, &mut *room, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(libc::ECONNRESET),
                Ok((_, received)) => return Ok(received),
                Err(Errno::INTR) => self.in_time(began)?,
                Err(error) => return Err(errno(error)),
            }
        }
    }

    /// Waits up to `most`; returns whether [`Socket::receive`] would return at once.
    pub(super) fn await_readable(&self, most: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let fd = self.fd.as_fd();
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        let most =
            Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        // A signal ends the wait early.
        !matches!(poll(&mut polled, Some(&most)), Ok(0) | Err(Errno::INTR))
    }

    fn in_time(&self, began: Instant) -> Result<(), i32> {
        if began.elapsed() < self.deadline { Ok(()) } else { Err(libc::ETIMEDOUT) }
    }
}

/// Sets the timeouts of a socket. The timeout for sending also limits connect(2).
fn set_timeouts(fd: &OwnedFd, deadline: Duration) -> Result<(), Errno> {
    // Detects a machine that is gone, because it acknowledges nothing. Unix sockets refuse this
    // option.
    let _ = set_tcp_user_timeout(fd, deadline.as_millis() as u32);
    [Timeout::Recv, Timeout::Send]
        .into_iter()
        .try_for_each(|which| set_socket_timeout(fd, which, Some(deadline)))
}

/// A timeout of a transfer is reported as EAGAIN, a timeout of connect(2) as EINPROGRESS.
fn errno(error: Errno) -> i32 {
    match error {
        Errno::AGAIN | Errno::INPROGRESS => libc::ETIMEDOUT,
        error => error.raw_os_error(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::tcp_quickack;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A socket, and the server's end of its connection.
    fn pair(acks: Acks) -> (Socket, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = Server::Tcp { host: at.ip().to_string(), port: at.port() };
        let socket = Socket::connect(&server, DEADLINE, acks).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    /// Exchanges a byte for a byte, as the system delays acknowledgements only after some exchanges
    /// in quick succession. Then receives an answer in two parts; returns whether acknowledgements
    /// were still delayed after the first part, and after the second.
    fn answer_in_two_parts(socket: &Socket, server: &mut std::net::TcpStream) -> [bool; 2] {
        let mut exchange = |answer: &[u8]| {
            socket.send(&[1]).unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(answer).unwrap();
            assert_eq!(socket.receive(&mut [0]), Ok(1));
        };
        (0..100).for_each(|_| exchange(&[2]));
        exchange(&[2, 3]);
        let is_delayed = || !tcp_quickack(&socket.fd).unwrap();
        let first = is_delayed();
        assert_eq!(socket.receive(&mut [0]), Ok(1));
        [first, is_delayed()]
    }

    /// Delays end by themselves if this thread gets no CPU for some 10 ms: the test is repeated.
    #[test]
    fn the_first_part_of_an_answer_is_acknowledged_before_the_rest_is_awaited() {
        let (socket, mut server) = pair(Acks::Prompt);
        let mut tries = (0..1000).map(|_| answer_in_two_parts(&socket, &mut server));
        let found = tries.find(|[first, _]| *first).expect("the system delays acknowledgements");
        assert_eq!(found, [true, false], "the rest is awaited after an acknowledgement");
        let (socket, mut server) = pair(Acks::Delayed);
        let mut tries = (0..1000).map(|_| answer_in_two_parts(&socket, &mut server));
        assert!(tries.any(|delayed| delayed == [true, true]), "none is asked for");
    }
}
