//! Measurements as text.
//!
//! ```text
//! LockStatistics ── lock_rows ──> [LockRow] ── as JSON, or table_of ──> a lock table
//!                                                             figures in Units ──┘
//! ```

pub mod locks;
pub mod unit;
