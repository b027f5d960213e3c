//! Moves a page of more than one frame, whole, to another run of as many.
//!
//! As [`super::migrate`] does with single ones; there are no runs of them.

use super::migrate::{Migrated, Mode, hold, move_record};
use crate::folio::{self, Folio, Unmapped};
use crate::lru::List;
use crate::machine::Machine;
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{Order, Pfn};

/// The order of the page that begins with a frame, or is in it, as far as one can tell without its
/// lock; `None` if the frame is no page's, or a tail.
pub fn order_of<P: Platform>(m: &Machine<P>, head: Pfn) -> Option<Order> {
    m.frames.owner(head).map(|owner| m.space(owner.space).order())
}

/// Moves the page whose first frame is `head`, which the caller has isolated from `list`, to as
/// many populated frames from `to` on, which the caller has taken. Frames that are nobody's
/// afterwards are the caller's, and on no list: of a page that vanished, the first one alone.
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

/// Puts the page whose first frame is `head`, isolated from `list`, back where it was; what had
/// vanished meanwhile is the caller's, as of [`migrate_folio`].
pub(super) fn leave_folio<P: Platform>(
    m: &Machine<P>,
    head: Pfn,
    list: List,
    order: Order,
) -> Migrated {
    let orphans = m.node_of(head).lru.putback(&m.frames, &[head], list);
    match orphans.is_empty() {
        true => {
            m.count(Counter::PgMigrateFail, order.frames().into());
            m.count(Counter::ThpMigrationFail, 1);
            Migrated::Busy
        }
        false => Migrated::Vanished,
    }
}

/// `None`: it is in use, or another page.
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
    let protection = match was.is_dirty() {
        true => Protection::ReadWrite,
        false => Protection::ReadOnly,
    };
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
