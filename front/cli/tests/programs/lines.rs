//! Text of random lines; equal seeds give equal text.
//!
//! Generation is as fast as writing: with 64 letters, masking a random byte gives a letter.

use highwater_units::Prng;
use std::io::{self, Write};

const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
/// Lengths of lines in words of 8 random letters; the newline is the last letter.
const WORDS_MIN: u64 = 40;
const WORDS_MAX: u64 = 120;

/// Writes lines of 320 to 960 bytes until there are at least `size` bytes.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(out: &mut impl Write, size: u64, seed: u64) -> io::Result<()> {
    let mut random = Prng::new(seed);
    let mut line = Vec::with_capacity(8 * WORDS_MAX as usize);
    let mut written = 0;
    while written < size {
        line.clear();
        for _ in 0..WORDS_MIN + random.below(WORDS_MAX - WORDS_MIN + 1) {
            let letters = random.next_u64().to_le_bytes();
            line.extend(letters.map(|byte| LETTERS[usize::from(byte % 64)]));
        }
        *line.last_mut().expect("lines are not empty") = b'\n';
        out.write_all(&line)?;
        written += line.len() as u64;
    }
    Ok(())
}
