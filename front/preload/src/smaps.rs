//! The resident memory of a process as the kernel counts it: unpaged memory, and pages that it
//! shares with other processes.
//!
//! ```text
//! /proc/self/smaps -- 16 KiB at a time --> Lines --> Parser --> Seen
//! ```
//! A process may have tens of thousands of mappings, with hundreds of bytes of text each. They are
//! read in pieces into one buffer, and only sums by kind are kept.

use crate::file_maps;
use highwater_mm::stats::Counter;
use highwater_units::Bytes;
use std::fs::File;
use std::io::{self, Read};

/// Bytes read at once; longer than any line.
const BUFFER_BYTES: usize = 16 << 10;

/// An inaccessible mapping of at most this size is the guard below a stack.
const GUARD_BYTES_MAX: u64 = 64 << 10;

/// Why memory is not paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The break: the C library's malloc, and raw brk calls of the program.
    Brk,
    /// Stacks of threads, recognised by their guards.
    Stacks,
    /// Variables of programs and libraries that are initialised with zeros.
    Static,
    /// Programs, libraries and mapped files.
    Files,
    /// Shared between processes: MAP_SHARED, memfd, tmpfs, System V.
    Shared,
    Huge,
    /// Anonymous and executable: code of just-in-time compilers.
    Executable,
    Other,
}

/// Number of kinds.
const KINDS: usize = Kind::Other as usize + 1;

/// Resident bytes by kind, as they count for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    bytes: [u64; KINDS],
}

impl Elsewhere {
    /// Sum over the kinds.
    pub(crate) fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Without `own` bytes of the manager's, which look like other anonymous memory.
    pub(crate) fn less_own(mut self, own: u64) -> Elsewhere {
        let other = &mut self.bytes[Kind::Other as usize];
        *other = other.saturating_sub(own);
        self
    }

    /// The counters that publish it.
    pub(crate) fn gauges(&self) -> [(Counter, u64); KINDS + 1] {
        let of = |kind: Kind| self.bytes[kind as usize];
        [
            (Counter::ElsewhereBytes, self.total()),
            (Counter::ElsewhereBrk, of(Kind::Brk)),
            (Counter::ElsewhereStacks, of(Kind::Stacks)),
            (Counter::ElsewhereStatic, of(Kind::Static)),
            (Counter::ElsewhereFiles, of(Kind::Files)),
            (Counter::ElsewhereShared, of(Kind::Shared)),
            (Counter::ElsewhereHuge, of(Kind::Huge)),
            (Counter::ElsewhereExecutable, of(Kind::Executable)),
            (Counter::ElsewhereOther, of(Kind::Other)),
        ]
    }
}

/// Resident memory, in bytes. A page that is mapped several times counts once: of a page that
/// several processes map, each has its share (Pss).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Outside the ranges.
    pub(crate) elsewhere: Elsewhere,
    /// The part of resident memory outside the ranges that counts for other processes, or counts
    /// for this one already (Rss without Pss).
    pub(crate) elsewhere_again: u64,
    /// Resident memory outside the ranges that other processes may map, too (Rss).
    pub(crate) elsewhere_shared: Bytes,
    /// The part of resident memory in the ranges that counts for other processes (Rss without Pss).
    pub(crate) shared: u64,
    /// Mappings of files that are not writable.
    pub(crate) code: Part,
    /// Mappings of large files whose pages may be unmapped.
    pub(crate) mapped: Part,
    /// Resident pages of files and shared memory in all other mappings (Rss).
    pub(crate) files_besides: u64,
}

/// How much of some resident memory counts for this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) resident: u64,
    pub(crate) counted: u64,
}

impl Part {
    /// How much of `bytes` of such memory counts; all of it if there was none.
    pub(crate) fn of(self, bytes: u64) -> u64 {
        let scaled = u128::from(bytes) * u128::from(self.counted);
        scaled.checked_div(self.resident.into()).map_or(bytes, |part| part as u64)
    }
}

/// Where paged memory is: first address, and address after the last. A mapping lies there if it
/// begins there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paged {
    /// The range. The program may have mapped files or code over parts of it.
    pub(crate) range: (u64, u64),
    /// The frames of pages.
    pub(crate) stage: (u64, u64),
}

/// Reads the resident memory.
pub(crate) fn read(paged: &Paged) -> io::Result<Seen> {
    parse_with(File::open("/proc/self/smaps")?, paged, file_maps::contains_any)
}

fn parse_with(
    mut source: impl Read,
    paged: &Paged,
    is_mapped: fn(usize, usize) -> bool,
) -> io::Result<Seen> {
    let mut parser = Parser::new(paged, is_mapped);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    loop {
        let read = source.read(&mut buffer[filled..])?;
        filled += read;
        let whole = match read {
            0 => filled,
            _ => buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        };
        buffer[..whole].split(|byte| *byte == b'\n').for_each(|line| parser.line(line));
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
        // The kernel writes no line as long as the buffer.
        if read == 0 || filled == buffer.len() {
            return Ok(parser.seen());
        }
    }
}

struct Parser<'a> {
    paged: &'a Paged,
    /// Whether any of these addresses lies in a large file whose pages may be unmapped.
    is_mapped: fn(usize, usize) -> bool,
    found: Elsewhere,
    /// Rss without Pss.
    found_again: u64,
    /// Rss of mappings of shared memory.
    found_shared: u64,
    /// Paged: resident bytes, and those of them that count for this process.
    resident: u64,
    resident_counted: u64,
    code: Part,
    mapped: Part,
    files_besides: u64,
    /// The mapping whose lines these are; `None`: it is not known.
    mapping: Option<Mapping>,
    /// End of the last mapping, if it was a guard.
    guard_end: Option<u64>,
    /// End of the last mapping, if it was of a file.
    file_end: Option<u64>,
}

/// A mapping, and the bytes of it that are resident.
struct Mapping {
    start: u64,
    end: u64,
    kind: Kind,
    is_writable: bool,
    rss: u64,
    pss: u64,
    anonymous: u64,
    /// These are not contained in Rss and Pss.
    huge: u64,
}

impl Parser<'_> {
    fn new(paged: &Paged, is_mapped: fn(usize, usize) -> bool) -> Parser<'_> {
        Parser {
            paged,
            is_mapped,
            found: Elsewhere::default(),
            found_again: 0,
            found_shared: 0,
            resident: 0,
            resident_counted: 0,
            code: Part::default(),
            mapped: Part::default(),
            files_besides: 0,
            mapping: None,
            guard_end: None,
            file_end: None,
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            elsewhere: self.found,
            elsewhere_again: self.found_again,
            elsewhere_shared: Bytes(self.found_shared),
            shared: self.resident.saturating_sub(self.resident_counted),
            code: self.code,
            mapped: self.mapped,
            files_besides: self.files_besides,
        }
    }

    fn line(&mut self, line: &[u8]) {
        // Addresses are in lower case; names of fields begin in upper case.
        match line.first() {
            Some(b'0'..=b'9' | b'a'..=b'f') => self.mapping(line),
            Some(b'R' | b'P' | b'S' | b'A') => self.size(line),
            Some(b'V') => self.flags(line),
            _ => {}
        }
    }

    fn size(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let Some(mapping) = &mut self.mapping else { return };
        let value = bytes(&line[colon + 1..]);
        match &line[..colon] {
            b"Rss" => mapping.rss += value,
            b"Pss" => mapping.pss += value,
            b"Anonymous" => mapping.anonymous += value,
            b"Private_Hugetlb" | b"Shared_Hugetlb" => mapping.huge += value,
            _ => {}
        }
    }

    /// The last line of a mapping. Paged memory of the range is registered with userfaultfd.
    /// Mappings that the program has made over parts of the range are not, and count here.
    fn flags(&mut self, line: &[u8]) {
        let Some(mapping) = self.mapping.take() else { return };
        let Mapping { start, end, kind, is_writable, rss, pss, anonymous, huge } = mapping;
        let lies_in = |(from, to): (u64, u64)| (from..to).contains(&start);
        let mut flags = line.split(|byte| *byte == b' ');
        let is_registered = flags.any(|flag| matches!(flag, b"um" | b"uw" | b"ui"));
        if lies_in(self.paged.stage) || lies_in(self.paged.range) && is_registered {
            self.resident += rss;
            self.resident_counted += pss;
        } else {
            self.found.bytes[kind as usize] += pss;
            self.found.bytes[Kind::Huge as usize] += huge;
            self.found_again += rss.saturating_sub(pss);
            self.found_shared += if kind == Kind::Shared { rss } else { 0 };
            if kind == Kind::Files && (self.is_mapped)(start as usize, end as usize) {
                self.mapped.resident += rss;
                self.mapped.counted += pss;
                return;
            }
            if kind == Kind::Files && !is_writable {
                self.code.resident += rss;
                self.code.counted += pss;
            }
        }
        self.files_besides += rss.saturating_sub(anonymous);
    }

    /// `start-end perms offset device inode      path`
    fn mapping(&mut self, line: &[u8]) {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let mut extent = words.next().unwrap_or_default().split(|byte| *byte == b'-');
        let ends = [extent.next(), extent.next()].map(|word| word.and_then(hexadecimal));
        let ([Some(start), Some(end)], Some(access)) = (ends, words.next()) else {
            self.mapping = None;
            return;
        };
        let path = words.nth(3).unwrap_or_default().trim_ascii_start();
        let kind = match place(path) {
            Place::Nowhere if self.guard_end == Some(start) => Kind::Stacks,
            Place::Nowhere if access.get(2) == Some(&b'x') => Kind::Executable,
            Place::Nowhere if self.file_end == Some(start) => Kind::Static,
            Place::Nowhere => Kind::Other,
            Place::Known(kind) => kind,
        };
        let is_writable = access.get(1) == Some(&b'w');
        let (rss, pss, anonymous, huge) = (0, 0, 0, 0);
        self.mapping = Some(Mapping { start, end, kind, is_writable, rss, pss, anonymous, huge });
        let is_nowhere = path.is_empty();
        let guards = is_nowhere && access.starts_with(b"---") && end - start <= GUARD_BYTES_MAX;
        self.guard_end = guards.then_some(end);
        self.file_end = (kind == Kind::Files).then_some(end);
    }
}

/// Reads "     12 kB".
fn bytes(value: &[u8]) -> u64 {
    let kib = value.split(|byte| *byte == b' ').find(|word| !word.is_empty());
    kib.and_then(decimal).unwrap_or(0) * 1024
}

/// The kind of a mapping, as far as its name decides.
enum Place {
    /// Anonymous.
    Nowhere,
    Known(Kind),
}

fn place(path: &[u8]) -> Place {
    let begins = |prefixes: &[&[u8]]| prefixes.iter().any(|prefix| path.starts_with(prefix));
    match path {
        b"[heap]" => Place::Known(Kind::Brk),
        b"[stack]" => Place::Known(Kind::Stacks),
        _ if begins(&[b"/anon_hugepage"]) => Place::Known(Kind::Huge),
        _ if begins(&[b"/memfd:", b"/dev/shm/", b"/dev/zero", b"/SYSV", b"[anon_shmem:"]) => {
            Place::Known(Kind::Shared)
        }
        _ if begins(&[b"/"]) => Place::Known(Kind::Files),
        b"" => Place::Nowhere,
        _ if begins(&[b"[anon:"]) => Place::Nowhere,
        _ => Place::Known(Kind::Other),
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(source: impl Read, paged: &Paged) -> io::Result<Seen> {
        parse_with(source, paged, |_, _| false)
    }

    /// Yields a few bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(buffer.len()).min(self.0.len());
            let (now, later) = self.0.split_at(len);
            buffer[..len].copy_from_slice(now);
            self.0 = later;
            Ok(len)
        }
    }

    const SMAPS: &str = "\
        1000-2000 r-xp 00000000 08:01 7                 /usr/bin/a program\n\
        Size:                 12 kB\nRss:                  12 kB\nPss:    4 kB\nVmFlags: rd ex mr\n\
        2000-3000 rw-p 00001000 00:00 0 \nPss:  1 kB\nVmFlags: rd wr\n\
        3000-5000 rw-p 00000000 00:00 0                 [heap]\nPss:   8 kB\nVmFlags: rd wr\n\
        7000-8000 ---p 00000000 00:00 0 \nRss:  0 kB\nVmFlags: mr\n\
        8000-a000 rw-p 00000000 00:00 0 \nRss: 16 kB\n\
        Pss:   7 kB\nPss_Dirty: 3 kB\nVmFlags: rd wr mr mw me um uw dc sd\n\
        a000-b000 rwxp 00000000 00:00 0 \nPss: 32 kB\nVmFlags: rd wr ex\n\
        b000-c000 rw-s 00000000 00:01 9         /memfd:x (deleted)\nRss: 128 kB\nPss: 64 kB\n\
        VmFlags: rd wr sh\n\
        c000-d000 rw-p 00000000 00:00 0                 /anon_hugepage (deleted)\nRss: 0 kB\n\
        Shared_Hugetlb:  128 kB\nPrivate_Hugetlb:   128 kB\nVmFlags: rd wr ht\n\
        e000-f000 rw-p 00000000 00:00 0                 [anon:name]\nPss:  512 kB\n\
        VmFlags: rd wr\n\
        7fff0000-7fff1000 rw-p 00000000 00:00 0         [stack]\nPss: 1024 kB\nVmFlags: rd gd\n";

    const KIB: [u64; KINDS] = [8, 7 + 1024, 1, 4, 64, 256, 32, 512];

    fn kib(found: Elsewhere) -> [u64; KINDS] {
        found.bytes.map(|bytes| bytes / 1024)
    }

    #[test]
    fn mappings_are_told_apart_however_they_are_read() {
        for piece in [1, 7, 100, BUFFER_BYTES] {
            let seen = parse(Slowly(SMAPS.as_bytes(), piece), &Paged::default()).unwrap();
            assert_eq!(kib(seen.elsewhere), KIB, "{piece} bytes at a time");
            assert_eq!(seen.elsewhere.total(), KIB.iter().sum::<u64>() * 1024);
            assert_eq!((seen.elsewhere_again, seen.shared), ((8 + 9 + 64) << 10, 0));
            assert_eq!(seen.elsewhere_shared, Bytes(128 << 10));
            assert_eq!(seen.code, Part { resident: 12 << 10, counted: 4 << 10 });
        }
    }

    #[test]
    fn paged_memory_does_not_count_and_what_lies_over_parts_of_it_does() {
        let paged = Paged { range: (0x7000, 0xc000), stage: (0xc000, 0xc001) };
        let seen = parse(SMAPS.as_bytes(), &paged).unwrap();
        assert_eq!((seen.elsewhere_again, seen.shared), ((8 + 64) << 10, 9 << 10));
        let found = seen.elsewhere;
        assert_eq!(kib(found), [8, 1024, 1, 4, 64, 0, 32, 512]);
        assert_eq!(kib(found.less_own(500 << 10))[Kind::Other as usize], 12);
        assert_eq!(found.less_own(1 << 30).total(), found.total() - (512 << 10));
    }

    #[test]
    fn a_page_of_code_counts_as_code_did() {
        let part = |resident, counted| Part { resident, counted };
        let found = [part(12, 4), part(12, 12), part(12, 0), part(0, 0)].map(|part| part.of(30));
        assert_eq!(found, [10, 30, 0, 30]);
        assert_eq!(part(1 << 40, 1 << 39).of(1 << 41), 1 << 40);
    }

    #[test]
    fn names_of_mappings_tell_their_kind() {
        for (path, expected) in [
            ("[heap]", Some(Kind::Brk)),
            ("[stack]", Some(Kind::Stacks)),
            ("/usr/lib/libc.so.6", Some(Kind::Files)),
            ("/tmp/gone (deleted)", Some(Kind::Files)),
            ("/memfd:jit (deleted)", Some(Kind::Shared)),
            ("/dev/shm/segment", Some(Kind::Shared)),
            ("/dev/zero (deleted)", Some(Kind::Shared)),
            ("/SYSV00000000 (deleted)", Some(Kind::Shared)),
            ("[anon_shmem:name]", Some(Kind::Shared)),
            ("/anon_hugepage (deleted)", Some(Kind::Huge)),
            ("[vdso]", Some(Kind::Other)),
            ("[anon:name]", None),
            ("", None),
        ] {
            let found = match place(path.as_bytes()) {
                Place::Nowhere => None,
                Place::Known(kind) => Some(kind),
            };
            assert_eq!(found, expected, "{path:?}");
        }
    }

    #[test]
    fn lines_that_are_cut_off_count_nothing() {
        for text in [
            "1000-2000",
            "1000-",
            "1000 rw-p 0 0 0 /f\nRss: 8 kB\n",
            "1000-2000\nRss: 8 kB\n",
            "zz-2000 rw-p 0 0 0 /f\nRss: 8 kB\n",
            "Rss: 8 kB\n",
            "1000-2000 rw-p 0 0 0 /f\nRss: many kB\nRss:\nVmFlags: rd\n",
            "1000-2000 rw-p 0 0 0 /f\nRss: 8 kB\n",
        ] {
            assert_eq!(
                parse(text.as_bytes(), &Paged::default()).unwrap(),
                Seen::default(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_no_text_of_the_kernel_ends() {
        let endless = vec![b'a'; 3 * BUFFER_BYTES];
        assert_eq!(parse(&endless[..], &Paged::default()).unwrap(), Seen::default());
    }

    #[test]
    fn this_process_has_files_and_a_stack() {
        let found = read(&Paged::default()).unwrap().elsewhere;
        assert!(found.bytes[Kind::Files as usize] > 0 && found.bytes[Kind::Stacks as usize] > 0);
    }
}
