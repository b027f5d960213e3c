//! A memory, for Python.

use crate::block::Block;
use crate::error::raised;
use highwater::{Builder, Error, FaultThreads, LargePages};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

/// Paged memory of this process.
#[pyclass(frozen, module = "highwater._highwater")]
pub(crate) struct Memory(pub(crate) highwater::Memory);

#[pymethods]
impl Memory {
    /// Sizes and numbers are text, as on the command line; None means the default.
    #[new]
    #[pyo3(signature = (memory=None, swap=Vec::new(), memory_max=None, kswapd=None, faults=None,
                        large_pages=None))]
    fn new(
        py: Python<'_>,
        memory: Option<String>,
        swap: Vec<String>,
        memory_max: Option<String>,
        kswapd: Option<String>,
        faults: Option<String>,
        large_pages: Option<String>,
    ) -> PyResult<Memory> {
        let build = || {
            let mut builder = swap.into_iter().fold(highwater::Memory::builder(), Builder::swap);
            builder = memory.into_iter().fold(builder, Builder::memory);
            builder = memory_max.into_iter().fold(builder, Builder::memory_max);
            builder = kswapd.into_iter().fold(builder, Builder::kswapd);
            if let Some(text) = faults {
                builder = builder.faults(choice::<FaultThreads>("faults", &text)?);
            }
            if let Some(text) = large_pages {
                builder = builder.large_pages(choice::<LargePages>("large_pages", &text)?);
            }
            builder.build()
        };
        py.detach(build).map(Memory).map_err(|error| raised(py, &error))
    }

    /// Adds a mapping of `nbytes` bytes.
    fn block(&self, py: Python<'_>, nbytes: usize) -> PyResult<Block> {
        Block::new(py, &self.0, nbytes)
    }

    /// Maps a file: `mode` is r, r+ or w+. With r+ a file of fewer than `nbytes` bytes is made
    /// `nbytes` long; with w+ the contents of the file become `nbytes` zeros.
    fn map_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        nbytes: usize,
    ) -> PyResult<Block> {
        Block::of_file(py, &self.0, &path, mode, nbytes)
    }

    /// The budget in bytes.
    fn budget(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.budget().map_err(|error| raised(py, &error))
    }

    /// Changes the budget; waits until the pages above it have been evicted.
    fn set_budget(&self, py: Python<'_>, size: String) -> PyResult<()> {
        py.detach(|| self.0.set_budget(size)).map_err(|error| raised(py, &error))
    }

    /// The number of bytes that further mappings may have.
    fn left(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.left().map_err(|error| raised(py, &error))
    }

    /// All counters by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.0.statistics().map_err(|error| raised(py, &error))?;
        let counters = PyDict::new(py);
        statistics.iter().try_for_each(|(name, value)| counters.set_item(name, value))?;
        Ok(counters)
    }

    /// Whether system calls accept pointers into arrays.
    fn serves_system_calls(&self) -> bool {
        self.0.serves_system_calls()
    }

    /// The threads that serve faults: `handlers` or `in-thread`.
    fn fault_threads(&self) -> String {
        self.0.fault_threads().to_string()
    }
}

fn choice<T: std::str::FromStr<Err = String>>(name: &str, text: &str) -> Result<T, Error> {
    text.parse().map_err(|what| Error::Setting(format!("{name}: {what}")))
}
