//! Clients that read no more of an answer than they must.

use std::io;
use std::net::SocketAddr;

use atlas::bench::sse;
use http::testing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::server::{WORD, nanos};

/// One reply as its client saw it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub prompt_tokens: usize,
    /// When each event came, and how many tokens were in it.
    pub arrivals: Vec<(u64, usize)>,
    ended: bool,
}

impl Outcome {
    pub fn tokens(&self) -> usize {
        self.arrivals.iter().map(|(_, tokens)| tokens).sum()
    }

    fn event(&mut self, data: &str, now: u64) {
        self.ended |= data == "[DONE]";
        if let Some((_, text)) = data.split_once("\"content\":\"") {
            let bytes = text.find('"').unwrap_or(text.len());
            if bytes > 0 {
                self.arrivals.push((now, bytes / WORD.len()));
            }
        } else if let Some((_, number)) = data.split_once("\"prompt_tokens\":") {
            let end = number.find(|sign: char| !sign.is_ascii_digit());
            let digits = &number[..end.unwrap_or(number.len())];
            self.prompt_tokens = digits.parse().expect("a number");
        }
    }
}

/// Takes the events out of the bytes of an answer as they come. Its head and the lengths of chunks
/// are lines that are no data.
#[derive(Debug, Default)]
pub struct Reader {
    outcome: Outcome,
    events: sse::Reader,
}

impl Reader {
    /// Takes bytes that came at `now`.
    ///
    /// # Errors
    /// When they are no text.
    pub fn take(&mut self, bytes: &[u8], now: u64) -> io::Result<()> {
        let taken = self
            .events
            .feed(bytes, |data| self.outcome.event(data, now));
        taken.map_err(io::Error::other)
    }

    /// # Errors
    /// When the stream has no end.
    pub fn finish(self) -> io::Result<Outcome> {
        match self.outcome.ended {
            true => Ok(self.outcome),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A request for a streamed reply of `tokens` tokens to a prompt of `words` words.
pub fn request(words: usize, tokens: usize) -> Vec<u8> {
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi{}\"}}],\"max_tokens\":{tokens},\
         \"temperature\":0,\"reasoning_effort\":\"none\",\"ignore_eos\":true,\"stream\":true,\
         \"stream_options\":{{\"include_usage\":true}}}}",
        " the".repeat(words)
    );
    testing::client::request("POST", "/v1/chat/completions", "", body.as_bytes())
}

/// Asks as [`request`] does and reads the reply.
///
/// # Errors
/// When the stream breaks or has no end.
pub async fn stream(address: SocketAddr, words: usize, tokens: usize) -> io::Result<Outcome> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(&request(words, tokens)).await?;
    let (mut reader, mut bytes) = (Reader::default(), Vec::with_capacity(4096));
    while socket.read_buf(&mut bytes).await? > 0 {
        reader.take(&bytes, nanos())?;
        bytes.clear();
    }
    reader.finish()
}

/// Opens connections that have had one answer each and say nothing further.
pub async fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut open = Vec::with_capacity(count);
    for _ in 0..count {
        let mut socket = TcpStream::connect(address).await.expect("a connection");
        let ask = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";
        socket.write_all(ask).await.expect("a question");
        let mut answer = [0; 1024];
        let bytes = socket.read(&mut answer).await.expect("an answer");
        assert!(answer[..bytes].starts_with(b"HTTP/1.1 200 "), "a refusal");
        open.push(socket);
    }
    open
}
