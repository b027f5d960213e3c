//! Swap on servers: Redis and Valkey, and NBD.
//!
//! ```text
//! Server          where it listens                    RemoteOptions   user, password, patience,
//! Endpoint        Server, and what TLS needs                          files for TLS
//! Remote<Store>   the device                          device
//!   |- Shared     its state; requests are made and repeated           shared, verdict, silence
//!   |   |- Store  the protocol                        store: redis::Redis, nbd::Nbd
//!   |   |- Links  up to 32 connections                links; stream: socket, tls
//!   |   |- stored slots with a page
//!   |   \- Freed  slots to be deleted                 freed
//!   \- Keeper     thread: deletes freed pages, tells the server that they are in use    keeper
//! batch --> windows of 64 pages (window) --> a request for each run, all sent at once
//!                                       \--> answers; verdict decides what becomes of failures
//! ```
//! Transfers are made by the calling thread, on blocking sockets with deadlines. The pages sent are
//! sealed by [`crate::seal`], which wraps this device.

mod device;
mod endpoint;
mod freed;
mod keeper;
mod links;
mod login;
pub(crate) mod nbd;
pub(crate) mod redis;
mod server;
mod shared;
mod silence;
mod socket;
mod store;
mod stream;
mod tls;
mod verdict;
mod window;

pub use login::{RemoteOptions, Secret, seconds};
pub(crate) use nbd::{EXPORT_MAX, SIZE_MIN as NBD_SIZE_MIN};
pub use server::Server;
pub(crate) use shared::LOST;
pub use tls::TlsFiles;
