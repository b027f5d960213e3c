//! What the repository checks about itself.
#![forbid(unsafe_code)]

pub mod kernels;
pub mod tidy;
