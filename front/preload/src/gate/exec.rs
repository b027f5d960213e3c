//! The strings of a new program: copies outside the range.
//!
//! ```text
//! path, arguments, environment ---> [pointers ... | strings ...], in the thread's scratch memory
//! ```
//! A child of vfork uses its parent's thread-local variables, and its memory, which therefore must
//! not leak when the child becomes another program: a thread keeps its scratch memory, and uses it
//! again.

use super::access;
use super::bounce::is_left;
use super::copied::{Arguments, PATH_MAX};
use super::page;
use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use std::cell::Cell;
use std::ptr;

/// The longest string that the kernel takes (MAX_ARG_STRLEN).
const STRING_MAX: usize = 32 * PAGE_SIZE;
/// The most strings: with their pointers they fill what the kernel takes.
const STRINGS_MAX: usize = 1 << 20;

thread_local! {
    /// The scratch memory of this thread, and of a call within another one's: address and length.
    static SCRATCH: [Cell<(*mut u8, usize)>; 2] =
        const { [const { Cell::new((ptr::null_mut(), 0)) }; 2] };
    /// A stack address of the call that uses the first; 0: none does. A child of vfork leaves it.
    static USER: Cell<usize> = const { Cell::new(0) };
}

/// Memory of this thread for copies.
struct Scratch {
    base: *mut u8,
    used: usize,
}

impl Scratch {
    /// Room for `len` bytes.
    fn new(len: usize, index: usize) -> Result<Scratch, i32> {
        SCRATCH.with(|scratch| {
            let (mut base, has) = scratch[index].get();
            if len > has {
                let len = len.next_multiple_of(PAGE_SIZE);
                free(&scratch[index]);
                base = sys::map_anonymous(len).map_err(|_| libc::ENOMEM)?;
                scratch[index].set((base, len));
            }
            Ok(Scratch { base, used: 0 })
        })
    }

    fn take(&mut self, len: usize) -> *mut u8 {
        let at = self.used;
        self.used += len.next_multiple_of(8);
        // SAFETY: `new` was asked for the sum of all pieces.
        unsafe { self.base.add(at) }
    }

    /// Copies a string of `len` bytes; `None`: a page is lost.
    fn string(&mut self, from: usize, len: usize) -> Option<usize> {
        let to = self.take(len + 1);
        // SAFETY: a piece of that length.
        unsafe {
            to.add(len).write(0);
            (access::copy_in(to, from, len) == len).then_some(to as usize)
        }
    }

    /// Copies strings and their pointers; `None`: a page is lost.
    fn strings(&mut self, from: &Strings) -> Option<usize> {
        if from.array == 0 {
            return Some(0);
        }
        let pointers = self.take((from.count + 1) * size_of::<usize>()).cast::<usize>();
        for index in 0..from.count {
            let string = from.at(index)?;
            let copy = self.string(string, len_of(string)?)?;
            // SAFETY: a piece for all pointers and a null.
            unsafe { pointers.add(index).write(copy) };
        }
        // SAFETY: as above.
        unsafe { pointers.add(from.count).write(0) };
        Some(pointers as usize)
    }
}

fn len_of(string: usize) -> Option<usize> {
    access::string_len(string, STRING_MAX)
}

/// Strings, ended by a null pointer.
struct Strings {
    array: usize,
    count: usize,
    /// Bytes for copies of them.
    len: usize,
}

impl Strings {
    fn at(&self, index: usize) -> Option<usize> {
        access::read(self.array + index * size_of::<usize>())
    }

    fn of(array: usize) -> Option<Strings> {
        let mut strings = Strings { array, count: 0, len: size_of::<usize>() };
        while array != 0 && strings.count < STRINGS_MAX {
            match strings.at(strings.count)? {
                0 => break,
                string => {
                    strings.len += size_of::<usize>() + len_of(string)? + 8;
                    strings.count += 1;
                }
            }
        }
        Some(strings)
    }
}

fn free(scratch: &Cell<(*mut u8, usize)>) {
    let (base, has) = scratch.replace((ptr::null_mut(), 0));
    if has > 0 {
        // SAFETY: mapped by `Scratch::new`, and no longer used.
        unsafe { sys::unmap(base, has) };
    }
}

/// Frees the memory of a thread that ends.
pub(super) fn forget() {
    SCRATCH.with(|scratch| scratch.iter().for_each(free));
}

/// Calls `act` with copies of a path, arguments and environment.
///
/// # Errors
/// EFAULT: they cannot be read; ENOMEM.
pub(crate) fn with_copies<R>(
    [path, arguments, environment]: [usize; 3],
    act: impl FnOnce([usize; 3]) -> R,
) -> Result<R, i32> {
    let path_len = match path {
        0 => 0,
        path => access::string_len(path, PATH_MAX).ok_or(libc::EFAULT)?,
    };
    let arguments = Strings::of(arguments).ok_or(libc::EFAULT)?;
    let environment = Strings::of(environment).ok_or(libc::EFAULT)?;
    let len = path_len + 16 + arguments.len + environment.len;
    let (here, user) = ((&raw const len) as usize, USER.get());
    // A call within another one is further down the stack, and may copy what that one has made.
    let is_first = user == 0 || is_left(user, here);
    let mut scratch = Scratch::new(len, usize::from(!is_first))?;
    let path = if path == 0 { Some(0) } else { scratch.string(path, path_len) };
    let path = path.ok_or(libc::EFAULT)?;
    let arguments = scratch.strings(&arguments).ok_or(libc::EFAULT)?;
    let environment = scratch.strings(&environment).ok_or(libc::EFAULT)?;
    if is_first {
        USER.set(here);
    }
    let made = act([path, arguments, environment]);
    if is_first {
        USER.set(0);
    }
    Ok(made)
}

/// execve(2) and execveat(2).
pub(super) fn make(number: usize, mut arguments: Arguments) -> isize {
    let first = usize::from(number != libc::SYS_execve as usize);
    let strings = [arguments[first], arguments[first + 1], arguments[first + 2]];
    let made = with_copies(strings, |copies| {
        arguments[first..first + 3].copy_from_slice(&copies);
        // SAFETY: the program's call, with copies.
        unsafe { page::call(number, arguments) }
    });
    made.unwrap_or_else(|error| -(error as isize))
}
