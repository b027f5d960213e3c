//! Files are private, leave nothing behind, and give clear errors.

mod common;

use common::{Frames, read, write};
use highwater_devices::{Device, OpenOptions, Reason, Spec, Submission, open, open_with, part};
use highwater_platform::{Io, IoError};
use highwater_units::{Bytes, FrameList, Pfn};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZE: Bytes = Bytes(1 << 20);

fn dir_spec(path: impl Into<PathBuf>) -> Spec {
    Spec::Dir { path: path.into(), size: SIZE }
}

fn file_spec(path: impl Into<PathBuf>) -> Spec {
    Spec::File { path: path.into(), size: SIZE }
}

fn refusal(spec: &Spec) -> Reason {
    let Err(error) = open(spec) else { panic!("{spec} was opened") };
    let message = error.to_string();
    println!("{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    error.reason
}

/// The open files of a device, through /proc.
fn files_of(device: &dyn Device) -> Vec<std::fs::Metadata> {
    let descriptors = device.descriptors().into_iter();
    descriptors.map(|fd| std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap()).collect()
}

#[test]
fn files_have_no_name_and_no_other_reader() {
    let dir = tempfile::tempdir().unwrap();
    let plain = OpenOptions { submission: Submission::Plain, ..OpenOptions::default() };
    for spec in [dir_spec(dir.path()), file_spec(dir.path().join("swap"))] {
        let device = open_with(&spec, &plain).unwrap();
        let files = files_of(&*device);
        let [file] = &files[..] else { panic!("{spec} has {} descriptors", files.len()) };
        assert_eq!((file.nlink(), file.mode() & 0o777), (0, 0o600), "{spec}");
        assert_eq!(file.len(), SIZE.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{spec} left a name");
    }
}

#[test]
fn a_part_has_the_slots_of_its_range() {
    const PAGES: u32 = 50;
    let dir = tempfile::tempdir().unwrap();
    let whole: Arc<dyn Device> = open(&dir_spec(dir.path())).unwrap().into();
    let frames = Frames::new(PAGES);
    let ios = |pages: u32| -> Vec<Io> {
        (0..pages).map(|slot| Io::new(slot, FrameList::one(Pfn(slot)))).collect()
    };
    for first in [0, 1, 7, PAGES - 1] {
        let device = part(whole.clone(), first, PAGES - first);
        assert_eq!(device.info().pages, PAGES - first);
        (0..PAGES).for_each(|slot| frames.fill(Pfn(slot), u64::from(slot + first)));
        write(&*whole, &frames, &mut ios(PAGES));
        let mut batch = ios(PAGES - first);
        read(&*device, &frames, &mut batch);
        for (slot, io) in (0..).zip(&batch) {
            assert_eq!((io.result, io.slot), (Ok(()), slot));
            assert!(frames.holds(Pfn(slot), u64::from(slot + 2 * first)), "{first} + {slot}");
        }
        write(&*device, &frames, &mut batch[..1]);
        read(&*whole, &frames, &mut ios(PAGES));
        assert!(frames.holds(Pfn(first), u64::from(2 * first)), "{first}");
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert_eq!(refusal(&file_spec(&path)), Reason::Exists);
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn many_open_the_same_specification() {
    let dir = tempfile::tempdir().unwrap();
    let spec = file_spec(dir.path().join("swap"));
    std::thread::scope(|scope| {
        let opened: Vec<_> = (0..16).map(|_| scope.spawn(|| open(&spec).is_ok())).collect();
        assert!(opened.into_iter().all(|thread| thread.join().unwrap()));
    });
}

#[test]
fn bad_directories_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(refusal(&dir_spec("/nonexistent/dir")), Reason::Missing);
    assert_eq!(refusal(&file_spec("/nonexistent/swap")), Reason::Missing);
    assert_eq!(refusal(&dir_spec("/proc")), Reason::TakesNoFiles);
    assert_eq!(refusal(&file_spec("/proc/swap")), Reason::TakesNoFiles);
    assert_eq!(refusal(&dir_spec(&file)), Reason::NotADirectory);
    assert_eq!(refusal(&file_spec(file.join("swap"))), Reason::NotADirectory);
    assert_eq!(refusal(&file_spec(dir.path())), Reason::Exists);
    let absurd = Spec::Dir { path: dir.path().into(), size: highwater_devices::SIZE_MAX };
    assert!(matches!(refusal(&absurd), Reason::LittleSpace { .. }));
}

/// Runs `body` in a forked child and returns its exit status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only makes system calls and allocates, and leaves by _exit.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child without running what belongs to the parent.
        0 => unsafe { libc::_exit(body()) },
        child => {
            let mut status = 0;
            // SAFETY: a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "child ended with {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_directory_without_permission_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o500))
        .unwrap();
    let status = in_child(|| {
        // Root may write anywhere: switch to another user. For other users this fails without
        // effect.
        // SAFETY: changes the child's user only.
        unsafe { libc::setuid(65534) };
        match open(&dir_spec(dir.path())).map_err(|error| error.reason) {
            Err(Reason::Permission) => 0,
            _ => 1,
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn a_file_size_limit_is_an_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let status = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: limits the child only.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        match open(&dir_spec(dir.path())).map_err(|error| error.reason) {
            Err(Reason::FileSizeLimit { limit: Bytes(4096) }) => 0,
            _ => 1,
        }
    });
    assert_eq!(status, 0);
}

/// Writes and reads a batch of two transfers, which uses a ring where there are rings.
fn round_trip(device: &dyn Device, frames: &Frames, seed: u64) -> bool {
    let io = |pfn: u32| Io::new(pfn * 9, [Pfn(pfn)].into_iter().collect());
    let mut batch = [io(0), io(1)];
    (0..2).for_each(|pfn| frames.fill(Pfn(pfn), seed + u64::from(pfn)));
    write(device, frames, &mut batch);
    let written = batch.map(|io| io.result);
    (0..2).for_each(|pfn| frames.fill(Pfn(pfn), 99));
    read(device, frames, &mut batch);
    (written, batch.map(|io| io.result)) == ([Ok(()); 2], [Ok(()); 2])
        && (0..2).all(|pfn| frames.holds(Pfn(pfn), seed + u64::from(pfn)))
}

#[test]
fn without_rings_transfers_are_plain() {
    let dir = tempfile::tempdir().unwrap();
    let frames = Frames::new(2);
    let status = in_child(|| {
        let device = open(&dir_spec(dir.path())).unwrap();
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // No descriptor is left for a ring.
        // SAFETY: limits the child only.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        let right = (1..9).all(|seed| round_trip(&*device, &frames, seed));
        i32::from(!right)
    });
    assert_eq!(status, 0);
}

/// A small file system in memory, unmounted when dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(options: &str) -> Option<Tmpfs> {
        let dir = tempfile::tempdir().unwrap();
        let (kind, target) = (c"tmpfs", c_path(dir.path()));
        let options = CString::new(options).unwrap();
        let (kind, options) = (kind.as_ptr(), options.as_ptr().cast());
        // SAFETY: strings that live through the call.
        let status = unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options) };
        if status != 0 {
            highwater_platform::testing::skip_or_fail(format_args!(
                "may not mount: {}",
                std::io::Error::last_os_error()
            ));
            return None;
        }
        Some(Tmpfs(dir))
    }

    fn make_read_only(&self) {
        let (flags, target) = (libc::MS_REMOUNT | libc::MS_RDONLY, c_path(self.0.path()));
        let none = std::ptr::null();
        // SAFETY: strings that live through the call.
        let status = unsafe { libc::mount(none, target.as_ptr(), none, flags, none.cast()) };
        assert_eq!(status, 0);
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // SAFETY: a string that lives through the call. Detached, so open files do not prevent it.
        unsafe { libc::umount2(c_path(self.0.path()).as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

#[test]
fn a_full_file_system_is_reported_per_transfer() {
    let Some(mount) = Tmpfs::mount("size=2m") else { return };
    let device = open(&dir_spec(mount.0.path())).unwrap();
    // Another file takes the space that was free when the device was opened.
    std::fs::write(mount.0.path().join("other"), vec![1u8; (1 << 20) + (1 << 19)]).unwrap();
    let frames = Frames::new(16);
    (0..16).for_each(|pfn| frames.fill(Pfn(pfn), 77));
    let whole: Vec<u32> = (0..256).step_by(16).collect();
    let io = |slot: &u32| Io::new(*slot, (0..16).map(Pfn).collect());
    let mut batch: Vec<Io> = whole.iter().map(io).collect();
    write(&*device, &frames, &mut batch);
    let full = batch.iter().filter(|io| io.result == Err(IoError::Full)).count();
    let done = batch.iter().filter(|io| io.result == Ok(())).count();
    assert!(full > 0 && done > 0 && full + done == batch.len(), "{done} done, {full} full");
    for io in batch.iter_mut().filter(|io| io.result == Ok(())) {
        (0..16).for_each(|pfn| frames.fill(Pfn(pfn), 1));
        read(&*device, &frames, std::slice::from_mut(io));
        assert!((0..16).all(|pfn| frames.holds(Pfn(pfn), 77)) && io.result == Ok(()));
    }
}

#[test]
fn too_small_and_read_only_file_systems_are_named() {
    let Some(mount) = Tmpfs::mount("size=512k") else { return };
    assert!(matches!(refusal(&dir_spec(mount.0.path())), Reason::LittleSpace { .. }));
    mount.make_read_only();
    assert_eq!(refusal(&dir_spec(mount.0.path())), Reason::ReadOnlyFileSystem);
    assert_eq!(refusal(&file_spec(mount.0.path().join("swap"))), Reason::ReadOnlyFileSystem);
}
