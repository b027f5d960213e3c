//! The entry word in all interleavings: an entry has one holder, no pin is in the way of a holder
//! that refuses pins, what one holder wrote is seen by the next and by those that pin, and no
//! waiter is lost (loom reports a deadlock).

use super::{Access, Backing, Claim, Entry, Pinned, Space};
use highwater_model::{Contents, Model, check, spawn};
use highwater_platform::Event;
use highwater_units::{Order, Pfn, SpaceId, Vpn};
use std::rc::Rc;

const PAGE: Vpn = Vpn(3);

/// A page, and what its entry protects.
struct Guarded {
    space: Space<Model>,
    contents: Contents,
}

impl Guarded {
    fn new(entry: Entry) -> Rc<Guarded> {
        let platform = Model::sharing(1, Vec::new());
        let space = Space::new(&platform, SpaceId(7), 8, Order(0), Backing::Anonymous);
        // Made before the threads begin.
        space.event(PAGE).ticket();
        space.hold(PAGE).release(|_, _| entry);
        Rc::new(Guarded { space, contents: Contents::new() })
    }

    /// A fault; returns whether this thread made the page present.
    fn fault(&self, access: Access) -> bool {
        loop {
            match self.space.claim(PAGE, access) {
                Claim::Busy(ticket) => self.space.wait(PAGE, ticket),
                Claim::Mapped => return false,
                Claim::Held(held) => {
                    self.contents.write();
                    held.release(|_, _| match access {
                        Access::Read => clean(),
                        Access::Write => clean().dirty(),
                    });
                    return true;
                }
            }
        }
    }

    /// A store to a page that is mapped read-only: changes the entry, whether or not it is pinned.
    fn allow_write(&self) {
        if let Claim::Held(held) = self.space.claim(PAGE, Access::Write) {
            held.release(|_, was| was.dirty());
        }
    }

    /// Takes the page away, as munmap does.
    fn take_away(&self) {
        let held = self.space.hold_as(PAGE, Pinned::Refuse);
        self.contents.write();
        held.release(|_, _| Entry::ABSENT);
    }

    /// Reads the page through a guard, if that needs no fault.
    fn read_pinned(&self) {
        if self.space.pin(PAGE, Access::Read).is_some() {
            self.contents.read();
            self.space.unpin(PAGE);
        }
    }
}

fn clean() -> Entry {
    Entry::resident(Pfn(0)).mapped()
}

/// Regression: a thread looked at an entry, was preempted while another thread mapped the page, and
/// then locked the entry. Its load was served as a store to a mapped page: the page became writable
/// and dirty, in a file that is open for reading only, too, where no write can clean it.
#[test]
fn of_threads_that_fault_one_makes_the_page_present() {
    for access in [Access::Read, Access::Write] {
        check(2, move || {
            let page = Guarded::new(Entry::ABSENT);
            let fault = |cpu| {
                let page = page.clone();
                spawn(cpu, move || page.fault(access))
            };
            let others = [1, 2].map(fault);
            let own = page.fault(access);
            page.contents.read();
            let made = others.into_iter().map(|other| other.join().unwrap());
            assert_eq!(made.filter(|made| *made).count() + usize::from(own), 1);
            let marks = page.space.entry(PAGE);
            assert!(marks == clean() || marks == clean().dirty(), "no waiter is left: {marks:?}");
        });
    }
}

#[test]
fn a_page_is_taken_away_after_its_pins_and_every_waiter_goes_on() {
    check(3, || {
        let page = Guarded::new(clean());
        let (pins, takes) = (page.clone(), page.clone());
        let pins = spawn(1, move || pins.read_pinned());
        let takes = spawn(2, move || takes.take_away());
        page.take_away();
        pins.join().unwrap();
        takes.join().unwrap();
        assert_eq!(page.space.entry(PAGE), Entry::ABSENT);
    });
}

#[test]
fn a_page_is_pinned_with_the_contents_that_its_fault_wrote() {
    check(3, || {
        let page = Guarded::new(Entry::ABSENT);
        let (pins, takes) = (page.clone(), page.clone());
        let pins = spawn(1, move || pins.read_pinned());
        let takes = spawn(2, move || takes.take_away());
        page.fault(Access::Write);
        pins.join().unwrap();
        takes.join().unwrap();
        assert_eq!(page.space.entry(PAGE).pins(), 0);
    });
}

#[test]
fn a_pin_outlives_a_change_of_the_entry() {
    check(3, || {
        let page = Guarded::new(clean());
        let (pins, stores) = (page.clone(), page.clone());
        let pins = spawn(1, move || pins.read_pinned());
        let stores = spawn(2, move || stores.allow_write());
        page.take_away();
        pins.join().unwrap();
        stores.join().unwrap();
        assert_eq!(page.space.entry(PAGE).settled(), page.space.entry(PAGE));
    });
}
