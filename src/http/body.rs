//! Reading the body of a request within its limits of size, time and memory.
//!
//! The first bytes of each body have their own memory budget, so that large bodies cannot shut out
//! small ones.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{timeout, timeout_at};

use super::error::ApiError;
use super::limits::{
    BODIES_BYTES_MAX, BODY_BYTES_MAX, BODY_IDLE_TIMEOUT, BODY_TIMEOUT, SMALL_BODIES_BYTES_MAX,
    SMALL_BODY_BYTES,
};

/// Memory budget of all bodies.
#[derive(Debug)]
pub struct Memory {
    /// Memory for the first [`SMALL_BODY_BYTES`] of each body.
    beginnings: Arc<Semaphore>,
    rests: Arc<Semaphore>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::of(SMALL_BODIES_BYTES_MAX, BODIES_BYTES_MAX)
    }
}

/// Part of the memory budget that one body has.
#[derive(Debug)]
pub struct Share {
    beginning: OwnedSemaphorePermit,
    rest: OwnedSemaphorePermit,
}

impl Memory {
    fn of(beginnings: usize, rests: usize) -> Memory {
        Memory {
            beginnings: Arc::new(Semaphore::new(beginnings)),
            rests: Arc::new(Semaphore::new(rests)),
        }
    }

    /// Bytes of the budget that are free.
    pub fn left(&self) -> usize {
        self.beginnings.available_permits() + self.rests.available_permits()
    }

    fn share(&self) -> Result<Share, ApiError> {
        Ok(Share {
            beginning: reserve(&self.beginnings, 0)?,
            rest: reserve(&self.rests, 0)?,
        })
    }

    /// Enlarges by `more` bytes the share of a body of which `had` bytes have come.
    fn enlarge(&self, share: &mut Share, had: usize, more: usize) -> Result<(), ApiError> {
        let beginning = SMALL_BODY_BYTES.saturating_sub(had).min(more);
        share.beginning.merge(reserve(&self.beginnings, beginning)?);
        share.rest.merge(reserve(&self.rests, more - beginning)?);
        Ok(())
    }
}

/// A whole body and its share of the memory.
#[derive(Debug)]
pub struct WholeBody {
    pub bytes: Bytes,
    pub share: Arc<Share>,
}

/// Reads all of `body` into its share of `memory`.
///
/// # Errors
/// 413 beyond the size, 408 beyond a timeout, 503 beyond the memory, 400 when the client's framing
/// is broken. The connection is closed after each of these errors.
pub async fn read<B>(body: B, memory: &Memory) -> Result<WholeBody, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let deadline = tokio::time::Instant::now() + BODY_TIMEOUT;
    let reading = read_pieces(body, memory);
    timeout_at(deadline, reading)
        .await
        .unwrap_or_else(|_| Err(too_slow()))
        .map_err(ApiError::closing)
}

async fn read_pieces<B>(mut body: B, memory: &Memory) -> Result<WholeBody, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut whole: Vec<u8> = Vec::new();
    let mut share = memory.share()?;
    loop {
        let frame = timeout(BODY_IDLE_TIMEOUT, body.frame()).await;
        let frame = frame.map_err(|_| too_slow())?;
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|_| ApiError::malformed("the body is not framed as HTTP says"))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if whole.len() + piece.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        memory.enlarge(&mut share, whole.len(), piece.len())?;
        whole.extend_from_slice(&piece);
    }
    Ok(WholeBody {
        bytes: Bytes::from(whole),
        share: Arc::new(share),
    })
}

fn reserve(memory: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    memory.clone().try_acquire_many_owned(permits).map_err(|_| {
        let why = "too many large requests are arriving; try again";
        ApiError::unavailable("overloaded", why)
    })
}

fn too_large() -> ApiError {
    let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).closing()
}

fn too_slow() -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body arrives too slowly")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use std::time::Duration;

    use hyper::body::Frame;
    use tokio::time::{Instant, Sleep, sleep};

    use super::*;

    /// Pieces of a size that come at intervals, so many of them.
    struct Drip {
        bytes: usize,
        interval: Duration,
        left: usize,
        next: Pin<Box<Sleep>>,
    }

    impl Drip {
        fn new(bytes: usize, interval: Duration, left: usize) -> Drip {
            let next = Box::pin(sleep(interval));
            Drip {
                bytes,
                interval,
                left,
                next,
            }
        }
    }

    impl Body for Drip {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            ready!(self.next.as_mut().poll(cx));
            let next = Instant::now() + self.interval;
            self.next.as_mut().reset(next);
            self.left -= 1;
            let piece = Bytes::from(vec![b' '; self.bytes]);
            Poll::Ready(Some(Ok(Frame::data(piece))))
        }
    }

    /// The status of the refusal, and how long it took.
    async fn refused(body: Drip, memory: &Memory) -> (StatusCode, Duration) {
        let start = Instant::now();
        let error = read(body, memory).await.expect_err("it is refused");
        assert!(error.close);
        (error.status, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_deadline_however_steadily_it_comes() {
        let steady = Drip::new(1, BODY_IDLE_TIMEOUT / 2, usize::MAX);
        let found = refused(steady, &Memory::default()).await;
        assert_eq!(found, (StatusCode::REQUEST_TIMEOUT, BODY_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_a_body_before_its_deadline() {
        let pausing = Drip::new(1, BODY_IDLE_TIMEOUT * 2, 1);
        let found = refused(pausing, &Memory::default()).await;
        assert_eq!(found, (StatusCode::REQUEST_TIMEOUT, BODY_IDLE_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_share_a_bounded_memory_and_give_it_back() {
        let (half, all) = (SMALL_BODY_BYTES, 2 * SMALL_BODY_BYTES);
        let memory = Memory::of(all, half);
        let body = |pieces| Drip::new(half, Duration::ZERO, pieces);
        let buffered = read(body(2), &memory).await.expect("it fits");
        assert_eq!((buffered.bytes.len(), memory.left()), (all, half));
        let (status, _) = refused(body(2), &memory).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        // A small one finds the memory that large ones leave it.
        assert!(read(body(1), &memory).await.is_ok());
        drop(buffered);
        assert!(read(body(2), &memory).await.is_ok());
        assert_eq!(memory.left(), all + half);
    }
}
