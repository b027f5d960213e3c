//! A device whose contents are encrypted and authenticated.
//!
//! ```text
//! Sealed -- device   the file                        ciphertext only
//!        |- Cipher   the algorithm for this CPU      cipher
//!        |- Keys     one for each fork, random       keys
//!        |- Tags     stamp and tag of each slot      tags, in memory
//!        \- Bounce   pages that are being written    bounce; none if it is read-only
//! write    frame -> bounce page, encrypted -> device;  its stamp and tag -> Tags
//! read     device -> frame, checked and decrypted in place, before the transfer counts as done
//! ```
//! A page that was changed, that is an older one of its slot, or that was written to another slot,
//! does not match stamp and tag: its transfer fails with EBADMSG, so that the frame is never
//! mapped. No nonce is used twice with a key; [`keys`] explains why.
//!
//! A forked child has a copy of tags and keys as they were at the fork, so it can read the pages
//! that its parent had written before. A process that ends wipes the keys ([`Device::forget`]); the
//! kernel drops them with its memory in any case.
//!
//! Locks: none beside those of its parts.

mod bounce;
mod cipher;
mod keys;
#[cfg(test)]
mod seal_fuzz;
mod tags;

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::pool::Started;
use crate::quota::Lenders;
use crate::transfer::admit;
use bounce::{Bounce, Held};
use cipher::{Altered, Cipher, Nonce};
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, FrameList, PAGE_SIZE};
use keys::{Keys, Stamp};
use std::fmt;
use std::slice;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tags::Tags;

/// Whether files that hold swapped pages are encrypted and authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seal {
    /// Encrypted, with a key that never leaves memory.
    #[default]
    On,
    /// The files hold the pages as they are.
    Off,
}

impl Seal {
    /// The name of the algorithm on this CPU; `off` without one.
    pub fn algorithm(self) -> &'static str {
        match self {
            Seal::On => Cipher::of_cpu().name(),
            Seal::Off => "off",
        }
    }
}

impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Seal::On => "on",
            Seal::Off => "off",
        })
    }
}

impl FromStr for Seal {
    type Err = String;

    fn from_str(text: &str) -> Result<Seal, String> {
        match text {
            "on" => Ok(Seal::On),
            "off" => Ok(Seal::Off),
            _ => Err(format!("'{text}' is neither on nor off")),
        }
    }
}

/// A device that seals the pages which another device stores.
pub(crate) struct Sealed {
    info: DeviceInfo,
    device: Box<dyn Device>,
    cipher: Cipher,
    keys: Arc<Keys>,
    tags: Arc<Tags>,
    /// `None`: the device is read-only.
    bounce: Option<Bounce>,
    altered: AtomicBool,
}

impl Sealed {
    /// Seals an empty device.
    pub(crate) fn new(device: Box<dyn Device>) -> Result<Sealed, Reason> {
        Sealed::with(device, Cipher::of_cpu())
    }

    fn with(device: Box<dyn Device>, cipher: Cipher) -> Result<Sealed, Reason> {
        let failed = |errno| Reason::from_errno("make keys and tags of sealed swap", errno);
        let info = device.info();
        let tags = Arc::new(Tags::new(info.pages).map_err(failed)?);
        let (keys, bounce) = (Arc::new(Keys::new().map_err(failed)?), Bounce::new());
        let (bounce, altered) = (Some(bounce.map_err(failed)?), AtomicBool::new(false));
        Ok(Sealed { info, device, cipher, keys, tags, bounce, altered })
    }

    /// Encrypts a run of pages into a place that has room for it.
    ///
    /// # Safety
    /// The frames are populated memory of `arena`, and no other thread writes to them meanwhile.
    unsafe fn seal(
        &self,
        held: &mut Held<'_>,
        arena: Arena,
        origin: usize,
        slot: u32,
        frames: &FrameList,
    ) -> Result<(), IoError> {
        let (key, first) = self.keys.for_writes(frames.len()).ok_or(FORGOTTEN)?;
        let pages = frames.iter().zip(held.push(origin, slot, frames.len()));
        for (index, (frame, to)) in pages.enumerate() {
            // SAFETY: a page of the place, which this thread holds.
            let page = unsafe { slice::from_raw_parts_mut(to, PAGE_SIZE) };
            // SAFETY: by contract, of an admitted frame; the place lies outside of the arena.
            unsafe { to.copy_from_nonoverlapping(arena.address(*frame), PAGE_SIZE) };
            let (slot, stamp) = (slot + index as u32, first.after(index));
            let tag = self.cipher.seal(&key, nonce(slot, stamp), page);
            self.release(self.tags.set(slot, stamp, tag));
        }
        Ok(())
    }

    /// Encrypts a batch into a place. `make_room` is called when the place has no room for the next
    /// run.
    ///
    /// # Safety
    /// As for [`Device::write`].
    unsafe fn seal_all(
        &self,
        held: &mut Held<'_>,
        arena: Arena,
        batch: &mut [Io],
        make_room: impl Fn(&mut Held<'_>, &mut [Io]),
    ) {
        batch.iter_mut().for_each(|io| io.result = admit(&self.info, Direction::Write, arena, io));
        for index in 0..batch.len() {
            let Io { slot, frames, result } = batch[index];
            for (offset, list) in frames.lists().filter(|_| result.is_ok()) {
                if held.room() < list.len() {
                    make_room(held, batch);
                }
                let slot = slot + offset as u32;
                // SAFETY: admitted, and by contract of this function.
                let sealed = unsafe { self.seal(held, arena, index, slot, &list) };
                batch[index].result = batch[index].result.and(sealed);
            }
        }
    }

    /// Writes the pages of a place, and empties it.
    ///
    /// # Safety
    /// The place holds transfers of `batch`, admitted.
    unsafe fn send(&self, held: &mut Held<'_>, batch: &mut [Io]) {
        let arena = held.arena();
        // SAFETY: pages of the place, which this thread holds.
        unsafe { self.device.write(arena, held.ios()) };
        held.report(batch);
        held.empty();
    }

    /// Checks and decrypts the pages of a finished read.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn open_all(&self, arena: Arena, batch: &mut [Io]) {
        for io in batch.iter_mut().filter(|io| io.result.is_ok()) {
            for (slot, frame) in (io.slot..).zip(io.frames.iter()) {
                // SAFETY: by contract: the frame was just read by this thread's transfer.
                let page = unsafe { slice::from_raw_parts_mut(arena.address(frame), PAGE_SIZE) };
                io.result = io.result.and(self.open(slot, page));
            }
        }
    }

    fn open(&self, slot: u32, page: &mut [u8]) -> Result<(), IoError> {
        let Some((stamp, tag)) = self.tags.get(slot) else {
            // The slot was never written.
            page.fill(0);
            return Ok(());
        };
        let key = self.keys.of(stamp).ok_or(FORGOTTEN)?;
        self.cipher.open(&key, nonce(slot, stamp), tag, page).map_err(|Altered| {
            self.altered.store(true, Relaxed);
            ALTERED
        })
    }

    fn release(&self, stamp: Option<Stamp>) {
        stamp.into_iter().for_each(|stamp| self.keys.release(stamp));
    }
}

/// A page differs from the last one written to its slot. File systems report bad checksums with the
/// same error.
const ALTERED: IoError = IoError::Failed(libc::EBADMSG);
/// The keys are wiped, because the process ends.
const FORGOTTEN: IoError = IoError::Failed(libc::ENOKEY);

fn nonce(slot: u32, stamp: Stamp) -> Nonce {
    Nonce { slot, write: stamp.number() }
}

impl Device for Sealed {
    fn inner(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.device.read(arena, batch) };
        // SAFETY: as above.
        unsafe { self.open_all(arena, batch) };
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        let Some(bounce) = &self.bounce else {
            return batch.iter_mut().for_each(|io| io.result = Err(IoError::Failed(libc::EROFS)));
        };
        let mut held = bounce.take();
        // SAFETY: pages of the place, which this thread holds.
        let send = |held: &mut Held<'_>, batch: &mut [Io]| unsafe { self.send(held, batch) };
        // SAFETY: by contract of this function.
        unsafe { self.seal_all(&mut held, arena, batch, send) };
        send(&mut held, batch);
        held.done();
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        match direction {
            Direction::Read => {
                // SAFETY: by contract of this function.
                let started = unsafe { self.device.start(arena, direction, batch) };
                if started.is_none() {
                    // SAFETY: as above.
                    unsafe { self.open_all(arena, batch) };
                }
                started
            }
            // SAFETY: by contract of this function.
            Direction::Write => unsafe { self.start_write(arena, batch) },
        }
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        match (started.bounce, &self.bounce) {
            (Some(place), Some(bounce)) => {
                let mut held = bounce.back(place);
                // SAFETY: the transfers that `start_write` started.
                unsafe { self.device.finish(held.arena(), started, held.ios()) };
                held.report(batch);
                held.done();
            }
            _ => {
                // SAFETY: by contract of this function.
                unsafe { self.device.finish(arena, started, batch) };
                // SAFETY: as above.
                unsafe { self.open_all(arena, batch) };
            }
        }
    }

    fn discard(&self, slot: u32, pages: u32) {
        if !self.info.read_only {
            (slot..slot + pages).for_each(|slot| self.release(self.tags.clear(slot)));
        }
        self.device.discard(slot, pages);
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.device.share_room(next)
    }

    fn pause(&self) {
        self.device.pause();
        self.keys.pause();
    }

    fn resume(&self) {
        self.keys.resume();
        self.device.resume();
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.keys.arrive();
        Box::new(Sealed {
            info: DeviceInfo { read_only: true, ..self.info.clone() },
            device: self.device.inherit(),
            cipher: self.cipher,
            keys: self.keys.clone(),
            tags: self.tags.clone(),
            bounce: None,
            altered: AtomicBool::new(false),
        })
    }

    fn resident(&self) -> Bytes {
        self.device.resident()
    }

    fn tables(&self) -> Bytes {
        let bounce = self.bounce.as_ref().map_or(0, Bounce::bytes);
        Bytes(self.device.tables().0 + self.tags.bytes() + self.keys.bytes() + bounce)
    }

    fn altered(&self) -> bool {
        self.altered.load(Relaxed)
    }

    fn forget(&self) {
        self.keys.wipe();
        self.device.forget();
    }
}

impl Sealed {
    /// Starts a write of no more pages than a place holds; makes a longer write at once.
    ///
    /// # Safety
    /// As for [`Device::start`].
    unsafe fn start_write(&self, arena: Arena, batch: &mut [Io]) -> Option<Started> {
        let pages: usize = batch.iter().map(|io| io.frames.len()).sum();
        let place = self.bounce.as_ref().and_then(Bounce::take_for_later);
        let Some(mut held) = place.filter(|_| pages <= bounce::PAGES) else {
            // SAFETY: by contract of this function.
            unsafe { self.write(arena, batch) };
            return None;
        };
        let fits = |_: &mut Held<'_>, _: &mut [Io]| unreachable!("a place has room for them");
        // SAFETY: by contract of this function.
        unsafe { self.seal_all(&mut held, arena, batch, fits) };
        let bounced = held.arena();
        // SAFETY: pages of the place, which stays taken until `finish`.
        match unsafe { self.device.start(bounced, Direction::Write, held.ios()) } {
            Some(mut started) => {
                started.bounce = Some(held.leave());
                Some(started)
            }
            None => {
                held.report(batch);
                held.done();
                None
            }
        }
    }
}
