//! Input files, the same in every run.

use crate::lines;
use highwater_units::Prng;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Distinct bytes in `repeating`, and their number of repetitions.
const BLOCK: usize = 64 << 10;
const REPEATS: u64 = 10;

/// Text of random lines.
pub(crate) fn random_lines(path: &Path, size: u64) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    lines::write(&mut out, size, 1).and_then(|()| out.flush()).unwrap();
}

/// Lines of six words each, of a hundred different ones: they compress well.
pub(crate) fn words(path: &Path, lines: u32) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let mut random = Prng::new(3);
    let words: Vec<_> = (0..100).map(|_| format!("{:08x} ", random.next_u64() as u32)).collect();
    for _ in 0..lines {
        let line: String = (0..6).map(|_| words[random.below(100) as usize].as_str()).collect();
        writeln!(out, "{line}").unwrap();
    }
    out.flush().unwrap();
}

/// Random blocks, each several times in a row. Compressors with large windows find the repeats
/// close by: their tables of hundreds of MiB are filled, but not searched at random for every byte.
/// Text would cause that, and take minutes when memory is short.
pub(crate) fn repeating(path: &Path, size: u64) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let mut random = Prng::new(2);
    let mut block = Vec::with_capacity(BLOCK);
    for _ in 0..size.div_ceil(BLOCK as u64 * REPEATS) {
        block.clear();
        block.extend((0..BLOCK / 8).flat_map(|_| random.next_u64().to_le_bytes()));
        for _ in 0..REPEATS {
            out.write_all(&block).unwrap();
        }
    }
    out.flush().unwrap();
}
