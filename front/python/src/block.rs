//! A mapping as an array of bytes: NumPy arrays lie in it, and keep it alive.

use crate::error::raised;
use highwater::{Advice, Error, Mapping, Memory};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of paged memory. NumPy finds them by `__array_interface__`.
#[pyclass(frozen, module = "highwater._highwater")]
pub(crate) struct Block {
    mapping: Mutex<Mapping>,
    address: usize,
    len: usize,
}

impl Block {
    pub(crate) fn new(py: Python<'_>, memory: &Memory, len: usize) -> PyResult<Block> {
        let mut mapping = memory.map(len).map_err(|error| raised(py, &error))?;
        let address = mapping.as_mut_ptr().expose_provenance();
        Ok(Block { mapping: Mutex::new(mapping), address, len })
    }

    fn mapping(&self) -> MutexGuard<'_, Mapping> {
        self.mapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` without the interpreter's lock.
    fn checked<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Mapping) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        py.detach(|| act(&mut self.mapping())).map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl Block {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.len,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }

    /// Copies bytes in from an address of the caller's, `nbytes` of them.
    fn write(&self, py: Python<'_>, offset: usize, address: usize, nbytes: usize) -> PyResult<()> {
        let from = std::ptr::with_exposed_provenance(address);
        // SAFETY: the package passes address and length of an array that it keeps alive.
        let bytes: &[u8] = unsafe { slice::from_raw_parts(from, nbytes) };
        self.checked(py, |mapping| mapping.write_at(offset, bytes))
    }

    /// Copies bytes out.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, nbytes, |bytes| {
            self.checked(py, |mapping| mapping.read_at(offset, bytes))
        })
    }

    /// Sets bytes to zero and frees the whole pages among them.
    fn discard(&self, py: Python<'_>, start: usize, end: usize) -> PyResult<()> {
        self.checked(py, |mapping| mapping.discard(start..end))
    }

    /// Requests bytes that will be used soon.
    fn prefetch(&self, start: usize, end: usize) {
        self.mapping().prefetch(start..end);
    }

    /// Whether faults read ahead.
    fn read_ahead(&self, on: bool) {
        self.mapping().advise(if on { Advice::Detect } else { Advice::Random });
    }

    fn __len__(&self) -> usize {
        self.len
    }
}
