//! A streamed answer as a body of server-sent events.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use hyper::body::{Body, Bytes, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::error::{ApiError, Dialect};
use crate::limits::{KEEP_ALIVE_INTERVAL, STREAM_START_WAIT};
use crate::state::{Abort, Service};
use text::chat::ChatModel;

use super::generation::{Admissions, Generation, Settled};
use crate::call::Usage;

/// Bytes reserved for the event of an ordinary token.
const FRAME_BYTES: usize = 320;

/// Comment before the first event of a stream whose replies wait for a slot.
const WAITING_COMMENT: &[u8] = b": waiting for a slot\n\n";

/// Keep-alive of dialects that have no event for it.
pub const KEEP_ALIVE_COMMENT: &[u8] = b": keep-alive\n\n";

/// A dialect's events. Each method appends whole events to `out`.
pub trait Writer: Send {
    /// Usage of the prompts, once and before any reply's deltas: known when all replies have slots,
    /// which may be after `write_start`.
    fn write_admitted(&mut self, _usage: Usage, _out: &mut Vec<u8>) {}
    /// Events that begin the stream, before the model's first token.
    fn write_start(&mut self, _out: &mut Vec<u8>) {}
    /// Appends events with the parts of replies in `settled`; none if all text is held back.
    fn write(&mut self, model: &ChatModel, settled: Settled, out: &mut Vec<u8>);
    /// Events that end a stream whose replies are all finished.
    fn write_end(&mut self, usage: Usage, out: &mut Vec<u8>);
    /// Events that end a stream which cannot be completed.
    fn write_error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let event = format!("data: {}\n\n", error.body(Dialect::OpenAi));
        out.extend_from_slice(event.as_bytes());
    }
    /// Event that shows the client that the connection is alive.
    fn write_keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(KEEP_ALIVE_COMMENT);
    }
}

/// Body of a streamed answer: each frame has the tokens that are ready, one event each. Dropping
/// the body ends the replies in the engine.
///
/// The stream begins with the first token, or after `STREAM_START_WAIT` without one: a client
/// learns that its request was taken however long the queue and the prompt are, and keep-alives may
/// follow. A comment ahead of the first event says that the replies wait for a slot, and one ahead
/// of the first token how long they did, to tell the queue's time from the model's.
pub struct ReplyStream {
    generation: Generation,
    writer: Box<dyn Writer>,
    abort: Abort,
    /// Slots of the replies; None once the writer has the usage of the prompts.
    admissions: Option<Admissions>,
    /// Timer of keep-alives: it may fire early, as it is not reset at each frame.
    keep_alive: Pin<Box<Sleep>>,
    last_frame: Instant,
    /// Waker that `abort` and `keep_alive` have; None before they were polled.
    woken: Option<Waker>,
    begun: Begun,
    ended: bool,
}

/// Whether the stream's first events are written.
#[derive(Clone, Copy, Debug)]
enum Begun {
    No,
    /// The first events are written, and before them a comment that the replies wait for a slot.
    Waiting,
    Yes,
}

impl ReplyStream {
    pub fn new(generation: Generation, writer: Box<dyn Writer>, abort: Abort) -> ReplyStream {
        let keep_alive = Box::pin(sleep(STREAM_START_WAIT));
        let last_frame = Instant::now();
        ReplyStream {
            admissions: Some(generation.admissions()),
            generation: generation.token_by_token(),
            writer,
            abort,
            keep_alive,
            last_frame,
            woken: None,
            begun: Begun::No,
            ended: false,
        }
    }

    /// Writes the events of all deltas that are ready; none when all text is held back.
    ///
    /// # Errors
    /// When a reply fails; `bytes` has the events before.
    fn write(&mut self, cx: &mut Context<'_>, bytes: &mut Vec<u8>) -> Poll<Result<(), ApiError>> {
        let (writer, begun, from) = (&mut self.writer, &mut self.begun, bytes.len());
        let admissions = &mut self.admissions;
        let waiting = matches!(begun, Begun::Waiting);
        let mut each = |service: &Service, piece| {
            // Most polls write nothing, so the capacity is reserved only here.
            bytes.reserve(FRAME_BYTES);
            write_admitted(admissions, writer.as_mut(), bytes);
            if let Begun::No = std::mem::replace(begun, Begun::Yes) {
                writer.write_start(bytes);
            }
            writer.write(&service.chat, piece, bytes);
        };
        ready!(self.generation.poll(cx, &mut each))?;
        if let Some(queued) = self.generation.queued().filter(|_| waiting) {
            let comment = format!(": waited {} ms for a slot\n\n", queued.as_millis());
            bytes.splice(from..from, comment.into_bytes());
        }
        if self.generation.is_finished() {
            self.writer.write_end(self.generation.usage(), bytes);
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }

    fn frame(&mut self, bytes: Vec<u8>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.generation.call().responded(&bytes);
        self.last_frame = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(bytes)))))
    }

    /// Writes the stream's first events when no token has come in time.
    fn begin(&mut self, bytes: &mut Vec<u8>) {
        let waiting = self.generation.queued().is_none();
        if waiting {
            bytes.extend_from_slice(WAITING_COMMENT);
        }
        self.begun = if waiting { Begun::Waiting } else { Begun::Yes };
        write_admitted(&mut self.admissions, self.writer.as_mut(), bytes);
        self.writer.write_start(bytes);
    }

    /// Last frame of a stream that fails: `bytes`, events before the failure, then the error.
    fn failure(
        &mut self,
        error: &ApiError,
        mut bytes: Vec<u8>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Begun::No = self.begun {
            self.writer.write_start(&mut bytes);
        }
        self.ended = true;
        self.writer.write_error(error, &mut bytes);
        self.frame(bytes)
    }
}

/// Gives the prompts' token usage to the writer, once, as soon as all replies have slots.
fn write_admitted(
    admissions: &mut Option<Admissions>,
    writer: &mut dyn Writer,
    bytes: &mut Vec<u8>,
) {
    if let Some(usage) = admissions.as_ref().and_then(Admissions::usage) {
        writer.write_admitted(usage, bytes);
        *admissions = None;
    }
}

impl Body for ReplyStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let mut bytes = Vec::new();
        while let Poll::Ready(written) = this.write(cx, &mut bytes) {
            if let Err(error) = written {
                return this.failure(&error, bytes);
            }
            if !bytes.is_empty() {
                return this.frame(bytes);
            }
        }
        // Abort and timer are polled only if woken: polling both costs as much as writing an event.
        let woken = this.woken.as_ref();
        let asked = woken.is_some_and(|waker| waker.will_wake(cx.waker()));
        if asked && !this.abort.may_be_due() && !this.keep_alive.is_elapsed() {
            return Poll::Pending;
        }
        this.woken = Some(cx.waker().clone());
        if let Poll::Ready(error) = Pin::new(&mut this.abort).poll(cx) {
            return this.failure(&error, bytes);
        }
        // Setting the timer at every frame would cost more than writing the frame.
        while this.keep_alive.as_mut().poll(cx).is_ready() {
            let due = this.last_frame + KEEP_ALIVE_INTERVAL;
            let now = Instant::now();
            if let Begun::No = this.begun {
                this.begin(&mut bytes);
            } else if now >= due {
                write_admitted(&mut this.admissions, this.writer.as_mut(), &mut bytes);
                this.writer.write_keep_alive(&mut bytes);
            }
            let next = match bytes.is_empty() {
                true => due,
                false => now + KEEP_ALIVE_INTERVAL,
            };
            // Polled again after the reset, the timer registers the waker.
            this.keep_alive.as_mut().reset(next);
        }
        match bytes.is_empty() {
            true => Poll::Pending,
            false => this.frame(bytes),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
