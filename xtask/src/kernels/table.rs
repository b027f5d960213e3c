//! The table of kernels and checks, as Markdown.

use super::guest::{Checked, Outcome};
use super::packages::Kernel;
use std::fmt::Write;

const BEGIN: &str = "<!-- tables: make test-kernels -->\n";
const END: &str = "<!-- end of tables -->\n";

/// The results of a machine with a kernel.
pub(super) struct Column {
    pub(super) kernel: Kernel,
    /// `Err`: why it was not run.
    pub(super) checks: Result<Vec<Checked>, String>,
}

/// A row for each check, a column for each kernel, and the reasons below.
pub(super) fn of(machine: &str, columns: &[Column]) -> String {
    let mut reasons: Vec<String> = Vec::new();
    let mut text = format!("### On {machine}\n\n| check |");
    let mut rule = "\n|---|".to_owned();
    for column in columns {
        let _ = write!(text, " {} |", column.kernel.name);
        rule += "---|";
    }
    text += &rule;
    for name in names(columns) {
        let cells: String = columns.iter().map(|column| cell(column, name, &mut reasons)).collect();
        let _ = write!(text, "\n| {name} |{cells}");
    }
    text += "\n\n";
    for (index, reason) in reasons.iter().enumerate() {
        let _ = writeln!(text, "{}. {reason}", index + 1);
    }
    text
}

/// All checks, in the order of the kernel that has the most.
fn names(columns: &[Column]) -> Vec<&str> {
    let checks = columns.iter().filter_map(|column| column.checks.as_ref().ok());
    let most = checks.max_by_key(|checks| checks.len());
    most.into_iter().flatten().map(|check| check.name.as_str()).collect()
}

fn cell(column: &Column, name: &str, reasons: &mut Vec<String>) -> String {
    let mut note = |reason: &str| {
        let at = reasons.iter().position(|known| known == reason).unwrap_or_else(|| {
            reasons.push(reason.to_owned());
            reasons.len() - 1
        });
        at + 1
    };
    let checks = match &column.checks {
        Ok(checks) => checks,
        Err(reason) => return format!(" not run ({}) |", note(reason)),
    };
    match checks.iter().find(|check| check.name == name).map(|check| &check.outcome) {
        Some(Outcome::Passed) => " ok |".to_owned(),
        Some(Outcome::Failed(reason)) => format!(" **failed** ({}) |", note(reason)),
        Some(Outcome::NotRun(reason)) => format!(" not run ({}) |", note(reason)),
        None => " - |".to_owned(),
    }
}

/// The page with other tables; `None` if it has no place for them.
pub(super) fn replaced(page: &str, tables: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::packages;
    use super::*;

    #[test]
    fn a_cell_says_what_happened_and_reasons_follow_once() {
        let check = |name: &str, outcome| Checked { name: name.to_owned(), outcome };
        let lack = || Outcome::NotRun("no zram".to_owned());
        let mut kernels = packages::all().into_iter();
        let mut column = |checks| Column { kernel: kernels.next().expect("a kernel"), checks };
        let columns = [
            column(Ok(vec![check("a", Outcome::Passed), check("b", lack()), check("c", lack())])),
            column(Err("no mirror".to_owned())),
        ];
        let expected = "### On one CPU\n\n| check | 5.10 | 5.15 |\n|---|---|---|\n\
            | a | ok | not run (1) |\n| b | not run (2) | not run (1) |\n\
            | c | not run (2) | not run (1) |\n\n1. no mirror\n2. no zram\n";
        assert_eq!(of("one CPU", &columns), expected);
    }

    #[test]
    fn only_the_tables_of_the_page_change() {
        let page = format!("a\n{BEGIN}old\n{END}z\n");
        assert_eq!(replaced(&page, "new\n"), Some(format!("a\n{BEGIN}\nnew\n\n{END}z\n")));
        assert_eq!(replaced("a\n", "new\n"), None);
    }
}
