//! zstd on single pages, with contexts in memory of this crate.
//!
//! ```text
//! Zstd -- compressor, decompressor      a mapping each, with the context at its start
//! ```

use crate::sys::Mapping;
use crate::zram::content::{Corrupt, Page};
use highwater_units::PAGE_SIZE;
use zstd_sys::{
    ZSTD_CCtx, ZSTD_DCtx, ZSTD_compressCCtx, ZSTD_decompressDCtx,
    ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize, ZSTD_getCParams,
    ZSTD_initStaticCCtx, ZSTD_initStaticDCtx, ZSTD_isError,
};

/// The fastest of the regular levels: memory is short while a page is compressed.
const LEVEL: i32 = 1;

/// Contexts for compressing and decompressing.
pub(crate) struct Zstd {
    compressor: Mapping,
    decompressor: Mapping,
}

impl Zstd {
    /// Creates the contexts, which take memory at their first use.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn new() -> Result<Zstd, i32> {
        // SAFETY: both are pure calculations.
        let len = unsafe {
            let parameters = ZSTD_getCParams(LEVEL, PAGE_SIZE as u64, 0);
            ZSTD_estimateCCtxSize_usingCParams(parameters)
        };
        let compressor = Mapping::new(len)?;
        // SAFETY: memory of that length, aligned to pages, that lives as long as the context.
        let context = unsafe { ZSTD_initStaticCCtx(compressor.at(0).cast(), compressor.len()) };
        assert!(!context.is_null(), "zstd takes what it estimated");
        // SAFETY: a pure calculation.
        let decompressor = Mapping::new(unsafe { ZSTD_estimateDCtxSize() })?;
        // SAFETY: as above.
        let context = unsafe { ZSTD_initStaticDCtx(decompressor.at(0).cast(), decompressor.len()) };
        assert!(!context.is_null(), "zstd takes what it estimated");
        Ok(Zstd { compressor, decompressor })
    }

    /// Compresses a page; returns its length, or `None` if `output` is too small.
    pub(crate) fn compress(&mut self, page: &Page, output: &mut [u8]) -> Option<usize> {
        let context: *mut ZSTD_CCtx = self.compressor.at(0).cast();
        let (to, room) = (output.as_mut_ptr().cast(), output.len());
        // SAFETY: a context made by `new`, borrowed mutably, and two buffers of those lengths.
        let len =
            unsafe { ZSTD_compressCCtx(context, to, room, page.as_ptr().cast(), PAGE_SIZE, LEVEL) };
        succeeded(len)
    }

    /// Decompresses a page.
    pub(crate) fn decompress(&mut self, bytes: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let context: *mut ZSTD_DCtx = self.decompressor.at(0).cast();
        let (to, from) = (page.as_mut_ptr().cast(), bytes.as_ptr().cast());
        // SAFETY: as above.
        let len = unsafe { ZSTD_decompressDCtx(context, to, PAGE_SIZE, from, bytes.len()) };
        match succeeded(len) {
            Some(PAGE_SIZE) => Ok(()),
            Some(_) | None => Err(Corrupt),
        }
    }
}

/// A length returned by zstd; `None` if it is an error code.
fn succeeded(len: usize) -> Option<usize> {
    // SAFETY: a pure calculation.
    (unsafe { ZSTD_isError(len) } == 0).then_some(len)
}
