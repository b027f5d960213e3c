//! Codes of errors, and the message of the last error of each thread.

use highwater::Error;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

/// The outcome of a call. Codes keep their numbers; later versions add codes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum highwater_status {
    /// The call did what it says.
    HIGHWATER_OK = 0,
    /// A pointer that must not be NULL is NULL.
    HIGHWATER_ERROR_NULL = 1,
    /// An argument has no meaning: a size of 0, an advice that does not exist.
    HIGHWATER_ERROR_INVALID = 2,
    /// A setting is refused; the message says what is wrong and what is right.
    HIGHWATER_ERROR_SETTING = 3,
    /// A swap device cannot be opened.
    HIGHWATER_ERROR_DEVICE = 4,
    /// The system does not permit userfaultfd, or lacks it: `highwater doctor` says what to change.
    HIGHWATER_ERROR_USERFAULTFD = 5,
    /// The system refuses a thread or addresses.
    HIGHWATER_ERROR_SYSTEM = 6,
    /// Memory and swap together cannot hold that much: free something, raise the budget, or give
    /// larger swap devices.
    HIGHWATER_ERROR_FULL = 7,
    /// No free range of addresses is long enough: free other mappings, or allocate large mappings
    /// first.
    HIGHWATER_ERROR_FRAGMENTED = 8,
    /// A page cannot be brought in, since no frame can be freed: swap is full, or refuses writes.
    HIGHWATER_ERROR_OUT_OF_MEMORY = 9,
    /// Half of the budget is pinned, and no more may be; or a mapping already has 4096 pins.
    HIGHWATER_ERROR_PINNED = 10,
    /// A swap device or file could not read a page; its contents may be lost.
    HIGHWATER_ERROR_READ = 11,
    /// A swap device or file could not write a page, which stays in memory.
    HIGHWATER_ERROR_WRITE = 12,
    /// The memory belongs to the parent of this process: a forked child has none of it.
    HIGHWATER_ERROR_FORKED = 13,
    /// The range ends beyond the end of the mapping, or there are fewer counters.
    HIGHWATER_ERROR_RANGE = 14,
    /// The new budget was not reached: pages cannot be evicted for now.
    HIGHWATER_ERROR_BUDGET = 15,
    /// The address is in no mapping of this memory, or must be the start of a mapping and is not.
    HIGHWATER_ERROR_NOT_MAPPED = 16,
    /// A page that the call affects is pinned: call highwater_unpin first.
    HIGHWATER_ERROR_BUSY = 17,
    /// A file cannot be opened, locked, or changed in length.
    HIGHWATER_ERROR_FILE = 18,
    /// The file has another mapping, in this or another process, and one of the two is for
    /// writing.
    HIGHWATER_ERROR_IN_USE = 19,
    /// The file is mapped for reading only.
    HIGHWATER_ERROR_READ_ONLY = 20,
    /// Too many files are mapped: free one first.
    HIGHWATER_ERROR_FILES = 21,
}

use highwater_status::*;

/// All codes, with the names that highwater_status_name returns.
const NAMES: [(highwater_status, &CStr); 22] = [
    (HIGHWATER_OK, c"HIGHWATER_OK"),
    (HIGHWATER_ERROR_NULL, c"HIGHWATER_ERROR_NULL"),
    (HIGHWATER_ERROR_INVALID, c"HIGHWATER_ERROR_INVALID"),
    (HIGHWATER_ERROR_SETTING, c"HIGHWATER_ERROR_SETTING"),
    (HIGHWATER_ERROR_DEVICE, c"HIGHWATER_ERROR_DEVICE"),
    (HIGHWATER_ERROR_USERFAULTFD, c"HIGHWATER_ERROR_USERFAULTFD"),
    (HIGHWATER_ERROR_SYSTEM, c"HIGHWATER_ERROR_SYSTEM"),
    (HIGHWATER_ERROR_FULL, c"HIGHWATER_ERROR_FULL"),
    (HIGHWATER_ERROR_FRAGMENTED, c"HIGHWATER_ERROR_FRAGMENTED"),
    (HIGHWATER_ERROR_OUT_OF_MEMORY, c"HIGHWATER_ERROR_OUT_OF_MEMORY"),
    (HIGHWATER_ERROR_PINNED, c"HIGHWATER_ERROR_PINNED"),
    (HIGHWATER_ERROR_READ, c"HIGHWATER_ERROR_READ"),
    (HIGHWATER_ERROR_WRITE, c"HIGHWATER_ERROR_WRITE"),
    (HIGHWATER_ERROR_FORKED, c"HIGHWATER_ERROR_FORKED"),
    (HIGHWATER_ERROR_RANGE, c"HIGHWATER_ERROR_RANGE"),
    (HIGHWATER_ERROR_BUDGET, c"HIGHWATER_ERROR_BUDGET"),
    (HIGHWATER_ERROR_NOT_MAPPED, c"HIGHWATER_ERROR_NOT_MAPPED"),
    (HIGHWATER_ERROR_BUSY, c"HIGHWATER_ERROR_BUSY"),
    (HIGHWATER_ERROR_FILE, c"HIGHWATER_ERROR_FILE"),
    (HIGHWATER_ERROR_IN_USE, c"HIGHWATER_ERROR_IN_USE"),
    (HIGHWATER_ERROR_READ_ONLY, c"HIGHWATER_ERROR_READ_ONLY"),
    (HIGHWATER_ERROR_FILES, c"HIGHWATER_ERROR_FILES"),
];

/// Why a call is refused.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: highwater_status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: highwater_status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match error {
            Error::Setting(_) => HIGHWATER_ERROR_SETTING,
            Error::Device(_) => HIGHWATER_ERROR_DEVICE,
            Error::Userfaultfd(_) => HIGHWATER_ERROR_USERFAULTFD,
            Error::System(_) => HIGHWATER_ERROR_SYSTEM,
            Error::Full { .. } => HIGHWATER_ERROR_FULL,
            Error::Addresses { .. } => HIGHWATER_ERROR_FRAGMENTED,
            Error::OutOfMemory => HIGHWATER_ERROR_OUT_OF_MEMORY,
            Error::Pinned { .. } => HIGHWATER_ERROR_PINNED,
            Error::Read(_) => HIGHWATER_ERROR_READ,
            Error::Write(_) => HIGHWATER_ERROR_WRITE,
            Error::File { .. } => HIGHWATER_ERROR_FILE,
            Error::InUse { .. } => HIGHWATER_ERROR_IN_USE,
            Error::ReadOnly => HIGHWATER_ERROR_READ_ONLY,
            Error::Files { .. } => HIGHWATER_ERROR_FILES,
            Error::Forked => HIGHWATER_ERROR_FORKED,
            Error::Range { .. } => HIGHWATER_ERROR_RANGE,
            Error::Budget { .. } => HIGHWATER_ERROR_BUDGET,
        };
        Failure::new(status, error.to_string())
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The code of an outcome; stores the message of a failure as the thread's last message.
pub(crate) fn status_of(outcome: Result<(), Failure>) -> highwater_status {
    let Err(Failure { status, message }) = outcome else { return HIGHWATER_OK };
    let line = message.replace(['\n', '\0'], " ");
    // While the destructors of an ending thread run, the message may no longer exist.
    let _ = MESSAGE.try_with(|kept| kept.replace(CString::new(line).unwrap_or_default()));
    status
}

/// The message of the last failed call of this thread: one line, without a newline; "" if no call
/// has failed. Calls that succeed leave the message unchanged.
///
/// The string belongs to the library and is valid until the next failed call of this thread, or
/// until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_error_message() -> *const c_char {
    MESSAGE.try_with(|kept| kept.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a code, such as "HIGHWATER_ERROR_FULL"; "unknown" for other numbers. The string is
/// valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_status_name(status: c_int) -> *const c_char {
    let named = NAMES.iter().find(|(known, _)| *known as c_int == status);
    named.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// The version of the library, such as "0.1.0". The version of the header is HIGHWATER_VERSION.
/// The string is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn highwater_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_the_code() {
        for (number, (status, name)) in NAMES.iter().enumerate() {
            assert_eq!(*status as usize, number);
            assert_eq!(Ok(format!("{status:?}").as_str()), name.to_str());
        }
    }

    #[test]
    fn a_message_is_one_line_of_its_thread() {
        let message = || {
            // SAFETY: the text of this thread, which is copied.
            unsafe { CStr::from_ptr(highwater_error_message()) }.to_owned()
        };
        assert_eq!(message(), c"".to_owned());
        let failure = Failure::new(HIGHWATER_ERROR_BUSY, "two\nlines\0");
        assert_eq!(status_of(Err(failure)), HIGHWATER_ERROR_BUSY);
        assert_eq!(status_of(Ok(())), HIGHWATER_OK);
        assert_eq!(message(), c"two lines ".to_owned());
        let other = std::thread::spawn(move || message().is_empty());
        assert_eq!(other.join().ok(), Some(true));
    }
}
