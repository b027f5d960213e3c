//! Keys of `--set` for streams.

use super::Key;
use super::words::{SPANS, SWITCHES, WAYS, choice, name_in, number};

/// How files are read.
pub(super) const WAY: Key = Key {
    name: "way",
    values: "cached or direct",
    help: "how streams read files: through memory, or past it in blocks of 4 MiB (O_DIRECT)",
    take: |s, text| {
        s.way = choice(text, &WAYS)?;
        Some(())
    },
    show: |s| name_in(&WAYS, s.way),
};

/// What is measured.
pub(super) const SPAN: Key = Key {
    name: "span",
    values: "filling or full",
    help: "when streams are measured: until pages are first reclaimed, or from then on",
    take: |s, text| {
        s.span = choice(text, &SPANS)?;
        Some(())
    },
    show: |s| name_in(&SPANS, s.span),
};

/// What is in use beside streams.
pub(super) const ANON: Key = Key {
    name: "anon",
    values: "0 to 16, in parts of memory",
    help: "anonymous pages that four tasks use all the time beside streams",
    take: |s, text| {
        s.anon = number(text, 0.0..=16.0)?;
        Some(())
    },
    show: |s| s.anon.to_string(),
};

/// Who needs pages beside them.
pub(super) const SMALL: Key = Key {
    name: "small",
    values: "off or on",
    help: "whether a small task beside streams needs a page each 200 us, and is timed",
    take: |s, text| {
        s.small = choice(text, &SWITCHES)?;
        Some(())
    },
    show: |s| name_in(&SWITCHES, s.small),
};
