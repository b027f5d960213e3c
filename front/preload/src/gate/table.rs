//! Descriptions of system calls: how each uses its arguments.
//!
//! ```text
//! calls.rs: TABLE, a line per system call ---> Call { number, name, way, arguments }
//! Len: how many bytes an argument points to ---> from the other arguments (copied.rs)
//! ```
//! The lines of `calls.rs` are in the order of the numbers of x86-64. A test compares numbers and
//! names with the kernel's list.

/// How many bytes the kernel reads or writes. Arguments are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Len {
    /// This many bytes.
    Bytes(u32),
    /// As many bytes as an argument says.
    Of(u8),
    /// As many bytes as an argument says, after so many others (`msgsnd`: the type).
    After(u32, u8),
    /// Items of a size, as many as an argument says.
    Items(u32, u8),
    /// Written only: room for as many bytes as an argument says, of which the result says how many
    /// were written (`read`).
    Result(u8),
    /// Written only: room for items of a size, as many as an argument says, of which the result
    /// says how many were written (`epoll_wait`).
    ResultItems(u32, u8),
    /// As many bytes as the `u32` says that an argument points to (`getsockname`).
    At(u8),
    /// This many bytes, or as many as can be accessed (`ioctl`).
    Window(u32),
    /// A bit for each descriptor below an argument, in whole words of 64 bits (`select`).
    Bits(u8),
    /// As many bytes as its own first `u32` says, 48 if 0 (`sched_setattr`).
    Own,
    /// This many bytes, and as many more as its own first `u32` says (`open_by_handle_at`).
    AfterOwn(u32),
    /// A byte for each page of 4096 bytes, also a part of one, of as many bytes as an argument says
    /// (`mincore`).
    Pages(u8),
    /// A bit for each node below an argument less 1, in whole words of 64 bits; none if it is 0
    /// (`mbind`).
    Nodes(u8),
}

/// How a system call uses an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// A number, a descriptor, or an address that is only named (`madvise`).
    Number,
    /// A length of 32 bits: the kernel ignores the upper half of the register.
    Int,
    /// Read by the kernel.
    In(Len),
    /// Written by the kernel.
    Out(Len),
    /// Read, then written.
    InOut(Len),
    /// A string, ended by 0, of at most 4096 bytes: a path or a name.
    String,
    /// Read by the kernel: 8 bytes, the signal mask of the thread during the call (`ppoll`).
    Mask,
}

impl Argument {
    /// The argument that says how many bytes or items it points to.
    pub(super) fn count(self) -> Option<u8> {
        let (Argument::In(len) | Argument::Out(len) | Argument::InOut(len)) = self else {
            return None;
        };
        match len {
            Len::Of(count) | Len::Result(count) | Len::After(_, count) => Some(count),
            Len::Items(_, count) | Len::ResultItems(_, count) => Some(count),
            Len::Bytes(_) | Len::At(_) | Len::Window(_) | Len::Bits(_) | Len::Own => None,
            Len::AfterOwn(_) | Len::Pages(_) | Len::Nodes(_) => None,
        }
    }
}

/// How a call with paged pointers is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// With copies, outside paged memory, of the memory that its arguments point to.
    Copied,
    /// As it is: none of its arguments is an address that the kernel reads or writes.
    Passed,
    /// With its own pointers, repeated while it fails with EFAULT and the pages exist: it needs a
    /// word at its place, and does nothing before it could read it (`futex`).
    InPlace,
    /// Refused with ENOSYS: the kernel would use the memory after the call (`io_uring_setup`).
    Absent,
    /// Refused with EFAULT and a message: nothing is known about its pointers.
    Unknown,
    /// By a function of its own (special.rs), because pointers are hidden in structures, or their
    /// meaning depends on another argument.
    Special,
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u16,
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    /// At most six; none for calls that are not [`Way::Copied`].
    pub(crate) arguments: &'static [Argument],
}

/// The first `count` arguments of a call in a table that has it, for the C library's functions of
/// that call. Evaluated by the compiler.
pub(super) const fn arguments_of(
    table: &[Call],
    number: libc::c_long,
    count: usize,
) -> &'static [Argument] {
    let mut at = 0;
    while table[at].number as libc::c_long != number {
        at += 1;
    }
    table[at].arguments.split_at(count).0
}
