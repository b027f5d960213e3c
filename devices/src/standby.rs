//! Which of two devices with the same pages are still in use.
//!
//! ```text
//! both in use --> only the first     the second is lost, and never comes back
//!            \--> only the second    the first is lost
//! ```
//! Both devices share one word: if two servers fall silent together, one stays in use, and is
//! waited for.
//!
//! Locks: none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

const BOTH: u8 = 0;

/// One of two devices with the same pages.
#[derive(Clone, Debug)]
pub struct Standby {
    /// [`BOTH`], or the device that is left.
    left: Arc<AtomicU8>,
    me: u8,
    patience: Duration,
}

/// Whether a device is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Both devices are in use.
    Both,
    /// The device is the last one in use.
    Last,
    /// The device is not used any more.
    Lost,
}

impl Standby {
    /// Two devices in use. The last one left is waited for as long as `patience`.
    pub(crate) fn pair(patience: Duration) -> [Standby; 2] {
        let left = Arc::new(AtomicU8::new(BOTH));
        [1, 2].map(|me| Standby { left: left.clone(), me, patience })
    }

    /// A device whose partner is lost.
    pub(crate) fn last(patience: Duration) -> Standby {
        let [last, other] = Standby::pair(patience);
        other.give_up();
        last
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing_by(self.left.load(SeqCst))
    }

    fn standing_by(&self, left: u8) -> Standing {
        match left {
            BOTH => Standing::Both,
            left if left == self.me => Standing::Last,
            _ => Standing::Lost,
        }
    }

    /// Loses this device, unless it is the last one.
    pub(crate) fn give_up(&self) -> Standing {
        let other = 3 - self.me;
        match self.left.compare_exchange(BOTH, other, SeqCst, SeqCst) {
            Ok(_) => Standing::Lost,
            Err(left) => self.standing_by(left),
        }
    }

    /// How long the last one is waited for.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_stays() {
        for lost in [0, 1] {
            let pair = Standby::pair(Duration::from_secs(7));
            assert_eq!(pair.each_ref().map(Standby::standing), [Standing::Both; 2]);
            let copy = pair[lost].clone();
            assert_eq!(
                (pair[lost].give_up(), pair[lost].give_up()),
                (Standing::Lost, copy.standing())
            );
            assert_eq!(pair[1 - lost].give_up(), Standing::Last);
            assert_eq!(
                (copy.standing(), pair[1 - lost].standing()),
                (Standing::Lost, Standing::Last)
            );
        }
    }

    #[test]
    fn threads_never_give_up_both() {
        for _ in 0..200 {
            let pair = Standby::pair(Duration::ZERO);
            let mut found = std::thread::scope(|scope| {
                let give_up = |it| scope.spawn(move || Standby::give_up(it));
                pair.each_ref().map(give_up).map(|thread| thread.join().unwrap())
            });
            found.sort_by_key(|it| *it == Standing::Lost);
            assert_eq!(found, [Standing::Last, Standing::Lost]);
        }
    }
}
