//! Reasons why a device cannot be opened, each with a message of one line for the user.

use crate::spec::Spec;
use highwater_units::Bytes;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    /// The specification.
    pub spec: Spec,
    /// The reason.
    pub reason: Reason,
}

/// The reason why a device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The directory, or the parent directory of the file, does not exist.
    Missing,
    /// The directory exists, but holds no files that programs create, such as /proc.
    TakesNoFiles,
    /// The path, or a part of it, is not a directory.
    NotADirectory,
    /// The name of the file exists already.
    Exists,
    /// The directory may not be written by this user.
    Permission,
    /// The file system is mounted read-only.
    ReadOnlyFileSystem,
    /// The file system has less free space than the device is to hold.
    LittleSpace {
        /// The free space.
        free: Bytes,
    },
    /// The file system or a quota is full.
    Full,
    /// The process may not write files of that size (RLIMIT_FSIZE).
    FileSizeLimit {
        /// The limit.
        limit: Bytes,
    },
    /// The file system cannot hold files of that size.
    FileTooLarge,
    /// The system grants no memory or address space of that size.
    NoMemory,
    /// The server cannot be reached.
    Unreachable {
        /// The operating system's error number.
        errno: i32,
    },
    /// The server ends connections without an answer: it is dying, or expects TLS.
    HangsUp,
    /// The server's name has no address.
    UnknownHost,
    /// The program that answers is neither Redis nor Valkey.
    NotRedis,
    /// The program that answers is not an NBD server.
    NotNbd,
    /// The server speaks an older protocol.
    OldNbd,
    /// The server has no such export.
    NoExport,
    /// The export is smaller than the device.
    SmallExport {
        /// Its size.
        size: Bytes,
    },
    /// The export may not be written.
    ReadOnlyExport,
    /// The server talks over TLS only.
    WantsTls,
    /// No TLS connection could be made.
    Tls(TlsFault),
    /// A file for TLS cannot be used.
    TlsFile {
        /// The variable that names the file, or the file's place.
        file: &'static str,
        /// The operating system's error number; `None`: it does not hold what it should.
        errno: Option<i32>,
    },
    /// A page is not a whole number of the export's blocks, or is longer than a request may be.
    BlockSize,
    /// The export holds data other than swap.
    HoldsData,
    /// Another session swaps to the export, or another device of the run.
    InUse,
    /// The server rejects the user and password, or that there is none.
    Denied,
    /// The server drops keys when it is full.
    Evicts,
    /// The server is full.
    ServerFull,
    /// The server is starting, or refuses commands that are needed.
    Unwilling,
    /// The options ask for unencrypted pages on a server.
    Unsealed,
    /// A variable of the environment has a bad value.
    BadVariable,
    /// The file with the password cannot be read.
    PasswordFile {
        /// Its path.
        path: PathBuf,
        /// The operating system's error number; `None`: it does not hold what it should.
        errno: Option<i32>,
    },
    /// Anything else.
    Failed {
        /// The step that failed.
        step: &'static str,
        /// The operating system's error number.
        errno: i32,
    },
}

/// Why no TLS connection could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// The server does not speak TLS.
    NotSpoken,
    /// The server's certificate is not signed by a trusted authority.
    UnknownIssuer,
    /// The server's certificate is for other names.
    OtherName,
    /// The server's certificate has expired, or is not valid yet.
    Expired,
    /// The server's certificate has another fault.
    BadCertificate,
    /// The server rejects clients without a certificate, or this client's certificate.
    ClientRefused,
    /// Anything else.
    Failed,
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsFault::NotSpoken => "the server does not answer by TLS",
            TlsFault::UnknownIssuer => {
                "no authority that is trusted has signed the server's certificate"
            }
            TlsFault::OtherName => "the server's certificate is for other names",
            TlsFault::Expired => "the server's certificate has expired, or is not valid yet",
            TlsFault::BadCertificate => "the server's certificate is not valid",
            TlsFault::ClientRefused => {
                "the server hangs up: it wants a client's certificate, or does not accept this one"
            }
            TlsFault::Failed => "the server and this client find no way to use TLS",
        })
    }
}

impl Reason {
    /// The reason for the error number of a failed `step`.
    pub(crate) fn from_errno(step: &'static str, errno: i32) -> Reason {
        match errno {
            libc::ENOENT => Reason::Missing,
            libc::ENOTDIR => Reason::NotADirectory,
            libc::EEXIST => Reason::Exists,
            libc::EACCES | libc::EPERM => Reason::Permission,
            libc::EROFS => Reason::ReadOnlyFileSystem,
            libc::ENOSPC | libc::EDQUOT => Reason::Full,
            libc::EFBIG => Reason::FileTooLarge,
            libc::ENOMEM => Reason::NoMemory,
            errno => Reason::Failed { step, errno },
        }
    }

    /// The reason for a connection that is lost with an error number before the device is open.
    pub(crate) fn from_lost(errno: i32) -> Reason {
        match errno {
            libc::ECONNRESET | libc::EPIPE => Reason::HangsUp,
            errno => Reason::Unreachable { errno },
        }
    }

    /// Whether a usable server can cause this error while it is dying, gone, or starting again.
    pub(crate) fn is_of_a_server_that_ended(&self) -> bool {
        match self {
            Reason::Unreachable { .. }
            | Reason::UnknownHost
            | Reason::HangsUp
            | Reason::NoExport
            | Reason::Unwilling => true,
            Reason::Tls(fault) => matches!(fault, TlsFault::NotSpoken | TlsFault::ClientRefused),
            _ => false,
        }
    }

    /// The reason for an error of the standard library. An error without a number (a path with a
    /// NUL byte) is an invalid argument.
    pub(crate) fn from_io(step: &'static str, error: &io::Error) -> Reason {
        Reason::from_errno(step, error.raw_os_error().unwrap_or(libc::EINVAL))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Missing => f.write_str("no such directory"),
            Reason::TakesNoFiles => f.write_str("no file can be created there"),
            Reason::NotADirectory => f.write_str("not a directory"),
            Reason::Exists => f.write_str("exists already, and is never overwritten"),
            Reason::Permission => f.write_str("no permission to create a file there"),
            Reason::ReadOnlyFileSystem => f.write_str("the file system is read-only"),
            Reason::LittleSpace { free } => write!(f, "the file system has only {free} free"),
            Reason::Full => f.write_str("no space left on the file system, or in the quota"),
            Reason::FileSizeLimit { limit } => {
                write!(f, "files are limited to {limit} here (ulimit -f)")
            }
            Reason::FileTooLarge => f.write_str("too large for a file on this file system"),
            Reason::NoMemory => {
                f.write_str("the system grants no memory of that size (overcommit or ulimit -v)")
            }
            Reason::Unreachable { errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "the server cannot be reached: {error}")
            }
            Reason::HangsUp => f.write_str("the server closes the connection without an answer"),
            Reason::UnknownHost => f.write_str("the server's name has no address"),
            Reason::NotRedis => {
                f.write_str("what answers there is neither a Redis nor a Valkey server")
            }
            Reason::NotNbd => f.write_str("what answers there is no NBD server"),
            Reason::OldNbd => f.write_str(
                "the server speaks an old protocol (no fixed newstyle, or no NBD_OPT_GO)",
            ),
            Reason::NoExport => f.write_str("the server has no such export"),
            Reason::SmallExport { size } => write!(f, "the export has only {size}"),
            Reason::ReadOnlyExport => f.write_str("the export is read-only"),
            Reason::WantsTls => f.write_str("the server wants TLS"),
            Reason::Tls(fault) => fault.fmt(f),
            Reason::TlsFile { file, errno } => unusable(f, file, *errno, "in PEM"),
            Reason::BlockSize => f.write_str(
                "a page of 4 KiB is no whole number of the export's blocks, or too long",
            ),
            Reason::HoldsData => f.write_str("the export holds data, and is never overwritten"),
            Reason::InUse => {
                f.write_str("another session, or another device of this run, swaps to this export")
            }
            Reason::Denied => {
                f.write_str("the server wants a password, or accepts no such user and password")
            }
            Reason::Evicts => {
                f.write_str("the server drops keys when it is full (its maxmemory-policy)")
            }
            Reason::ServerFull => f.write_str("the server is full"),
            Reason::Unwilling => {
                f.write_str("the server is starting, or refuses commands that swap needs")
            }
            Reason::Unsealed => f.write_str("pages on a server are always sealed"),
            Reason::BadVariable => f.write_str(
                "HIGHWATER_REMOTE_PATIENCE is no number of seconds, or HIGHWATER_REDIS_USER or \
                 HIGHWATER_REDIS_PASSWORD no UTF-8",
            ),
            Reason::PasswordFile { path, errno } => {
                let file = format!("HIGHWATER_REDIS_PASSWORD_FILE {path:?}");
                unusable(f, &file, *errno, "at most 64 KiB of UTF-8")
            }
            Reason::Failed { step, errno } => {
                write!(f, "cannot {step}: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// Writes why a file is of no use: an error of the system, or it does not hold `expected`.
fn unusable(
    f: &mut fmt::Formatter<'_>,
    file: &str,
    errno: Option<i32>,
    expected: &str,
) -> fmt::Result {
    match errno.map(io::Error::from_raw_os_error) {
        Some(error) => write!(f, "{file} cannot be read: {error}"),
        None => write!(f, "{file} does not hold what it should, {expected}"),
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted with escapes: a path may hold a line break, the message may not.
        write!(f, "swap {:?}: {}", self.spec.to_string(), self.reason)
    }
}

impl std::error::Error for OpenError {}
