//! A streamed answer as a body of server-sent events.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::StatusCode;
use hyper::body::{Body, Bytes, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::http::error::ApiError;
use crate::http::limits::KEEP_ALIVE_INTERVAL;
use crate::http::state::Abort;

use super::answer::ChunkWriter;
use super::generation::{Generation, Settled};

/// Room for the event of an ordinary token.
const FRAME_BYTES: usize = 320;

/// Writes what is ready as one frame; dropping it ends the replies in the engine.
pub struct ChatStream {
    generation: Generation,
    writer: ChunkWriter,
    abort: Abort,
    keep_alive: Pin<Box<Sleep>>,
    ended: bool,
}

impl ChatStream {
    pub fn new(generation: Generation, writer: ChunkWriter, abort: Abort) -> ChatStream {
        let keep_alive = Box::pin(sleep(KEEP_ALIVE_INTERVAL));
        ChatStream {
            generation,
            writer,
            abort,
            keep_alive,
            ended: false,
        }
    }

    /// The events that tell `settled`; none when all of it is held back.
    fn write(&mut self, settled: Vec<Settled>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FRAME_BYTES);
        for piece in settled {
            self.writer
                .write(&self.generation.service().chat, piece, &mut bytes);
        }
        if self.generation.is_finished() {
            self.writer.write_end(self.generation.usage(), &mut bytes);
            self.ended = true;
        }
        bytes
    }

    fn frame(&mut self, bytes: Vec<u8>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.keep_alive
            .as_mut()
            .reset(Instant::now() + KEEP_ALIVE_INTERVAL);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(bytes)))))
    }

    /// The last frame of a stream that cannot be completed.
    fn failure(&mut self, problem: &str) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.ended = true;
        let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, problem);
        self.frame(format!("data: {}\n\n", error.body()).into_bytes())
    }
}

impl Body for ChatStream {
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
        while let Poll::Ready(settled) = this.generation.poll(cx) {
            let settled = match settled {
                Ok(settled) => settled,
                Err(problem) => return this.failure(&problem),
            };
            let bytes = this.write(settled);
            if !bytes.is_empty() {
                return this.frame(bytes);
            }
        }
        if this.abort.as_mut().poll(cx).is_ready() {
            return this.failure("the server is shutting down");
        }
        if this.keep_alive.as_mut().poll(cx).is_ready() {
            return this.frame(b": keep-alive\n\n".to_vec());
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
