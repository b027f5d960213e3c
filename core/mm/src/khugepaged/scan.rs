//! Whether to collapse a block: counts its pages and decides.
//!
//! ```text
//! 512 entries -- Survey::note --> absent, swapped, in use, large, barred -- judge(Limits): Verdict
//! ```
//! Entries are read without their locks and may change at any time: `collapse` judges them again.

use crate::config::{KhugepagedConfig, MAX_PTES};
use crate::space::{Entry, Page, Space};
use highwater_platform::{Platform, Recency};
use highwater_units::{LARGE_PAGES, Vpn};

/// Limits within which a block is collapsed, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Most absent pages.
    none: u32,
    /// Most swapped pages.
    swap: u32,
    /// Least pages in use.
    referenced: u32,
}

impl Limits {
    /// For MADV_COLLAPSE: any block with contents.
    pub(super) const REQUESTED: Limits = Limits { none: MAX_PTES, swap: LARGE, referenced: 0 };

    /// For khugepaged. A page that is absent in a real page table may be unmapped memory, where an
    /// access must keep failing: such a block is not collapsed.
    pub(super) fn of(config: &KhugepagedConfig, recency: Recency) -> Limits {
        Limits {
            none: match recency {
                Recency::AccessedBit => config.max_ptes_none,
                Recency::Unmapping => 0,
            },
            swap: config.max_ptes_swap,
            referenced: config.referenced_min,
        }
    }
}

/// Counts of a block's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    none: u32,
    swap: u32,
    /// Resident, and used since the last probe.
    referenced: u32,
    /// Resident as part of a large page.
    large: u32,
    /// Pinned, locked or poisoned.
    barred: u32,
}

impl Survey {
    /// Counts an entry.
    pub(super) fn note(&mut self, entry: Entry, recency: Recency) {
        let used = match recency {
            Recency::AccessedBit => entry.is_accessed(),
            Recency::Unmapping => entry.is_mapped(),
        };
        match entry.page() {
            Page::Absent => self.none += 1,
            Page::Swapped(_) => self.swap += 1,
            Page::Poisoned => {}
            Page::Resident(_) => {
                self.referenced += u32::from(used);
                self.large += u32::from(entry.is_large());
            }
        }
        let is_lost = entry.page() == Page::Poisoned;
        self.barred += u32::from(entry.is_locked() || entry.pins() > 0 || is_lost);
    }
}

/// Pages of a block.
const LARGE: u32 = LARGE_PAGES as u32;

/// What to do with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is collapsed.
    Collapse,
    /// It is large already, and in use.
    Large,
    /// A page of it is pinned, locked or poisoned.
    Busy,
    /// Too many are absent.
    ExceedNone,
    /// Too many are swapped.
    ExceedSwap,
    /// Too few are in use.
    Cold,
}

/// Decides.
pub(super) fn judge(survey: &Survey, limits: &Limits) -> Verdict {
    match survey {
        Survey { large: LARGE, referenced, .. } if *referenced >= limits.referenced => {
            Verdict::Large
        }
        Survey { large: LARGE, .. } => Verdict::Cold,
        // It is being split.
        Survey { large: 1.., .. } => Verdict::Busy,
        Survey { none, .. } if *none > limits.none => Verdict::ExceedNone,
        Survey { swap, .. } if *swap > limits.swap => Verdict::ExceedSwap,
        Survey { referenced, .. } if *referenced < limits.referenced => Verdict::Cold,
        Survey { barred: 1.., .. } => Verdict::Busy,
        _ => Verdict::Collapse,
    }
}

/// Judges the block that starts at `first`; stops counting once it cannot be collapsed.
pub(super) fn look<P: Platform>(
    space: &Space<P>,
    first: Vpn,
    limits: &Limits,
    recency: Recency,
) -> Verdict {
    let mut survey = Survey::default();
    for index in 0..LARGE_PAGES {
        survey.note(space.entry(first.offset(index as u64)), recency);
        let exceeds = survey.none > limits.none || survey.swap > limits.swap;
        let mixed = survey.large > 0 && survey.large <= index as u32;
        if exceeds || mixed {
            break;
        }
    }
    judge(&survey, limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::{Pfn, Slot};

    const LIMITS: Limits = Limits { none: 4, swap: 8, referenced: 400 };

    fn survey(none: u32, swap: u32, referenced: u32) -> Survey {
        Survey { none, swap, referenced, ..Survey::default() }
    }

    #[test]
    fn a_block_is_collapsed_within_all_limits() {
        let table = [
            (survey(0, 0, 512), Verdict::Collapse),
            (survey(4, 8, 400), Verdict::Collapse),
            (survey(5, 0, 507), Verdict::ExceedNone),
            (survey(4, 9, 499), Verdict::ExceedSwap),
            (survey(0, 0, 399), Verdict::Cold),
            (Survey { barred: 1, ..survey(0, 0, 512) }, Verdict::Busy),
            (Survey { barred: 1, ..survey(0, 0, 0) }, Verdict::Cold),
            (Survey { large: 512, ..survey(0, 0, 512) }, Verdict::Large),
            (Survey { large: 512, ..survey(0, 0, 399) }, Verdict::Cold),
            (Survey { large: 511, ..survey(5, 0, 512) }, Verdict::Busy),
        ];
        for (survey, verdict) in table {
            assert_eq!(judge(&survey, &LIMITS), verdict, "{survey:?}");
        }
    }

    #[test]
    fn a_request_collapses_any_block_with_contents() {
        let verdicts = [survey(511, 0, 0), survey(0, 512, 0), survey(512, 0, 0)]
            .map(|survey| judge(&survey, &Limits::REQUESTED));
        assert_eq!(verdicts, [Verdict::Collapse, Verdict::Collapse, Verdict::ExceedNone]);
    }

    #[test]
    fn entries_count_as_what_they_are() {
        let page = Entry::resident(Pfn(3));
        let slot = Entry::swapped(Slot { device: 0, index: 7 });
        let entries =
            [Entry::ABSENT, slot, slot.large(), page, page.mapped(), page.mapped().accessed()];
        let of = |recency| {
            let mut survey = Survey::default();
            entries.iter().for_each(|entry| survey.note(*entry, recency));
            survey
        };
        assert_eq!(of(Recency::AccessedBit), survey(1, 2, 1));
        assert_eq!(of(Recency::Unmapping), survey(1, 2, 2));
        let mut large = Survey::default();
        large.note(page.large(), Recency::AccessedBit);
        assert_eq!(large, Survey { large: 1, ..Survey::default() });
    }

    #[test]
    fn absent_pages_of_page_tables_are_not_filled() {
        let config = KhugepagedConfig::default();
        let of = |recency| Limits::of(&config, recency);
        assert_eq!(of(Recency::AccessedBit), Limits { none: 64, swap: 64, referenced: 448 });
        assert_eq!(of(Recency::Unmapping).none, 0);
    }
}
