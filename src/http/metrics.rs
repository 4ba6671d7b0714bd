//! `GET /metrics`: figures in the Prometheus text format (version 0.0.4).

mod vllm;

use std::fmt::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Stats;
use crate::histogram::Histogram;

use super::state::State;

/// Another server whose names for figures are told too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    Vllm,
}

impl FromStr for Compatibility {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Compatibility, Self::Err> {
        match text {
            "vllm" => Ok(Compatibility::Vllm),
            _ => Err("must be vllm"),
        }
    }
}

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
    /// What is not offered here is the client's mistake, not the server's failure.
    pub fn count_response(&self, status: hyper::StatusCode) {
        let class = match status {
            hyper::StatusCode::NOT_IMPLEMENTED => 4,
            status => usize::from(status.as_u16() / 100).clamp(1, 5),
        };
        self.responses[class - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// Responses by the class of their status.
    fn by_class(&self) -> [(&'static str, u64); 5] {
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        std::array::from_fn(|at| (classes[at], self.responses[at].load(Ordering::Relaxed)))
    }
}

/// How long requests take, and how large they are.
#[derive(Debug)]
pub struct Times {
    /// From the request's arrival at the engine, as are `request` and `queue`.
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    /// As `between_tokens`, the mean of a request.
    pub per_token: Histogram,
    pub request: Histogram,
    /// Until the request, or the first of its replies, gets a slot.
    pub queue: Histogram,
    /// From there to the first token.
    pub prefill: Histogram,
    /// From the first token to the last.
    pub decode: Histogram,
    /// From the slot to the end.
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

/// The page while it is written.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    /// One figure, or several that labels tell apart.
    fn series(&mut self, kind: &str, name: &str, help: &str, values: &[(&str, f64)]) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.series("gauge", name, help, &[("", value as f64)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.series("counter", name, help, &[("", value as f64)]);
    }
}

/// The whole page.
pub fn page(state: &State) -> String {
    let mut page = Page::default();
    server(&mut page, state);
    if let Some(service) = state.service() {
        engine(&mut page, service.engine.stats());
        page.gauge(
            "atlas_events_waiting_bytes",
            "Memory of replies that their clients have not read.",
            service.engine.backlog_bytes() as u64,
        );
        times(&mut page.text, &service.times);
        if state.settings.metrics == Some(Compatibility::Vllm) {
            vllm::write(&mut page, state, service);
        }
    }
    page.text
}

fn server(page: &mut Page, state: &State) {
    let ready = u64::from(state.service().is_some() && !state.is_draining());
    page.gauge("atlas_ready", "1 while requests are answered.", ready);
    let figures = &state.figures;
    let connections = figures.connections.load(Ordering::Relaxed);
    page.gauge("atlas_connections", "Open connections.", connections);
    page.counter(
        "atlas_connections_refused_total",
        "Connections refused because too many were open.",
        figures.connections_refused.load(Ordering::Relaxed),
    );
    let classes = figures.by_class();
    let classes = classes.map(|(class, count)| (format!("{{class=\"{class}\"}}"), count as f64));
    let responses = classes.each_ref();
    let responses = responses.map(|(label, count)| (label.as_str(), *count));
    let name = "atlas_http_responses_total";
    page.series("counter", name, "Responses by class.", &responses);
    let settings = &state.settings;
    for (journal, name, help) in [
        (
            &settings.access_log,
            "atlas_access_log_lines_lost_total",
            "Lines that the access log could not take.",
        ),
        (
            &settings.dump,
            "atlas_dump_lines_lost_total",
            "Requests that could not be recorded.",
        ),
    ] {
        if let Some(journal) = journal {
            page.counter(name, help, journal.lost());
        }
    }
}

fn times(out: &mut String, times: &Times) {
    for (histogram, name, help) in [
        (
            &times.first_token,
            "atlas_time_to_first_token_seconds",
            "From a request's arrival at the engine to its first token.",
        ),
        (
            &times.between_tokens,
            "atlas_inter_token_latency_seconds",
            "Between tokens of one request.",
        ),
        (
            &times.request,
            "atlas_request_duration_seconds",
            "From a request's arrival at the engine to the end of its replies.",
        ),
        (
            &times.queue,
            "atlas_request_queue_seconds",
            "From a request's arrival at the engine to its slot.",
        ),
        (
            &times.prefill,
            "atlas_request_prefill_seconds",
            "From a request's slot to its first token.",
        ),
        (
            &times.decode,
            "atlas_request_decode_seconds",
            "From a request's first token to its last.",
        ),
        (
            &times.prompt_tokens,
            "atlas_request_prompt_tokens",
            "Tokens of a request's prompts.",
        ),
        (
            &times.reply_tokens,
            "atlas_request_generation_tokens",
            "Tokens generated for a request.",
        ),
    ] {
        histogram.write(out, name, "", help);
    }
}

fn engine(page: &mut Page, stats: &Stats) {
    for (name, help, figure) in [
        (
            "atlas_requests_running",
            "Sequences that hold a slot.",
            &stats.running,
        ),
        (
            "atlas_requests_waiting",
            "Accepted requests without a slot.",
            &stats.waiting,
        ),
        (
            "atlas_kv_pages_used",
            "KV pages that sequences own.",
            &stats.pages_used,
        ),
        (
            "atlas_kv_pages",
            "KV pages of the engine.",
            &stats.pages_total,
        ),
    ] {
        page.gauge(name, help, figure.get());
    }
    for (name, help, figure) in [
        (
            "atlas_prompt_tokens_total",
            "Prompt tokens computed.",
            &stats.prompt_tokens,
        ),
        (
            "atlas_generation_tokens_total",
            "Tokens generated.",
            &stats.generated_tokens,
        ),
        (
            "atlas_requests_rejected_total",
            "Requests turned away.",
            &stats.rejected,
        ),
        ("atlas_steps_total", "Steps of the device.", &stats.steps),
    ] {
        page.counter(name, help, figure.get());
    }
    let finished = [
        ("{reason=\"stop\"}", stats.finished_stop.get() as f64),
        ("{reason=\"length\"}", stats.finished_length.get() as f64),
        ("{reason=\"failed\"}", stats.failed.get() as f64),
        ("{reason=\"cancelled\"}", stats.cancelled.get() as f64),
    ];
    page.series(
        "counter",
        "atlas_requests_finished_total",
        "Sequences by how they ended.",
        &finished,
    );
    let seconds = stats.step_nanos.get() as f64 / 1e9;
    page.series(
        "counter",
        "atlas_step_seconds_total",
        "Time of the device's steps.",
        &[("", seconds)],
    );
}
