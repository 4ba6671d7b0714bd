//! Figures that are counted while the server runs; `metrics` tells them.

use std::sync::atomic::{AtomicU64, Ordering};

use host::histogram::Histogram;

/// Marks an answer of /health that is no fault whatever its status, for a server that starts or
/// ends is asked every second how it is.
#[derive(Clone, Copy)]
pub struct Foreseen;

/// Figures of the server itself.
#[derive(Debug, Default)]
pub struct ServerFigures {
    /// Gauge: open connections.
    pub connections: AtomicU64,
    /// Counter: connections refused because too many were open.
    pub connections_refused: AtomicU64,
    /// Counter: responses by the first digit of their status, 1 to 5.
    responses: [AtomicU64; 5],
}

impl ServerFigures {
    /// Counts an answer. A request for what is not offered is the client's mistake, not a failure.
    pub fn count_response<B>(&self, response: &hyper::Response<B>) {
        if response.extensions().get::<Foreseen>().is_some() {
            return;
        }
        let class = match response.status() {
            hyper::StatusCode::NOT_IMPLEMENTED => 4,
            status => usize::from(status.as_u16() / 100).clamp(1, 5),
        };
        self.responses[class - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// Responses by the class of their status.
    pub fn by_class(&self) -> [(&'static str, u64); 5] {
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        std::array::from_fn(|at| (classes[at], self.responses[at].load(Ordering::Relaxed)))
    }
}

/// Durations and sizes of requests.
#[derive(Debug)]
pub struct Times {
    /// Time from the request's arrival at the engine, as are `request` and `queue`.
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    /// Mean of `between_tokens` over a request.
    pub per_token: Histogram,
    pub request: Histogram,
    /// Until the request, or the first of its replies, gets a slot.
    pub queue: Histogram,
    /// Time from there to the first token.
    pub prefill: Histogram,
    /// Time from the first token to the last.
    pub decode: Histogram,
    /// Time from the slot to the end.
    pub inference: Histogram,
    pub prompt_tokens: Histogram,
    pub reply_tokens: Histogram,
    /// Those of the longest reply to a request.
    pub most_tokens: Histogram,
    /// Replies wanted to each prompt.
    pub choices: Histogram,
    /// The length that each reply may have.
    pub max_tokens: Histogram,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            first_token: Histogram::of_seconds(),
            between_tokens: Histogram::of_seconds(),
            per_token: Histogram::of_seconds(),
            request: Histogram::of_seconds(),
            queue: Histogram::of_seconds(),
            prefill: Histogram::of_seconds(),
            decode: Histogram::of_seconds(),
            inference: Histogram::of_seconds(),
            prompt_tokens: Histogram::of_tokens(),
            reply_tokens: Histogram::of_tokens(),
            most_tokens: Histogram::of_tokens(),
            choices: Histogram::of_tokens(),
            max_tokens: Histogram::of_tokens(),
        }
    }
}
