//! Random texts as specifications: each is refused in one line, or equals the specification that
//! its own text gives.

use crate::{Area, SIZE_MAX, SIZE_MIN, size};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Pieces of texts that are nearly right.
const PIECES: [&str; 50] = [
    "ram:",
    "zram:",
    "file:",
    "dir:",
    "tier:",
    "replicate:",
    "redis:",
    "rediss:",
    "redis+unix:",
    "nbd:",
    "nbds:",
    "nbd+unix:",
    "flaky:",
    "lz4:",
    "zstd:",
    ":",
    ",",
    "+",
    "/",
    "=",
    "1G",
    "16M",
    "64K",
    "0",
    "-1",
    "1.5G",
    "18446744073709551615",
    "99999999T",
    "lz4",
    "zstd",
    "level=3",
    ",priority=3",
    ",priority=-9",
    ",rotational=1",
    ",rotational=2",
    "host",
    "[::1]",
    "127.0.0.1",
    "6379",
    "/tmp",
    "/tmp/a b",
    "../a",
    "é",
    "\n",
    "\0",
    "\u{1b}[2J",
    " ",
    "read=",
    "eio@1/100",
    "all",
];

fn check(text: &str) {
    match Area::parse(text) {
        Ok(area) => {
            assert_eq!(Area::parse(&area.to_string()).as_ref(), Ok(&area), "{text:?}");
            let bytes = area.spec.size();
            assert!((SIZE_MIN..=SIZE_MAX).contains(&bytes), "{text:?} has {bytes:?}");
        }
        Err(line) => {
            assert!(!line.is_empty() && !line.contains(char::is_control), "{text:?}: {line:?}");
        }
    }
}

proptest! {
    // A failure prints the text, which becomes a test of spec_tests.rs.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_text_is_a_device_or_is_refused_in_a_line(text in any::<String>()) {
        check(&text);
    }

    #[test]
    fn pieces_in_any_order_are_devices_or_are_refused_in_a_line(
        pieces in vec(select(&PIECES[..]), 1..10),
    ) {
        check(&pieces.concat());
    }

    #[test]
    fn levels_and_replicas_of_any_kind_keep_their_text(
        outer in select(&["", "tier:", "replicate:", "tier:zram:64M+", "tier:ram:1G+"][..]),
        kinds in vec(select(&[
            "ram:", "zram:", "zram:zstd:", "dir:/tmp:", "file:/tmp/x:", "redis:host:6379:",
            "redis+unix:/run/a.sock:", "nbd:host:10809/disk:", "nbd+unix:/run/b.sock:",
            "rediss:name=host:6379:", "nbds:host:10809/disk:",
        ][..]), 1..3),
        amount in any::<u32>(),
        unit in select(&["", "K", "M", "G", "T", "GiB", "GB", "kB"][..]),
        more in select(&["", ",priority=7", ",rotational=0", ",priority=32767,rotational=1"][..]),
    ) {
        let size = format!("{amount}{unit}");
        let kinds: Vec<_> = kinds.iter().map(|kind| format!("{kind}{size}")).collect();
        check(&format!("{outer}{}{more}", kinds.join("+")));
    }

    #[test]
    fn a_size_is_a_number_of_bytes_or_is_refused_in_a_line(
        amount in "[-+]?[0-9]{0,25}([.][0-9]{0,5})?",
        unit in "[ ]?[kKmMgGtTpP]?(i?[bB])?",
    ) {
        let text = format!("{amount}{unit}");
        match size(&text) {
            // Written in bytes, a size may have too many digits.
            Ok(bytes) if bytes.0 < 10u64.pow(19) => {
                assert_eq!(size(&bytes.0.to_string()), Ok(bytes), "{text}");
            }
            Ok(_) => {}
            Err(error) => {
                let line = error.to_string();
                assert!(!line.contains(char::is_control), "{text}: {line:?}");
            }
        }
    }
}
