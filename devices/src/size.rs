//! Sizes as people write them.

use highwater_units::Bytes;
use parse_size::Config;

/// Parses a size such as 512M or 1.5 GiB. Units are binary: M and MB mean MiB.
///
/// # Errors
/// The reason, in some words.
pub fn size(text: &str) -> Result<Bytes, String> {
    Config::new().with_binary().parse_size(text).map(Bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in
            [("4096", 4096), ("512M", 512 << 20), ("1.5 GiB", 3 << 29), ("64kb", 64 << 10)]
        {
            assert_eq!(size(text), Ok(Bytes(bytes)));
        }
        for text in ["", "much", "-1M", "1X"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
