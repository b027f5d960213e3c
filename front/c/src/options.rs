//! The settings of a memory, by name.

use crate::access::{exclusive, text};
use crate::status::highwater_status::HIGHWATER_ERROR_SETTING;
use crate::status::{Failure, highwater_status, status_of};
use highwater::Builder;
use std::ffi::c_char;
use std::str::FromStr;

/// Settings for highwater_open. One thread uses it at a time.
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

/// Makes settings, all of them at their defaults. The caller frees them by highwater_options_free.
/// Never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_options_new() -> *mut highwater_options {
    Box::into_raw(Box::default())
}

/// Frees settings; NULL does nothing. Memories opened with them are not affected.
///
/// # Safety
/// `options` is NULL, or was made by highwater_options_new and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_options_free(options: *mut highwater_options) {
    if !options.is_null() {
        // SAFETY: the box of `highwater_options_new`.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// Sets a value, as text. Names and values are those of options of `highwater run`, but "memory" is
/// what `--paged` is there, pages alone, and "readahead" is a key of `highwater ctl`:
///
/// - "memory": the budget for pages in memory, "256M" or bytes, 4 MiB or more; tables of the
///   manager, some 1% of it, and swap in memory come on top. Default: half of what is available.
/// - "memory-max": the highest budget that highwater_set_budget may set. Default: twice "memory".
/// - "swap": adds a device: "dir:/var/tmp:4G", "zram:1G", "tier:zram:1G+dir:/var/tmp:8G". Default:
///   a file without a name in $TMPDIR or /var/tmp, of half of the free space.
/// - "seal": "on" or "off": whether swap files are encrypted and authenticated. Default: on.
/// - "readahead": the pages that a fault of a sequential stream reads at most, "1" to "16".
///   Default: 16.
/// - "kswapd": threads that free memory in the background, "1" to "16" or "auto". Default: 1.
/// - "faults": the threads that serve page faults, "handlers" or "in-thread". Default: handlers
///   where they can serve system calls too (highwater_serves_system_calls).
/// - "large-pages": "on" or "off": whether blocks of 2 MiB come and go as a whole. Default: off.
///
/// The texts are copied. A setting that is refused, here or in highwater_open, makes highwater_open
/// fail with its message: a caller may check there only.
///
/// # Errors
/// HIGHWATER_ERROR_SETTING, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `options` is NULL or made by highwater_options_new; no other thread uses it. `name` and `value`
/// are NULL or end with a 0.
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
/// of threads for "kswapd". As highwater_options_set otherwise.
///
/// # Errors
/// HIGHWATER_ERROR_SETTING, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `options` is NULL or made by highwater_options_new; no other thread uses it. `name` is NULL or
/// ends with a 0.
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
