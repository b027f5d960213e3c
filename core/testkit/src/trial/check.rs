//! The final checks: the contents of every page, and that nothing remains after dropping all.

use super::model::{Halves, Known, words};
use super::program::Program;
use super::world::{SHARED, VOLATILE, World};
use highwater_mm::Range;
use highwater_mm::error::FaultError;
use highwater_mm::inspect::frames;
use highwater_platform::{Io, Platform};
use highwater_units::{SpaceId, Vpn};

/// Checks that every page is readable and has the expected contents.
pub(super) fn all<P: Platform, G: Program<P>>(world: &World<P, G>) {
    for (space, page) in every_page(world) {
        check(world, space, page).expect("nothing is wrong now");
    }
}

/// Like [`all`], with too little room for all pages: checks a page that can be read, and drops it,
/// which makes room for the next.
pub(super) fn all_with_little_room<P: Platform, G: Program<P>>(world: &World<P, G>) {
    let mut left: Vec<(SpaceId, u64)> = every_page(world).collect();
    left.retain(|(space, page)| check_and_drop(world, *space, *page).is_err());
    for (space, page) in left {
        check_and_drop(world, space, page).expect("there is room now");
    }
}

/// All pages with contents, of all users.
fn every_page<P: Platform, G: Program<P>>(
    world: &World<P, G>,
) -> impl Iterator<Item = (SpaceId, u64)> {
    let (spaces, pages) = (2 + world.plan.threads as u16, world.plan.pages);
    (0..spaces).flat_map(move |space| (0..pages).map(move |page| (SpaceId(space), page)))
}

fn check_and_drop<P: Platform, G: Program<P>>(
    world: &World<P, G>,
    space: SpaceId,
    page: u64,
) -> Result<(), FaultError> {
    check(world, space, page)?;
    world.discard(space, Range { first: Vpn(page), end: Vpn(page + 1) });
    Ok(())
}

/// Checks the words of every thread that owns words of a page.
fn check<P: Platform, G: Program<P>>(
    world: &World<P, G>,
    space: SpaceId,
    page: u64,
) -> Result<(), FaultError> {
    (world.beat)();
    let mut users = std::mem::take(&mut *world.known());
    let mut owners = users.iter_mut().filter(|user| {
        [SHARED, VOLATILE].contains(&space) || space == world.own_space(user.thread)
    });
    let outcome = owners.try_for_each(|user| check_words(world, user, space, page));
    *world.known() = users;
    outcome
}

fn check_words<P: Platform, G: Program<P>>(
    world: &World<P, G>,
    user: &mut Known,
    space: SpaceId,
    page: u64,
) -> Result<(), FaultError> {
    let load = |word| world.program.load(&world.manager, space, Vpn(page), word);
    let [first, second] = words(user.thread);
    let found: Halves<u64> = [load(first)?, load(second)?];
    let thread = user.thread;
    match space {
        VOLATILE => {
            let words = user.volatile[page as usize].iter_mut();
            words.zip(found).for_each(|(word, found)| word.find(found, &world.drops, page));
        }
        SHARED => {
            let expected = world.shared.least(thread, page);
            assert_eq!(found, expected, "shared page {page}, thread {thread}, at the end");
        }
        _ => {
            let expected = user.private[page as usize];
            assert_eq!(found, expected, "private page {page}, thread {thread}, at the end");
        }
    }
    Ok(())
}

/// Checks the file's pages, writes them back, and checks the device.
pub(super) fn file<P: Platform, G: Program<P>>(world: &World<P, G>) {
    let Some(file) = &world.file else { return };
    let threads = 0..world.plan.threads;
    let end = world.manager.end_of(file.space).0;
    for page in end..file.pages {
        assert_eq!(world.load(file.space, page, 0), [None; 2], "file page {page} is cut off");
    }
    for page in 0..end {
        (world.beat)();
        for thread in threads.clone() {
            let found = world.load(file.space, page, thread).map(|word| word.expect("all is well"));
            assert_eq!(found, file.stored.least(thread, page), "file page {page}, {thread}");
        }
    }
    let machine = world.manager.inspect();
    world.manager.write_back(file.space, file.all()).expect("all is well");
    let frame = frames(machine, 1).expect("all is well");
    for page in 0..end {
        (world.beat)();
        let mut io = [Io::new(page as u32, frame)];
        machine.platform.read(file.device, &mut io);
        assert_eq!(io[0].result, Ok(()));
        for thread in threads.clone() {
            let found = words(thread).map(|word| machine.platform.load(frame[0], word));
            let expected = file.stored.least(thread, page);
            assert_eq!(found, expected, "page {page} on the device of the file, {thread}");
        }
    }
    machine.free(&frame);
}

fn drop_folios<P: Platform, G: Program<P>>(world: &World<P, G>) {
    let all = Range { first: Vpn(0), end: Vpn(world.plan.folios.pages) };
    world.folios.iter().for_each(|space| world.discard(*space, all));
}

/// Drops all contents, and checks that nothing remains in use.
pub(super) fn empty<P: Platform, G: Program<P>>(world: &World<P, G>) {
    let spaces = world.plan.spaces() as u16;
    (0..spaces).for_each(|space| world.discard(SpaceId(space), world.all()));
    world.file.iter().for_each(|file| world.discard(file.space, file.all()));
    drop_folios(world);
    world.manager.verify(&[]);
    let machine = world.manager.inspect();
    world.objects.empty();
    // Dropped pages that are still in per-CPU LRU batches.
    machine.nodes.iter().for_each(|n| n.lru.drain(&machine.frames, |pages| machine.free(pages)));
    assert_eq!((machine.resident(), machine.swap.usage().0), (0, 0), "all was given back");
}
