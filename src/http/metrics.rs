//! `GET /metrics`: figures in the Prometheus text format (version 0.0.4).

mod process;
#[cfg(test)]
mod reference;
mod vllm;

use std::fmt::Write;
use std::sync::atomic::Ordering;

use engine::Stats;
use step::Facts;

use super::figures::Times;
use super::settings::Compatibility;
use super::state::State;

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
    build(&mut page, state.facts);
    process::write(&mut page, state.created);
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

fn build(page: &mut Page, facts: &Facts) {
    let labels = format!(
        "{{binary=\"{}\",version=\"{}\",hardware=\"{}\",model=\"{}\",quantisation=\"{}\"}}",
        facts.binary,
        env!("CARGO_PKG_VERSION"),
        facts.hardware,
        facts.model,
        facts.quant
    );
    let help = "1, with what this binary is in its labels.";
    page.series("gauge", "atlas_build_info", help, &[(labels.as_str(), 1.0)]);
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
            "atlas_kv_pages_cached",
            "KV pages of prompts that ended, kept for prompts to come.",
            &stats.pages_cached,
        ),
        (
            "atlas_kv_pages",
            "KV pages of the engine.",
            &stats.pages_total,
        ),
        (
            "atlas_prefix_cache_host_bytes",
            "Memory of the host for prompts that the device has no place for.",
            &stats.host_bytes,
        ),
        (
            "atlas_prefix_cache_host_bytes_used",
            "Memory of the host that has such prompts.",
            &stats.host_bytes_used,
        ),
        (
            "atlas_prefix_cache_disk_up",
            "1 while prompts are kept on a disk, 0 when that is turned off.",
            &stats.disk_on,
        ),
        (
            "atlas_prefix_cache_disk_bytes",
            "Room on a disk for prompts that memory has no place for.",
            &stats.disk_bytes,
        ),
        (
            "atlas_prefix_cache_disk_bytes_used",
            "Bytes of such prompts on the disk.",
            &stats.disk_bytes_used,
        ),
        (
            "atlas_prefix_cache_disk_daily_bytes",
            "Bytes of prompts that were written to the disk in the last day.",
            &stats.disk_bytes_in_a_day,
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
            "atlas_prefix_cache_queries_total",
            "Tokens of prompts that were looked up among those of prompts before.",
            &stats.looked_up_tokens,
        ),
        (
            "atlas_prefix_cache_hits_total",
            "Tokens of prompts that were computed for a prompt before, and not again.",
            &stats.cached_tokens,
        ),
        (
            "atlas_prefix_cache_host_hits_total",
            "Tokens of those hits that came from the host's memory.",
            &stats.restored_tokens,
        ),
        (
            "atlas_prefix_cache_host_saved_bytes_total",
            "Bytes of prompts that were copied to the host's memory.",
            &stats.host_saved_bytes,
        ),
        (
            "atlas_prefix_cache_host_restored_bytes_total",
            "Bytes of prompts that were copied back from the host's memory.",
            &stats.host_restored_bytes,
        ),
        (
            "atlas_prefix_cache_host_evictions_total",
            "Beginnings of prompts that were in the host's memory and had to go.",
            &stats.host_evictions,
        ),
        (
            "atlas_prefix_cache_host_evicted_tokens_total",
            "Tokens of the beginnings that had to go from the host's memory.",
            &stats.host_evicted_tokens,
        ),
        (
            "atlas_prefix_cache_disk_hits_total",
            "Tokens of prompts that were read from the disk.",
            &stats.disk_tokens,
        ),
        (
            "atlas_prefix_cache_disk_saved_bytes_total",
            "Bytes of prompts that were written to the disk.",
            &stats.disk_written_bytes,
        ),
        (
            "atlas_prefix_cache_disk_restored_bytes_total",
            "Bytes of prompts that were read from the disk.",
            &stats.disk_read_bytes,
        ),
        (
            "atlas_prefix_cache_disk_evictions_total",
            "Beginnings of prompts that were on the disk and had to go.",
            &stats.disk_evictions,
        ),
        (
            "atlas_prefix_cache_disk_evicted_tokens_total",
            "Tokens of the beginnings that had to go from the disk.",
            &stats.disk_evicted_tokens,
        ),
        (
            "atlas_prefix_cache_disk_broken_total",
            "Beginnings on the disk that were torn or changed, and not used.",
            &stats.disk_broken,
        ),
        (
            "atlas_prefix_cache_evictions_total",
            "Beginnings of prompts that were kept and had to go.",
            &stats.evictions,
        ),
        (
            "atlas_prefix_cache_evicted_tokens_total",
            "Their tokens.",
            &stats.evicted_tokens,
        ),
        (
            "atlas_generation_tokens_total",
            "Tokens generated.",
            &stats.generated_tokens,
        ),
        (
            "atlas_draft_tokens_total",
            "Drafts that were tried.",
            &stats.drafted_tokens,
        ),
        (
            "atlas_draft_tokens_accepted_total",
            "Drafts that held: tokens that took no step of their own.",
            &stats.accepted_tokens,
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
    for (name, help, seconds) in [
        (
            "atlas_prefix_cache_evicted_age_seconds_total",
            "Sum of the times since each of those that had to go was in use.",
            stats.evicted_age_millis.get() as f64 / 1e3,
        ),
        (
            "atlas_prefix_cache_host_evicted_age_seconds_total",
            "Sum of the times since each of those that went from the host's memory was in use.",
            stats.host_evicted_age_millis.get() as f64 / 1e3,
        ),
        (
            "atlas_prefix_cache_disk_evicted_age_seconds_total",
            "Sum of the times since each of those that went from the disk was in use.",
            stats.disk_evicted_age_millis.get() as f64 / 1e3,
        ),
        (
            "atlas_prefix_cache_saved_seconds_total",
            "Time that the prompts' tokens would have taken that were not computed again.",
            stats.saved_nanos.get() as f64 / 1e9,
        ),
        (
            "atlas_step_seconds_total",
            "Time of the device's steps.",
            stats.step_nanos.get() as f64 / 1e9,
        ),
    ] {
        page.series("counter", name, help, &[("", seconds)]);
    }
    let slowdown = stats.slowdown.get() as f64 / 1e3;
    page.series(
        "gauge",
        "atlas_step_slowdown_ratio",
        "Time of the last steps over that of the first ones of the same work.",
        &[("", slowdown)],
    );
}
