//! Families of raw requests that two readers could understand differently: each has one answer,
//! which tells how it was understood, and the connection is closed behind it.

use crate::harness::Server;

/// A POST whose framing follows.
const CHAT: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
/// The end of a chunked body, and a request to whoever frames in another way.
const SMUGGLED: &str = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Request lines that are none.
const LINES_REFUSED: &[&str] = &[
    "GET ftp://localhost/version HTTP/1.1",
    "GET /version HTTP/1.1 ",
    "GET\t/version\tHTTP/1.1",
    " GET /version HTTP/1.1",
    "GET /version",
    "GET /version HTTP/1",
    "GET /version HTTP/1.10",
    "GET /version http/1.1",
    "GET /version HTTP/2.0",
    "GET /version HTTP/0.9",
    "GET /version HTTP/1.1x",
    "GET /version HTTP/1,1",
    "GET /version HTP/1.1",
    "GET /version /version HTTP/1.1",
    "G(T /version HTTP/1.1",
    "GET /ver\0sion HTTP/1.1",
    "GET /ver\x01sion HTTP/1.1",
    "GET /version\x7f HTTP/1.1",
    "GET version HTTP/1.1",
    "GET \\version HTTP/1.1",
    "GET ?x HTTP/1.1",
    "GET http:///version HTTP/1.1",
    "GET http://localhost@evil/version HTTP/1.1",
    "GET http://evil@localhost/version HTTP/1.1",
    "GET http://localhost:99999/version HTTP/1.1",
    "GET localhost:80 HTTP/1.1",
    "GET http://localhost:80/version HTTP/1.1",
    "\nGET /version HTTP/1.1",
    "\x16\x03\x01\x02\0\x01",
];

/// Request lines that lead nowhere: paths are compared as they are.
const LINES_ELSEWHERE: &[&str] = &[
    "GET * HTTP/1.1",
    "GET //localhost/version HTTP/1.1",
    "GET /./version HTTP/1.1",
    "GET /version/ HTTP/1.1",
    "GET /version;x HTTP/1.1",
    "GET /%76ersion HTTP/1.1",
    "GET /version%00 HTTP/1.1",
    "GET /VERSION HTTP/1.1",
    "OPTIONS * HTTP/1.1",
];

/// Request lines that are read.
const LINES_READ: &[&str] = &[
    "GET https://localhost/version HTTP/1.1",
    "GET /version?x=y HTTP/1.1",
    "\r\nGET /version HTTP/1.1",
    "\r\n\r\n\r\nGET /version HTTP/1.1",
];

/// Methods are names in capitals, and few.
const METHODS_REFUSED: &[&str] = &["get /version HTTP/1.1", "FOO /version HTTP/1.1"];

/// Values of Transfer-Encoding that mean chunks.
const CODINGS_READ: &[&str] = &["chunked ", "Chunked", "\tchunked", " \t chunked \t "];

/// Values of Transfer-Encoding that mean something else, or nothing.
const CODINGS_REFUSED: &[&str] = &[
    "chunked,",
    "identity",
    "\"chunked\"",
    "chunked;q=1",
    "\x0bchunked",
    "chunked\0",
    "",
    "chunk",
    "xchunked",
    "chunked gzip",
    "deflate",
    "trailers",
    ", chunked",
    "chunked, chunked",
    "gzip, chunked",
];

/// Headers that only look like a Transfer-Encoding, or are two.
const CODING_HEADERS_REFUSED: &[&str] = &[
    "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "transfer-encoding : chunked",
    "transfer-encoding\t: chunked",
    " transfer-encoding: chunked",
    "transfer-encoding:\r\n chunked",
    "transfer-encoding: chunked\n",
    "transfer-encoding:\0chunked",
    "transfer-encoding: chunked\r\ncontent-length: 0",
    "content-length: 0\r\ntransfer-encoding: chunked",
    "transfer-encoding\x0b: chunked",
    "transfer\r-encoding: chunked",
    "x: y\rtransfer-encoding: chunked",
    "transfer-encoding: identity\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
];

/// Values of Content-Length that mean two bytes.
const LENGTHS_READ: &[&str] = &["2 ", " 2", "02", "2\t"];

/// Values of Content-Length that are no number.
const LENGTHS_REFUSED: &[&str] = &[
    "2;",
    "2.0",
    "1e1",
    "0b10",
    "\u{662}",
    "99999999999999999999999",
    "-0",
    "--2",
    "\x0b2",
    "2\0",
    "2,2",
    "2, 3",
    "two",
    "2\r\n 0",
    "0x2",
    "+2",
];

/// Values of Content-Length above every limit.
const LENGTHS_BEYOND: &[&str] = &["9223372036854775808", "100000000"];

/// Headers that only look like a Content-Length, or are two.
const LENGTH_HEADERS_REFUSED: &[&str] = &[
    "content-length: 2\r\ncontent-length: 02",
    "content-length : 2",
    "content-length\t: 2",
    " content-length: 2",
    "content-length:\r\n 2",
    "content-length: 2\rx: y",
    "content-length: 2\nx: y",
];

/// Chunked bodies that hold `{}`.
const CHUNKS_READ: &[&str] = &[
    "2;x=y\r\n{}\r\n0\r\n\r\n",
    "2;\r\n{}\r\n0\r\n\r\n",
    "2 ;x\r\n{}\r\n0\r\n\r\n",
    "2 \r\n{}\r\n0\r\n\r\n",
    "02\r\n{}\r\n0\r\n\r\n",
    "0000000000000002\r\n{}\r\n0\r\n\r\n",
    "2\r\n{}\r\n0;x\r\n\r\n",
    "2\r\n{}\r\n00\r\n\r\n",
    "2\r\n{}\r\n0\r\nx: y\r\n\r\n",
    "2\r\n{}\r\n0\r\ncontent-length: 5\r\n\r\n",
    "2\r\n{}\r\n0\r\ntransfer-encoding: x\r\n\r\n",
];

/// Chunked bodies that hold nothing for certain.
const CHUNKS_REFUSED: &[&str] = &[
    "00000000000000002\r\n{}\r\n0\r\n\r\n",
    "2;x=\"a\nb\"\r\n{}\r\n0\r\n\r\n",
    "2\r{}\r\n0\r\n\r\n",
    "2\r\r\n{}\r\n0\r\n\r\n",
    "2\n{}\n0\n\n",
    "2\r\n{}X\r\n0\r\n\r\n",
    "2\r\n{}0\r\n\r\n",
    "2\r\n{\r\n0\r\n\r\n",
    "2g\r\n{}\r\n0\r\n\r\n",
    " 2\r\n{}\r\n0\r\n\r\n",
    "\t2\r\n{}\r\n0\r\n\r\n",
    "2,2\r\n{}\r\n0\r\n\r\n",
    "2\r\n{}\r\n0\r\nbad line\r\n\r\n",
    "2\r\n{}\r\n0\r\nx: y\n\r\n",
    "2\r\n{}\r\n0\r\nx: y\r\n\n",
    "2\x0b\r\n{}\r\n0\r\n\r\n",
    "\u{662}\r\n{}\r\n0\r\n\r\n",
    "0x2\r\n{}\r\n0\r\n\r\n",
    "-2\r\n{}\r\n0\r\n\r\n",
    "2_0\r\n{}\r\n0\r\n\r\n",
    "2;\0\r\n{}\r\n0\r\n\r\n",
];

/// Lines that are no header.
const HEADERS_REFUSED: &[&str] = &[
    "x y: z",
    ": nameless",
    "x",
    "x\0: y",
    "x: \x01",
    "x: \x7f",
    "\u{e9}: y",
    "x;: y",
    "x(): y",
    "[x]: y",
    "x@y: z",
    "x: y\r z",
    "\tx: y",
    " x: y",
    "x: y\r\n\tz",
    "x: y\r\r\nz: w",
    "x: y\nz: w",
    "x : y",
    "\r",
    "x: a\rb",
    "host: localhost",
];

/// Headers that change nothing.
const HEADERS_READ: &[&str] = &[
    "x:",
    "x: \u{e9}",
    "connection: keep-alive",
    "connection: ,",
    "expect: nonsense",
    "upgrade: h2c\r\nconnection: upgrade",
    "content-length: 0",
    "x: \"",
    "x: \t",
];

/// Reading of a raw request by the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Understood {
    /// The answer has this status.
    As(u16),
    /// Its body was read, and found to be no chat.
    Body,
}

fn probes() -> Vec<(String, Understood)> {
    use Understood::{As, Body};
    let line = |line: &str| format!("{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let header = |header: &str| line(&format!("GET /version HTTP/1.1\r\n{header}"));
    let coding = |value: &str| format!("{CHAT}transfer-encoding: {value}\r\n\r\n{SMUGGLED}");
    let coded = |header: &str| format!("{CHAT}{header}\r\n\r\n{SMUGGLED}");
    let length = |value: &str| format!("{CHAT}content-length: {value}\r\n\r\n{{}}");
    let sized = |header: &str| format!("{CHAT}{header}\r\n\r\n{{}}");
    let chunks = |body: &str| format!("{CHAT}transfer-encoding: chunked\r\n\r\n{body}");
    let mut probes = Vec::new();
    let mut add = |texts: &[&str], make: &dyn Fn(&str) -> String, understood| {
        probes.extend(texts.iter().map(|text| (make(text), understood)));
    };
    add(LINES_REFUSED, &line, As(400));
    add(LINES_ELSEWHERE, &line, As(404));
    add(METHODS_REFUSED, &line, As(405));
    add(LINES_READ, &line, As(200));
    add(HEADERS_REFUSED, &header, As(400));
    add(HEADERS_READ, &header, As(200));
    add(CODINGS_REFUSED, &coding, As(400));
    add(CODINGS_READ, &coding, Body);
    add(CODING_HEADERS_REFUSED, &coded, As(400));
    add(LENGTHS_REFUSED, &length, As(400));
    add(LENGTHS_READ, &length, Body);
    add(LENGTHS_BEYOND, &length, As(413));
    add(LENGTH_HEADERS_REFUSED, &sized, As(400));
    add(CHUNKS_REFUSED, &chunks, As(400));
    add(CHUNKS_READ, &chunks, Body);
    probes
}

#[test]
fn each_raw_request_is_understood_in_one_way() {
    let server = Server::lent();
    let probes = probes();
    assert!(probes.len() >= 150, "{}", probes.len());
    for (bytes, expected) in probes {
        let rest = server.send(bytes.as_bytes()).rest();
        assert_eq!(
            rest.matches("HTTP/1.1 ").count(),
            1,
            "{bytes:?} -> {rest:?}"
        );
        let status = rest.split(' ').nth(1).unwrap().parse().unwrap();
        let read = rest.contains("messages: is required") || rest.contains("the body is empty");
        let understood = if read {
            Understood::Body
        } else {
            Understood::As(status)
        };
        assert_eq!(understood, expected, "{bytes:?} -> {rest:?}");
    }
    assert_eq!(server.get("/health").status, 200);
}
