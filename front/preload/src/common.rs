//! Pages in common with a parent or a child, estimated between two looks at smaps.
//!
//! A page parts when it leaves one of the processes, or when one of them writes to it: the kernel
//! then copies it in a minor fault. Any page that leaves counts, and any minor fault, so that the
//! estimate errs to fewer: memory that is not there is never granted.

/// Pages of this process that count for others, which map them, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pages: u64,
    /// Pages that had left the process, and its minor faults, when `pages` was right.
    parted: u64,
}

impl Common {
    /// `pages` now.
    pub(crate) fn new(pages: u64, parted: u64) -> Common {
        Common { pages, parted }
    }

    /// Those that are left, with `parted` now.
    pub(crate) fn left(self, parted: u64) -> u64 {
        self.pages.saturating_sub(parted.saturating_sub(self.parted))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(self) -> bool {
        self.pages == 0
    }

    /// With `pages` more.
    pub(crate) fn plus(self, pages: u64, parted: u64) -> Common {
        Common { pages: self.left(parted) + pages, parted }
    }
}

/// Minor faults of a process so far; 0 if /proc does not tell.
pub(crate) fn minor_faults(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    of_stat(&stat).unwrap_or(0)
}

/// The seventh field after the name, which may have blanks and parentheses.
fn of_stat(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_part_one_by_one() {
        let common = Common::new(100, 7);
        assert_eq!([7, 8, 106, 107, 500].map(|parted| common.left(parted)), [100, 99, 1, 0, 0]);
        assert_eq!(common.plus(50, 17), Common::new(140, 17));
        assert_eq!(common.plus(50, 1000), Common::new(50, 1000));
    }

    #[test]
    fn minor_faults_are_found_behind_any_name() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194304 1234 0 5 0";
        assert_eq!(of_stat(stat), Some(1234));
        assert_eq!((of_stat(""), of_stat("77 (a) S 1 2")), (None, None));
        let own = std::process::id().cast_signed();
        let before = minor_faults(own);
        let pages = vec![1u8; 1 << 20];
        assert!(minor_faults(own) >= before + 16 && pages[5] == 1, "new pages fault");
    }
}
