//! The C library: its header, and C programs built with an installed tree.

mod common;
mod header;
mod installed;
mod start;
