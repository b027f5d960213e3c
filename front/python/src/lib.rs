//! The extension module of the Python package `highwater`: memories, blocks of them, and NumPy's
//! allocator on them. The public functions are in `python/highwater/__init__.py`; the functions for
//! files use `python/highwater/_memmap.py`.
//!
//! ```text
//! Memory   (memory.rs)  settings, budget, counters
//!  |- Block (block.rs)  a mapping, as an array of bytes
//!  '- handler, set_handler (allocator.rs)  NumPy's data allocator (NEP 49)
//! error.rs  each error as the Python exception of its name
//! ```
//! Locking: the interpreter's lock is released while a call waits for pages.

mod allocator;
mod block;
mod error;
mod memory;

use pyo3::pymodule;

/// The extension module.
#[pymodule]
mod _highwater {
    #[pymodule_export]
    use super::allocator::{handler, set_handler};
    #[pymodule_export]
    use super::block::Block;
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
