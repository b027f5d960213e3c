//! Swap on servers: Redis and Valkey.
//!
//! ```text
//! Server          where it listens                    RemoteOptions   user, password, patience
//! Redis           the device                          redis
//! ```
//! Transfers are made by the calling thread, on blocking sockets with deadlines. What is sent is
//! sealed by [`crate::seal`] around this device.

mod freed;
mod keeper;
mod link;
mod links;
mod login;
mod redis;
mod resp;
mod server;
mod session;
mod shared;
mod silence;
mod socket;
mod verdict;
mod window;

pub use login::{RemoteOptions, Secret, seconds};
pub(crate) use redis::Redis;
pub use server::Server;
