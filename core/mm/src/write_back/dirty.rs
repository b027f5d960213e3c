//! Limits of dirty file pages, and what writers and the flusher do at them.
//!
//! ```text
//! dirty pages:  0 ............. background ............. limit ............
//!               written when    the flusher writes       writers wait for
//!               they expire                              the flusher
//! ```
//! As in Linux 6.1 (`domain_dirty_limits`, `balance_dirty_pages`), both limits are parts of the
//! memory that could hold files' pages. Unlike in the kernel, writers are not slowed down before
//! the limit.

use highwater_units::Nanos;

/// How long a page may stay dirty before it is written (dirty_expire_centisecs).
pub(super) const EXPIRE: Nanos = Nanos(30_000_000_000);

/// Limits of the dirty pages of all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    background: u64,
    limit: u64,
}

/// What a thread that is about to change a file's page does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// It goes on.
    GoOn,
    /// It wakes the flusher and goes on.
    Wake,
    /// It wakes the flusher and waits for it.
    Wait,
}

/// What the flusher does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// No page is dirty: it sleeps until one is.
    Sleep,
    /// It sleeps until the oldest dirty page expires.
    SleepFor(Nanos),
    /// It writes some pages of every file.
    WriteSome,
}

impl Limits {
    /// Limits for `room` pages that could hold files' pages, in percent of it.
    pub(super) fn new(room: u64, background: u32, limit: u32) -> Limits {
        let part = |percent: u32| room * u64::from(percent) / 100;
        let limit = part(limit).max(1);
        let background = part(background);
        // The kernel's correction of limits in the wrong order.
        let below = if limit == room { limit } else { limit / 2 };
        Limits { background: if background < limit { background } else { below }, limit }
    }

    /// Decides for a writer while `dirty` pages are dirty.
    pub(super) fn writer(&self, dirty: u64) -> Writer {
        match dirty {
            0 => Writer::GoOn,
            dirty if dirty > self.limit => Writer::Wait,
            dirty if dirty > self.background => Writer::Wake,
            _ => Writer::GoOn,
        }
    }

    /// Decides for the flusher; `oldest` is the age of the oldest dirty page.
    pub(super) fn flusher(&self, dirty: u64, oldest: Nanos) -> Flush {
        match dirty {
            0 => Flush::Sleep,
            dirty if dirty > self.background => Flush::WriteSome,
            _ => Flush::SleepFor(Nanos(EXPIRE.0.saturating_sub(oldest.0).max(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_wait_beyond_the_limit() {
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
        assert_eq!(limits.flusher(101, Nanos(0)), Flush::WriteSome);
    }

    #[test]
    fn limits_in_the_wrong_order_are_corrected() {
        assert_eq!(Limits::new(1000, 30, 20), Limits { background: 100, limit: 200 });
        assert_eq!(Limits::new(1000, 100, 100), Limits { background: 1000, limit: 1000 });
        assert_eq!(Limits::new(3, 10, 20), Limits { background: 0, limit: 1 });
    }
}
