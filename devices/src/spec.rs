//! Specifications of devices: `ram:SIZE`, `zram:SIZE[:lz4|zstd]`, `file:PATH:SIZE`,
//! `dir:PATH:SIZE`, `tier:FAST+SLOW`; for tests also `flaky:FAULTS+SPEC`.

use crate::flaky::FaultPlan;
use crate::size::size;
use highwater_units::Bytes;
use std::fmt;
use std::path::{Path, PathBuf};

/// The smallest device: 1 MiB.
pub const SIZE_MIN: Bytes = Bytes(1 << 20);
/// The largest device: 2^32 pages, 16 TiB. (A number of pages has 32 bits, so the last page of a
/// device of exactly this size is not used.)
pub const SIZE_MAX: Bytes = Bytes(1 << 44);

/// Separates specifications in an environment variable, so no path may hold it.
const SEPARATOR: char = ';';
/// Slots of a `zram:` device for each page of its size.
const ZRAM_SLOTS_PER_PAGE: u32 = 3;
const KINDS: &str = "ram:SIZE, zram:SIZE[:lz4|zstd], file:PATH:SIZE, dir:PATH:SIZE, tier:FAST+SLOW";
/// Between the levels of a tier. The fast level has no path, so the path of the slow one may hold
/// it.
const LEVELS: char = '+';

/// A device to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Spec {
    /// Memory of this process beside the budget.
    Ram {
        /// The most memory that the pages take.
        size: Bytes,
    },
    /// Memory of this process beside the budget, compressed.
    Zram {
        /// The most memory that the compressed pages take.
        size: Bytes,
        /// The compression.
        algorithm: Algorithm,
    },
    /// A file that is created with this name and unlinked at once.
    File {
        /// The name, which must not exist.
        path: PathBuf,
        /// Its size.
        size: Bytes,
    },
    /// A file without a name in this directory.
    Dir {
        /// The directory.
        path: PathBuf,
        /// The file's size.
        size: Bytes,
    },
    /// Two devices: pages that stay cold on the fast one are written back to the slow one.
    Tier {
        /// Memory, plain or compressed.
        fast: Box<Spec>,
        /// A file.
        slow: Box<Spec>,
    },
    /// A device whose transfers fail, for tests.
    Flaky {
        /// Which fail, and when.
        faults: FaultPlan,
        /// The device: no tier.
        device: Box<Spec>,
    },
}

/// Whether a specification may inject faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// It is the user's.
    Refused,
    /// It is a test's.
    Allowed,
}

/// A compression algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Fast: some microseconds to compress a page, one or two to decompress it.
    #[default]
    Lz4,
    /// Smaller by a quarter, and two to four times slower.
    Zstd,
}

impl Algorithm {
    const ALL: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

    fn name(self) -> &'static str {
        match self {
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
        }
    }
}

impl Spec {
    /// Reads `ram:SIZE`, `zram:SIZE[:lz4|zstd]`, `file:PATH:SIZE`, `dir:PATH:SIZE`, or
    /// `tier:FAST+SLOW` of one of the first two and one of the others. SIZE is a number with a
    /// binary unit (64M, 1.5G, 1GiB) and is cut to whole pages; PATH may contain ':' but no ';'.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Spec, String> {
        Spec::parse_with(text, Injection::Refused)
    }

    /// [`Spec::parse`], which may also allow `flaky:FAULTS+SPEC`, alone or as a level of a tier.
    /// FAULTS is `KIND=once|always|N` of 1000 for some [kinds](crate::FaultKind), `after=N`
    /// transfers without faults, and `seed=N`, joined by commas.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse_with(text: &str, injection: Injection) -> Result<Spec, String> {
        let parsed = parse_kind(text).and_then(|spec| match injection {
            Injection::Refused if spec.is_flaky() => {
                Err("flaky: injects faults, for the tests of highwater-lab".to_owned())
            }
            Injection::Refused | Injection::Allowed => Ok(spec),
        });
        parsed.map_err(|message| format!("swap {text:?}: {message}"))
    }

    fn is_flaky(&self) -> bool {
        match self {
            Spec::Flaky { .. } => true,
            Spec::Tier { fast, slow } => fast.is_flaky() || slow.is_flaky(),
            Spec::Ram { .. } | Spec::Zram { .. } | Spec::File { .. } | Spec::Dir { .. } => false,
        }
    }

    /// Whether it is one file, with faults or without.
    pub(crate) fn is_file(&self) -> bool {
        match self {
            Spec::File { .. } | Spec::Dir { .. } => true,
            Spec::Flaky { device, .. } => device.is_file(),
            Spec::Ram { .. } | Spec::Zram { .. } | Spec::Tier { .. } => false,
        }
    }

    /// The specified size; of a tier, the sum of both levels.
    pub fn size(&self) -> Bytes {
        match self {
            Spec::Ram { size }
            | Spec::Zram { size, .. }
            | Spec::File { size, .. }
            | Spec::Dir { size, .. } => *size,
            Spec::Tier { fast, slow } => Bytes(fast.size().0 + slow.size().0),
            Spec::Flaky { device, .. } => device.size(),
        }
    }

    /// The most that the device can hold: more than its size if it compresses.
    pub fn capacity(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.pages()))
    }

    /// The devices that store its pages: itself, or both levels of a tier, the fast one first.
    pub fn levels(&self) -> Vec<&Spec> {
        match self {
            Spec::Tier { fast, slow } => [fast.levels(), slow.levels()].concat(),
            Spec::Flaky { device, .. } => device.levels(),
            Spec::Ram { .. } | Spec::Zram { .. } | Spec::File { .. } | Spec::Dir { .. } => {
                vec![self]
            }
        }
    }

    /// The number of slots.
    pub(crate) fn pages(&self) -> u32 {
        let per_page = match self {
            Spec::Tier { fast, slow } => return fast.pages().saturating_add(slow.pages()),
            Spec::Flaky { device, .. } => return device.pages(),
            Spec::Zram { .. } => u64::from(ZRAM_SLOTS_PER_PAGE),
            Spec::Ram { .. } | Spec::File { .. } | Spec::Dir { .. } => 1,
        };
        u32::try_from(self.size().pages() * per_page).unwrap_or(u32::MAX)
    }
}

fn parse_kind(text: &str) -> Result<Spec, String> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "ram" => parse_size(rest).map(|size| Spec::Ram { size }),
        "zram" => parse_zram(rest),
        "file" => parse_place(rest).map(|(path, size)| Spec::File { path, size }),
        "dir" => parse_place(rest).map(|(path, size)| Spec::Dir { path, size }),
        "tier" => parse_tier(rest),
        "flaky" => parse_flaky(rest),
        "" => Err(format!("kind missing (there are {KINDS})")),
        kind => Err(format!("unknown kind {kind:?} (there are {KINDS})")),
    }
}

fn parse_tier(text: &str) -> Result<Spec, String> {
    let missing = || format!("slow level missing (FAST{LEVELS}SLOW)");
    let (fast, slow) = text.split_once(LEVELS).ok_or_else(missing)?;
    let fast = parse_kind(fast).map_err(|reason| format!("fast level: {reason}"))?;
    let slow = parse_kind(slow).map_err(|reason| format!("slow level: {reason}"))?;
    match (&fast, slow.is_file()) {
        (Spec::Ram { .. } | Spec::Zram { .. }, true) => {
            Ok(Spec::Tier { fast: Box::new(fast), slow: Box::new(slow) })
        }
        (Spec::Ram { .. } | Spec::Zram { .. }, false) => {
            Err("the slow level is file: or dir:".into())
        }
        _ => Err("the fast level is ram: or zram:".into()),
    }
}

fn parse_flaky(text: &str) -> Result<Spec, String> {
    let missing = || format!("device missing (FAULTS{LEVELS}SPEC)");
    let (faults, device) = text.split_once(LEVELS).ok_or_else(missing)?;
    let faults = FaultPlan::parse(faults)?;
    match parse_kind(device)? {
        Spec::Tier { .. } | Spec::Flaky { .. } => {
            Err("faults are injected into a level, and once".into())
        }
        device => Ok(Spec::Flaky { faults, device: Box::new(device) }),
    }
}

fn parse_zram(text: &str) -> Result<Spec, String> {
    let (size, name) = match text.split_once(':') {
        Some((size, name)) => (size, Some(name)),
        None => (text, None),
    };
    let known = |name| Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
    let algorithm = match name {
        None => Algorithm::default(),
        Some(name) => known(name)
            .ok_or_else(|| format!("unknown algorithm {name:?} (there are lz4, zstd)"))?,
    };
    Ok(Spec::Zram { size: parse_size(size)?, algorithm })
}

fn parse_place(text: &str) -> Result<(PathBuf, Bytes), String> {
    let missing = || "size missing (PATH:SIZE)".to_owned();
    let (path, size) = text.rsplit_once(':').ok_or_else(missing)?;
    if path.is_empty() {
        return Err("path missing (PATH:SIZE)".to_owned());
    }
    if path.contains(SEPARATOR) {
        return Err(format!("the path may not contain {SEPARATOR:?}"));
    }
    Ok((PathBuf::from(path), parse_size(size)?))
}

fn parse_size(text: &str) -> Result<Bytes, String> {
    if text.is_empty() {
        return Err("size missing".to_owned());
    }
    match size(text).map_err(|reason| format!("bad size {text:?}: {reason}"))? {
        size if size < SIZE_MIN => Err(format!("size {text} is under {SIZE_MIN}")),
        size if size > SIZE_MAX => Err(format!("size {text} is over {SIZE_MAX}")),
        size => Ok(Bytes::of_pages(size.pages())),
    }
}

/// A size in the form that [`Spec::parse`] reads back: in the largest unit that divides it.
struct Exact(Bytes);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.0;
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K"), (0, "")];
        let divides = |(shift, _): &(u32, &str)| bytes.is_multiple_of(1 << *shift);
        let (shift, unit) = units.into_iter().find(divides).unwrap_or((0, ""));
        write!(f, "{}{unit}", bytes >> shift)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |f: &mut fmt::Formatter<'_>, kind: &str, path: &Path, size: &Bytes| {
            write!(f, "{kind}:{}:{}", path.display(), Exact(*size))
        };
        match self {
            Spec::Ram { size } => write!(f, "ram:{}", Exact(*size)),
            Spec::Zram { size, algorithm } => {
                write!(f, "zram:{}:{}", Exact(*size), algorithm.name())
            }
            Spec::File { path, size } => place(f, "file", path, size),
            Spec::Dir { path, size } => place(f, "dir", path, size),
            Spec::Tier { fast, slow } => write!(f, "tier:{fast}{LEVELS}{slow}"),
            Spec::Flaky { faults, device } => write!(f, "flaky:{faults}{LEVELS}{device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    fn dir(path: &str, size: u64) -> Spec {
        Spec::Dir { path: path.into(), size: Bytes(size) }
    }

    #[test]
    fn kinds_and_sizes_are_read() {
        let file = Spec::File { path: "/a/b".into(), size: Bytes(3 << 29) };
        let zram = |algorithm| Spec::Zram { size: Bytes(64 << 20), algorithm };
        for (text, spec) in [
            ("ram:64M", Spec::Ram { size: Bytes(64 << 20) }),
            ("ram:1GiB", Spec::Ram { size: Bytes(1 << 30) }),
            ("ram:16T", Spec::Ram { size: Bytes(1 << 44) }),
            ("ram:1048577", Spec::Ram { size: Bytes(1 << 20) }),
            ("zram:64M", zram(Algorithm::Lz4)),
            ("zram:64M:lz4", zram(Algorithm::Lz4)),
            ("zram:64M:zstd", zram(Algorithm::Zstd)),
            ("file:/a/b:1.5G", file),
            ("dir:relative:1MB", dir("relative", 1 << 20)),
            (
                "tier:zram:64M+dir:/a+b:2M",
                Spec::Tier {
                    fast: Box::new(zram(Algorithm::Lz4)),
                    slow: Box::new(dir("/a+b", 2 << 20)),
                },
            ),
            ("dir:/with:colon:2m", dir("/with:colon", 2 << 20)),
            ("dir:/a b/c:2048k", dir("/a b/c", 2 << 20)),
        ] {
            assert_eq!(Spec::parse(text), Ok(spec), "{text}");
        }
    }

    #[test]
    fn errors_are_one_line_and_say_what_is_wrong() {
        for (text, part) in [
            ("", "kind missing (there are ram:SIZE, zram:SIZE[:lz4|zstd], "),
            ("disk:/a:1G", "unknown kind \"disk\" (there are ram:SIZE, "),
            ("RAM:1G", "unknown kind \"RAM\""),
            ("zram:", "size missing"),
            ("zram:64M:", "unknown algorithm \"\" (there are lz4, zstd)"),
            ("zram:64M:gzip", "unknown algorithm \"gzip\" (there are lz4, zstd)"),
            ("zram:lz4:64M", "unknown algorithm \"64M\""),
            ("zram:64M:lz4:9", "unknown algorithm \"lz4:9\""),
            ("zram:1K", "under 1 MiB"),
            ("ram:64M:zstd", "bad size \"64M:zstd\""),
            ("tier:", "slow level missing (FAST+SLOW)"),
            ("tier:ram:1G", "slow level missing (FAST+SLOW)"),
            ("tier:ram:1G+", "slow level: kind missing"),
            ("tier:+dir:/a:1G", "fast level: kind missing"),
            ("tier:ram:1K+dir:/a:1G", "fast level: size 1K is under 1 MiB"),
            ("tier:zram:1G:gzip+dir:/a:1G", "fast level: unknown algorithm \"gzip\""),
            ("tier:dir:/a:1G+ram:1G", "the fast level is ram: or zram:"),
            ("tier:ram:1G+zram:1G", "the slow level is file: or dir:"),
            ("tier:ram:1G+tier:ram:1G+dir:/a:1G", "the slow level is file: or dir:"),
            ("tier:ram:1G+dir:/a", "slow level: size missing (PATH:SIZE)"),
            ("ram", "size missing"),
            ("ram:", "size missing"),
            ("dir:/a", "size missing (PATH:SIZE)"),
            ("file:/a:", "size missing"),
            ("dir::1G", "path missing"),
            ("ram:much", "bad size \"much\""),
            ("ram:-1G", "bad size \"-1G\""),
            ("dir:/a:b", "bad size \"b\""),
            ("ram:1023K", "size 1023K is under 1 MiB"),
            ("ram:0", "is under 1 MiB"),
            ("ram:17T", "size 17T is over 16 TiB"),
            ("ram:17592186044417", "is over 16 TiB"),
            ("ram:99999999999999999999T", "bad size"),
            ("dir:/a;b:1G", "may not contain ';'"),
            ("dir:/a\nb:x", "\\n"),
            ("flaky:read=once+ram:1G", "for the tests of highwater-lab"),
            ("tier:ram:1G+flaky:read=once+dir:/a:1G", "for the tests of highwater-lab"),
            ("flaky:read=once", "device missing (FAULTS+SPEC)"),
            ("flaky:fire=once+ram:1G", "unknown fault \"fire\""),
            ("flaky:read=once+tier:ram:1G+dir:/a:1G", "injected into a level"),
            ("tier:flaky:read=once+ram:1G", "fast level: device missing"),
        ] {
            let error = Spec::parse(text).unwrap_err();
            assert!(error.contains(part) && error.lines().count() == 1, "{text:?}: {error}");
        }
    }

    #[test]
    fn random_specs_round_trip_through_text() {
        let mut random = Prng::new(1);
        for _ in 0..2_000 {
            let shift = random.below(24);
            let pages = (random.below(1 << 32) + 1) >> shift << random.below(shift + 1);
            let size = Bytes::of_pages(pages.max(256));
            let path = PathBuf::from(format!("/x:{}", random.below(9)));
            let spec = match random.below(8) {
                0 => Spec::Ram { size },
                1 => Spec::Zram { size, algorithm: Algorithm::Lz4 },
                2 => Spec::Zram { size, algorithm: Algorithm::Zstd },
                3 => Spec::File { path, size },
                4 => Spec::Dir { path, size },
                5 => flaky(&mut random, Spec::Ram { size }),
                6 => Spec::Tier {
                    fast: Box::new(Spec::Ram { size }),
                    slow: Box::new(flaky(&mut random, Spec::File { path, size: SIZE_MIN })),
                },
                _ => Spec::Tier {
                    fast: Box::new(Spec::Zram { size, algorithm: Algorithm::Zstd }),
                    slow: Box::new(Spec::Dir { path, size: SIZE_MIN }),
                },
            };
            let text = spec.to_string();
            assert_eq!(Spec::parse(&text).is_err(), spec.is_flaky(), "{text}");
            assert_eq!(Spec::parse_with(&text, Injection::Allowed), Ok(spec));
        }
    }

    fn flaky(random: &mut Prng, device: Spec) -> Spec {
        let plan = format!("lost={},after={}", 1 + random.below(999), random.below(99));
        Spec::Flaky { faults: FaultPlan::parse(&plan).unwrap(), device: Box::new(device) }
    }
}
