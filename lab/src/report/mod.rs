//! Measurements as text.
//!
//! ```text
//! LockStatistics ── lock_rows ──> [LockRow] ── as JSON, or table_of ──> a lock table
//!                                                             figures in Units ──┘
//! SimulationFigures: JSON, or text with that table, latency bars, counters
//!                    many of them: a scaling table, or a Plot as SVG
//! ```

pub mod latency;
pub mod locks;
pub mod plot;
pub mod scaling;
pub mod simulation;
