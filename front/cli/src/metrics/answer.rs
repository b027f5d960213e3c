//! One request of HTTP/1.1, and its answer. The connection is closed after it. Locks: none.

use super::exposition::{Exposition, Text};
use httparse::{EMPTY_HEADER, Request, Status};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long a client may take to send its request, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(1);
const REQUEST_LEN_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
const PATH: &str = "/metrics";

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Metrics(Text),
    /// The page that names the path.
    Index,
    NotFound,
    /// Neither GET nor HEAD.
    OtherMethod,
    Malformed,
}

/// The parts of a request on which the answer depends.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    asked: Asked,
    /// The answer has no body (HEAD).
    head: bool,
}

/// Reads a request and answers it.
///
/// # Errors
/// The client sends no request in time, or does not read the answer.
pub(super) fn answer(mut client: TcpStream, exposition: &Exposition) -> io::Result<()> {
    let Parsed { asked, head } = read(&mut client)?;
    let (status, kind, body) = match asked {
        Asked::Metrics(text) => ("200 OK", text.content_type(), exposition.text(text)),
        Asked::Index => ("200 OK", PLAIN, format!("Highwater: metrics are at {PATH}\n")),
        Asked::NotFound => ("404 Not Found", PLAIN, format!("metrics are at {PATH}\n")),
        Asked::OtherMethod => ("405 Method Not Allowed", PLAIN, "GET only\n".to_owned()),
        Asked::Malformed => ("400 Bad Request", PLAIN, "not HTTP/1\n".to_owned()),
    };
    let allow = if asked == Asked::OtherMethod { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let header = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}\
         Connection: close\r\n\r\n"
    );
    client.set_write_timeout(Some(PATIENCE))?;
    client.write_all(header.as_bytes())?;
    if !head {
        client.write_all(body.as_bytes())?;
    }
    client.shutdown(std::net::Shutdown::Write)
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// Reads a request's head.
fn read(client: &mut TcpStream) -> io::Result<Parsed> {
    let until = Instant::now() + PATIENCE;
    let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        if let Some(parsed) = parse(&request) {
            return Ok(parsed);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => request.extend(&chunk[..len]),
        }
    }
}

/// The parsed request; `None`: it is not complete yet.
fn parse(bytes: &[u8]) -> Option<Parsed> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(_)) => {
            Some(Parsed { asked: asked(&request), head: request.method == Some("HEAD") })
        }
        Ok(Status::Partial) if bytes.len() < REQUEST_LEN_MAX => None,
        Ok(Status::Partial) | Err(_) => Some(Parsed { asked: Asked::Malformed, head: false }),
    }
}

fn asked(request: &Request<'_, '_>) -> Asked {
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Asked::OtherMethod;
    }
    let accept = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("accept"));
    let accepted: Vec<_> = accept.map(|it| String::from_utf8_lossy(it.value)).collect();
    let path = request.path.unwrap_or_default();
    match path.split_once('?').map_or(path, |(path, _)| path) {
        PATH if accepted.iter().any(|it| it.contains("application/openmetrics-text")) => {
            Asked::Metrics(Text::OpenMetrics)
        }
        PATH => Asked::Metrics(Text::Prometheus),
        "/" => Asked::Index,
        _ => Asked::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_until_it_is_complete() {
        let asks = |asked, head| Some(Parsed { asked, head });
        let whole = "GET /metrics HTTP/1.1\r\nHost: a\r\naccept: application/openmetrics-text; \
                     version=1.0.0,text/plain;q=0.5\r\n\r\n";
        for len in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..len]), None, "{len}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_LEN_MAX));
        for (request, expected) in [
            (whole, asks(Asked::Metrics(Text::OpenMetrics), false)),
            ("GET /metrics?a=b HTTP/1.1\r\n\r\n", asks(Asked::Metrics(Text::Prometheus), false)),
            ("HEAD / HTTP/1.0\r\n\r\n", asks(Asked::Index, true)),
            ("GET /metrics/x HTTP/1.1\r\n\r\n", asks(Asked::NotFound, false)),
            ("POST /metrics HTTP/1.1\r\n\r\n", asks(Asked::OtherMethod, false)),
            ("\x16\x03\x01\x02 TLS", asks(Asked::Malformed, false)),
            (&long, asks(Asked::Malformed, false)),
        ] {
            assert_eq!(parse(request.as_bytes()), expected, "{request}");
        }
    }
}
