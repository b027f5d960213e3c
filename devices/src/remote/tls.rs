//! TLS on a connected socket, with rustls.
//!
//! ```text
//! TlsFiles --> Tls      whom to trust, a certificate to show, the server's name
//! Tls + Socket --> Session    the state of a connection: keys, records that are not whole
//! ```
//! Sessions are not resumed: the state for that is under a lock, which a forked child could find
//! taken. Records are encrypted and decrypted in memory of the library's own heap, one after the
//! other.

use crate::environment::is_privileged;
use crate::error::{Reason, TlsFault};
use crate::remote::socket::Socket;
use crate::remote::verdict::Problem;
use crate::short_file::read_short_file;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore,
};
use rustls_native_certs::load_certs_from_paths;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const AUTHORITIES: &str = "HIGHWATER_TLS_CA";
pub(super) const CERTIFICATE: &str = "HIGHWATER_TLS_CERT";
pub(super) const KEY: &str = "HIGHWATER_TLS_KEY";
/// The name of the list of trusted authorities in messages.
const SYSTEM: &str = "the system's list of authorities";
/// Variables that replace that list, for OpenSSL and for rustls-native-certs: by a file, ...
const LIST: &str = "SSL_CERT_FILE";
/// ... and by directories.
const LIST_DIRS: &str = "SSL_CERT_DIR";

/// The longest file, in bytes. A list of all authorities has some 200 KiB.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Files for TLS, in PEM; read each time a device is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities that are trusted; `None`: those that the system trusts.
    pub authorities: Option<PathBuf>,
    /// The certificate shown to servers, and the certificates of intermediate authorities.
    pub certificate: Option<PathBuf>,
    /// The key of the certificate.
    pub key: Option<PathBuf>,
}

/// How to talk to a server over TLS.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// For a server whose certificate is for `name`.
    pub(super) fn new(name: &str, files: &TlsFiles) -> Result<Tls, Reason> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("ring has them");
        let builder = builder.with_root_certificates(authorities(files.authorities.as_deref())?);
        let mut config = match (&files.certificate, &files.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let chain = certificates(CERTIFICATE, certificate)?;
                let unfit = || Reason::TlsFile { file: KEY, errno: None };
                let key = contents(KEY, key)?;
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| unfit())?;
                builder.with_client_auth_cert(chain, key).map_err(|_| unfit())?
            }
            (Some(_), None) => return Err(Reason::TlsFile { file: KEY, errno: MISSING }),
            (None, Some(_)) => return Err(Reason::TlsFile { file: CERTIFICATE, errno: MISSING }),
        };
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(name.to_owned()).map_err(|_| Reason::UnknownHost)?;
        Ok(Tls { config: Arc::new(config), name })
    }
}

/// The error if one of two files that belong together is not named.
const MISSING: Option<i32> = Some(libc::ENOENT);

/// The authorities of a file, or those that the system trusts.
fn authorities(file: Option<&Path>) -> Result<RootCertStore, Reason> {
    let (name, found) = match file {
        Some(file) => (AUTHORITIES, certificates(AUTHORITIES, file)?),
        None => (SYSTEM, system_authorities()?),
    };
    let mut trusted = RootCertStore::empty();
    trusted.add_parsable_certificates(found);
    if trusted.is_empty() {
        return Err(Reason::TlsFile { file: name, errno: None });
    }
    Ok(trusted)
}

/// The authorities that the system trusts, or those that variables name, which are an error in a
/// process that has raised its privileges.
fn system_authorities() -> Result<Vec<CertificateDer<'static>>, Reason> {
    let named = |name| std::env::var_os(name).filter(|paths| !paths.is_empty());
    match (named(LIST), named(LIST_DIRS)) {
        (None, None) => Ok(rustls_native_certs::load_native_certs().certs),
        _ if is_privileged() => Err(Reason::TlsFile { file: SYSTEM, errno: Some(libc::EPERM) }),
        (list, dirs) => {
            // The library that reads directories would read a list without end, too.
            let list = list.map(|list| certificates(LIST, Path::new(&list))).transpose()?;
            let dirs = dirs.iter().flat_map(std::env::split_paths);
            let in_dirs = dirs.flat_map(|dir| load_certs_from_paths(None, Some(&dir)).certs);
            Ok(list.into_iter().flatten().chain(in_dirs).collect())
        }
    }
}

/// The certificates of a file, of which there must be one.
fn certificates(name: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Reason> {
    let bytes = contents(name, file)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or(Reason::TlsFile { file: name, errno: None })
}

/// Reads the file that a variable names.
fn contents(name: &'static str, file: &Path) -> Result<Vec<u8>, Reason> {
    let bytes = read_short_file(file, FILE_BYTES_MAX);
    let bytes = bytes.map_err(|e| Reason::TlsFile { file: name, errno: e.raw_os_error() })?;
    bytes.ok_or(Reason::TlsFile { file: name, errno: None })
}

/// The most bytes that are encrypted before they are sent: one record. More would only take memory.
const RECORD_LEN: usize = 16 << 10;

/// A connection's state.
pub(super) struct Session {
    connection: ClientConnection,
    /// Bytes that were decrypted and not taken.
    waiting: usize,
    /// Whether the server has sent anything beyond the handshake.
    has_spoken: bool,
}

impl Session {
    /// Agrees with the server on keys, and checks its certificate.
    pub(super) fn begin(tls: &Tls, socket: &Socket) -> Result<Session, Problem> {
        let connection = ClientConnection::new(tls.config.clone(), tls.name.clone());
        let mut connection = connection.map_err(|error| problem(&error))?;
        connection.set_buffer_limit(Some(RECORD_LEN));
        let mut session = Session { connection, waiting: 0, has_spoken: false };
        session.flush(socket)?;
        // A server that expects another protocol keeps waiting, or hangs up.
        session.advance(socket).map_err(|problem| match problem {
            Problem::Lost(_) => Problem::Tls(TlsFault::NotSpoken),
            problem => problem,
        })?;
        while session.connection.is_handshaking() {
            session.advance(socket)?;
        }
        Ok(session)
    }

    /// Sends all bytes.
    pub(super) fn send(&mut self, socket: &Socket, mut bytes: &[u8]) -> Result<(), Problem> {
        while !bytes.is_empty() {
            let taken = self.connection.writer().write(bytes).map_err(|e| lost(&e))?;
            bytes = &bytes[taken..];
            self.flush(socket).map_err(|problem| self.explained(problem))?;
        }
        Ok(())
    }

    /// Receives some bytes, at least one.
    pub(super) fn receive(&mut self, socket: &Socket, room: &mut [u8]) -> Result<usize, Problem> {
        while self.waiting == 0 {
            self.advance(socket).map_err(|problem| self.explained(problem))?;
        }
        self.has_spoken = true;
        let taken = self.connection.reader().read(room).map_err(|e| lost(&e))?;
        self.waiting -= taken;
        Ok(taken)
    }

    /// Since TLS 1.3 the client may already send while the server still asks for its certificate,
    /// so the alert that says why the server hangs up may be lost.
    fn explained(&self, problem: Problem) -> Problem {
        match problem {
            Problem::Lost(libc::ECONNRESET | libc::EPIPE) if !self.has_spoken => {
                Problem::Tls(TlsFault::ClientRefused)
            }
            problem => problem,
        }
    }

    /// Whether [`Session::receive`] would return at once.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Receives the bytes that are there, and answers messages of the protocol itself.
    fn advance(&mut self, socket: &Socket) -> Result<(), Problem> {
        self.connection.read_tls(&mut Records(socket)).map_err(|e| lost(&e))?;
        let processed = self.connection.process_new_packets();
        // An alert tells the server why the connection ends.
        let flushed = self.flush(socket);
        let state = processed.map_err(|error| problem(&error))?;
        self.waiting = state.plaintext_bytes_to_read();
        if state.peer_has_closed() && self.waiting == 0 {
            return Err(Problem::Lost(libc::ECONNRESET));
        }
        flushed
    }

    fn flush(&mut self, socket: &Socket) -> Result<(), Problem> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Records(socket)).map_err(|e| lost(&e))?;
        }
        Ok(())
    }
}

/// A socket that carries records.
struct Records<'a>(&'a Socket);

impl Read for Records<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.receive(room).map_err(io::Error::from_raw_os_error)
    }
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes).map_err(io::Error::from_raw_os_error)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Errors without a number come from rustls, for a connection that is closed.
fn lost(error: &io::Error) -> Problem {
    Problem::Lost(error.raw_os_error().unwrap_or(libc::ECONNRESET))
}

fn problem(error: &Error) -> Problem {
    Problem::Tls(match error {
        Error::InvalidCertificate(error) => match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsFault::UnknownIssuer
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFault::OtherName
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsFault::Expired,
            _ => TlsFault::BadCertificate,
        },
        Error::InvalidMessage(_) => TlsFault::NotSpoken,
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => TlsFault::ClientRefused,
        _ => TlsFault::Failed,
    })
}
