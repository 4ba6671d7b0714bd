//! Clients that read no more of an answer than they must.

use std::io;
use std::net::SocketAddr;

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

    fn line(&mut self, line: &[u8], now: u64) {
        let Some(data) = line.strip_prefix(b"data: ") else {
            return;
        };
        self.ended |= data == b"[DONE]";
        if let Some(text) = behind(data, b"\"content\":\"") {
            let bytes = text.iter().take_while(|byte| **byte != b'"').count();
            if bytes > 0 {
                self.arrivals.push((now, bytes / WORD.len()));
            }
        } else if let Some(number) = behind(data, b"\"prompt_tokens\":") {
            let digits = number.iter().take_while(|byte| byte.is_ascii_digit());
            self.prompt_tokens = digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'));
        }
    }
}

/// Data behind the first `mark`.
fn behind<'d>(data: &'d [u8], mark: &[u8]) -> Option<&'d [u8]> {
    let at = data.windows(mark.len()).position(|window| window == mark)?;
    Some(&data[at + mark.len()..])
}

/// Takes the events out of the bytes of an answer as they come.
#[derive(Debug, Default)]
pub struct Reader {
    pub outcome: Outcome,
    pending: Vec<u8>,
}

impl Reader {
    /// Takes bytes that came at `now`.
    pub fn take(&mut self, bytes: &[u8], now: u64) {
        self.pending.extend_from_slice(bytes);
        let end = self.pending.iter().rposition(|byte| *byte == b'\n');
        let whole = end.map_or(0, |at| at + 1);
        for line in self.pending[..whole].split(|byte| *byte == b'\n') {
            self.outcome.line(line, now);
        }
        self.pending.drain(..whole);
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
pub fn request(words: usize, tokens: usize) -> String {
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi{}\"}}],\"max_tokens\":{tokens},\
         \"temperature\":0,\"reasoning_effort\":\"none\",\"ignore_eos\":true,\"stream\":true,\
         \"stream_options\":{{\"include_usage\":true}}}}",
        " the".repeat(words)
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks as [`request`] does and reads the reply.
///
/// # Errors
/// When the stream breaks or has no end.
pub async fn stream(address: SocketAddr, words: usize, tokens: usize) -> io::Result<Outcome> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(request(words, tokens).as_bytes()).await?;
    let (mut reader, mut bytes) = (Reader::default(), Vec::with_capacity(4096));
    while socket.read_buf(&mut bytes).await? > 0 {
        reader.take(&bytes, nanos());
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
