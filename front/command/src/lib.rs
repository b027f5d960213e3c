//! What `highwater` and `highwater-lab` share: refusals, text of numbers, and lines on
//! standard error.
//!
//! ```text
//! execute   parses the command line, runs the command, turns a Refusal into a line and status 2
//! say       a line on standard error      print   a result on standard output
//! figure    counts, rates, times as text
//! man       man pages of a command line
//! ```

mod execute;
mod figure;
mod man;
mod output;
mod refusal;
mod say;

pub use execute::{execute, execute_with, parse_error};
pub use figure::{Unit, count, counted, elapsed, short_size, time, value};
pub use man::{unwritable, write_file, write_man_pages};
pub use output::print;
pub use refusal::Refusal;
pub use say::{say, say_bare};
