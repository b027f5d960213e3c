//! C library functions that programs call often: with paged buffers they get copies without a
//! signal.
//!
//! ```text
//! read --- buffer not paged ---------------------------------> the C library's read
//!      |-- up to 1 MiB: prepare --> the C library's, with the copy --> finish
//!      \-- longer: as if it had been trapped, in parts
//! ```
//! A thread may be cancelled in the C library's function. The unwinding passes `copied`, which is
//! assembler code with unwind information, but cannot pass Rust code, which would end the process.
//! So `prepare` and `finish` have returned, or not begun, while the function runs. A cancelled
//! thread leaves its bounce buffer behind.

use super::calls::TABLE;
use super::copied::Pending;
use super::long::{PART_LEN, is_split};
use super::make;
use super::range::is_paged;
use super::state::is_on;
use super::table::{Argument, arguments_of};
use crate::errno::{errno, returned, set_errno};
use crate::next::{Next, looks};
use highwater_os::helper;
use libc::c_long;
use std::mem::{MaybeUninit, offset_of};

/// The variables that `copied` has on its stack.
#[repr(C)]
struct Frame {
    next: usize,
    /// The arguments, and after `prepare` those for the next function, or the result.
    given: [usize; 6],
    pending: MaybeUninit<Pending>,
}

const FRAME_LEN: usize = 1024;
const _: () = assert!(size_of::<Frame>() <= FRAME_LEN && align_of::<Frame>() <= 16);
const _: () = assert!(offset_of!(Frame, next) == 0 && offset_of!(Frame, given) == 8);

/// Makes the copies; 0 if that fails.
fn prepare(frame: &mut Frame, next: &Next, number: c_long, kinds: &[Argument]) -> usize {
    frame.next = next.get();
    match Pending::new(number as usize, kinds, frame.given) {
        Ok(pending) => {
            frame.given = pending.given;
            frame.pending.write(pending);
            1
        }
        Err(error) => {
            set_errno(error);
            frame.given[0] = usize::MAX;
            0
        }
    }
}

/// Copies what was written, and returns what the function returns.
///
/// # Safety
/// `prepare` has succeeded with this frame.
unsafe fn finish(frame: &mut Frame, result: isize) -> isize {
    let error = errno();
    // SAFETY: as the caller says; not used again.
    let pending = unsafe { frame.pending.assume_init_read() };
    let result = pending.finish(if result == -1 { -(error as isize) } else { result });
    set_errno(error);
    returned(result)
}

/// Calls the next function with copies.
macro_rules! copied {
    ($prepare:ident, $finish:ident) => {
        /// # Safety
        /// As for the C library's function.
        #[unsafe(naked)]
        unsafe extern "C" fn copied() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, {len}",
                "mov [rsp + 8], rdi",
                "mov [rsp + 16], rsi",
                "mov [rsp + 24], rdx",
                "mov [rsp + 32], rcx",
                "mov [rsp + 40], r8",
                "mov [rsp + 48], r9",
                "mov rdi, rsp",
                "call {prepare}",
                "test rax, rax",
                "jz 2f",
                "mov rdi, [rsp + 8]",
                "mov rsi, [rsp + 16]",
                "mov rdx, [rsp + 24]",
                "mov rcx, [rsp + 32]",
                "mov r8, [rsp + 40]",
                "mov r9, [rsp + 48]",
                "call [rsp]",
                "mov rdi, rsp",
                "mov rsi, rax",
                "call {finish}",
                "jmp 3f",
                "2:",
                "mov rax, [rsp + 8]",
                "3:",
                "leave",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                len = const FRAME_LEN,
                prepare = sym $prepare,
                finish = sym $finish,
            );
        }
    };
}

/// Defines functions: which argument is the pointer that decides, the system call, how many of its
/// arguments the function has, and the type of the result.
macro_rules! hot {
    ($($name:ident: $at:literal, $number:ident, $count:literal -> $result:ty;)*) => {
        /// Looks the next functions up when the library is loaded.
        pub(super) fn learn() {
            $($name::NEXT.learn();)*
        }

        $(mod $name {
            use super::*;

            pub(super) static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            const NUMBER: c_long = libc::$number;
            const KINDS: &[Argument] = arguments_of(TABLE, NUMBER, $count);

            extern "C" fn look(a: usize, b: usize, c: usize) -> usize {
                if !is_paged([a, b][$at]) || !is_on() || helper::is_inside() {
                    NEXT.get()
                } else if c > PART_LEN && is_split(NUMBER) {
                    long as *const () as usize
                } else {
                    copied as *const () as usize
                }
            }

            extern "C" fn long(a: usize, b: usize, c: usize, d: usize) -> isize {
                returned(make::make(NUMBER as usize, [a, b, c, d, 0, 0], None))
            }

            extern "C" fn prepare_this(frame: &mut Frame) -> usize {
                prepare(frame, &NEXT, NUMBER, KINDS)
            }

            /// # Safety
            /// As of `finish`.
            unsafe extern "C" fn finish_this(frame: &mut Frame, result: usize) -> isize {
                // SAFETY: as the caller says.
                unsafe { finish(frame, result as $result as isize) }
            }

            copied!(prepare_this, finish_this);
            looks!($name, look);
        })*
    };
}

hot! {
    read: 1, SYS_read, 3 -> isize;
    write: 1, SYS_write, 3 -> isize;
    pread: 1, SYS_pread64, 4 -> isize;
    pread64: 1, SYS_pread64, 4 -> isize;
    pwrite: 1, SYS_pwrite64, 4 -> isize;
    pwrite64: 1, SYS_pwrite64, 4 -> isize;
    recv: 1, SYS_recvfrom, 4 -> isize;
    send: 1, SYS_sendto, 4 -> isize;
    recvfrom: 1, SYS_recvfrom, 6 -> isize;
    sendto: 1, SYS_sendto, 6 -> isize;
    poll: 0, SYS_poll, 3 -> i32;
    epoll_wait: 1, SYS_epoll_wait, 4 -> i32;
}
