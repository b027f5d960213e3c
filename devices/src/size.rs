//! Sizes as people write them.

use highwater_units::Bytes;
use parse_size::{Config, Error};
use std::fmt;

/// More digits overflow silently in the parser, and no size has them.
const DIGITS_MAX: usize = 19;

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// It has no digits.
    Empty,
    /// It is a number of more bytes than can be.
    TooLarge,
    /// It has more digits than are read.
    TooLong,
    /// It is not a number with a known unit.
    Unknown,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SizeError::Empty => "it has no number",
            SizeError::TooLarge => "it is too large",
            SizeError::TooLong => "it has too many digits",
            SizeError::Unknown => "no such number or unit",
        })
    }
}

/// Parses a size such as 512M or 1.5 GiB. Units are binary: M and MB mean MiB.
///
/// # Errors
/// The text is not a size.
pub fn size(text: &str) -> Result<Bytes, SizeError> {
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).count();
    match text.split_once('.') {
        None if digits(text) > DIGITS_MAX => return Err(SizeError::TooLarge),
        Some(_) if digits(text) > DIGITS_MAX => return Err(SizeError::TooLong),
        None | Some(_) => {}
    }
    let parsed = Config::new().with_binary().parse_size(text).map(Bytes);
    parsed.map_err(|error| match error {
        Error::Empty => SizeError::Empty,
        Error::PosOverflow => SizeError::TooLarge,
        _ => SizeError::Unknown,
    })
}

/// A size in the form that [`size()`] reads back, in one word: in the largest unit that divides it,
/// such as 4M. Remedies show sizes so, because they are typed.
#[derive(Clone, Copy, Debug)]
pub struct Exact(pub Bytes);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.0;
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K"), (0, "")];
        let divides = |(shift, _): &(u32, &str)| bytes.is_multiple_of(1 << *shift);
        let (shift, unit) = units.into_iter().find(divides).unwrap_or((0, ""));
        write!(f, "{}{unit}", bytes >> shift)
    }
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
        for (text, reason) in [
            ("", "it has no number"),
            ("M", "it has no number"),
            ("much", "no such number or unit"),
            ("-1M", "no such number or unit"),
            ("1X", "no such number or unit"),
            ("99999999999T", "it is too large"),
            ("99999999999999999999", "it is too large"),
            ("18446744073709551616", "it is too large"),
            ("1.00000000000000000000G", "it has too many digits"),
        ] {
            assert_eq!(size(text).unwrap_err().to_string(), reason, "{text}");
        }
    }

    #[test]
    fn an_exact_size_is_read_back() {
        let sizes = [(4095, "4095"), (4 << 20, "4M"), (21_708 << 20, "21708M"), (3 << 30, "3G")];
        for (bytes, text) in sizes {
            assert_eq!(Exact(Bytes(bytes)).to_string(), text);
            assert_eq!(size(text), Ok(Bytes(bytes)));
        }
    }
}
