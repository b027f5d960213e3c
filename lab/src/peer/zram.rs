//! Swap on a zram device of our own: compressed memory, the kernel's fastest swap.

use super::Unavailable;
use highwater_units::{Bytes, PAGE_SIZE};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Above all other swap, so that the peer's pages go nowhere else.
const PRIORITY: i32 = 32_767;
/// From swapon(2): the low 15 bits are a priority.
const SWAP_FLAG_PREFER: i32 = 0x8000;
/// Used if the kernel has it: it is fast, and gives up quickly on incompressible pages.
const ALGORITHM: &str = "lz4";
/// How often removal is tried while the system still has the device open (udev does so briefly).
const REMOVALS: u32 = 50;

/// A zram device in use as swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapDevice {
    /// Its name among block devices.
    pub name: String,
    /// Its compression algorithm.
    pub algorithm: String,
}

/// A zram device in use as swap; [`ZramSwap::remove`] gives it back.
pub(super) struct ZramSwap {
    index: u32,
    device: PathBuf,
    algorithm: String,
}

impl ZramSwap {
    /// Adds a new device of `size` and swaps to it.
    pub(super) fn add(size: Bytes) -> Result<ZramSwap, Unavailable> {
        let control = "/sys/class/zram-control/hot_add";
        let answer = fs::read_to_string(control).map_err(|reason| match reason.kind() {
            ErrorKind::PermissionDenied => Unavailable("zram swap needs root".into()),
            _ => Unavailable(format!("no zram: {control}: {reason} (modprobe zram)")),
        })?;
        let index = answer.trim().parse().map_err(|e| Unavailable::because(control, e))?;
        let device = PathBuf::from(format!("/dev/zram{index}"));
        let mut swap = ZramSwap { index, device, algorithm: String::new() };
        match swap.start(size) {
            Ok(()) => Ok(swap),
            Err(reason) => {
                let text = format!("swap on {}", swap.device.display());
                let undone = swap.remove().err().map_or(String::new(), |left| format!("; {left}"));
                Err(Unavailable(format!("{text}: {reason}{undone}")))
            }
        }
    }

    /// Its name and compression, for counting its traffic.
    pub(super) fn describe(&self) -> SwapDevice {
        SwapDevice { name: format!("zram{}", self.index), algorithm: self.algorithm.clone() }
    }

    fn start(&mut self, size: Bytes) -> Result<(), Error> {
        let listed = fs::read_to_string(self.attribute("comp_algorithm"))?;
        if listed.split_whitespace().any(|name| name == ALGORITHM) {
            fs::write(self.attribute("comp_algorithm"), ALGORITHM)?;
        }
        let chosen = fs::read_to_string(self.attribute("comp_algorithm"))?;
        self.algorithm = selected(&chosen).unwrap_or("?").to_owned();
        fs::write(self.attribute("disksize"), size.0.to_string())?;
        let file = OpenOptions::new().write(true).open(&self.device)?;
        file.write_all_at(&swap_header(size), 0)?;
        file.sync_all()?;
        drop(file);
        let path = c_path(&self.device);
        // SAFETY: a null-terminated path that outlives the call.
        match unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | PRIORITY) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Swaps off, frees the memory, and removes the device.
    pub(super) fn remove(&self) -> Result<(), Unavailable> {
        let path = c_path(&self.device);
        // SAFETY: a null-terminated path that outlives the call.
        let off = unsafe { libc::swapoff(path.as_ptr()) };
        let reason = Error::last_os_error();
        // EINVAL: it never became swap.
        if off != 0 && reason.raw_os_error() != Some(libc::EINVAL) {
            return Err(Unavailable::because(
                format!("swapoff {}", path.to_string_lossy()),
                reason,
            ));
        }
        let removed = retried(|| {
            fs::write(self.attribute("reset"), "1")?;
            fs::write("/sys/class/zram-control/hot_remove", self.index.to_string())
        });
        removed.map_err(|e| Unavailable::because(format!("removing zram{}", self.index), e))
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(format!("zram{}", self.index)).join(name)
    }
}

/// Tries again for a second while the answer is "busy".
pub(super) fn retried(mut act: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    for _ in 1..REMOVALS {
        match act() {
            Err(reason) if reason.kind() == ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
    act()
}

/// The name in brackets in a list such as `lzo [lz4] zstd`.
fn selected(list: &str) -> Option<&str> {
    list.split_whitespace().find_map(|name| name.strip_prefix('[')?.strip_suffix(']'))
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a device path without zeros")
}

/// The first page of a swap area of `size`: version 1, last page, no bad pages, the magic at the
/// end (mkswap's format).
fn swap_header(size: Bytes) -> Vec<u8> {
    const MAGIC: &[u8] = b"SWAPSPACE2";
    let last_page = u32::try_from(size.pages() - 1).expect("swap areas have under 2^32 pages");
    let mut page = vec![0; PAGE_SIZE];
    page[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[PAGE_SIZE - MAGIC.len()..].copy_from_slice(MAGIC);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_algorithm_is_in_brackets() {
        assert_eq!(selected("lzo-rle [lz4] zstd\n"), Some("lz4"));
        assert_eq!(selected("lzo\n"), None);
    }

    #[test]
    fn the_header_is_what_mkswap_writes() {
        let page = swap_header(Bytes(1 << 20));
        assert_eq!(page[1024..1036], [1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&page[4086..], b"SWAPSPACE2");
    }
}
