//! Numbers of the command line: a refusal says in one line which there are.

use std::ops::RangeInclusive;

/// A parser of whole numbers in `range`, which `T` holds. Up to `u64::MAX` means without an end.
pub(crate) fn number<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let known = text.parse().ok().filter(|number| range.contains(number));
        known.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match range.end() {
            &u64::MAX => format!("give a whole number, {} or more", range.start()),
            most => format!("give a whole number, {} to {most}", range.start()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_range() {
        let percent = number::<u32>(1..=99);
        assert_eq!((percent("1"), percent("99")), (Ok(1), Ok(99)));
        for text in ["0", "100", "-1", "many", ""] {
            assert_eq!(percent(text), Err("give a whole number, 1 to 99".to_owned()));
        }
        let open = number::<u64>(1..=u64::MAX);
        assert_eq!(open("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(open("0"), Err("give a whole number, 1 or more".to_owned()));
    }
}
