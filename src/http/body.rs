//! Reading the body of a request within its limits of size, time and memory.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{timeout, timeout_at};

use super::error::ApiError;
use super::limits::{BODY_BYTES_MAX, BODY_IDLE_TIMEOUT, BODY_TIMEOUT};

/// A whole body and its share of the memory for bodies.
pub struct WholeBody {
    pub bytes: Bytes,
    pub share: OwnedSemaphorePermit,
}

/// Reads all of `body`; `memory` holds the bytes that bodies may take together.
///
/// # Errors
/// 413 beyond the size, 408 beyond a timeout, 503 beyond the memory, 400 when the client's framing
/// is broken. The connection is closed after each.
pub async fn read(body: Incoming, memory: &Arc<Semaphore>) -> Result<WholeBody, ApiError> {
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

async fn read_pieces(mut body: Incoming, memory: &Arc<Semaphore>) -> Result<WholeBody, ApiError> {
    let mut whole: Vec<u8> = Vec::new();
    let mut share = reserve(memory, 0)?;
    loop {
        let frame = timeout(BODY_IDLE_TIMEOUT, body.frame())
            .await
            .map_err(|_| too_slow())?;
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|_| ApiError::malformed("the body is not framed as HTTP says"))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if whole.len() + piece.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        share.merge(reserve(memory, piece.len())?);
        whole.extend_from_slice(&piece);
    }
    Ok(WholeBody {
        bytes: Bytes::from(whole),
        share,
    })
}

fn reserve(memory: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
    memory.clone().try_acquire_many_owned(permits).map_err(|_| {
        ApiError::unavailable(
            "overloaded",
            "too many large requests are arriving; try again",
        )
    })
}

fn too_large() -> ApiError {
    let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).closing()
}

fn too_slow() -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body arrives too slowly")
}
