//! `GET /metrics`: figures in the Prometheus text format (version 0.0.4).

mod process;
#[cfg(test)]
#[path = "metrics/reference_tests.rs"]
mod reference;
mod vllm;

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use engine::Stats;
use step::Facts;

use super::settings::Compatibility;
use super::state::State;

/// The page while it is written.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    /// One figure, or several that labels tell apart.
    fn series(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (impl Display, f64)>,
    ) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.series("gauge", name, help, [("", value as f64)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.series("counter", name, help, [("", value as f64)]);
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
        for told in service.times.told() {
            if !told.name.is_empty() {
                let (name, help) = (told.name, told.help);
                told.histogram.write(&mut page.text, name, "", help);
            }
        }
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
    page.series("gauge", "atlas_build_info", help, [(labels, 1.0)]);
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
    let name = "atlas_http_responses_total";
    page.series(
        "counter",
        name,
        "Responses by class.",
        responses(state, "class"),
    );
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

fn engine(page: &mut Page, stats: &Stats) {
    for told in stats.told() {
        page.series(told.kind, told.name, told.help, [("", told.value)]);
    }
    let finished = finished(stats, ["stop", "length", "failed", "cancelled"]);
    let finished = finished.map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), count));
    let name = "atlas_requests_finished_total";
    page.series("counter", name, FINISHED, finished);
}

const FINISHED: &str = "Sequences by how they ended.";

/// Sequences that ended on a stop token, at their length, by a failure and without a reader, by
/// the words for these.
fn finished(stats: &Stats, words: [&'static str; 4]) -> [(&'static str, f64); 4] {
    let counts = [
        &stats.finished_stop,
        &stats.finished_length,
        &stats.failed,
        &stats.cancelled,
    ];
    std::array::from_fn(|at| (words[at], counts[at].get() as f64))
}

/// Responses by the class of their status, which is the value of `label`.
fn responses(state: &State, label: &str) -> [(String, f64); 5] {
    let classes = state.figures.by_class();
    classes.map(|(class, count)| (format!("{{{label}=\"{class}\"}}"), count as f64))
}
