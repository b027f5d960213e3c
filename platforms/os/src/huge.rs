//! Transparent huge pages of 2 MiB for the arena, where the kernel provides them.
//!
//! ```text
//! HugePages, and the kernel's offer -- decide --> Backing
//!   Huge:  | slack, small pages | arena, aligned to 2 MiB, advised | slack |
//!   Small: the arena alone
//! smaps: AnonHugePages of the arena's address range -- how much is in huge pages
//! ```
//! A 2 MiB block of the zone is then one hardware page, and takes one TLB entry instead of 512. The
//! kernel provides such pages at the first touch, or later, or not at all. More memory can be
//! resident than is used: the first frame of a block populates the whole block. The arena is never
//! larger than the budget.

use highwater_units::Bytes;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

/// Whether the arena may use huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// If the kernel offers transparent huge pages.
    #[default]
    Auto,
    /// Pages of 4 KiB only: the resident memory is the memory used.
    Off,
}

/// How the arena is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Aligned, with advice for huge pages.
    Huge,
    /// Unaligned, with advice against huge pages.
    Small,
}

/// The kernel's offer: the word in brackets is the current one.
const OFFER: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Decides the backing. An arena smaller than a huge page gets none.
pub(crate) fn decide(wanted: HugePages, bytes: usize, offer: Option<&str>) -> Backing {
    let offers = offer.is_some_and(|text| !text.contains("[never]"));
    match wanted {
        HugePages::Auto if offers && bytes >= SIZE => Backing::Huge,
        HugePages::Auto | HugePages::Off => Backing::Small,
    }
}

/// The kernel's offer; `None` for a kernel without huge pages.
pub(crate) fn offer() -> Option<String> {
    fs::read_to_string(OFFER).ok()
}

/// Bytes of a huge page.
pub const SIZE: usize = 2 << 20;

/// Whether memory without advice stays in small pages: it does if the setting is `madvise`, not if
/// it is `always`.
pub fn are_on_request() -> bool {
    offer().is_some_and(|text| text.contains("[madvise]"))
}

/// Collapses 2 MiB of memory, all present, into one huge page now (MADV_COLLAPSE, Linux 6.1). The
/// contents stay.
///
/// # Errors
/// The kernel cannot: a page is missing or in use, no huge page is free, or the memory has advice
/// against huge pages.
///
/// # Safety
/// `block` is a multiple of 2 MiB, and all of it is memory of the caller.
pub unsafe fn collapse(block: *mut u8) -> io::Result<()> {
    const MADV_COLLAPSE: libc::c_int = 25;
    // rustix has no name for this advice.
    // SAFETY: memory of the caller; this advice drops nothing.
    match unsafe { libc::syscall(libc::SYS_madvise, block, SIZE, MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How much of an address range of this process is in huge pages. Only mappings that lie inside
/// the range count.
///
/// # Errors
/// /proc is not mounted.
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

/// The addresses in the first line of a mapping; the other lines are names and values.
fn mapping(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_arenas_of_at_least_a_huge_page_use_them() {
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
    fn huge_pages_of_other_mappings_do_not_count() {
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
