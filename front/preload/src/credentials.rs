//! Functions by which a program gives up rights, or changes its limits and its view of the system.
//! A forked child that may have to be served later (`later.rs`) is served before.

use crate::later;
use crate::next::{Next, looks};

/// Defines functions that first serve the process, if that was put off.
macro_rules! served_before {
    ($($name:ident)*) => {$(
        mod $name {
            use super::*;

            static NEXT: Next = Next::new(concat!(stringify!($name), "\0").as_bytes());

            extern "C" fn look() -> usize {
                later::begin();
                NEXT.get()
            }

            looks!($name, look);
        }
    )*};
}

served_before! {
    setuid seteuid setreuid setresuid
    setgid setegid setregid setresgid
    setgroups initgroups capset
    setrlimit setrlimit64 prlimit prlimit64
    chroot unshare setns
}
