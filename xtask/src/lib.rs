//! What the repository checks about itself.
#![forbid(unsafe_code)]

pub mod kernels;
pub mod soak;
pub mod tidy;
mod tool;

pub use tool::Trouble;
