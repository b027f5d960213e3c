//! The settings of a memory, by name.

use crate::access::{exclusive, text};
use crate::status::highwater_status::HIGHWATER_ERROR_SETTING;
use crate::status::{Failure, highwater_status, status_of};
use highwater::Builder;
use std::ffi::c_char;
use std::str::FromStr;

/// Settings for highwater_open. Only one thread may use them at a time.
#[derive(Default)]
pub struct highwater_options {
    builder: Builder,
    /// The first setting that was refused.
    refused: Option<Failure>,
}

/// The names of settings.
const NAMES: &str = "memory, memory-max, swap, seal, readahead, kswapd, faults, large-pages";

impl highwater_options {
    /// The settings.
    ///
    /// # Errors
    /// A setting was refused when it was set.
    pub(crate) fn builder(&self) -> Result<Builder, Failure> {
        self.refused.clone().map_or(Ok(self.builder.clone()), Err)
    }

    /// Sets a value; keeps the first refusal.
    fn set(
        &mut self,
        name: Result<&str, Failure>,
        value: Result<&str, Failure>,
    ) -> Result<(), Failure> {
        match name.and_then(|name| applied(self.builder.clone(), name, value?)) {
            Ok(builder) => {
                self.builder = builder;
                Ok(())
            }
            Err(failure) => {
                self.refused.get_or_insert_with(|| failure.clone());
                Err(failure)
            }
        }
    }
}

fn applied(builder: Builder, name: &str, value: &str) -> Result<Builder, Failure> {
    Ok(match name {
        "memory" => builder.memory(value),
        "memory-max" => builder.memory_max(value),
        "swap" => builder.swap(value),
        "seal" => builder.seal(choice(name, value)?),
        "readahead" => builder.readahead(value),
        "kswapd" => builder.kswapd(value),
        "faults" => builder.faults(choice(name, value)?),
        "large-pages" => builder.large_pages(choice(name, value)?),
        _ => return Err(refused(format!("no setting is named '{name}': {NAMES}"))),
    })
}

fn choice<T: FromStr<Err = String>>(name: &str, value: &str) -> Result<T, Failure> {
    value.parse().map_err(|what| refused(format!("{name}: {what}")))
}

fn refused(message: String) -> Failure {
    Failure::new(HIGHWATER_ERROR_SETTING, message)
}

/// Makes settings, all of them at their defaults. The caller frees them with
/// highwater_options_free. Never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_options_new() -> *mut highwater_options {
    Box::into_raw(Box::default())
}

/// Frees settings; does nothing if `options` is NULL. Memories opened with the settings are not
/// affected.
///
/// # Safety
/// `options` is NULL, or was made by highwater_options_new and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_options_free(options: *mut highwater_options) {
    if !options.is_null() {
        // SAFETY: the box of `highwater_options_new`.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Sets a value, given as text. Names and values are those of the options of `highwater run`, with
/// two exceptions: "memory" limits pages alone, as `--paged` does there, and "readahead" is a key
/// of `highwater ctl`:
///
/// - "memory": the budget for pages in memory, "256M" or a number of bytes, 4 MiB or more. The
///   manager's tables, some 1% of the budget, and swap devices in memory come on top. Default: half
///   of the available memory.
/// - "memory-max": the highest budget that highwater_set_budget may set. Default: twice "memory".
/// - "swap": adds a device: "dir:/var/tmp:4G", "zram:1G", "tier:zram:1G+dir:/var/tmp:8G". Default:
///   an unnamed file in $TMPDIR, /var/tmp or /tmp, as large as half of the free space.
/// - "seal": "on" or "off": whether swap files are encrypted and authenticated. Default: on.
/// - "readahead": the largest number of pages that a fault of a sequential stream reads, "1" to
///   "16". Default: 16.
/// - "kswapd": the number of kswapd threads, which free memory in the background, "1" to "16" or
///   "auto". Default: 1.
/// - "faults": the threads that serve page faults, "handlers" or "in-thread". Default: handlers
///   where they can also serve the faults of system calls (highwater_serves_system_calls), else
///   in-thread.
/// - "large-pages": "on" or "off": whether aligned blocks of 2 MiB are brought in and evicted as a
///   whole. Default: off.
///
/// `name` and `value` are copied. If a setting is refused, here or in highwater_open, then
/// highwater_open fails with the message of that refusal: a caller may check highwater_open only.
///
/// # Errors
/// HIGHWATER_ERROR_SETTING, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `options` is NULL or was made by highwater_options_new; no other thread uses it. `name` and
/// `value` are NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_options_set(
    options: *mut highwater_options,
    name: *const c_char,
    value: *const c_char,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let set =
        || unsafe { exclusive(options, "options")?.set(text(name, "name"), text(value, "value")) };
    status_of(set())
}

/// Sets a value that is a number: of bytes for "memory" and "memory-max", of pages for "readahead",
/// of threads for "kswapd". Otherwise the same as highwater_options_set.
///
/// # Errors
/// HIGHWATER_ERROR_SETTING, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `options` is NULL or was made by highwater_options_new; no other thread uses it. `name` is NULL
/// or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_options_set_number(
    options: *mut highwater_options,
    name: *const c_char,
    value: u64,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let set = || unsafe {
        let options = exclusive(options, "options")?;
        options.set(text(name, "name"), Ok(value.to_string().as_str()))
    };
    status_of(set())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_kept() {
        let mut options = highwater_options::default();
        assert!(options.set(Ok("memory"), Ok("16M")).is_ok() && options.builder().is_ok());
        for (name, value, part) in [
            ("memroy", "1", "no setting is named 'memroy': memory, memory-max"),
            ("seal", "maybe", "seal: 'maybe' is neither on nor off"),
            ("faults", "mine", "faults: "),
            ("large-pages", "2", "large-pages: "),
        ] {
            let failure = options.set(Ok(name), Ok(value)).expect_err("refused");
            assert_eq!(failure.status, HIGHWATER_ERROR_SETTING);
            assert!(failure.message.starts_with(part), "{}", failure.message);
        }
        assert!(options.set(Ok("kswapd"), Ok("2")).is_ok());
        let kept = options.builder().err().map(|failure| failure.message);
        assert!(kept.is_some_and(|message| message.contains("memroy")));
    }
}
