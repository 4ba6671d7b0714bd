//! Counters and histograms of the server, which `metrics` exports.

use std::sync::atomic::{AtomicU64, Ordering};

use host::histogram::Histogram;

/// Extension that keeps an answer of `/health` out of the counts: a server that starts or stops is
/// polled every second, and its 503 is no fault.
#[derive(Clone, Copy)]
pub struct Foreseen;

/// Metrics of the server itself, not of its engine.
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
    /// Counts a response. Status 501 counts as 4xx: the client has asked for a feature not offered.
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

    /// Counts of responses by the class of their status.
    pub fn by_class(&self) -> [(&'static str, u64); 5] {
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        std::array::from_fn(|at| (classes[at], self.responses[at].load(Ordering::Relaxed)))
    }
}

/// A histogram with its names and meaning.
pub struct ReportedTimes<'a> {
    /// Name; empty if it is exported under vLLM's name alone.
    pub name: &'static str,
    /// Name of the same histogram in vLLM.
    pub alias: &'static str,
    /// Meaning of the histogram, in a sentence.
    pub help: &'static str,
    pub histogram: &'a Histogram,
}

/// Defines `Times` by rows: meaning of a histogram, field, constructor, name, and vLLM's name.
macro_rules! times {
    ($(#[doc = $help:literal] $field:ident: $made:ident $name:literal $alias:literal,)*) => {
        /// Durations and sizes of requests.
        #[derive(Debug)]
        pub struct Times {
            $(#[doc = $help] pub $field: Histogram,)*
        }

        impl Default for Times {
            fn default() -> Times {
                Times { $($field: Histogram::$made(),)* }
            }
        }

        impl Times {
            /// Values of all histograms.
            pub fn reported(&self) -> Vec<ReportedTimes<'_>> {
                vec![$(ReportedTimes {
                    name: $name,
                    alias: $alias,
                    help: $help.trim_ascii(),
                    histogram: &self.$field,
                },)*]
            }
        }
    };
}

times! {
    /// Time from a request's arrival at the engine to its first token.
    first_token: of_seconds "atlas_time_to_first_token_seconds" "vllm:time_to_first_token_seconds",
    /// Time between tokens of one request.
    between_tokens: of_seconds
        "atlas_inter_token_latency_seconds" "vllm:inter_token_latency_seconds",
    /// Mean time between tokens of a request.
    per_token: of_seconds "" "vllm:request_time_per_output_token_seconds",
    /// Time from a request's arrival at the engine to the end of its replies.
    request: of_seconds "atlas_request_duration_seconds" "vllm:e2e_request_latency_seconds",
    /// Time from a request's arrival at the engine until it is given a slot.
    queue: of_seconds "atlas_request_queue_seconds" "vllm:request_queue_time_seconds",
    /// Time from when a request is given a slot to its first token.
    prefill: of_seconds "atlas_request_prefill_seconds" "vllm:request_prefill_time_seconds",
    /// Time from a request's first token to its last.
    decode: of_seconds "atlas_request_decode_seconds" "vllm:request_decode_time_seconds",
    /// Time from when a request is given a slot to the end of its replies.
    inference: of_seconds "" "vllm:request_inference_time_seconds",
    /// Tokens of a request's prompts.
    prompt_tokens: of_tokens "atlas_request_prompt_tokens" "vllm:request_prompt_tokens",
    /// Tokens generated for a request.
    reply_tokens: of_tokens "atlas_request_generation_tokens" "vllm:request_generation_tokens",
    /// Tokens generated for the longest reply to a request.
    most_tokens: of_tokens "" "vllm:request_max_num_generation_tokens",
    /// Replies that a request wants to each prompt.
    choices: of_tokens "" "vllm:request_params_n",
    /// Number of tokens that each reply may have.
    max_tokens: of_tokens "" "vllm:request_params_max_tokens",
}
