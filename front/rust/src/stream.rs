//! A mapping as a stream of bytes. Its bytes are copied, page by page, so that no system call gets
//! a pointer into paged memory, and a page that cannot be brought in is an error that a call
//! returns.

use crate::mapping::Mapping;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Reads a mapping; see [`Mapping::reader`].
#[derive(Debug)]
pub struct Reader<'a> {
    mapping: &'a Mapping,
    at: u64,
}

/// Writes a mapping; see [`Mapping::writer`].
#[derive(Debug)]
pub struct Writer<'a> {
    mapping: &'a mut Mapping,
    at: u64,
}

impl Mapping {
    /// Reads the mapping from its first byte on, by copying: for [`std::io::copy`] to files and
    /// sockets.
    pub fn reader(&self) -> Reader<'_> {
        Reader { mapping: self, at: 0 }
    }

    /// Writes the mapping from its first byte on, by copying: for [`std::io::copy`] from files and
    /// sockets. At the end of the mapping it accepts no more bytes.
    pub fn writer(&mut self) -> Writer<'_> {
        Writer { mapping: self, at: 0 }
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = left(self.mapping, self.at).min(to.len());
        if len > 0 {
            self.mapping.read_at(self.at as usize, &mut to[..len])?;
        }
        self.at += len as u64;
        Ok(len)
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let len = left(self.mapping, self.at).min(from.len());
        if len > 0 {
            self.mapping.write_at(self.at as usize, &from[..len])?;
        }
        self.at += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = sought(self.mapping, self.at, to)?;
        Ok(self.at)
    }
}

impl Seek for Writer<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = sought(self.mapping, self.at, to)?;
        Ok(self.at)
    }
}

/// The bytes from `at` to the end.
fn left(mapping: &Mapping, at: u64) -> usize {
    mapping.len().saturating_sub(usize::try_from(at).unwrap_or(usize::MAX))
}

fn sought(mapping: &Mapping, at: u64, to: SeekFrom) -> io::Result<u64> {
    let found = match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::End(offset) => (mapping.len() as u64).checked_add_signed(offset),
        SeekFrom::Current(offset) => at.checked_add_signed(offset),
    };
    found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a position below 0"))
}
