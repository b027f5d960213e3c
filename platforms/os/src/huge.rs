//! Huge pages behind the arena: transparent ones of 2 MiB, where the kernel gives them.
//!
//! ```text
//! HugePages, and what the kernel offers -- decide: Backing
//!   Huge:  | slack, small pages | arena from a multiple of 2 MiB on, advised | slack |
//!   Small: the arena alone
//! smaps: AnonHugePages of the arena's part of the address space -- how much it has given
//! ```
//! A block of 2 MiB of the zone is one page of the processor then, and takes one entry of its
//! translation cache instead of 512. The kernel gives such pages at the first touch, or later, and
//! may give none: contents are the same. What is resident can be more than what is used: the first
//! frame of a block brings its neighbours along. The arena is never larger than the budget.

use highwater_units::Bytes;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

/// Whether the arena may have huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Where the kernel has transparent ones.
    #[default]
    Auto,
    /// Pages of 4 KiB only: what is resident is what was used.
    Off,
}

/// How the arena is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Aligned, and advised.
    Huge,
    /// As it comes, huge pages advised against.
    Small,
}

/// What the kernel says it offers: the word in brackets is chosen.
const OFFER: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Decides. An arena that no huge page fits in has none.
pub(crate) fn decide(wanted: HugePages, bytes: usize, offer: Option<&str>) -> Backing {
    let offers = offer.is_some_and(|text| !text.contains("[never]"));
    match wanted {
        HugePages::Auto if offers && bytes >= SIZE => Backing::Huge,
        HugePages::Auto | HugePages::Off => Backing::Small,
    }
}

/// What the kernel offers; `None`: it has no such pages.
pub(crate) fn offer() -> Option<String> {
    fs::read_to_string(OFFER).ok()
}

/// Bytes of a huge page.
pub const SIZE: usize = 2 << 20;

/// Whether memory that nobody advises stays in small pages until it is asked for: so the kernel has
/// it with `madvise`, and not with `always`.
pub fn are_on_request() -> bool {
    offer().is_some_and(|text| text.contains("[madvise]"))
}

/// Has the kernel collect 2 MiB of memory, all present, in one huge page, at once (MADV_COLLAPSE,
/// Linux 6.1); contents stay.
///
/// # Errors
/// It cannot: a page is in use by the system or not there, no huge page is free, or the memory is
/// advised against it.
///
/// # Safety
/// `block` is a multiple of 2 MiB, and all of it is memory of the caller's.
pub unsafe fn collapse(block: *mut u8) -> io::Result<()> {
    const MADV_COLLAPSE: libc::c_int = 25;
    // rustix has no name for this advice.
    // SAFETY: memory of the caller's; this advice drops nothing.
    match unsafe { libc::syscall(libc::SYS_madvise, block, SIZE, MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How much of a part of this process's address space is in huge pages, which has mappings of its
/// own.
///
/// # Errors
/// There is no /proc.
pub fn backed(part: &Range<usize>) -> io::Result<Bytes> {
    let file = BufReader::new(fs::File::open("/proc/self/smaps")?);
    sum(file.lines(), part)
}

fn sum(lines: impl Iterator<Item = io::Result<String>>, part: &Range<usize>) -> io::Result<Bytes> {
    let (mut inside, mut sum) = (false, 0);
    for line in lines {
        let line = line?;
        if let Some(mapping) = mapping(&line) {
            inside = part.start <= mapping.start && mapping.end <= part.end;
        } else if let Some(size) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            let kib = size.trim().trim_end_matches(" kB").parse::<u64>();
            sum += kib.map_err(|_| io::Error::other("smaps: a size"))? << 10;
        }
    }
    Ok(Bytes(sum))
}

/// The addresses at the head of a mapping's lines; the other lines are names and values.
fn mapping(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_for_arenas_that_they_fit_in() {
        let (yes, no) = (Some("always [madvise] never"), Some("always madvise [never]"));
        let table = [
            (HugePages::Auto, SIZE, yes, Backing::Huge),
            (HugePages::Auto, SIZE - 1, yes, Backing::Small),
            (HugePages::Auto, SIZE, no, Backing::Small),
            (HugePages::Auto, SIZE, None, Backing::Small),
            (HugePages::Off, SIZE, yes, Backing::Small),
        ];
        for (wanted, bytes, offer, expected) in table {
            assert_eq!(decide(wanted, bytes, offer), expected, "{wanted:?} {bytes} {offer:?}");
        }
    }

    #[test]
    fn what_other_mappings_have_does_not_count() {
        let text = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n\
                    Rss:                2048 kB\n\
                    AnonHugePages:      2048 kB\n\
                    7f0000200000-7f0000600000 rw-p 00000000 00:00 0 \n\
                    AnonHugePages:      4096 kB\n\
                    ShmemPmdMapped:        0 kB\n\
                    7f0000600000-7f0000a00000 rw-p 00000000 00:00 0  [heap]\n\
                    AnonHugePages:      2048 kB\n";
        let of = |part: Range<usize>| {
            sum(text.lines().map(|line| Ok(line.to_owned())), &part).expect("well-formed").0 >> 20
        };
        assert_eq!(of(0x7f0000200000..0x7f0000600000), 4);
        assert_eq!(of(0x7f0000200000..0x7f0000a00000), 6);
        assert_eq!(of(0x7f0000300000..0x7f0000600000), 0, "no mapping of its own");
    }
}
