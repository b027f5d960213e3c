//! `--faults` and `--system-calls`: how page faults are served, and how system calls reach paged
//! memory.
//!
//! | faults | system calls | |
//! |---|---|---|
//! | in-thread | copies | no privileges; the default |
//! | handlers | copies | no privileges; also for programs with a malloc of their own |
//! | handlers | faults | needs a userfaultfd for faults of the kernel; the only one for Go |

use crate::Refusal;
use crate::elf::Runtime;
use highwater_session::{FaultThreads, SystemCalls};
use std::str::FromStr;

/// The value of `--faults`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wish {
    #[default]
    Auto,
    These(FaultThreads),
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Wish, String> {
        match text {
            "auto" => Ok(Wish::Auto),
            _ => text
                .parse()
                .map(Wish::These)
                .map_err(|_: String| format!("'{text}' is none of auto, in-thread, handlers")),
        }
    }
}

/// The userfaultfds that this system permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permitted {
    /// A userfaultfd for all faults, including those of the kernel.
    pub(crate) all: bool,
    /// A userfaultfd for faults of user mode.
    pub(crate) user_mode: bool,
}

impl Permitted {
    /// How system calls reach paged memory if the user has not chosen.
    fn system_calls(self) -> SystemCalls {
        if self.user_mode && !self.all { SystemCalls::Copies } else { SystemCalls::Faults }
    }
}

/// Whether system calls can get copies on this kind of machine.
const HAS_COPIES: bool = cfg!(target_arch = "x86_64");

/// Decides how faults are served and how system calls reach paged memory, where the user has not
/// chosen.
///
/// # Errors
/// The two choices of the user exclude each other.
pub(crate) fn decide(
    faults: Wish,
    system_calls: Option<SystemCalls>,
    permitted: Permitted,
    runtime: Runtime,
) -> Result<(FaultThreads, SystemCalls), Refusal> {
    use FaultThreads::{Handlers, InThread};
    let can = HAS_COPIES && permitted.user_mode;
    match (faults, system_calls) {
        (Wish::Auto, None) if runtime != Runtime::C && permitted.all => {
            Ok((Handlers, SystemCalls::Faults))
        }
        (Wish::These(InThread), Some(SystemCalls::Faults)) => Err(Refusal::new(
            "with --faults in-thread the kernel's own faults cannot be served",
            "leave --system-calls faults out, or use --faults handlers",
        )),
        (Wish::These(InThread), _) => Ok((InThread, SystemCalls::Copies)),
        (Wish::Auto, None | Some(SystemCalls::Copies)) if can => {
            Ok((InThread, SystemCalls::Copies))
        }
        (Wish::Auto | Wish::These(Handlers), given) => {
            Ok((Handlers, given.unwrap_or(permitted.system_calls())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FaultThreads::{Handlers, InThread};
    use SystemCalls::{Copies, Faults};

    const ROOT: Permitted = Permitted { all: true, user_mode: true };
    const USER: Permitted = Permitted { all: false, user_mode: true };
    const OLD: Permitted = Permitted { all: true, user_mode: false };

    #[test]
    fn what_is_left_open_is_the_fastest_that_is_permitted() {
        for (wish, calls, permitted, expected) in [
            (Wish::Auto, None, ROOT, (InThread, Copies)),
            (Wish::Auto, None, USER, (InThread, Copies)),
            (Wish::Auto, None, OLD, (Handlers, Faults)),
            (Wish::Auto, Some(Faults), ROOT, (Handlers, Faults)),
            (Wish::Auto, Some(Copies), USER, (InThread, Copies)),
            (Wish::These(Handlers), None, ROOT, (Handlers, Faults)),
            (Wish::These(Handlers), None, USER, (Handlers, Copies)),
            (Wish::These(Handlers), Some(Copies), ROOT, (Handlers, Copies)),
            (Wish::These(InThread), None, ROOT, (InThread, Copies)),
        ] {
            let decided = decide(wish, calls, permitted, Runtime::C);
            assert_eq!(decided, Ok(expected), "{wish:?} {calls:?}");
        }
        let refusal = decide(Wish::These(InThread), Some(Faults), ROOT, Runtime::C).unwrap_err();
        assert!(refusal.remedy().contains("--faults handlers"));
    }

    #[test]
    fn no_signals_deliver_faults_to_go_where_that_is_permitted() {
        for (wish, calls, permitted, expected) in [
            (Wish::Auto, None, ROOT, (Handlers, Faults)),
            (Wish::Auto, None, USER, (InThread, Copies)),
            (Wish::Auto, Some(Copies), ROOT, (InThread, Copies)),
            (Wish::These(InThread), None, ROOT, (InThread, Copies)),
        ] {
            let decided = decide(wish, calls, permitted, Runtime::Go);
            assert_eq!(decided, Ok(expected), "{wish:?} {calls:?} {permitted:?}");
        }
    }

    #[test]
    fn the_wish_is_one_of_three() {
        assert_eq!("auto".parse(), Ok(Wish::Auto));
        assert_eq!("in-thread".parse(), Ok(Wish::These(InThread)));
        let error = "kernel".parse::<Wish>().unwrap_err();
        assert_eq!(error, "'kernel' is none of auto, in-thread, handlers");
    }
}
