//! Parses answers in random pieces, damaged answers, and requests. The parsed values are compared
//! with the written ones.

use super::*;
use highwater_units::Prng;

/// A random token, with its bytes.
fn random_token(random: &mut Prng) -> (Vec<u8>, String) {
    let word: String =
        (0..random.below(40)).map(|_| (b' ' + random.below(90) as u8) as char).collect();
    let number = random.next_u64() as i64 >> random.below(63);
    let length = random.below(LENGTH_MAX as u64);
    match random.below(6) {
        0 => (format!("+{word}\r\n").into(), format!("{:?}", Token::Simple(word.as_bytes()))),
        1 => (format!("-{word}\r\n").into(), format!("{:?}", Token::Error(word.as_bytes()))),
        2 => (format!(":{number}\r\n").into(), format!("{:?}", Token::Integer(number))),
        3 => (format!("${length}\r\n").into(), format!("{:?}", Token::Text(length as usize))),
        4 => (format!("*{length}\r\n").into(), format!("{:?}", Token::Array(length as usize))),
        _ => (b"$-1\r\n".to_vec(), format!("{:?}", Token::Null)),
    }
}

#[test]
fn tokens_come_out_of_any_pieces_as_they_went_in() {
    let mut random = Prng::new(31);
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..3_000 {
        let (more, token) = random_token(&mut random);
        bytes.extend(more);
        expected.push(token);
    }
    let (mut found, mut at, mut end) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        match token(&bytes[at..end]).expect("it is the protocol") {
            Some((token, length)) => {
                found.push(format!("{token:?}"));
                at += length;
            }
            None => end = bytes.len().min(end + 1 + random.below(30) as usize),
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn random_bytes_are_refused_or_understood_and_never_more() {
    let mut random = Prng::new(32);
    for _ in 0..20_000 {
        let (mut bytes, _) = random_token(&mut random);
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = b"+-:$*\r\n0129 \xff"[random.below(13) as usize];
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        if let Ok(Some((token, length))) = token(&bytes) {
            assert!(length <= bytes.len() && bytes[..length].ends_with(b"\r\n"));
            assert_eq!(bytes[..length].iter().filter(|byte| **byte == b'\n').count(), 1);
            if let Token::Text(length) | Token::Array(length) = token {
                assert!(length as i64 <= LENGTH_MAX);
            }
        }
    }
}

#[test]
fn what_is_not_the_protocol_is_refused_early() {
    let long = [&b"+"[..], &[b'a'; LINE_MAX]].concat();
    for bytes in [
        &b"HTTP/1.1 400 Bad Request"[..],
        b"SSH-2.0-OpenSSH",
        b"\0",
        b":\r\n",
        b":+1\r\n",
        b":1\n",
        b"$-2\r\n",
        b"$99999999999999999999\r\n",
        b"*1x\r\n",
        &long,
    ] {
        assert_eq!(token(bytes), Err(Malformed), "{bytes:?}");
    }
    for bytes in [&b""[..], b"+", b"$4096\r", b":-"] {
        assert_eq!(token(bytes), Ok(None), "{bytes:?}");
    }
}

#[test]
fn errors_are_told_apart() {
    for (text, expected) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", Refusal::Full),
        ("LOADING Redis is loading the dataset in memory", Refusal::Busy),
        ("READONLY You can't write against a read only replica.", Refusal::Busy),
        ("NOAUTH Authentication required.", Refusal::Denied),
        ("WRONGPASS invalid username-password pair or user is disabled.", Refusal::Denied),
        ("ERR invalid password", Refusal::Denied),
        ("ERR AUTH <password> called without any password configured", Refusal::Denied),
        ("WRONGTYPE Operation against a key", Refusal::Other),
        ("", Refusal::Other),
    ] {
        assert_eq!(refusal(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn requests_are_arrays_of_words() {
    let mut room = [0; 200];
    let mut requests = Requests::after(3, &mut room);
    requests.begin(3);
    requests.word(b"EXPIRE");
    requests.number(0);
    requests.text(4).copy_from_slice(b"\r\n\0\n");
    requests.end_text();
    requests.begin(1);
    requests.number(900);
    let used = requests.len();
    let expected = b"*3\r\n$6\r\nEXPIRE\r\n$1\r\n0\r\n$4\r\n\r\n\0\n\r\n*1\r\n$3\r\n900\r\n";
    assert_eq!((&room[..3], &room[3..used]), (&[0; 3][..], &expected[..]));
}
