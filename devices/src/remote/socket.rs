//! A connected socket whose calls end in time.
//!
//! The system calls are rustix's: the preload library replaces some functions of the C library, and
//! in others a thread can be cancelled.

use crate::remote::server::Server;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How long a connection, or an answer, may take. A server that is slower is taken for lost, and
/// asked again on a new connection.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// A connected socket. Errors are error numbers of the system.
pub(super) struct Socket(OwnedFd);

impl Socket {
    pub(super) fn connect(server: &Server) -> Result<Socket, i32> {
        let made = match server {
            Server::Tcp { host, port } => {
                let host: IpAddr = host.parse().map_err(|_| libc::EADDRNOTAVAIL)?;
                let family = match host {
                    IpAddr::V4(_) => AddressFamily::INET,
                    IpAddr::V6(_) => AddressFamily::INET6,
                };
                Socket::made(family).and_then(|socket| {
                    set_tcp_nodelay(&socket.0, true)?;
                    set_socket_keepalive(&socket.0, true)?;
                    connect(&socket.0, &SocketAddr::new(host, *port)).map(|()| socket)
                })
            }
            Server::Unix { path } => Socket::made(AddressFamily::UNIX).and_then(|socket| {
                connect(&socket.0, &SocketAddrUnix::new(path.as_path())?).map(|()| socket)
            }),
        };
        made.map_err(errno)
    }

    fn made(family: AddressFamily) -> Result<Socket, Errno> {
        let made = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A connection obeys the second one, too.
        [Timeout::Recv, Timeout::Send]
            .into_iter()
            .try_for_each(|which| set_socket_timeout(&made, which, Some(DEADLINE)))?;
        Ok(Socket(made))
    }

    /// Sends all bytes.
    pub(super) fn send(&self, mut bytes: &[u8]) -> Result<(), i32> {
        let began = Instant::now();
        while !bytes.is_empty() {
            match send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
            in_time(began)?;
        }
        Ok(())
    }

    /// Receives some bytes, at least one.
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, i32> {
        let began = Instant::now();
        loop {
            match recv(&self.0, &mut *room, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(libc::ECONNRESET),
                Ok((_, received)) => return Ok(received),
                Err(Errno::INTR) => in_time(began)?,
                Err(error) => return Err(errno(error)),
            }
        }
    }

    /// Whether [`Socket::receive`] would return at once.
    pub(super) fn is_readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let fd = self.0.as_fd();
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut polled, Some(&now)), Ok(0))
    }
}

fn in_time(began: Instant) -> Result<(), i32> {
    if began.elapsed() < DEADLINE { Ok(()) } else { Err(libc::ETIMEDOUT) }
}

/// A timeout of a socket is reported as EAGAIN, of its connection as EINPROGRESS.
fn errno(error: Errno) -> i32 {
    match error {
        Errno::AGAIN | Errno::INPROGRESS => libc::ETIMEDOUT,
        error => error.raw_os_error(),
    }
}
