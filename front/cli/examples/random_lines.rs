//! Writes text of random lines to standard output: `random_lines BYTES SEED`.

#[path = "../tests/programs/lines.rs"]
mod lines;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).flat_map(|text| text.parse()).collect();
    let [size, seed] = numbers[..] else {
        eprintln!("usage: random_lines BYTES SEED");
        return ExitCode::from(2);
    };
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    match lines::write(&mut out, size, seed).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("random_lines: {error}");
            ExitCode::FAILURE
        }
    }
}
