//! C library functions that programs call often: with paged buffers they get copies without a
//! signal.
//!
//! They go on in the C library, so that a thread can be cancelled in them. Other buffers do not
//! come here: the functions jump to the next ones of their names.

use super::copied::Transfer;
use super::range::is_paged;
use super::state::is_on;
use super::table::Argument::{self, In, InOut, Int, Number, Out};
use super::table::Len::{At, Bytes, Items, Of, Result, ResultItems};
use crate::errno::{errno, set_errno};
use crate::next::{Next, looks};
use highwater_os::helper;
use std::mem::transmute;

/// A function of the C library; it ignores arguments that it does not have.
type Function = extern "C-unwind" fn(usize, usize, usize, usize, usize, usize) -> isize;

/// Defines functions: which argument is the pointer that decides, how a call may be split, what its
/// arguments are, and the type of its result.
macro_rules! hot {
    ($($name:ident: $at:literal, $way:ident, [$($kind:expr),*] -> $result:ty;)*) => {
        /// Looks the next functions up when the library is loaded.
        pub(super) fn learn() {
            $($name::NEXT.learn();)*
        }

        $(mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            const KINDS: &[Argument] = &[$($kind),*];

            extern "C" fn look(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
                f: usize,
            ) -> usize {
                let pointer = [a, b, c, d, e, f][$at];
                if is_paged(pointer) && is_on() && !helper::is_inside() {
                    copied as *const () as usize
                } else {
                    NEXT.get()
                }
            }

            extern "C-unwind" fn copied(
                a: usize,
                b: usize,
                c: usize,
                d: usize,
                e: usize,
                f: usize,
            ) -> isize {
                // SAFETY: the function of that name has these arguments, and perhaps fewer.
                let next = unsafe { transmute::<usize, Function>(NEXT.get()) };
                let arguments = [a, b, c, d, e, f];
                let call = |[a, b, c, d, e, f]: [usize; 6]| {
                    let done = next(a, b, c, d, e, f) as $result as isize;
                    if done == -1 { -(errno() as isize) } else { done }
                };
                match Transfer::$way.make(KINDS, arguments, call) {
                    error @ -4095..=-1 => {
                        set_errno(-error as i32);
                        -1
                    }
                    done => done,
                }
            }

            looks!($name, look);
        })*
    };
}

hot! {
    read: 1, Read, [Number, Out(Result(2)), Number] -> isize;
    write: 1, Write, [Number, In(Of(2)), Number] -> isize;
    pread: 1, ReadAt, [Number, Out(Result(2)), Number, Number] -> isize;
    pread64: 1, ReadAt, [Number, Out(Result(2)), Number, Number] -> isize;
    pwrite: 1, WriteAt, [Number, In(Of(2)), Number, Number] -> isize;
    pwrite64: 1, WriteAt, [Number, In(Of(2)), Number, Number] -> isize;
    recv: 1, Other, [Number, Out(Result(2)), Number, Number] -> isize;
    send: 1, Other, [Number, In(Of(2)), Number, Number] -> isize;
    recvfrom: 1, Other,
        [Number, Out(Result(2)), Number, Number, Out(At(5)), InOut(Bytes(4))] -> isize;
    sendto: 1, Other, [Number, In(Of(2)), Number, Number, In(Of(5)), Number] -> isize;
    poll: 0, Other, [InOut(Items(8, 1)), Int, Number] -> i32;
    epoll_wait: 1, Other, [Number, Out(ResultItems(12, 2)), Int, Number] -> i32;
}
