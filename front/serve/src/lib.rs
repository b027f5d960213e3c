//! Serves the page faults of a manager on platform `uffd`.
//!
//! ```text
//! Server  (handler.rs)  threads that read fault messages and take them to the manager
//!         (lead.rs)     which of them read, and which wait
//!         (readers.rs)  how many threads read, and on which CPUs
//! Service (sigbus.rs)   the faulting thread serves its own fault, in a SIGBUS handler
//!         (resume.rs)   and returns to the access without a system call
//!         (desk.rs)     the helper's threads serve the faults that it cannot serve
//! Owner   (owner.rs)    knows which memory is where, and handles faults that cannot be served
//! Cause   (cause.rs)    why a fault could not be served, in words
//! Vacant  (vacant.rs)   free pages of a range, for owners
//! ```
//! The manager does not know its callers, and the platform does not know the manager: this crate
//! joins them.

mod cause;
mod desk;
mod handler;
mod lead;
#[cfg(test)]
mod lead_model;
mod owner;
mod readers;
#[cfg(target_arch = "x86_64")]
mod resume;
mod sigbus;
mod vacant;

pub use cause::Cause;
pub use handler::Server;
pub use owner::{Owner, Part};
#[cfg(target_arch = "x86_64")]
pub use resume::{XsaveArea, has_shadow_stack, xsave_area};
pub use sigbus::{By, Service, Signalled, serve, while_pages_are_locked};
pub use vacant::Vacant;
