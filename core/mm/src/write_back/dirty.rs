//! How many changed pages of files memory may hold, and what follows from that.
//!
//! ```text
//! changed pages:  0 ..... background ............ limit .....
//!                 as they | the flusher writes  | who changes more waits for it
//!                 expire  |                     |
//! ```
//! After Linux 6.1 (`domain_dirty_limits`, `balance_dirty_pages`): both are parts of the memory
//! that could hold files' pages. Departs: who changes pages goes at full speed up to the limit; the
//! kernel slows it down from half way on.

use highwater_units::Nanos;

/// How long a file's first changed page may stay so (dirty_expire_centisecs).
pub(super) const EXPIRE: Nanos = Nanos(30_000_000_000);

/// Changed pages of all files that memory may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    background: u64,
    limit: u64,
}

/// What a thread that changes pages is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// Go on.
    GoOn,
    /// Wake the flusher, then go on.
    Wake,
    /// Wake the flusher, then wait for it.
    Wait,
}

/// What the flusher is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// Sleep until a page is changed: none is.
    Sleep,
    /// Sleep until the oldest expires.
    SleepFor(Nanos),
    /// Write some pages of every file.
    Some,
}

impl Limits {
    /// Limits where `room` pages could hold files' pages; the parts are percents.
    pub(super) fn new(room: u64, background: u32, limit: u32) -> Limits {
        let part = |percent: u32| room * u64::from(percent) / 100;
        let limit = part(limit).max(1);
        let background = part(background);
        // As the kernel does where they are set the wrong way round.
        let below = if limit == room { limit } else { limit / 2 };
        Limits { background: if background < limit { background } else { below }, limit }
    }

    /// For who is about to change a page beside `dirty`.
    pub(super) fn writer(&self, dirty: u64) -> Writer {
        match dirty {
            0 => Writer::GoOn,
            dirty if dirty > self.limit => Writer::Wait,
            dirty if dirty > self.background => Writer::Wake,
            _ => Writer::GoOn,
        }
    }

    /// For the flusher; `oldest` is how long the oldest change is known.
    pub(super) fn flusher(&self, dirty: u64, oldest: Nanos) -> Flush {
        match dirty {
            0 => Flush::Sleep,
            dirty if dirty > self.background => Flush::Some,
            _ => Flush::SleepFor(Nanos(EXPIRE.0.saturating_sub(oldest.0).max(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_told_by_what_is_dirty() {
        let limits = Limits::new(1000, 10, 20);
        for (dirty, expected) in [
            (0, Writer::GoOn),
            (100, Writer::GoOn),
            (101, Writer::Wake),
            (200, Writer::Wake),
            (201, Writer::Wait),
        ] {
            assert_eq!(limits.writer(dirty), expected, "{dirty}");
        }
    }

    #[test]
    fn the_flusher_sleeps_until_the_oldest_expires() {
        let limits = Limits::new(1000, 10, 20);
        assert_eq!(limits.flusher(0, Nanos(5)), Flush::Sleep);
        assert_eq!(limits.flusher(100, Nanos(10)), Flush::SleepFor(Nanos(EXPIRE.0 - 10)));
        assert_eq!(limits.flusher(100, Nanos(EXPIRE.0 + 10)), Flush::SleepFor(Nanos(1)));
        assert_eq!(limits.flusher(101, Nanos(0)), Flush::Some);
    }

    #[test]
    fn limits_in_the_wrong_order_and_none_at_all() {
        assert_eq!(Limits::new(1000, 30, 20), Limits { background: 100, limit: 200 });
        assert_eq!(Limits::new(1000, 100, 100), Limits { background: 1000, limit: 1000 });
        assert_eq!(Limits::new(3, 10, 20), Limits { background: 0, limit: 1 });
    }
}
