//! `GET /metrics`: metrics in the Prometheus text format (version 0.0.4).

mod process;
#[cfg(test)]
#[path = "metrics/reference_tests.rs"]
mod reference;
mod vllm;

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Stats;
use step::Facts;

use super::journal::Journal;
use super::settings::Compatibility;
use super::state::{ServerState, Service};

/// Page of metrics, as far as it has been written.
#[derive(Debug, Default)]
struct Page {
    text: String,
}

impl Page {
    /// Appends a metric with its values, which labels tell apart; nothing if there are no values.
    fn series(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (impl Display, f64)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }
}

/// Appends rows to a page: the kind of a metric, its name, its meaning and its values.
macro_rules! figures {
    ($page:ident: $($kind:ident $name:literal $help:literal => $values:expr,)*) => {
        $($page.series(stringify!($kind), $name, $help, $values);)*
    };
}
use figures;

/// Values of a metric that has one value and no labels.
fn alone(value: u64) -> [(&'static str, f64); 1] {
    [("", value as f64)]
}

/// The whole page of metrics.
pub fn page(state: &ServerState) -> String {
    let mut page = Page::default();
    build(&mut page, state.facts);
    process::write(&mut page, state.created);
    server(&mut page, state);
    if let Some(service) = state.service() {
        engine(&mut page, service);
        for times in service.times.reported() {
            if !times.name.is_empty() {
                let (name, help) = (times.name, times.help);
                times.histogram.write(&mut page.text, name, "", help);
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
    figures! { page:
        gauge "atlas_build_info" "1, with what this binary is in its labels." => [(labels, 1.0)],
    }
}

fn server(page: &mut Page, state: &ServerState) {
    let ready = u64::from(state.service().is_some() && !state.is_draining());
    let (figures, settings) = (&state.figures, &state.settings);
    let lost = |journal: &Option<Arc<Journal>>| Some(("", journal.as_ref()?.lost() as f64));
    figures! { page:
        gauge "atlas_ready" "1 while requests are answered." => alone(ready),
        gauge "atlas_connections" "Open connections."
            => alone(figures.connections.load(Ordering::Relaxed)),
        counter "atlas_connections_refused_total" "Connections refused because too many were open."
            => alone(figures.connections_refused.load(Ordering::Relaxed)),
        counter "atlas_http_responses_total" "Responses by class." => responses(state, "class"),
        counter "atlas_access_log_lines_lost_total" "Lines that the access log could not take."
            => lost(&settings.access_log),
        counter "atlas_dump_lines_lost_total" "Requests that could not be recorded."
            => lost(&settings.dump),
    }
}

fn engine(page: &mut Page, service: &Service) {
    let stats = service.engine.stats();
    for metric in stats.metrics() {
        page.series(metric.kind, metric.name, metric.help, [("", metric.value)]);
    }
    let finished = finished(stats, ["stop", "length", "failed", "cancelled"]);
    let finished = finished.map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), count));
    let name = "atlas_requests_finished_total";
    page.series("counter", name, FINISHED, finished);
    figures! { page:
        gauge "atlas_events_waiting_bytes" "Memory of replies that their clients have not read."
            => alone(service.engine.backlog_bytes() as u64),
    }
}

const FINISHED: &str = "Sequences by how they ended.";

/// Counts of sequences by their end, labelled with `words`: at a stop token, at their length, by a
/// failure, and because the client left.
fn finished(stats: &Stats, words: [&'static str; 4]) -> [(&'static str, f64); 4] {
    let (stop, length) = (&stats.finished_stop, &stats.finished_length);
    let counts = [stop, length, &stats.failed, &stats.cancelled];
    std::array::from_fn(|at| (words[at], counts[at].get() as f64))
}

/// Counts of responses by the class of their status, which is the value of the label `label`.
fn responses(state: &ServerState, label: &str) -> [(String, f64); 5] {
    let classes = state.figures.by_class();
    classes.map(|(class, count)| (format!("{{{label}=\"{class}\"}}"), count as f64))
}
