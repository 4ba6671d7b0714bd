//! A client that sends exactly the bytes it is given: the tests of this crate ask a server in their
//! own process by it, and those from end to end the binary.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use step::testing::few_or_many;

/// Longest wait of a test for an event that must come; on a busy machine that is long.
pub const PATIENCE: Duration = Duration::from_secs(few_or_many(60, 600));

/// Bytes of a request that is the last one of its connection, with `more` lines in its head, each
/// with its end.
pub fn request(method: &str, path: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The line of a head that shows an API key.
pub fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

/// A body with fields added, or in the place of those that it has.
pub fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Sends bytes on a connection of their own.
pub fn send_to(address: SocketAddr, bytes: &[u8]) -> Connection {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses early may close while this writes.
    let _ = stream.write_all(bytes);
    Connection {
        stream,
        received: Vec::new(),
    }
}

/// A client's end of a connection.
pub struct Connection {
    pub stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// Reads until `text` has come.
    pub fn read_until(&mut self, text: &str) {
        let mut piece = [0; 4096];
        while !self.so_far().contains(text) {
            let count = self
                .stream
                .read(&mut piece)
                .expect("the text comes in time");
            assert!(count > 0, "the connection ended before {text:?}");
            self.received.extend_from_slice(&piece[..count]);
        }
    }

    /// Posts a body over the connection, which is kept, and reads until `text` comes after what
    /// was read before.
    pub fn ask(&mut self, path: &str, body: &Value, text: &str) {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).unwrap();
        self.received.clear();
        self.read_until(text);
    }

    /// Text that was read so far.
    pub fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// Text after `mark` up to the next quote, in what was read.
    pub fn after(&self, mark: &str) -> String {
        let text = self.so_far();
        let (_, found) = text.split_once(mark).expect("it was read");
        found.split('"').next().unwrap_or_default().to_string()
    }

    /// Reads to the end of the connection. A reset is an end like another; silence is not, and an
    /// interrupted call is none: a socket with a time limit is not read on by the system.
    pub fn rest(mut self) -> String {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => break,
                    _ => panic!("the connection stays open, {error}: {}", self.so_far()),
                },
            }
        }
        String::from_utf8(self.received).unwrap()
    }

    pub fn answer(self) -> Answer {
        Answer::parse(&self.rest())
    }
}

/// A whole response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

impl Answer {
    fn parse(text: &str) -> Answer {
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let body = match head.contains("transfer-encoding: chunked") {
            true => unchunk(body),
            false => body.to_string(),
        };
        Answer { status, head, body }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error object, with the fields that its dialect has.
    pub fn error(&self) -> Value {
        let whole = self.json();
        let error = &whole["error"];
        let names: &[_] = match whole["type"] == "error" {
            true => &["type", "message"],
            false => &["type", "message", "param", "code"],
        };
        let missing = names.iter().find(|name| error.get(**name).is_none());
        assert_eq!(missing, None, "{self:?}");
        assert!(error["message"].is_string() && error["type"].is_string());
        error.clone()
    }

    /// Content of the first choice of a chat's whole answer.
    pub fn content(&self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_string()
    }

    /// The JSON events of a stream; `[DONE]` must end it.
    pub fn events(&self) -> Vec<Value> {
        let data = |event: &str| event.strip_prefix("data: ").map(str::to_string);
        let mut events: Vec<String> = self
            .body
            .split_terminator("\n\n")
            .filter_map(data)
            .collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        events
            .iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect()
    }

    /// The JSON of the events of a stream whose events have names; each repeats its own.
    pub fn named_events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        let data = |event: &str| {
            let (name, data) = event.split_once("\ndata: ")?;
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            Some(data)
        };
        self.body
            .split_terminator("\n\n")
            .filter_map(data)
            .collect()
    }

    /// The concatenation of a field of all deltas of choice `index`.
    pub fn streamed(&self, index: usize, field: &str) -> String {
        let choices = self
            .events()
            .into_iter()
            .filter_map(|event| event["choices"].get(0).cloned());
        choices
            .filter(|choice| choice["index"] == index)
            .filter_map(|choice| choice["delta"][field].as_str().map(str::to_string))
            .collect()
    }
}

/// The data of a chunked body, as far as it came.
fn unchunk(mut body: &str) -> String {
    let mut data = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 || rest.len() < size + 2 {
            break;
        }
        data.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    data
}
