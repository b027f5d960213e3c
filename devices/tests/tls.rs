//! Swap over TLS on a real redis-server and nbdkit: contents, forks, lost connections, and servers
//! that must not be trusted.

mod common;

use common::Frames;
use common::check::{
    SIZE, SLOTS, TIME_LIMIT, await_that, fill, read_on_in_a_child, read_run, use_by_threads,
};
use highwater_devices::{
    Device, OpenOptions, Reason, RemoteOptions, Spec, TlsFault, TlsFiles, open_with,
};
use highwater_platform::testing::skip_or_fail;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The name that the servers' certificates are for.
const NAME: &str = "swap.test";
/// Files of [`Files`], named as nbdkit wants them.
const CA: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// A certificate authority, and certificates signed by it.
struct Files {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

fn key_pair() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

impl Files {
    fn new() -> Files {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Without this name, it has the same name as the certificates that it signs.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, key_pair()).unwrap();
        let files = Files { dir: tempfile::tempdir().unwrap(), authority };
        std::fs::write(files.path(CA), files.authority.pem()).unwrap();
        files.certify(2000..2100, [CERTIFICATE, KEY]);
        files.certify(2000..2100, ["client-cert.pem", "client-key.pem"]);
        files
    }

    /// Writes a certificate that is valid in these years, and its key.
    fn certify(&self, years: std::ops::Range<i32>, names: [&str; 2]) {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        let key = key_pair();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        std::fs::write(self.path(names[0]), certificate.pem()).unwrap();
        std::fs::write(self.path(names[1]), key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The files of a client that trusts the authority.
    fn trust(&self) -> TlsFiles {
        TlsFiles { authorities: Some(self.path(CA)), ..TlsFiles::default() }
    }

    /// The files of a client that also has a certificate.
    fn client(&self) -> TlsFiles {
        TlsFiles {
            certificate: Some(self.path("client-cert.pem")),
            key: Some(self.path("client-key.pem")),
            ..self.trust()
        }
    }
}

/// A server on a port of this machine; killed when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// `arguments` gets the port; `None` if the program is not installed.
    fn start(files: &Files, arguments: impl Fn(u16) -> Vec<String>) -> Option<Server> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let arguments = arguments(port);
        let mut server = Command::new(&arguments[0]);
        server.args(&arguments[1..]).current_dir(files.dir.path()).stdin(Stdio::null());
        let Ok(process) = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            skip_or_fail(format!("{} is not installed", arguments[0]));
            return None;
        };
        let server = Server { process, port };
        await_that("the server answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(server)
    }

    fn redis(files: &Files, clients: &str) -> Option<Server> {
        Server::start(files, |port| {
            let options = format!(
                "redis-server --port 0 --tls-port {port} --tls-cert-file {CERTIFICATE} \
                 --tls-key-file {KEY} --tls-ca-cert-file {CA} --tls-auth-clients {clients} \
                 --bind 127.0.0.1 --appendonly no"
            );
            options.split(' ').chain(["--save", ""]).map(str::to_owned).collect()
        })
    }

    fn nbd(files: &Files, options: &str) -> Option<Server> {
        Server::start(files, |port| {
            let line =
                format!("nbdkit -f --exit-with-parent -i 127.0.0.1 -p {port} {options} memory 16M");
            line.split(' ').map(str::to_owned).collect()
        })
    }

    fn open(&self, kind: &str, name: &str, tls: TlsFiles) -> Result<Box<dyn Device>, Reason> {
        let size = if kind.starts_with("nbd") { 10 << 20 } else { SIZE.0 };
        let spec = Spec::parse(&format!("{kind}:{name}127.0.0.1:{}:{size}", self.port)).unwrap();
        let remote = RemoteOptions { tls, patience: TIME_LIMIT, ..RemoteOptions::default() };
        let options = OpenOptions { remote, ..OpenOptions::default() };
        open_with(&spec, &options).map_err(|error| error.reason)
    }

    /// The reason why a client refuses to begin.
    fn refusal(&self, kind: &str, name: &str, tls: TlsFiles) -> Option<Reason> {
        self.open(kind, name, tls).err()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Options of nbdkit.
const NBD_TLS: &str = "--tls=require --tls-certificates=.";
const NBD_CLIENTS: &str = "--tls=require --tls-certificates=. --tls-verify-peer";
const NAMED: &str = "swap.test=";

#[test]
fn threads_find_what_they_wrote() {
    let files = Files::new();
    let redis = (Server::redis(&files, "yes"), "rediss");
    let nbd = (Server::nbd(&files, NBD_CLIENTS), "nbds");
    for (server, kind) in [redis, nbd] {
        let Some(server) = server else { return };
        let device = server.open(kind, NAMED, files.client()).unwrap();
        let keeper = device.thread().map(thread::spawn).expect("a keeper");
        use_by_threads(&*device, 150, || {});
        drop(device);
        keeper.join().unwrap();
    }
}

#[test]
fn children_read_on_by_connections_of_their_own() {
    let files = Files::new();
    let Some(server) = Server::redis(&files, "no") else { return };
    read_on_in_a_child(server.open("rediss", NAMED, files.trust()).unwrap(), || true);
    let Some(server) = Server::nbd(&files, NBD_TLS) else { return };
    read_on_in_a_child(server.open("nbds", NAMED, files.trust()).unwrap(), || true);
}

/// The connection ends, and the new connection is secured, too.
#[test]
fn a_lost_connection_is_made_again() {
    let files = Files::new();
    let Some(server) = Server::redis(&files, "no") else { return };
    let device = server.open("rediss", NAMED, files.trust()).unwrap();
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 64).unwrap();
    for run in (0..64).step_by(16) {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "--tls", "--insecure", "-p", &server.port.to_string()]);
        let killed = cli.args(["CLIENT", "KILL", "TYPE", "normal"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&killed.stdout).trim(), "1", "{killed:?}");
        assert_eq!(read_run(&*device, &frames, run), Ok(()));
    }
}

#[test]
fn servers_that_are_not_to_be_trusted_are_refused() {
    let (files, others) = (Files::new(), Files::new());
    let Some(redis) = Server::redis(&files, "no") else { return };
    let Some(nbd) = Server::nbd(&files, NBD_TLS) else { return };
    for (server, kind) in [(&redis, "rediss"), (&nbd, "nbds")] {
        let refusal = |name, tls| server.refusal(kind, name, tls);
        assert_eq!(refusal(NAMED, files.trust()), None, "{kind}");
        let fault = |fault| Some(Reason::Tls(fault));
        assert_eq!(refusal(NAMED, others.trust()), fault(TlsFault::UnknownIssuer));
        assert_eq!(refusal("", files.trust()), fault(TlsFault::OtherName));
        assert_eq!(refusal("other.test=", files.trust()), fault(TlsFault::OtherName));
    }
    drop((redis, nbd));
    files.certify(2000..2001, [CERTIFICATE, KEY]);
    let Some(old) = Server::redis(&files, "no") else { return };
    let expired = Some(Reason::Tls(TlsFault::Expired));
    assert_eq!(old.refusal("rediss", NAMED, files.trust()), expired);
}

#[test]
fn a_client_without_a_certificate_is_told_so() {
    let files = Files::new();
    let refused = Some(Reason::Tls(TlsFault::ClientRefused));
    let Some(redis) = Server::redis(&files, "yes") else { return };
    assert_eq!(redis.refusal("rediss", NAMED, files.trust()), refused);
    let Some(nbd) = Server::nbd(&files, NBD_CLIENTS) else { return };
    assert_eq!(nbd.refusal("nbds", NAMED, files.trust()), refused);
}

#[test]
fn no_page_and_no_password_goes_to_a_server_without_tls() {
    let files = Files::new();
    let silent = Some(Reason::Tls(TlsFault::NotSpoken));
    let Some(nbd) = Server::nbd(&files, "--tls=off") else { return };
    assert_eq!(nbd.refusal("nbds", NAMED, files.trust()), silent);
    let Some(redis) = Server::start(&files, |port| {
        let port = port.to_string();
        ["redis-server", "--port", &port, "--save", ""].map(str::to_owned).into()
    }) else {
        return;
    };
    assert_eq!(redis.refusal("rediss", NAMED, files.trust()), silent);
}

#[test]
fn a_server_by_tls_is_no_server_without() {
    let files = Files::new();
    let Some(redis) = Server::redis(&files, "no") else { return };
    assert_eq!(redis.refusal("redis", "", TlsFiles::default()), Some(Reason::HangsUp));
    let Some(nbd) = Server::nbd(&files, NBD_TLS) else { return };
    assert_eq!(nbd.refusal("nbd", "", TlsFiles::default()), Some(Reason::WantsTls));
}

#[test]
fn files_that_are_of_no_use_are_named() {
    let files = Files::new();
    let Some(redis) = Server::redis(&files, "no") else { return };
    let refused = |tls| redis.refusal("rediss", NAMED, tls);
    let file = |file, errno| Some(Reason::TlsFile { file, errno });
    let missing = TlsFiles { authorities: Some("/nonexistent".into()), ..TlsFiles::default() };
    assert_eq!(refused(missing), file("HIGHWATER_TLS_CA", Some(libc::ENOENT)));
    for unfit in ["/dev/null", "/dev/zero"] {
        let unfit = TlsFiles { authorities: Some(unfit.into()), ..TlsFiles::default() };
        assert_eq!(refused(unfit), file("HIGHWATER_TLS_CA", None));
    }
    let alone = TlsFiles { key: None, ..files.client() };
    assert_eq!(refused(alone), file("HIGHWATER_TLS_KEY", Some(libc::ENOENT)));
    for key in [files.path(KEY), "/dev/zero".into()] {
        let other = TlsFiles { key: Some(key), ..files.client() };
        assert_eq!(refused(other), file("HIGHWATER_TLS_KEY", None));
    }
}

/// The test runs itself with a list that has no end.
#[test]
fn a_list_of_authorities_is_read_up_to_a_limit() {
    const LIST: &str = "SSL_CERT_FILE";
    if std::env::var_os(LIST).is_some_and(|list| list == "/dev/zero") {
        let spec = Spec::parse("rediss:127.0.0.1:1:4M").unwrap();
        let opened = open_with(&spec, &OpenOptions::default());
        let refused = Reason::TlsFile { file: LIST, errno: None };
        assert_eq!(opened.map(drop).map_err(|error| error.reason), Err(refused));
        return;
    }
    let mut itself = Command::new(std::env::current_exe().unwrap());
    itself.args(["--exact", "a_list_of_authorities_is_read_up_to_a_limit"]);
    let output = itself.env(LIST, "/dev/zero").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// A stopped server is not waited for longer than for an answer.
#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let files = Files::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let spec = Spec::parse(&format!("rediss:{NAME}=127.0.0.1:{port}:4M")).unwrap();
    let patience = Duration::from_millis(200);
    let remote = RemoteOptions { tls: files.trust(), patience, ..RemoteOptions::default() };
    let opened = open_with(&spec, &OpenOptions { remote, ..OpenOptions::default() });
    assert_eq!(opened.err().map(|it| it.reason), Some(Reason::Tls(TlsFault::NotSpoken)));
}
