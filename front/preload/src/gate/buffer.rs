//! Buffers of calls that take an array of them.

/// The most buffers of a call.
pub(super) const BUFFERS_MAX: usize = libc::UIO_MAXIOV as usize;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    pub(super) base: usize,
    pub(super) len: usize,
}
