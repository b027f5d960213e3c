//! Counts with their noun.

use indicatif::HumanCount;

/// "1 process", "2 processes", "1,024 processes".
pub fn counted(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{} {many}", HumanCount(count)),
    }
}
