//! A server that is connected to repeatedly.

use crate::error::Reason;
use crate::remote::login::RemoteOptions;
use crate::remote::server::Server;
use crate::remote::tls::Tls;

/// A server, with an address in place of its name, and with what TLS needs.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) server: Server,
    /// `None`: without TLS.
    pub(super) tls: Option<Tls>,
}

impl Endpoint {
    pub(super) fn new(server: &Server, options: &RemoteOptions) -> Result<Endpoint, Reason> {
        let server = server.clone().resolve().map_err(|_| Reason::UnknownHost)?;
        let tls = match &server {
            Server::Tls { name, .. } => Some(Tls::new(name, &options.tls)?),
            Server::Tcp { .. } | Server::Unix { .. } => None,
        };
        Ok(Endpoint { server, tls })
    }
}
