//! Counters, by name and by index.

use crate::access::{expect_data, place, text};
use crate::memory::{highwater_memory, own};
use crate::status::highwater_status::{HIGHWATER_ERROR_INVALID, HIGHWATER_ERROR_RANGE};
use crate::status::{Failure, highwater_status, status_of};
use highwater::Statistics;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

/// The names, each NUL-terminated.
fn names() -> &'static [CString] {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    NAMES.get_or_init(|| Statistics::names().filter_map(|name| CString::new(name).ok()).collect())
}

/// Stores the value of the counter called `name` in `*value`. Names are those of /proc/vmstat where
/// the kernel has the counter: "pgfault", "pgmajfault", "pswpin", "pswpout"; a page is 4 KiB.
///
/// # Errors
/// HIGHWATER_ERROR_INVALID: no counter has this name. HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `name` is NULL or NUL-terminated. `value` is NULL or has room for a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_counter(
    memory: *const highwater_memory,
    name: *const c_char,
    value: *mut u64,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let ask = || unsafe {
        let found = place(value, 0, "value")?;
        let (name, memory) = (text(name, "name")?, own(memory)?);
        let unknown =
            || Failure::new(HIGHWATER_ERROR_INVALID, format!("no counter is named '{name}'"));
        *found = memory.memory.statistics()?.get(name).ok_or_else(unknown)?;
        Ok(())
    };
    status_of(ask())
}

/// The number of counters.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_counter_count() -> usize {
    names().len()
}

/// The name of a counter, by its index from 0; NULL after the last counter. Indices may differ in
/// another version of the library. The string is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_counter_name(index: usize) -> *const c_char {
    names().get(index).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Stores the values of the first `count` counters in `values`, by index, all as of the same time.
///
/// # Errors
/// HIGHWATER_ERROR_RANGE: there are fewer than `count` counters. HIGHWATER_ERROR_FORKED,
/// HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `values` is NULL or has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_counters(
    memory: *const highwater_memory,
    values: *mut u64,
    count: usize,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let ask = || unsafe {
        expect_data(values, "values")?;
        let now = own(memory)?.memory.statistics()?;
        if count > names().len() {
            let what = format!("{count} counters are asked for: there are {}", names().len());
            return Err(Failure::new(HIGHWATER_ERROR_RANGE, what));
        }
        for (index, (_, value)) in now.iter().take(count).enumerate() {
            values.add(index).write(value);
        }
        Ok(())
    };
    status_of(ask())
}
