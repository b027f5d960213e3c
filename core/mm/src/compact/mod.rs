//! Moving pages between frames, so that free frames come together.
//!
//! ```text
//! migrate   a page from one frame to another, whoever uses it          migrate.rs
//! ```

mod migrate;

pub use migrate::{Migrated, Mode, Moves, migrate, migrate_batch};
