//! A published table, as a CSV file with one row of headings; empty cells were not published.

use csv::Reader;
use std::collections::HashMap;

/// The values of a file, by row and column: a row is named by its first cell, a column by its
/// heading.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<(String, HashMap<String, String>)>,
}

impl Table {
    /// Parses a file that is part of the program.
    ///
    /// # Panics
    /// If it is no table.
    pub(super) fn parse(csv: &str) -> Table {
        let mut reader = Reader::from_reader(csv.as_bytes());
        let headings = reader.headers().expect("a row of headings").clone();
        let row = |record: csv::Result<csv::StringRecord>| {
            let record = record.expect("as many cells as headings");
            let cells = headings.iter().zip(&record);
            let cells = cells.map(|(heading, cell)| (heading.to_owned(), cell.to_owned()));
            (record[0].to_owned(), cells.collect())
        };
        Table { rows: reader.records().map(row).collect() }
    }

    /// The names of the rows, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|(name, _)| name.as_str())
    }

    /// A value, if it was published.
    ///
    /// # Panics
    /// If the cell is not a number.
    pub(super) fn value(&self, row: &str, column: &str) -> Option<f64> {
        let (_, cells) = self.rows.iter().find(|(name, _)| name == row)?;
        let cell = cells.get(column).filter(|cell| !cell.is_empty())?;
        Some(cell.parse().unwrap_or_else(|_| panic!("'{cell}' of '{row}' is not a number")))
    }

    /// The sum of several rows; `None` for no rows, and if one of the values was not published.
    pub(super) fn sum(&self, rows: &[&str], column: &str) -> Option<f64> {
        let sum: Option<f64> = rows.iter().map(|row| self.value(row, column)).sum();
        sum.filter(|_| !rows.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_row_and_column() {
        let csv = "quantity,unit,base,improved,note\na,percent,7.91,,\nb,us,15,4,\"x, y\"\n";
        let table = Table::parse(csv);
        assert_eq!(table.rows().collect::<Vec<_>>(), ["a", "b"]);
        let [base, improved] = ["base", "improved"].map(|of| move |row| (row, of));
        for ((row, column), value) in
            [(base("a"), Some(7.91)), (improved("a"), None), (improved("b"), Some(4.0))]
        {
            assert_eq!(table.value(row, column), value, "{row} {column}");
        }
        assert_eq!((table.value("c", "base"), table.value("a", "patched")), (None, None));
    }

    #[test]
    fn a_sum_needs_all_its_rows() {
        let table = Table::parse("quantity,base,improved\na,1,2\nb,3,\n");
        assert_eq!(table.sum(&["a", "b"], "base"), Some(4.0));
        assert_eq!(table.sum(&["a", "b"], "improved"), None);
        assert_eq!(table.sum(&[], "base"), None);
    }
}
