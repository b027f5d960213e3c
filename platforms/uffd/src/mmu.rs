//! Maps pages into programs and unmaps them.
//!
//! ```text
//!            MOVE                                  COPY (before Linux 6.8)
//! map        MOVE arena -> space                   COPY arena -> space, drop the arena's memory
//!            (read-only: as with COPY)             (read-only: protected by the same call)
//! unmap      MOVE space -> arena                   write-protect, copy, MADV_DONTNEED, wake
//! ```
//! A page that is moved in is writable at once; protecting it afterwards would miss a write in
//! between, by another thread or by a signal handler of the waiting one. So read-only pages are
//! copied in. Adjacent frames go with one call and one TLB flush. Ranges that the program protected
//! are copied with either mapping (`protect.rs`); ranges that are executable and writable are never
//! unmapped. COPY cannot see pages pinned for I/O; ARCHITECTURE.md says what `run` does about that.

use crate::api::{Mapping, Partial, Userfaultfd, Wake, Writes};
use crate::protect::Access;
use crate::uffd::Uffd;
use highwater_os::huge;
use highwater_os::sys::{self, Advice};
use highwater_platform::{AttachError, Mmu, Progress, Protection, Recency, Stop};
use highwater_units::{PAGE_SIZE, Pfn, SpaceId, Vpn, adjacent};
use rustix::io::pread;
use std::slice;

/// Adjacent pages of a space with adjacent frames.
#[derive(Clone, Copy)]
struct Stretch {
    space: SpaceId,
    vpn: Vpn,
    pfn: Pfn,
    pages: usize,
}

impl Stretch {
    fn bytes(self) -> usize {
        self.pages * PAGE_SIZE
    }

    /// The rest from page `done` on.
    fn rest(self, done: usize) -> Stretch {
        let (vpn, pfn) = (self.vpn.offset(done as u64), self.pfn.offset(done as u32));
        Stretch { vpn, pfn, pages: self.pages - done, ..self }
    }

    /// Page `index` alone.
    fn page(self, index: usize) -> Stretch {
        Stretch { pages: 1, ..self.rest(index) }
    }
}

impl Mmu for Uffd {
    fn recency(&self) -> Recency {
        Recency::Unmapping
    }

    fn attach(&self, space: SpaceId, pages: u64) -> Result<(), AttachError> {
        let attached = self.areas.attach(space, pages);
        attached.map_err(|error| AttachError(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn map(&self, space: SpaceId, first: Vpn, frames: &[Pfn], protection: Protection) -> Progress {
        let access = match protection {
            Protection::ReadOnly => Writes::Reported,
            Protection::ReadWrite => Writes::Allowed,
        };
        each_stretch(space, first, frames, |stretch| {
            over_borders(stretch, |part| match (self.mapping, access) {
                (Mapping::Move, Writes::Allowed) => self.move_in(part),
                (Mapping::Move, Writes::Reported) | (Mapping::Copy, _) => {
                    self.copy_in(part, access)
                }
            })
        })
    }

    fn unmap(&self, space: SpaceId, first: Vpn, frames: &[Pfn]) -> Progress {
        each_stretch(space, first, frames, |stretch| match self.mapping {
            Mapping::Move => over_borders(stretch, |part| self.move_out(part)),
            Mapping::Copy => each_page(stretch, |page| self.copy_out(page)),
        })
    }

    fn discard(&self, space: SpaceId, vpn: Vpn, pfn: Pfn) {
        self.drop_page(Stretch { space, vpn, pfn, pages: 1 });
        if self.mapping == Mapping::Move {
            self.memory.refill(pfn);
        }
    }

    fn copy(&self, space: SpaceId, vpn: Vpn, _: Pfn, to: Pfn) {
        let from = self.areas.address(space, vpn) as u64;
        let read = self.read_program(from, self.memory.arena().address(to));
        assert!(read, "a mapped page can be read");
    }

    fn coalesce(&self, space: SpaceId, first: Vpn, _: Pfn) {
        // While pages are mapped, their memory is in the program, not in the arena.
        let block = self.areas.address(space, first);
        if block.addr().is_multiple_of(huge::SIZE) {
            // The kernel refuses if a page is missing; it sends no fault for it.
            // SAFETY: a block of the space; the kernel keeps its contents.
            let _ = unsafe { huge::collapse(block) };
        }
    }

    fn allow_write(&self, space: SpaceId, vpn: Vpn) {
        let address = self.areas.address(space, vpn) as u64;
        let uffd = self.areas.uffd(space);
        // Fails only if the program unmapped the range itself: then there is nothing to do.
        let _ = uffd.protect(address, PAGE_SIZE, Writes::Allowed, Wake::Now);
    }

    fn holds(&self, space: SpaceId, vpn: Vpn) -> bool {
        is_present(self.areas.address(space, vpn) as u64)
    }
}

impl Uffd {
    fn program(&self, stretch: Stretch) -> u64 {
        self.areas.address(stretch.space, stretch.vpn) as u64
    }

    fn frame(&self, stretch: Stretch) -> u64 {
        self.memory.arena().address(stretch.pfn) as u64
    }

    fn move_in(&self, stretch: Stretch) -> Progress {
        let (uffd, to) = (self.areas.uffd(stretch.space), self.program(stretch));
        // SAFETY: frames the caller holds, into pages that the manager says are absent.
        let moved = unsafe { move_all(uffd, to, self.frame(stretch), stretch.bytes(), Wake::Now) };
        let done = done_of(moved, stretch);
        match moved {
            Ok(()) => Progress::all(stretch.pages),
            // The range is protected, or the page is shared or pinned: copy.
            Err((_, libc::EINVAL | libc::EBUSY)) => {
                after(done, self.copy_in(stretch.rest(done), Writes::Allowed))
            }
            Err((_, error)) => Progress::until(done, stop_of(error)),
        }
    }

    fn copy_in(&self, stretch: Stretch, access: Writes) -> Progress {
        let (uffd, to) = (self.areas.uffd(stretch.space), self.program(stretch));
        let from = self.frame(stretch);
        // SAFETY: as in `move_in`; frames are readable while unmapped.
        let copied = unsafe { uffd.copy(to, from, stretch.bytes(), access, Wake::Now) };
        let done = done_of(copied, stretch);
        if done > 0 {
            self.memory.release(stretch.pfn, done);
        }
        match copied {
            Ok(()) => Progress::all(stretch.pages),
            Err((_, error)) => Progress::until(done, stop_of(error)),
        }
    }

    fn move_out(&self, stretch: Stretch) -> Progress {
        let (to, from) = (self.frame(stretch), self.program(stretch));
        let uffd = self.memory.uffd();
        // SAFETY: pages of the space, into the holes of their frames in the arena.
        let moved = unsafe { move_all(uffd, to, from, stretch.bytes(), Wake::Later) };
        let done = done_of(moved, stretch);
        match moved {
            Ok(()) => Progress::all(stretch.pages),
            Err((_, libc::ENOENT)) => {
                if stretch.pages == 1 {
                    self.memory.refill(stretch.pfn);
                }
                Progress::until(done, Stop::Vanished)
            }
            Err((_, libc::EINVAL)) => {
                let rest = stretch.rest(done);
                after(done, each_page(rest, |page| self.copy_out_protected(page)))
            }
            Err((_, error)) => Progress::until(done, stop_of(error)),
        }
    }

    /// Copies one page of a read-only range out, while the range stays read-only.
    fn copy_out_protected(&self, page: Stretch) -> Progress {
        let from = self.program(page);
        let fixed = self.areas.protections().fix();
        match fixed.at(from) {
            Access::Write | Access::WriteExecute => return Progress::until(0, Stop::Busy),
            Access::Read | Access::None => {}
        }
        if self.mapping == Mapping::Move {
            self.memory.refill(page.pfn);
        }
        self.copy_and_drop(page)
    }

    /// Copies one page out, without MOVE.
    fn copy_out(&self, page: Stretch) -> Progress {
        let (uffd, from) = (self.areas.uffd(page.space), self.program(page));
        let fixed = self.areas.protections().fix();
        if fixed.at(from) == Access::WriteExecute {
            return Progress::until(0, Stop::Busy);
        }
        // A thread that writes from here on waits, and then finds the page missing.
        if uffd.protect(from, PAGE_SIZE, Writes::Reported, Wake::Later).is_err() {
            return Progress::until(0, Stop::Vanished);
        }
        let progress = self.copy_and_drop(page);
        uffd.wake(from, PAGE_SIZE);
        progress
    }

    /// Copies a write-protected page into its frame, and drops it from the program.
    fn copy_and_drop(&self, page: Stretch) -> Progress {
        if !self.holds(page.space, page.vpn) {
            return Progress::until(0, Stop::Vanished);
        }
        let frame = self.memory.arena().address(page.pfn);
        if !self.read_program(self.program(page), frame) {
            return Progress::until(0, Stop::Busy);
        }
        self.drop_page(page);
        Progress::all(1)
    }

    /// Reads a page of the program into `to`: through /proc/self/mem, which ignores the protection
    /// of the range, and returns an error where a load would raise a signal. If the system denies
    /// that file, by process_vm_readv, which respects the protection.
    fn read_program(&self, from: u64, to: *mut u8) -> bool {
        let got = match &self.own_memory {
            Some(memory) => {
                // SAFETY: a frame the caller holds, a page long; any bytes are a value.
                let to = unsafe { slice::from_raw_parts_mut(to, PAGE_SIZE) };
                pread(memory, to, from).unwrap_or(0)
            }
            None => read_own(from, to),
        };
        got == PAGE_SIZE || self.read_closed(from, to)
    }

    /// Reads a page of an inaccessible range by making it readable for a moment.
    fn read_closed(&self, from: u64, to: *mut u8) -> bool {
        let fixed = self.areas.protections().fix();
        if self.own_memory.is_some() || fixed.at(from) != Access::None {
            return false;
        }
        let page: *mut u8 = std::ptr::with_exposed_provenance_mut(from as usize);
        let protect = |bits| {
            // SAFETY: a page of the program; `fixed` keeps other threads from changing its
            // protection.
            unsafe { sys::protect(page, PAGE_SIZE, bits) }.is_ok()
        };
        let read = protect(libc::PROT_READ) && read_own(from, to) == PAGE_SIZE;
        protect(libc::PROT_NONE) && read
    }

    fn drop_page(&self, page: Stretch) {
        let address = self.areas.address(page.space, page.vpn);
        // SAFETY: a page of a space whose contents were saved, or are not needed.
        let _ = unsafe { sys::advise(address, PAGE_SIZE, Advice::LinuxDontNeed) };
    }
}

/// Moves as many pages as possible.
///
/// Linux 6.18 miscounts a page that its own compaction is migrating: it waits, moves the page, then
/// tries again and reports that the destination exists. Nothing else fills or empties these
/// addresses meanwhile, so a page that is missing at the source and present at the destination was
/// moved. Its waiters were not woken.
///
/// # Safety
/// As for [`Userfaultfd::move_pages`].
unsafe fn move_all(uffd: &Userfaultfd, to: u64, from: u64, len: usize, wake: Wake) -> Partial {
    let mut done = 0;
    while done < len {
        let at = done as u64;
        // SAFETY: a part of the ranges that the caller vouches for.
        let moved = unsafe { uffd.move_pages(to + at, from + at, len - done, wake) };
        let Err((bytes, error)) = moved else { break };
        done += bytes;
        let (page, left) = (to + done as u64, from + done as u64);
        let uncounted = matches!(error, libc::EEXIST | libc::ENOENT);
        if !uncounted || is_present(left) || !is_present(page) {
            return Err((done, error));
        }
        if wake == Wake::Now {
            uffd.wake(page, PAGE_SIZE);
        }
        done += PAGE_SIZE;
    }
    Ok(())
}

/// Reads a page of this process by process_vm_readv, which each process may call on itself.
fn read_own(from: u64, to: *mut u8) -> usize {
    let piece = |address: *mut u8| libc::iovec { iov_base: address.cast(), iov_len: PAGE_SIZE };
    let from = piece(std::ptr::with_exposed_provenance_mut(from as usize));
    let to = piece(to);
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: `to` is a frame that the caller holds; the other address is only looked up.
    let got = unsafe { libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}

/// Whether there is a page at an address; also while the kernel migrates it.
fn is_present(address: u64) -> bool {
    let mut there = 0u8;
    // SAFETY: mincore writes one byte for one page.
    let asked = unsafe { libc::syscall(libc::SYS_mincore, address, PAGE_SIZE, &mut there) };
    asked == 0 && there & 1 == 1
}

/// Calls `act` with each stretch of adjacent frames, until one stops early.
fn each_stretch(
    space: SpaceId,
    first: Vpn,
    frames: &[Pfn],
    act: impl Fn(Stretch) -> Progress,
) -> Progress {
    for (at, pfn, pages) in adjacent(frames) {
        let progress = act(Stretch { space, vpn: first.offset(at as u64), pfn, pages });
        if let Some(stop) = progress.stop {
            return Progress::until(at + progress.done, stop);
        }
    }
    Progress::all(frames.len())
}

/// Acts on a stretch; if the kernel returns ENOENT, page by page. A stretch that crosses a change
/// of protection lies in two mappings of the kernel's, which is ENOENT for the whole stretch.
fn over_borders(stretch: Stretch, act: impl Fn(Stretch) -> Progress) -> Progress {
    let progress = act(stretch);
    match progress.stop {
        Some(Stop::Vanished) if stretch.pages > 1 => {
            after(progress.done, each_page(stretch.rest(progress.done), act))
        }
        _ => progress,
    }
}

fn done_of(result: Partial, stretch: Stretch) -> usize {
    result.map_or_else(|(bytes, _)| bytes / PAGE_SIZE, |()| stretch.pages)
}

/// The progress of `done` pages and the rest.
fn after(done: usize, rest: Progress) -> Progress {
    Progress { done: done + rest.done, stop: rest.stop }
}

/// Calls `act` with each page of a stretch, until one stops early.
fn each_page(stretch: Stretch, act: impl Fn(Stretch) -> Progress) -> Progress {
    for done in 0..stretch.pages {
        if let Some(stop) = act(stretch.page(done)).stop {
            return Progress::until(done, stop);
        }
    }
    Progress::all(stretch.pages)
}

fn stop_of(error: i32) -> Stop {
    match error {
        libc::EBUSY => Stop::Busy,
        libc::ENOENT => Stop::Vanished,
        libc::EEXIST => Stop::Occupied,
        other => Stop::Failed(other),
    }
}

/// Imitates the kernel's miscounted moves: a page is moved without the manager.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Message;
    use crate::{Delivery, Placement, Site};
    use highwater_devices::{Spec, open};
    use highwater_mm::inspect::Page;
    use highwater_mm::{Access, Config, Fault, Manager, Range, Served};
    use highwater_platform::Memory;
    use highwater_testkit::Watchdog;
    use highwater_units::Bytes;
    use std::time::Duration;

    const SPACE: SpaceId = SpaceId(0);

    /// `None`, with a message, where pages cannot be moved.
    fn platform() -> Option<Uffd> {
        if !matches!(Uffd::probe(), Ok(Mapping::Move)) {
            highwater_testkit::skip_or_fail("this kernel does not move pages");
            return None;
        }
        let device = open(&Spec::Ram { size: Bytes(1 << 20) }).expect("memory");
        let platform = Uffd::new(Bytes::of_pages(64), vec![device], Mapping::Move);
        let platform = platform.expect("userfaultfd");
        platform.place(SPACE, Placement { site: Site::Anywhere, delivery: Delivery::Handler });
        Some(platform)
    }

    fn move_out_uncounted(platform: &Uffd, vpn: Vpn, pfn: Pfn) {
        let page = Stretch { space: SPACE, vpn, pfn, pages: 1 };
        let (to, from) = (platform.frame(page), platform.program(page));
        // SAFETY: a mapped page and the hole of its frame; no thread is at either.
        let moved = unsafe { platform.memory.uffd().move_pages(to, from, PAGE_SIZE, Wake::Later) };
        assert_eq!(moved, Ok(()));
    }

    fn move_in_uncounted(platform: &Uffd, vpn: Vpn, pfn: Pfn) {
        let page = Stretch { space: SPACE, vpn, pfn, pages: 1 };
        let (to, from) = (platform.program(page), platform.frame(page));
        // SAFETY: an unmapped page and its frame; no thread is at the frame.
        let moved =
            unsafe { platform.areas.uffd(SPACE).move_pages(to, from, PAGE_SIZE, Wake::Later) };
        assert_eq!(moved, Ok(()));
    }

    fn word(platform: &Uffd, vpn: Vpn) -> u64 {
        // SAFETY: a mapped page of the space.
        unsafe { platform.address(SPACE, vpn).cast::<u64>().read_volatile() }
    }

    #[test]
    fn pages_that_the_kernel_moved_but_did_not_count_are_moved() {
        let _watchdog = Watchdog::new("uncounted moves", Duration::from_secs(30));
        let Some(platform) = platform() else { return };
        platform.attach(SPACE, 8).expect("address space");
        let frames: Vec<Pfn> = (0..4).map(Pfn).collect();
        platform.populate(&frames).expect("memory");
        frames.iter().for_each(|pfn| platform.store(*pfn, 0, 100 + u64::from(pfn.0)));
        for lost in 1..1u32 << frames.len() {
            let lost = || (0..frames.len()).filter(|i| lost >> i & 1 == 1);
            lost().for_each(|i| move_in_uncounted(&platform, Vpn(i as u64), frames[i]));
            let mapped = platform.map(SPACE, Vpn(0), &frames, Protection::ReadWrite);
            assert_eq!(mapped, Progress::all(frames.len()));
            (0..4).for_each(|i| assert_eq!(word(&platform, Vpn(i)), 100 + i));
            lost().for_each(|i| move_out_uncounted(&platform, Vpn(i as u64), frames[i]));
            let unmapped = platform.unmap(SPACE, Vpn(0), &frames);
            assert_eq!(unmapped, Progress::all(frames.len()));
            frames.iter().for_each(|p| assert_eq!(platform.load(*p, 0), 100 + u64::from(p.0)));
        }
    }

    #[test]
    fn a_waiter_for_a_page_that_was_moved_uncounted_is_woken() {
        let _watchdog = Watchdog::new("uncounted and waited for", Duration::from_secs(30));
        let Some(platform) = platform() else { return };
        platform.attach(SPACE, 8).expect("address space");
        platform.populate(&[Pfn(0)]).expect("memory");
        platform.store(Pfn(0), 0, 7);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| word(&platform, Vpn(0)));
            let mut messages = [Message::default()];
            assert_eq!(platform.uffd(SPACE).read(&mut messages).expect("a message"), 1);
            move_in_uncounted(&platform, Vpn(0), Pfn(0));
            let mapped = platform.map(SPACE, Vpn(0), &[Pfn(0)], Protection::ReadWrite);
            assert_eq!(mapped, Progress::all(1));
            assert_eq!(waits.join().expect("the thread goes on"), 7);
        });
    }

    #[test]
    fn a_fault_on_a_page_that_was_moved_out_uncounted_ends() {
        let _watchdog = Watchdog::new("a mapped page that is not there", Duration::from_secs(30));
        let Some(platform) = platform() else { return };
        let manager = Manager::start(platform, Config::default()).expect("threads");
        manager.add_space(8).expect("address space");
        let within = Range { first: Vpn(3), end: Vpn(4) };
        let fault = Fault { vpn: Vpn(3), access: Access::Write, within };
        assert_eq!(manager.fault(SPACE, fault), Ok(Served::Minor));
        let platform = manager.platform();
        // SAFETY: the page was just mapped, and a budget of 64 pages keeps it so.
        unsafe { platform.address(SPACE, Vpn(3)).cast::<u64>().write_volatile(9) };
        let page = manager.inspect().space(SPACE).entry(Vpn(3)).page();
        let Page::Resident(pfn) = page else { panic!("a page that was just mapped: {page:?}") };
        move_out_uncounted(platform, Vpn(3), pfn);
        assert_eq!(manager.fault(SPACE, fault), Ok(Served::Minor));
        assert_eq!(word(platform, Vpn(3)), 9);
    }
}
