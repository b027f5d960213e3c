//! How many of what, as people say it.

use indicatif::HumanCount;

/// "1 process", "2 processes", "1,024 processes".
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{} {many}", HumanCount(count)),
    }
}
