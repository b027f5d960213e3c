//! Published values: `quantity,unit,base,improved[,note]`, a row each; a blank is not published.

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Published {
    pub(super) quantity: String,
    pub(super) base: Option<f64>,
    pub(super) improved: Option<f64>,
}

/// The rows of a file.
///
/// # Panics
/// At a row that is none: the files are part of the program.
pub(super) fn rows(csv: &str) -> Vec<Published> {
    csv.lines().skip(1).map(row).collect()
}

fn row(line: &str) -> Published {
    let mut cells = line.splitn(5, ',');
    let mut cell = || cells.next().unwrap_or_else(|| panic!("'{line}' lacks a cell"));
    let (quantity, _unit) = (cell().to_owned(), cell());
    let mut value = || match cell() {
        "" => None,
        text => Some(text.parse().unwrap_or_else(|_| panic!("'{text}' in '{line}'"))),
    };
    Published { quantity, base: value(), improved: value() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_and_notes_are_no_values() {
        let csv = "quantity,unit,base,patched\nlock share: a,percent,7.91,\nb,us,15,4,\"x, y\"\n";
        let [a, b] = &rows(csv)[..] else { panic!("two rows") };
        assert_eq!((a.quantity.as_str(), a.base, a.improved), ("lock share: a", Some(7.91), None));
        assert_eq!((b.quantity.as_str(), b.base, b.improved), ("b", Some(15.0), Some(4.0)));
    }
}
