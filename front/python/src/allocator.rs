//! NumPy's data allocator on paged memory (NEP 49).
//!
//! ```text
//! capsule "mem_handler" -- PyDataMem_Handler -- ctx: Allocator -- Memory
//!                                                            |- mappings, by address
//!                                                            \- small ones: the C library's malloc
//! ```
//! Each array keeps the capsule of the handler that allocated its data, so an array may outlive the
//! context in which it was made. Locking: `mappings`. While it is held, the only locks taken are
//! those of the memory.

use crate::memory::Memory;
use highwater::Mapping;
use libc::{c_char, c_void};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Data of this length and more is paged. Shorter data is not, since each mapping takes whole pages
/// and a table entry.
const PAGED_MIN: usize = 64 << 10;
const PAGE: usize = 4096;

/// Indices into the table of NumPy's C API, which never change.
const API_SET_HANDLER: usize = 304;
const NAME: *const c_char = c"mem_handler".as_ptr();

/// `PyDataMem_Handler` of NumPy's ndarraytypes.h, version 1.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    ctx: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

struct Allocator {
    memory: highwater::Memory,
    mappings: Mutex<HashMap<usize, Mapping>>,
}

/// The handler of a memory, for [`set_handler`].
#[pyfunction]
pub(crate) fn handler(py: Python<'_>, memory: &Bound<'_, Memory>) -> PyResult<Py<PyAny>> {
    let memory = memory.get().0.clone();
    let allocator = Box::new(Allocator { memory, mappings: Mutex::new(HashMap::new()) });
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"highwater") {
        *to = *from as c_char;
    }
    let ctx = Box::into_raw(allocator).cast();
    let handler = Handler { name, version: 1, ctx, malloc, calloc, realloc, free };
    let handler = Box::into_raw(Box::new(handler));
    // SAFETY: the capsule owns the handler, which `destroy` frees.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler.cast(), NAME, Some(destroy));
        Bound::from_owned_ptr_or_err(py, capsule).map(Bound::unbind)
    }
}

/// Sets the handler of this context (`None`: NumPy's own); returns the previous handler. `api` is
/// NumPy's table of functions.
#[pyfunction]
pub(crate) fn set_handler(
    py: Python<'_>,
    api: &Bound<'_, PyAny>,
    handler: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    // SAFETY: the capsule's pointer is NumPy's table, in which this place is of this type. The
    // function takes a reference of its own.
    unsafe {
        let table = ffi::PyCapsule_GetPointer(api.as_ptr(), ptr::null()).cast::<*const c_void>();
        if table.is_null() {
            return Err(PyErr::take(py)
                .unwrap_or_else(|| PyValueError::new_err("no table of NumPy's functions")));
        }
        type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
        let function = *table.add(API_SET_HANDLER);
        if function.is_null() {
            return Err(PyRuntimeError::new_err("NumPy is older than 1.22"));
        }
        let set: SetHandler = std::mem::transmute(function);
        let before = set(handler.as_ref().map_or(ptr::null_mut(), Py::as_ptr));
        Bound::from_owned_ptr_or_err(py, before).map(Bound::unbind)
    }
}

/// Frees the handler: its last array has been freed.
///
/// # Safety
/// `capsule` was made by [`handler`].
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule was made by `handler`.
    unsafe {
        let handler = ffi::PyCapsule_GetPointer(capsule, NAME).cast::<Handler>();
        let handler = Box::from_raw(handler);
        drop(Box::from_raw(handler.ctx.cast::<Allocator>()));
    }
}

impl Allocator {
    fn mappings(&self) -> MutexGuard<'_, HashMap<usize, Mapping>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mapping of zeros; null if it is refused: NumPy then raises MemoryError.
    fn map(&self, len: usize) -> *mut c_void {
        let Ok(mut mapping) = self.memory.map(len) else { return ptr::null_mut() };
        let address = mapping.as_mut_ptr();
        self.mappings().insert(address.addr(), mapping);
        address.cast()
    }

    /// The mapping that begins at an address; `None`: the block is from the C library.
    fn take(&self, address: *mut c_void) -> Option<Mapping> {
        let may_be = address.addr().is_multiple_of(PAGE);
        may_be.then(|| self.mappings().remove(&address.addr())).flatten()
    }

    /// Changes the length of a mapping. If that is refused, returns null, and the mapping is
    /// unchanged.
    fn resize(&self, mut mapping: Mapping, len: usize) -> *mut c_void {
        let resized = mapping.resize(len);
        let address = mapping.as_mut_ptr();
        self.mappings().insert(address.addr(), mapping);
        resized.map_or(ptr::null_mut(), |()| address.cast())
    }
}

/// # Safety
/// `ctx` is the context of a handler.
unsafe fn allocator<'a>(ctx: *mut c_void) -> &'a Allocator {
    // SAFETY: the allocator lives as long as the handler's capsule.
    unsafe { &*ctx.cast::<Allocator>() }
}

/// As malloc(3).
///
/// # Safety
/// `ctx` is the context of a handler; a block is one that it allocated.
unsafe extern "C" fn malloc(ctx: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: NumPy's context and a length.
    unsafe { if len < PAGED_MIN { libc::malloc(len) } else { allocator(ctx).map(len) } }
}

/// As calloc(3).
///
/// # Safety
/// `ctx` is the context of a handler; a block is one that it allocated.
unsafe extern "C" fn calloc(ctx: *mut c_void, count: usize, len: usize) -> *mut c_void {
    let Some(all) = count.checked_mul(len) else { return ptr::null_mut() };
    // SAFETY: NumPy's context and a length.
    unsafe { if all < PAGED_MIN { libc::calloc(count, len) } else { allocator(ctx).map(all) } }
}

/// As realloc(3).
///
/// # Safety
/// `ctx` is the context of a handler; a block is one that it allocated.
unsafe extern "C" fn realloc(ctx: *mut c_void, old: *mut c_void, len: usize) -> *mut c_void {
    // SAFETY: NumPy's context, and a block that it allocated.
    unsafe {
        let allocator = allocator(ctx);
        match allocator.take(old) {
            Some(mapping) => allocator.resize(mapping, len.max(1)),
            None if len < PAGED_MIN => libc::realloc(old, len),
            None => {
                let paged = allocator.map(len);
                if !paged.is_null() {
                    let kept = libc::malloc_usable_size(old).min(len);
                    ptr::copy_nonoverlapping(old.cast::<u8>(), paged.cast::<u8>(), kept);
                    libc::free(old);
                }
                paged
            }
        }
    }
}

/// As free(3).
///
/// # Safety
/// `ctx` is the context of a handler; a block is one that it allocated.
unsafe extern "C" fn free(ctx: *mut c_void, block: *mut c_void, _: usize) {
    // SAFETY: NumPy's context, and a block that it allocated.
    unsafe {
        match allocator(ctx).take(block) {
            Some(mapping) => drop(mapping),
            None => libc::free(block),
        }
    }
}
