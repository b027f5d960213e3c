//! Pages in common with a parent or a child, between two measurements of smaps (looks).
//!
//! A shared page parts (stops being shared) when one of the processes loses it or writes to it. A
//! page shared by two processes counts half for each, and each page that parts lowers the sum of
//! both by one. The process that parts the page deducts it: a process that parts more than its half
//! has a negative number.

/// Pages of this process that count for other processes, which map them, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pages: i64,
    /// Pages that had parted when `pages` was computed.
    parted: i64,
    /// The others' half: the number of pages left is never below minus this.
    others: u64,
}

impl Common {
    /// `pages` count for others now.
    pub(crate) fn new(pages: u64, parted: i64) -> Common {
        Common { pages: pages.cast_signed(), parted, others: pages }
    }

    /// The pages that still count for others, once `parted` have parted in all.
    pub(crate) fn left(self, parted: i64) -> i64 {
        (self.pages + self.parted - parted).max(-self.others.cast_signed())
    }

    /// How many pages can still part.
    pub(crate) fn can_part(self, parted: i64) -> u64 {
        self.others.saturating_add_signed(self.left(parted))
    }

    /// The others' half.
    pub(crate) fn others(self) -> u64 {
        self.others
    }

    /// A fork is about to share `pages`. None of them counts for the child until the child says so.
    pub(crate) fn forked(self, pages: u64) -> Common {
        Common { others: self.others.max(pages), ..self }
    }

    /// Of the pages that a fork has shared, `pages` count for the child.
    pub(crate) fn lent(self, pages: u64, parted: i64) -> Common {
        let others = self.others.saturating_sub(pages).max(pages);
        Common { pages: self.left(parted) + pages.cast_signed(), parted, others }
    }

    /// A look found `pages`, some of which may count for a child that has not said so yet.
    pub(crate) fn at_most(self, pages: u64, parted: i64) -> Common {
        let pages = self.left(parted).min(pages.cast_signed());
        Common { pages, parted, ..self }
    }
}

/// Pages that have parted since the processes without a manager were measured, and that count for
/// one of these processes: a forked child that only waits is charged for more memory with each page
/// that its parent writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SinceMeasured {
    /// The last measurement that was noticed.
    measure: u64,
    /// Pages that had parted at the last [`SinceMeasured::note`] before it, ...
    before: i64,
    /// ... at the last one so far, ...
    latest: i64,
    /// ... and at the last look.
    looked: i64,
}

impl SinceMeasured {
    /// `parted` pages have parted by now, after `measure` measurements; nothing is missing.
    pub(crate) fn new(measure: u64, parted: i64) -> SinceMeasured {
        SinceMeasured { measure, before: parted, latest: parted, looked: parted }
    }

    /// `parted` pages have parted by now, after `measure` measurements.
    pub(crate) fn note(&mut self, measure: u64, parted: i64) {
        if measure != self.measure {
            (self.measure, self.before) = (measure, self.latest);
        }
        self.latest = parted;
    }

    /// A look has found the pages that this process still shares.
    pub(crate) fn look(&mut self, parted: i64) {
        self.looked = parted;
    }

    /// The pages. Of each page that has parted, half was already counted for the other process.
    pub(crate) fn pages(self) -> u64 {
        (self.looked - self.before).max(0).cast_unsigned() / 2
    }
}

/// Minor faults so far of the process with this number in /proc; 0 if /proc does not tell.
pub(crate) fn minor_faults(in_proc: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{in_proc}/stat")).unwrap_or_default();
    of_stat(&stat).unwrap_or(0)
}

/// The eighth field after the name, which may contain blanks and parentheses.
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
        let mut since = SinceMeasured::new(0, 100);
        since.look(100);
        assert_eq!(since.pages(), 0, "faults before the guard count for nobody");
        since.note(1, 300);
        since.note(2, 340);
        since.look(400);
        assert_eq!(since.pages(), 50, "measured between 300 and 340");
        since.note(2, 500);
        assert_eq!(since.pages(), 50, "pages that part after the look count one by one");
        since.note(3, 510);
        assert_eq!(since.pages(), 0, "measured with the child");
        since.look(600);
        since.note(4, 610);
        assert_eq!(since.pages(), 45, "the look came after the measurement, which is noticed late");
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
