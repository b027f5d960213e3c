//! Moves a folio, a page of more than one frame, to another block of the same order.
//!
//! As [`super::migrate`] moves single pages, but one folio at a time.

use super::migrate::{Migrated, Mode, hold, move_record};
use crate::folio::{self, Folio, Unmapped};
use crate::lru::List;
use crate::machine::Machine;
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{Order, Pfn};

/// The order of the page whose first frame is `head`; `None` if no page owns the frame, or it is a
/// tail. Racy unless the page's entry is locked.
pub fn order_of<P: Platform>(m: &Machine<P>, head: Pfn) -> Option<Order> {
    m.frames.owner(head).map(|owner| m.space(owner.space).order())
}

/// Moves the folio whose first frame is `head`, which the caller has isolated from `list`, to as
/// many populated frames from `to` on, which the caller has allocated. The caller gets the frames
/// that no page owns afterwards; they are on no list. If the folio vanished, the caller gets only
/// its first frame.
pub fn migrate_folio<P: Platform>(
    m: &Machine<P>,
    head: Pfn,
    list: List,
    to: Pfn,
    order: Order,
    mode: Mode,
) -> Migrated {
    if move_to(m, head, list, to, order, mode) == Some(Migrated::Moved) {
        m.count(Counter::PgMigrateSuccess, order.frames().into());
        m.count(Counter::ThpMigrationSuccess, 1);
        return Migrated::Moved;
    }
    leave_folio(m, head, list, order)
}

/// Puts the folio whose first frame is `head` back on the list it was isolated from. If it has
/// vanished, the caller gets its frames as from [`migrate_folio`].
pub(super) fn leave_folio<P: Platform>(
    m: &Machine<P>,
    head: Pfn,
    list: List,
    order: Order,
) -> Migrated {
    let orphans = m.node_of(head).lru.putback(&m.frames, &[head], list);
    if !orphans.is_empty() {
        return Migrated::Vanished;
    }
    m.count(Counter::PgMigrateFail, order.frames().into());
    m.count(Counter::ThpMigrationFail, 1);
    Migrated::Busy
}

/// `None`: the folio is busy, or another page is in the frame.
fn move_to<P: Platform>(
    m: &Machine<P>,
    head: Pfn,
    list: List,
    to: Pfn,
    order: Order,
    mode: Mode,
) -> Option<Migrated> {
    let held = hold(m, head, order, mode)?;
    let (space, owner, was) = (held.space(), held.owner(0), held.entries()[0]);
    let [from, new] = [head, to].map(|first| Folio::new(first, order));
    let protection = if was.is_dirty() { Protection::ReadWrite } else { Protection::ReadOnly };
    if was.is_mapped() && folio::unmap(m, space, owner, &from, protection) == Unmapped::Busy {
        return None;
    }
    from.iter().zip(new.iter()).for_each(|(from, to)| m.platform.copy_frame(*from, *to));
    folio::detach(m, &from);
    move_record(m, owner, head, to);
    folio::adopt(m, &new, owner);
    m.add_to_lru(&[to], list);
    if was.is_mapped() {
        folio::map(m, space, owner, &new, protection);
    }
    held.release(|_, was| was.moved_to(to));
    Some(Migrated::Moved)
}
