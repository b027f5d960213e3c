//! Decides whether a request that failed is repeated, and which error it gives otherwise.
//!
//! ```text
//! lost connection, nonsense, busy   again on a new connection, until the server has been silent
//!                                   for as long as the user's patience; then an error
//! full                              Full: the manager writes to the next device
//! missing                           an error: the server lost the page. Never zeros
//! turned away                       Busy: the manager writes to other slots
//! denied, anything else             an error
//! ```
//! All requests may be repeated: they write the same page, or read, or delete pages that are not
//! used.

use crate::error::TlsFault;
use highwater_platform::IoError;
use std::time::Duration;

/// The kinds of errors that a server answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The server is full.
    Full,
    /// The server is not ready.
    Busy,
    /// The server does not know the user, or the password is wrong, or the user may not do this.
    Denied,
    /// The server's disk failed or the like, with the system's error number.
    Failed(i32),
    /// Anything else.
    Other,
}

/// Why a request was not fulfilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// There is no connection, with the system's error number.
    Lost(i32),
    /// The answer does not follow the protocol.
    Malformed,
    /// The server's identity could not be verified.
    Tls(TlsFault),
    /// The server answers with an error.
    Refused(Refusal),
    /// The server does not have a page that was written.
    Missing,
    /// The server of these slots does not answer, but servers of other slots do.
    TurnedAway,
}

impl Problem {
    /// Whether the problem may be temporary: the server is not there, or not ready.
    pub(super) fn may_pass(self) -> bool {
        self.ends_link() || self == Problem::Refused(Refusal::Busy)
    }

    /// Whether no answer came in time.
    pub(super) fn is_silence(self) -> bool {
        self == Problem::Lost(libc::ETIMEDOUT)
    }

    /// Whether the connection cannot be used any more.
    pub(super) fn ends_link(self) -> bool {
        match self {
            Problem::Lost(_) | Problem::Malformed | Problem::Tls(_) => true,
            Problem::Refused(_) | Problem::Missing | Problem::TurnedAway => false,
        }
    }
}

/// Whether the device is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Used,
    /// The device's process ends.
    Ending,
}

/// The decision about a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is repeated, after a pause.
    Again,
    Fails(IoError),
}

/// Decides about a request of a device whose server has not answered for `silent`.
pub(super) fn decide(
    problem: Problem,
    stage: Stage,
    silent: Duration,
    patience: Duration,
) -> Verdict {
    let failed = |errno| Verdict::Fails(IoError::Failed(errno));
    let errno = match problem {
        Problem::Refused(Refusal::Full) => return Verdict::Fails(IoError::Full),
        Problem::Refused(Refusal::Denied) => return failed(libc::EACCES),
        Problem::Refused(Refusal::Failed(errno)) => return failed(errno),
        Problem::Refused(Refusal::Other) => return failed(libc::EREMOTEIO),
        Problem::Missing => return failed(libc::ENODATA),
        Problem::TurnedAway => return Verdict::Fails(IoError::Busy),
        Problem::Refused(Refusal::Busy) => libc::EBUSY,
        Problem::Malformed | Problem::Tls(_) => libc::EPROTO,
        Problem::Lost(errno) => errno,
    };
    match stage {
        Stage::Used if silent < patience => Verdict::Again,
        Stage::Used | Stage::Ending => failed(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_repeated_while_that_may_help() {
        use Problem::{Lost, Malformed, Missing, Refused, Tls};
        let fails = |errno| Verdict::Fails(IoError::Failed(errno));
        let [full, busy] = [IoError::Full, IoError::Busy].map(Verdict::Fails);
        for (problem, early, late) in [
            (Lost(libc::ECONNREFUSED), Verdict::Again, fails(libc::ECONNREFUSED)),
            (Malformed, Verdict::Again, fails(libc::EPROTO)),
            (Tls(TlsFault::Expired), Verdict::Again, fails(libc::EPROTO)),
            (Refused(Refusal::Busy), Verdict::Again, fails(libc::EBUSY)),
            (Refused(Refusal::Full), full, full),
            (Refused(Refusal::Denied), fails(libc::EACCES), fails(libc::EACCES)),
            (Refused(Refusal::Other), fails(libc::EREMOTEIO), fails(libc::EREMOTEIO)),
            (Refused(Refusal::Failed(libc::EIO)), fails(libc::EIO), fails(libc::EIO)),
            (Missing, fails(libc::ENODATA), fails(libc::ENODATA)),
            (Problem::TurnedAway, busy, busy),
        ] {
            let decided = |stage, silent| {
                decide(problem, stage, Duration::from_secs(silent), Duration::from_secs(30))
            };
            assert_eq!(decided(Stage::Used, 29), early, "{problem:?}");
            assert_eq!(decided(Stage::Used, 30), late, "{problem:?}");
            assert_eq!(decided(Stage::Ending, 0), late, "{problem:?}");
        }
    }
}
