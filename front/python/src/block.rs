//! A mapping as an array of bytes: NumPy arrays lie in the mapping and keep it alive.
//!
//! ```text
//! Block -- Held   Memory: contents of its own      File: those of a file
//! ```

use crate::error::raised;
use highwater::{Advice, Error, FileAccess, FileMapping, Mapping, Memory};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::Path;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of paged memory. NumPy finds them by `__array_interface__`.
#[pyclass(frozen, weakref, module = "highwater._highwater")]
pub(crate) struct Block {
    held: Mutex<Held>,
    access: FileAccess,
    address: usize,
    len: usize,
}

/// The mapping that has the bytes.
enum Held {
    Memory(Mapping),
    File(FileMapping),
}

impl Held {
    fn mapping(&self) -> &Mapping {
        match self {
            Held::Memory(mapping) => mapping,
            Held::File(file) => file,
        }
    }

    fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        match self {
            Held::Memory(mapping) => mapping.write_at(offset, from),
            Held::File(file) => file.write_at(offset, from),
        }
    }

    /// Refused for files, whose contents stay. The package refuses such calls before they get here.
    fn discard(&mut self, range: std::ops::Range<usize>) -> Result<(), Error> {
        match self {
            Held::Memory(mapping) => mapping.discard(range),
            Held::File(_) => Err(Error::ReadOnly),
        }
    }

    fn sync(&mut self) -> Result<(), Error> {
        match self {
            Held::Memory(_) => Ok(()),
            Held::File(file) => file.sync(),
        }
    }
}

impl Block {
    pub(crate) fn new(py: Python<'_>, memory: &Memory, len: usize) -> PyResult<Block> {
        let mapping = memory.map(len).map_err(|error| raised(py, &error))?;
        Ok(Block::of(Held::Memory(mapping), FileAccess::ReadWrite))
    }

    /// A file of `nbytes` bytes or more, mapped in one of NumPy's modes `r`, `r+`, `w+`.
    pub(crate) fn of_file(
        py: Python<'_>,
        memory: &Memory,
        path: &Path,
        mode: &str,
        nbytes: usize,
    ) -> PyResult<Block> {
        let open = || match mode {
            "w+" => memory.create_file(path, nbytes),
            "r+" => {
                let mut file = memory.map_file(path, FileAccess::ReadWrite)?;
                if file.len() < nbytes {
                    file.resize(nbytes)?;
                }
                Ok(file)
            }
            _ => memory.map_file(path, FileAccess::Read),
        };
        let file = py.detach(open).map_err(|error| raised(py, &error))?;
        let access = file.access();
        Ok(Block::of(Held::File(file), access))
    }

    fn of(held: Held, access: FileAccess) -> Block {
        let (address, len) = (held.mapping().as_ptr().expose_provenance(), held.mapping().len());
        Block { held: Mutex::new(held), access, address, len }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` without the interpreter's lock.
    fn checked<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Held) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        py.detach(|| act(&mut self.held())).map_err(|error| raised(py, &error))
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
        interface.set_item("data", (self.address, self.access == FileAccess::Read))?;
        Ok(interface)
    }

    /// Copies `nbytes` bytes from an address of the caller into the block.
    fn write(&self, py: Python<'_>, offset: usize, address: usize, nbytes: usize) -> PyResult<()> {
        let from = std::ptr::with_exposed_provenance(address);
        // SAFETY: the package passes the address and the length of an array that it keeps alive.
        let bytes: &[u8] = unsafe { slice::from_raw_parts(from, nbytes) };
        self.checked(py, |held| held.write_at(offset, bytes))
    }

    /// Copies `nbytes` bytes out of the block.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        nbytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, nbytes, |bytes| {
            self.checked(py, |held| held.mapping().read_at(offset, bytes))
        })
    }

    /// Sets bytes to zero and frees the whole pages among them.
    fn discard(&self, py: Python<'_>, start: usize, end: usize) -> PyResult<()> {
        self.checked(py, |held| held.discard(start..end))
    }

    /// Writes the changes of a file to it, and makes them durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.checked(py, Held::sync)
    }

    /// Requests the pages of bytes that will be used soon.
    fn prefetch(&self, start: usize, end: usize) {
        self.held().mapping().prefetch(start..end);
    }

    /// Whether faults read ahead.
    fn read_ahead(&self, on: bool) {
        self.held().mapping().advise(if on { Advice::Detect } else { Advice::Random });
    }

    /// Whether the bytes are those of a file.
    fn is_file(&self) -> bool {
        matches!(*self.held(), Held::File(_))
    }

    fn __len__(&self) -> usize {
        self.len
    }
}
