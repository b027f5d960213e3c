//! The protocol of NBD, fixed newstyle with simple replies: makes the bytes of requests, and parses
//! those of answers.
//!
//! ```text
//! server  NBDMAGIC IHAVEOPT flags             client  flags
//! client  IHAVEOPT option length data         server  magic option kind length data, some times
//! client  magic type cookie offset length     server  magic error cookie, in any order
//! ```
//! All numbers are big endian. Nothing here reads, writes or allocates.

use highwater_units::PAGE_SIZE;

const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Flags of the greeting and of the client: the server also answers options that it does not know;
/// and it leaves out zeros that no client needs.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

pub(super) const OPTION_START_TLS: u32 = 5;
pub(super) const OPTION_GO: u32 = 7;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
const READ_ONLY: u16 = 1 << 1;
const SEND_TRIM: u16 = 1 << 5;
const CAN_MULTI_CONN: u16 = 1 << 8;

/// The longest data of an answer to an option. Longer data are malformed.
const DATA_MAX: u32 = 64 << 10;
/// The longest name of an export.
pub(crate) const EXPORT_MAX: usize = 4096;

pub(super) const GREETING_BYTES: usize = 18;
pub(super) const OPTION_REPLY_BYTES: usize = 20;
pub(super) const REQUEST_BYTES: usize = 28;
pub(super) const REPLY_BYTES: usize = 16;

/// The bytes do not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Greeting {
    /// The protocol of this file.
    Fixed,
    /// An older one.
    Old,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|it| u16::from_be_bytes([it[0], it[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16_at(bytes, at)?) << 16 | u32::from(u16_at(bytes, at + 2)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32_at(bytes, at)?) << 32 | u64::from(u32_at(bytes, at + 4)?))
}

/// Whether these may be the first bytes of a greeting.
pub(super) fn may_greet(bytes: &[u8]) -> bool {
    bytes.iter().zip(GREETING_MAGIC.to_be_bytes()).all(|(byte, of_magic)| *byte == of_magic)
}

/// Parses the first bytes that a server sends.
pub(super) fn greeting(bytes: &[u8; GREETING_BYTES]) -> Result<Greeting, Malformed> {
    match (u64_at(bytes, 0), u64_at(bytes, 8), u16_at(bytes, 16)) {
        (Some(GREETING_MAGIC), Some(OPTION_MAGIC), Some(flags)) if flags & FIXED_NEWSTYLE != 0 => {
            Ok(Greeting::Fixed)
        }
        (Some(GREETING_MAGIC), ..) => Ok(Greeting::Old),
        _ => Err(Malformed),
    }
}

/// The client's answer to a greeting.
pub(super) fn client_flags() -> [u8; 4] {
    u32::from(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes()
}

/// Copies `parts` into `room`; returns the number of bytes.
pub(super) fn put(room: &mut [u8], parts: &[&[u8]]) -> usize {
    let mut used = 0;
    for bytes in parts {
        room[used..used + bytes.len()].copy_from_slice(bytes);
        used += bytes.len();
    }
    used
}

/// Asks to switch to TLS. Returns the bytes of `room` used.
pub(super) fn start_tls(room: &mut [u8]) -> usize {
    put(room, &[&OPTION_MAGIC.to_be_bytes(), &OPTION_START_TLS.to_be_bytes(), &0u32.to_be_bytes()])
}

/// Asks for an export: its terms, and to use it from then on. Returns the bytes of `room` used.
pub(super) fn go(export: &str, room: &mut [u8]) -> usize {
    let name = export.len() as u32;
    let parts: [&[u8]; 7] = [
        &OPTION_MAGIC.to_be_bytes(),
        &OPTION_GO.to_be_bytes(),
        &(4 + name + 2 + 2).to_be_bytes(),
        &name.to_be_bytes(),
        export.as_bytes(),
        // A list of one entry.
        &1u16.to_be_bytes(),
        &INFO_BLOCK_SIZE.to_be_bytes(),
    ];
    put(room, &parts)
}

/// The kind of an answer to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionReply {
    /// It is granted.
    Ack,
    /// A part of the export's terms.
    Info,
    Refused(GoRefusal),
}

/// Why an export cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoRefusal {
    /// The server does not know the request.
    TooOld,
    NoSuchExport,
    WantsTls,
    /// Anything else.
    Unwilling,
}

/// Parses the header of an answer to an option; returns its kind and the length of its data.
pub(super) fn option_reply(
    option: u32,
    bytes: &[u8; OPTION_REPLY_BYTES],
) -> Result<(OptionReply, usize), Malformed> {
    if (u64_at(bytes, 0), u32_at(bytes, 8)) != (Some(OPTION_REPLY_MAGIC), Some(option)) {
        return Err(Malformed);
    }
    let length = u32_at(bytes, 16).filter(|length| *length <= DATA_MAX).ok_or(Malformed)?;
    let error = 1 << 31;
    let kind = match u32_at(bytes, 12).ok_or(Malformed)? {
        1 => OptionReply::Ack,
        3 => OptionReply::Info,
        kind if kind & error == 0 => return Err(Malformed),
        kind => OptionReply::Refused(match kind & !error {
            1 => GoRefusal::TooOld,
            5 => GoRefusal::WantsTls,
            6 => GoRefusal::NoSuchExport,
            _ => GoRefusal::Unwilling,
        }),
    };
    Ok((kind, length as usize))
}

/// The size of an export, and the requests that it permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// In bytes; `None`: the server has not said.
    pub(super) size: Option<u64>,
    flags: u16,
    /// The smallest request, and the longest, in bytes.
    block_min: u32,
    block_max: u32,
}

impl Terms {
    /// The terms of a server that says nothing.
    pub(super) fn new() -> Terms {
        Terms { size: None, flags: 0, block_min: 1, block_max: 32 << 20 }
    }

    /// Records the data of an [`OptionReply::Info`].
    pub(super) fn note(&mut self, data: &[u8]) -> Result<(), Malformed> {
        match (u16_at(data, 0).ok_or(Malformed)?, data.len()) {
            (INFO_EXPORT, 12) => {
                self.size = u64_at(data, 2);
                self.flags = u16_at(data, 10).ok_or(Malformed)?;
            }
            (INFO_BLOCK_SIZE, 14) => {
                self.block_min = u32_at(data, 2).ok_or(Malformed)?;
                self.block_max = u32_at(data, 10).ok_or(Malformed)?;
            }
            (INFO_EXPORT | INFO_BLOCK_SIZE, _) => return Err(Malformed),
            // Information that was not asked for, which is permitted.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }

    pub(super) fn can_trim(&self) -> bool {
        self.flags & SEND_TRIM != 0
    }

    /// Whether all connections see each other's writes.
    pub(super) fn is_coherent(&self) -> bool {
        self.flags & CAN_MULTI_CONN != 0
    }

    /// The most pages of a request; `None`: a page is not a whole number of blocks, or is longer
    /// than a request may be.
    pub(super) fn run_max(&self) -> Option<usize> {
        let pages = self.block_max as usize / PAGE_SIZE;
        let is_whole = self.block_min > 0 && PAGE_SIZE.is_multiple_of(self.block_min as usize);
        (is_whole && pages > 0).then_some(pages)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Trim = 4,
}

/// The header of a request about a range of the export, in bytes. The pages of a write follow it.
pub(super) fn request(
    command: Command,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    // Two bytes of flags are zero.
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The header of an answer. The pages of a read follow it, unless there is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) cookie: u64,
    /// An error number of Linux.
    pub(super) error: Option<i32>,
}

pub(super) fn reply(bytes: &[u8; REPLY_BYTES]) -> Result<Reply, Malformed> {
    match (u32_at(bytes, 0), u32_at(bytes, 4), u64_at(bytes, 8)) {
        (Some(REPLY_MAGIC), Some(error), Some(cookie)) => {
            let number = i32::try_from(error).map_err(|_| Malformed)?;
            Ok(Reply { cookie, error: (number != 0).then_some(number) })
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
#[path = "wire_fuzz.rs"]
mod fuzz;
