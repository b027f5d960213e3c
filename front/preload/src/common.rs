//! Pages in common with a parent or a child, between two looks at smaps.
//!
//! A page parts when it leaves one of the processes, or when one of them writes to it. Of a page of
//! two processes, half counts for each, and one that parts is one less in the sum: a process that
//! parts more than its half has fewer than none.

/// Pages of this process that count for others, which map them, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pages: i64,
    /// Pages that had parted when `pages` was right.
    parted: i64,
    /// There are never fewer than none by more than this: the half of others.
    others: u64,
}

impl Common {
    /// `pages` now.
    pub(crate) fn new(pages: u64, parted: i64) -> Common {
        Common { pages: pages.cast_signed(), parted, others: pages }
    }

    /// Those that are left, with `parted` now.
    pub(crate) fn left(self, parted: i64) -> i64 {
        (self.pages + self.parted - parted).max(-self.others.cast_signed())
    }

    /// As many can part from now on.
    pub(crate) fn can_part(self, parted: i64) -> u64 {
        self.others.saturating_add_signed(self.left(parted))
    }

    /// The half of others.
    pub(crate) fn others(self) -> u64 {
        self.others
    }

    /// A fork is about to share `pages`. None counts for the child before that says so.
    pub(crate) fn forked(self, pages: u64) -> Common {
        Common { others: self.others.max(pages), ..self }
    }

    /// `pages` of those that a fork has shared count for the child.
    pub(crate) fn lent(self, pages: u64, parted: i64) -> Common {
        let others = self.others.saturating_sub(pages).max(pages);
        Common { pages: self.left(parted) + pages.cast_signed(), parted, others }
    }

    /// `pages` were found, some of which may count for a child that has not said so.
    pub(crate) fn at_most(self, pages: u64, parted: i64) -> Common {
        let pages = self.left(parted).min(pages.cast_signed());
        Common { pages, parted, ..self }
    }
}

/// Pages that have parted since processes without a manager were measured, and that count for one
/// of these: a forked child that only waits has more with each page that its parent writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinceMeasured {
    /// The last measurement that was noticed.
    measure: u64,
    /// Pages that had parted before it, ...
    before: i64,
    /// ... and when this was noted last.
    latest: i64,
    /// What a look found.
    pages: u64,
}

impl SinceMeasured {
    /// `parted` now, after so many measurements.
    pub(crate) fn note(&mut self, measure: u64, parted: i64) {
        if measure != self.measure {
            *self = SinceMeasured { measure, before: self.latest, latest: parted, pages: 0 };
        }
        self.latest = parted;
    }

    /// A look at this process found what it still has in common. Of a page of two processes, half
    /// counted for the other.
    pub(crate) fn look(&mut self, parted: i64) {
        self.pages = (parted - self.before).max(0).cast_unsigned() / 2;
    }

    pub(crate) fn pages(self) -> u64 {
        self.pages
    }
}

/// Minor faults so far of the process with this number in /proc; 0 if /proc does not tell.
pub(crate) fn minor_faults(in_proc: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{in_proc}/stat")).unwrap_or_default();
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
        let left = [7, 8, 107, 207, 500].map(|parted| common.left(parted));
        assert_eq!(left, [100, 99, 0, -100, -100], "100 are the other's");
        let rest = [7, 8, 107, 207, 500].map(|parted| common.can_part(parted));
        assert_eq!(rest, [200, 199, 100, 0, 0]);
    }

    #[test]
    fn a_parent_has_nothing_in_common_with_a_child_that_has_not_said_so() {
        let common = Common::default().forked(100);
        assert_eq!((common.left(0), common.can_part(0)), (0, 100));
        assert_eq!((common.left(30), common.can_part(30)), (-30, 70));
        let seen = common.at_most(35, 30);
        assert_eq!((seen.left(30), seen.can_part(30)), (-30, 70));
        let lent = common.lent(50, 30);
        assert_eq!((lent.left(30), lent.can_part(30), lent.others()), (20, 70, 50));
    }

    #[test]
    fn a_child_without_a_manager_has_half_of_what_parts_after_it_was_measured() {
        let mut since = SinceMeasured::default();
        since.note(1, 100);
        since.note(1, 300);
        since.note(2, 340);
        assert_eq!(since.pages(), 0, "no look has taken the child's pages for counted");
        since.look(400);
        assert_eq!(since.pages(), 50, "measured between 300 and 340");
        since.note(2, 500);
        assert_eq!(since.pages(), 50, "pages that part after the look count one by one");
        since.note(3, 510);
        assert_eq!(since.pages(), 0, "measured with the child");
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
