//! Parses a handshake and replies as a server writes them: whole, damaged and cut. The parsed
//! values are compared with the written ones.

use super::*;
use highwater_units::Prng;

/// The answers of a random server, and their meaning.
struct Said {
    bytes: Vec<u8>,
    terms: Terms,
    end: OptionReply,
}

fn option_answer(kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &OPTION_GO.to_be_bytes()].concat();
    let length = data.len() as u32;
    [&head, &kind.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

fn random_answers(random: &mut Prng) -> Said {
    let (mut bytes, mut terms) = (Vec::new(), Terms::new());
    for _ in 0..random.below(5) {
        let kind = random.below(5) as u16;
        let number = random.next_u64() >> random.below(63);
        let (size, flags) = (number.to_be_bytes(), (number as u16).to_be_bytes());
        let (least, most) = ((number as u32).to_be_bytes(), (!number as u32).to_be_bytes());
        let info = match kind {
            INFO_EXPORT => {
                (terms.size, terms.flags) = (Some(number), number as u16);
                [&size[..], &flags].concat()
            }
            INFO_BLOCK_SIZE => {
                (terms.block_min, terms.block_max) = (number as u32, !number as u32);
                [&least[..], &4096u32.to_be_bytes(), &most].concat()
            }
            _ => vec![b'x'; random.below(40) as usize],
        };
        bytes.extend(option_answer(3, &[&kind.to_be_bytes()[..], &info].concat()));
    }
    let (kind, end) = [
        (1, OptionReply::Ack),
        (1 << 31 | 1, OptionReply::Refused(GoRefusal::TooOld)),
        (1 << 31 | 5, OptionReply::Refused(GoRefusal::WantsTls)),
        (1 << 31 | 6, OptionReply::Refused(GoRefusal::NoSuchExport)),
        (1 << 31 | 2, OptionReply::Refused(GoRefusal::Unwilling)),
        (u32::MAX, OptionReply::Refused(GoRefusal::Unwilling)),
    ][random.below(6) as usize];
    let reason = vec![b'r'; if kind == 1 { 0 } else { random.below(100) as usize }];
    bytes.extend(option_answer(kind, &reason));
    Said { bytes, terms, end }
}

/// Reads answers as the client does; `None`: they are cut short.
fn read(mut bytes: &[u8]) -> Result<Option<(Terms, OptionReply)>, Malformed> {
    let mut terms = Terms::new();
    while let Some((head, rest)) = bytes.split_first_chunk() {
        let (kind, length) = option_reply(OPTION_GO, head)?;
        let Some(data) = rest.get(..length) else { break };
        match kind {
            OptionReply::Info => terms.note(data)?,
            end => return Ok(Some((terms, end))),
        }
        bytes = &rest[length..];
    }
    Ok(None)
}

#[test]
fn terms_come_out_as_they_went_in() {
    let mut random = Prng::new(41);
    for _ in 0..3_000 {
        let said = random_answers(&mut random);
        assert_eq!(read(&said.bytes), Ok(Some((said.terms, said.end))));
        let cut = random.below(said.bytes.len() as u64) as usize;
        assert_eq!(read(&said.bytes[..cut]), Ok(None), "cut at {cut}");
    }
}

#[test]
fn damaged_answers_are_refused_or_understood_and_bounded() {
    let mut random = Prng::new(42);
    for _ in 0..20_000 {
        let mut bytes = random_answers(&mut random).bytes;
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        let terms = match read(&bytes) {
            Ok(Some((terms, _))) => terms,
            Ok(None) | Err(Malformed) => continue,
        };
        if let Some(pages) = terms.run_max() {
            assert!(pages * PAGE_SIZE <= terms.block_max as usize);
            assert_eq!(PAGE_SIZE % terms.block_min as usize, 0);
        }
    }
}

#[test]
fn replies_come_back_and_damaged_ones_are_no_others() {
    let mut random = Prng::new(43);
    for _ in 0..20_000 {
        let error = [0u32, 5, 28, 108][random.below(4) as usize];
        let cookie = random.next_u64();
        let mut bytes = [0; REPLY_BYTES];
        bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&error.to_be_bytes());
        bytes[8..].copy_from_slice(&cookie.to_be_bytes());
        let expected = Reply { cookie, error: (error != 0).then_some(error as i32) };
        assert_eq!(reply(&bytes), Ok(expected));
        bytes[random.below(4) as usize] ^= 1 << random.below(8);
        assert_eq!(reply(&bytes), Err(Malformed));
    }
}

#[test]
fn greetings_are_told_apart() {
    let greeting_of = |text: &[u8]| greeting(text.try_into().unwrap());
    for (bytes, expected) in [
        (&b"NBDMAGICIHAVEOPT\0\x03"[..], Ok(Greeting::Fixed)),
        (b"NBDMAGICIHAVEOPT\0\x01", Ok(Greeting::Fixed)),
        (b"NBDMAGICIHAVEOPT\0\x02", Ok(Greeting::Old)),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", Ok(Greeting::Old)),
        (b"HTTP/1.1 400 Bad R", Err(Malformed)),
        (b"SSH-2.0-OpenSSH_9.", Err(Malformed)),
    ] {
        assert_eq!(greeting_of(bytes), expected, "{bytes:?}");
    }
}

#[test]
fn requests_are_as_the_protocol_says() {
    let mut room = [0xff; 40];
    let used = go("swap", &mut room);
    let expected = b"IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x04swap\0\x01\0\x03";
    assert_eq!(&room[..used], expected);
    assert_eq!(client_flags(), [0, 0, 0, 3]);
    let trim = request(Command::Trim, 7, 1 << 40, 4096);
    let expected = b"\x25\x60\x95\x13\0\0\0\x04\0\0\0\0\0\0\0\x07\0\0\x01\0\0\0\0\0\0\0\x10\0";
    assert_eq!(&trim, expected);
}

#[test]
fn blocks_that_do_not_fit_pages_are_found() {
    for (least, most, expected) in [
        (1, 32 << 20, Some(8192)),
        (4096, 4096, Some(1)),
        (512, u32::MAX, Some(1_048_575)),
        (8192, 32 << 20, None),
        (0, 32 << 20, None),
        (3, 32 << 20, None),
        (1, 4095, None),
    ] {
        let terms = Terms { block_min: least, block_max: most, ..Terms::new() };
        assert_eq!(terms.run_max(), expected, "{least} to {most}");
    }
}
