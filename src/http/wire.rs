//! Filter between a socket and the HTTP library. A request whose framing two readers could
//! understand differently, and which the library would accept, is corrupted on purpose, so that the
//! library refuses it. A client that reads nothing, or sends no request in time, is disconnected.
//!
//! Detects a client that is gone after it half-closed the connection: a FIN alone does not say so,
//! since the client may still read. The first bytes of every response are the same, so some of them
//! are sent early; the kernel of a dead peer answers with RST, and the second write fails.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::limits::{
    CHUNK_FRAMING_BYTES_MAX, HEAD_BYTES_MAX, HEAD_TIMEOUT, IDLE_GRACE, PROBE_AFTER, PROBE_ANSWER,
    WRITE_STALL_TIMEOUT,
};
use super::peer::Peer;
use super::refusal;

/// Byte that makes a request invalid on purpose: no head or chunk size may contain it.
const SPOILT: u8 = 0;
/// First line of a client that speaks HTTP/2 without negotiation (RFC 9113, 3.4).
const HTTP_2: &[u8] = b"PRI * HTTP/2.0";

/// First bytes of every response, whether HTTP/1.0 or 1.1.
const BEGINNING: &[u8] = b"HTTP/1.";

/// A socket behind the filter.
pub struct Wire<S> {
    stream: S,
    framing: Framing,
    peer: Arc<Peer>,
    /// Deadline of the next head; None while a request is answered.
    head: Option<HeadClock>,
    /// Probing, once the client has half-closed the connection after a request.
    ended: Option<Ended>,
    /// Number of bytes of the next response that were sent early.
    early: usize,
    /// Deadline of a write that waits for the client.
    stall: Option<Pin<Box<Sleep>>>,
    /// Response that is written instead of the library's, and number of its bytes written so far.
    instead: Option<(Vec<u8>, usize)>,
}

/// Deadline for the arrival of a request's head.
struct HeadClock {
    rings: Pin<Box<Sleep>>,
    /// Number of heads that came before this one.
    before: u64,
    /// Whether the first byte of the head has come.
    begun: bool,
}

/// Timing of the bytes that probe a client which has half-closed the connection.
struct Ended {
    rings: Pin<Box<Sleep>>,
    /// Time between two pairs of early bytes.
    pause: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub fn new(stream: S, peer: Arc<Peer>) -> Wire<S> {
        Wire {
            stream,
            framing: Framing::default(),
            peer,
            head: None,
            ended: None,
            early: 0,
            stall: None,
            instead: None,
        }
    }

    /// Ready once the deadline of the next head has passed.
    fn is_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (open, _) = self.peer.waits();
        let Some(begun) = self.framing.awaits_head().filter(|_| !open) else {
            self.head = None;
            return Poll::Pending;
        };
        let before = self.framing.requests;
        let first = before == 0;
        self.head.take_if(|clock| clock.before != before);
        let clock = self.head.get_or_insert_with(|| {
            let patience = match first {
                true => HEAD_TIMEOUT,
                // The grace is for a request that was sent before the keep-alive time was over.
                false => self.peer.keep_alive() + IDLE_GRACE,
            };
            let rings = Box::pin(sleep_until(Instant::now() + patience));
            HeadClock {
                rings,
                before,
                begun: first,
            }
        });
        if begun && !clock.begun {
            clock.begun = true;
            clock.rings.as_mut().reset(Instant::now() + HEAD_TIMEOUT);
        }
        clock.rings.as_mut().poll(cx)
    }

    /// Whether a request is being answered, or a response waits to be written.
    fn owes_answer(&self) -> bool {
        self.peer.waits().0 || self.stall.is_some()
    }

    /// Sends early bytes of the response, in pairs, to a client that has half-closed the
    /// connection. A dead client's system resets the connection at a pair's first byte; the second
    /// fails.
    ///
    /// # Errors
    /// Errors of the operating system, when the client is gone.
    fn probe(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(ended) = &mut self.ended {
            ready!(ended.rings.as_mut().poll(cx));
            let (_, unanswered) = self.peer.waits();
            let quiet = unanswered && self.stall.is_none() && self.instead.is_none();
            let byte = BEGINNING.get(self.early..=self.early).filter(|_| quiet);
            if let Some(byte) = byte
                && let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(cx, byte)
            {
                self.early += written?;
            }
            let pause = match self.early % 2 {
                1 => PROBE_ANSWER,
                _ => {
                    ended.pause *= 2;
                    ended.pause
                }
            };
            ended.rings.as_mut().reset(Instant::now() + pause);
        }
        Poll::Pending
    }

    /// Writes `bytes`, the start of a response, without those that were sent early.
    fn write_rest(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let early = self.early.min(bytes.len());
        let rest = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[early..]))?;
        self.early = 0;
        Poll::Ready(Ok(early + rest))
    }

    /// Writes the response that replaces `bytes`; ready once all of it is written.
    fn write_instead(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        while let Some((text, done)) = &mut self.instead {
            *done += ready!(Pin::new(&mut self.stream).poll_write(cx, &text[*done..]))?;
            if *done == text.len() {
                self.instead = None;
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Fails a write that has waited too long for the client.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stall = None;
            return outcome;
        }
        let begin = || Box::pin(sleep(WRITE_STALL_TIMEOUT));
        let stall = self.stall.get_or_insert_with(begin);
        if stall.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.framing.is_spoilt() {
            return Poll::Ready(Ok(()));
        }
        if this.ended.is_some() {
            return match this.owes_answer() {
                true => this.probe(cx),
                false => Poll::Ready(Ok(())),
            };
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let ended = matches!(outcome, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        if ended && this.framing.awaits_head() == Some(false) && this.owes_answer() {
            this.ended = Some(Ended {
                rings: Box::pin(sleep(PROBE_AFTER)),
                pause: PROBE_AFTER,
            });
            return this.probe(cx);
        }
        let arrived = &mut buffer.filled_mut()[before..];
        if let Some(at) = this.framing.scan(arrived) {
            arrived[at] = SPOILT;
            buffer.set_filled(before + at + 1);
        }
        if outcome.is_pending() && this.is_late(cx).is_ready() {
            // The library takes an empty read as the end of the client's side.
            return Poll::Ready(Ok(()));
        }
        outcome
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.peer.answer();
        if self.instead.is_none()
            && let Some(text) = refusal::with_body(bytes, self.framing.is_http_2())
        {
            self.instead = Some((text, std::mem::take(&mut self.early)));
        }
        let outcome = match self.instead {
            Some(_) => self.write_instead(cx, bytes),
            None => self.write_rest(cx, bytes),
        };
        self.watch(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        // After a response the library reads only once it is woken: the deadline of the next head
        // is polled here, and so is the end of the client's side.
        let over = match self.ended {
            Some(_) => !self.owes_answer(),
            None => self.is_late(cx).is_ready(),
        };
        if over {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Stage of the request to which the next byte belongs.
#[derive(Debug)]
enum Stage {
    Head(Head),
    /// Body of known length: bytes still to come.
    Body(u64),
    /// Line with a chunk's size.
    ChunkSize(Line),
    /// Data of a chunk: bytes still to come.
    Chunk(u64),
    /// Line end after a chunk's data.
    ChunkEnd(Line),
    /// Trailers after the last chunk, and number of their bytes so far.
    Trailers(Line, usize),
    /// Request that the HTTP library refuses, so that the framing after the head does not matter.
    Unwatched,
    Spoilt,
    /// Connection that was corrupted after the first line of HTTP/2.
    Http2,
}

/// Parser of the framing of requests on one connection.
#[derive(Debug)]
pub struct Framing {
    stage: Stage,
    /// Number of whole heads so far.
    requests: u64,
}

impl Default for Framing {
    fn default() -> Self {
        Framing {
            stage: Stage::Head(Head::default()),
            requests: 0,
        }
    }
}

/// A line that ends with CR LF.
#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
}

/// Effect of a byte on a line.
enum LineStep {
    Within,
    /// The line is complete; it comes without its end.
    Complete(Vec<u8>),
    /// The line ends with a line feed without a carriage return.
    Bare,
}

impl Line {
    fn push(&mut self, byte: u8) -> LineStep {
        if byte != b'\n' {
            self.bytes.push(byte);
            return LineStep::Within;
        }
        let mut line = std::mem::take(&mut self.bytes);
        match line.pop() {
            Some(b'\r') => LineStep::Complete(line),
            _ => LineStep::Bare,
        }
    }
}

#[derive(Debug, Default)]
struct Head {
    line: Line,
    bytes: usize,
    /// Whether the request line has come.
    begun: bool,
    lengths: Vec<u64>,
    chunked: bool,
    /// Whether there is a transfer coding other than `chunked` alone. The HTTP library accepts some
    /// undecoded.
    coded: bool,
    /// Whether a framing header is unclear; the HTTP library refuses such a request.
    unclear: bool,
}

impl Head {
    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        let value = line[colon + 1..].trim_ascii();
        if line[..colon].eq_ignore_ascii_case(b"content-length") {
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(value).ok();
            let length = length.and_then(|text| text.parse().ok());
            match length.filter(|_| digits) {
                Some(length) => self.lengths.push(length),
                None => self.unclear = true,
            }
        } else if line[..colon].eq_ignore_ascii_case(b"transfer-encoding") {
            self.coded |= self.chunked || !value.eq_ignore_ascii_case(b"chunked");
            self.chunked = true;
        }
    }

    /// Stage after the head; None if it states two lengths, or an unsupported transfer coding.
    fn body(&self) -> Option<Stage> {
        match (&self.lengths[..], self.chunked) {
            _ if self.coded => None,
            _ if self.unclear => Some(Stage::Unwatched),
            ([], true) => Some(Stage::ChunkSize(Line::default())),
            ([], false) | ([0], false) => Some(Stage::Head(Head::default())),
            (&[length], false) => Some(Stage::Body(length)),
            _ => None,
        }
    }
}

impl Framing {
    fn is_spoilt(&self) -> bool {
        matches!(self.stage, Stage::Spoilt | Stage::Http2)
    }

    fn is_http_2(&self) -> bool {
        matches!(self.stage, Stage::Http2)
    }

    /// Whether a part of the next head has come; None within a body.
    fn awaits_head(&self) -> Option<bool> {
        match &self.stage {
            Stage::Head(head) => Some(head.bytes > 0),
            _ => None,
        }
    }

    /// Parses `bytes`. Returns the index of the byte at which the request is to be refused.
    pub fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let skipped = self.skip(bytes.len() - at);
            if skipped > 0 {
                at += skipped;
                continue;
            }
            let stage = std::mem::replace(&mut self.stage, Stage::Spoilt);
            let in_head = matches!(&stage, Stage::Head(head) if head.begun);
            self.stage = match advance(stage, bytes[at]) {
                Some(stage) => stage,
                None => return Some(at),
            };
            match self.stage {
                Stage::Unwatched => return None,
                Stage::Http2 => return Some(at),
                _ => {}
            }
            let is_whole = !matches!(&self.stage, Stage::Head(head) if head.begun);
            self.requests += u64::from(in_head && is_whole);
            at += 1;
        }
        None
    }

    /// Skips bytes of a body; returns their number.
    fn skip(&mut self, available: usize) -> usize {
        let (left, next) = match &mut self.stage {
            Stage::Body(left) => (left, Stage::Head(Head::default())),
            Stage::Chunk(left) => (left, Stage::ChunkEnd(Line::default())),
            Stage::Unwatched => return available,
            _ => return 0,
        };
        let skipped = available.min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= skipped as u64;
        if *left == 0 {
            self.stage = next;
        }
        skipped
    }
}

/// Stage after `byte`; None if the request is to be refused there.
fn advance(stage: Stage, byte: u8) -> Option<Stage> {
    match stage {
        Stage::Head(head) => advance_head(head, byte),
        Stage::ChunkSize(mut line) => match line.push(byte) {
            LineStep::Within if line.bytes.len() > CHUNK_FRAMING_BYTES_MAX => None,
            LineStep::Within => Some(Stage::ChunkSize(line)),
            LineStep::Complete(size) => match chunk_size(&size)? {
                0 => Some(Stage::Trailers(Line::default(), 0)),
                size => Some(Stage::Chunk(size)),
            },
            LineStep::Bare => None,
        },
        Stage::ChunkEnd(mut line) => match line.push(byte) {
            LineStep::Within if line.bytes == b"\r" => Some(Stage::ChunkEnd(line)),
            LineStep::Complete(rest) if rest.is_empty() => Some(Stage::ChunkSize(Line::default())),
            _ => None,
        },
        Stage::Trailers(mut line, bytes) => match line.push(byte) {
            _ if bytes == CHUNK_FRAMING_BYTES_MAX => None,
            LineStep::Complete(trailer) if trailer.is_empty() => Some(Stage::Head(Head::default())),
            LineStep::Within | LineStep::Complete(_) => Some(Stage::Trailers(line, bytes + 1)),
            LineStep::Bare => None,
        },
        // `skip` passes over the bytes of these stages.
        stage @ (Stage::Body(_) | Stage::Chunk(_) | Stage::Unwatched) => Some(stage),
        Stage::Spoilt | Stage::Http2 => None,
    }
}

fn advance_head(mut head: Head, byte: u8) -> Option<Stage> {
    head.bytes += 1;
    if head.bytes > HEAD_BYTES_MAX {
        return Some(Stage::Unwatched);
    }
    match head.line.push(byte) {
        LineStep::Within => {}
        LineStep::Bare => return None,
        LineStep::Complete(line) if !head.begun && line == HTTP_2 => return Some(Stage::Http2),
        LineStep::Complete(line) if !head.begun => head.begun = !line.is_empty(),
        LineStep::Complete(line) if line.is_empty() => return head.body(),
        LineStep::Complete(line) => head.header(&line),
    }
    Some(Stage::Head(head))
}

/// Size of a chunk: one to sixteen hexadecimal digits, then perhaps an extension.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| *byte == b';');
    let end = end.unwrap_or(line.len());
    let digits = line[..end].trim_ascii_end();
    if line[end..].iter().any(u8::is_ascii_control) {
        return None;
    }
    if digits.is_empty() || digits.len() > 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;
    use crate::peer::Asked;

    const HEAD: &str = "POST / HTTP/1.1\r\nhost: a\r\n";

    /// Where a stream is refused, fed in pieces of `step` bytes.
    fn refused_at(text: &str, step: usize) -> Option<usize> {
        let mut framing = Framing::default();
        text.as_bytes()
            .chunks(step)
            .enumerate()
            .find_map(|(piece, bytes)| framing.scan(bytes).map(|at| piece * step + at))
    }

    fn refused(text: &str) -> bool {
        let whole = refused_at(text, text.len());
        for step in [1, 2, 3, 7] {
            assert_eq!(refused_at(text, step), whole, "{text:?}");
        }
        whole.is_some()
    }

    #[test]
    fn clear_requests_pass_one_after_the_other() {
        for body in [
            "\r\n",
            "content-length: 5\r\n\r\nab\ncd",
            "Transfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n1;x=\"y\"\r\nc\r\n0\r\nt: u\r\n\r\n",
            "transfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
        ] {
            assert!(
                !refused(&format!("{HEAD}{body}{HEAD}{body}\r\n{HEAD}\r\n")),
                "{body:?}"
            );
        }
    }

    #[test]
    fn http_2_is_known_by_its_first_line() {
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for step in [1, 5, preface.len()] {
            assert_eq!(refused_at(preface, step), Some(HTTP_2.len() + 1));
        }
        let mut framing = Framing::default();
        framing.scan(preface.as_bytes());
        assert!(framing.is_http_2() && framing.is_spoilt());
    }

    #[test]
    fn a_length_stated_twice_is_refused() {
        for headers in [
            "content-length: 3\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 3",
            "content-length: 3\r\nContent-Length: 3",
            "content-length: 3\r\ncontent-length: 4",
        ] {
            assert!(refused(&format!("{HEAD}{headers}\r\n\r\n")), "{headers:?}");
        }
    }

    #[test]
    fn a_coding_that_nobody_undoes_is_refused() {
        for headers in [
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked, chunked",
            "transfer-encoding: identity\r\ntransfer-encoding: chunked",
        ] {
            assert!(refused(&format!("{HEAD}{headers}\r\n\r\n")), "{headers:?}");
        }
    }

    #[test]
    fn a_bare_line_feed_in_the_head_is_refused() {
        assert!(refused("GET / HTTP/1.1\nhost: a\r\n\r\n"));
        assert!(refused("GET / HTTP/1.1\r\nhost: a\n\r\n"));
        assert!(refused("GET / HTTP/1.1\r\nhost: a\r\n\n"));
        assert!(refused(&format!(
            "{HEAD}content-length: 2\r\n\r\nabGET / HTTP/1.1\n"
        )));
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for body in [
            "0x3\r\nabc\r\n",
            "+3\r\nabc\r\n",
            "0_3\r\n",
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "\r\n",
            "11111111111111111\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "0\r\nt: u\n\r\n",
            "-1\r\n",
            "3;\0\r\nabc\r\n",
            "3;a\rb\r\nabc\r\n",
        ] {
            assert!(
                refused(&format!("{HEAD}transfer-encoding: chunked\r\n\r\n{body}")),
                "{body:?}"
            );
        }
    }

    #[test]
    fn framing_around_chunks_is_bounded_at_the_limit() {
        let extended = |bytes: usize| {
            let line = format!("1;{}", "x".repeat(bytes - 3));
            format!("{HEAD}transfer-encoding: chunked\r\n\r\n{line}\r\na\r\n0\r\n\r\n")
        };
        assert!(!refused(&extended(CHUNK_FRAMING_BYTES_MAX)));
        assert!(refused(&extended(CHUNK_FRAMING_BYTES_MAX + 1)));
        let trailer = "t: u\r\n".repeat(CHUNK_FRAMING_BYTES_MAX / 6 + 1);
        assert!(refused(&format!(
            "{HEAD}transfer-encoding: chunked\r\n\r\n0\r\n{trailer}\r\n"
        )));
    }

    /// A wire with a whole request on it, the client's end, and what holds the request open.
    async fn asked() -> (Wire<DuplexStream>, DuplexStream, Asked) {
        let (mut client, stream) = duplex(1024);
        let peer = Arc::new(Peer::new(None));
        let mut wire = Wire::new(stream, peer.clone());
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut request = [0; 18];
        wire.read_exact(&mut request).await.unwrap();
        (wire, client, peer.ask())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_ended_its_side_gets_each_byte_of_its_answer_once() {
        let answer = b"HTTP/1.1 200 OK\r\n\r\n";
        for waits_s in [0, 1, 3, 5, 100] {
            let (mut wire, mut client, open) = asked().await;
            client.shutdown().await.unwrap();
            let end = timeout(Duration::from_secs(waits_s), wire.read_u8()).await;
            assert!(end.is_err(), "it was told that the client has left");
            wire.write_all(answer).await.unwrap();
            drop(open);
            assert_eq!(wire.read(&mut [0]).await.unwrap(), 0);
            drop(wire);
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, answer, "{waits_s} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_noticed_soon() {
        let (mut wire, client, _open) = asked().await;
        drop(client);
        let begun = Instant::now();
        assert!(wire.read_u8().await.is_err());
        assert!(begun.elapsed() <= PROBE_AFTER + PROBE_ANSWER);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_kept_open_longer_than_its_response_states() {
        let (mut wire, _client, open) = asked().await;
        let idle = Duration::from_secs(30);
        open.peer.set_keep_alive(idle);
        drop(open);
        let begun = Instant::now();
        assert_eq!(wire.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(begun.elapsed(), idle + IDLE_GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_has_begun_has_its_own_time() {
        let (mut wire, mut client, open) = asked().await;
        open.peer.set_keep_alive(Duration::from_secs(60));
        drop(open);
        client.write_all(b"G").await.unwrap();
        let begun = Instant::now();
        assert_eq!(wire.read(&mut [0]).await.unwrap(), 1);
        assert_eq!(wire.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(begun.elapsed(), HEAD_TIMEOUT);
    }
}
