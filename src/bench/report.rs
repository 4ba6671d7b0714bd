//! Reports of a load test's figures: a table and JSON.

use std::fmt::Write;

use serde::{Serialize, Serializer};

use super::figures::Figures;
use super::process::Memory;

/// Version of the JSON file's layout, raised when a reader would misread the file.
const FORMAT: u32 = 1;
const MIB: f64 = 1048576.0;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    format: u32,
    url: String,
    model: String,
    /// Target and version, if the server is this program's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// GPU and clocks, if the server is on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    #[serde(serialize_with = "by_name")]
    pub scenarios: Vec<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

impl Report {
    pub fn new(url: &str, model: &str) -> Self {
        Report {
            format: FORMAT,
            url: url.to_owned(),
            model: model.to_owned(),
            server: None,
            machine: None,
            scenarios: Vec::new(),
            memory: None,
            first_error: None,
        }
    }

    pub fn add(&mut self, figures: Figures, error: Option<String>) {
        self.scenarios.push(figures);
        self.first_error = self.first_error.take().or(error);
    }

    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("plain numbers and strings");
        text + "\n"
    }

    pub fn table(&self) -> String {
        let mut text = format!("{} at {}\n", self.model, self.url);
        for figures in &self.scenarios {
            write_figures(&mut text, figures).expect("a string takes everything");
        }
        if let Some(memory) = &self.memory {
            let [now, peak] = [memory.rss_bytes, memory.peak_bytes].map(|bytes| bytes as f64 / MIB);
            text += &format!("\nserver memory: {now:.1} MiB resident, {peak:.1} MiB at most\n");
        }
        text
    }
}

/// Scenarios as a map by name: a figure keeps its path when scenarios are added or left out.
fn by_name<S: Serializer>(scenarios: &[Figures], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(scenarios.iter().map(|figures| (figures.name, figures)))
}

fn write_figures(text: &mut String, figures: &Figures) -> std::fmt::Result {
    let Figures {
        name,
        streams,
        replies,
        errors,
        prompt_tokens,
        reply_tokens,
        wall_s,
        ..
    } = figures;
    writeln!(
        text,
        "\n{name}: {streams} streams, {replies} replies in {wall_s:.2} s, {errors} errors, \
         {prompt_tokens:.1} prompt and {reply_tokens:.1} reply tokens each"
    )?;
    writeln!(text, "  {:<28}{:>10}{:>10}{:>10}", "", "p50", "p90", "p99")?;
    let rows = [
        ("time to first token, ms", figures.ttft_ms),
        ("between pieces, ms", figures.itl_ms),
        ("one stream, tok/s", figures.stream_tok_s),
        ("prompt, tok/s", figures.prompt_tok_s),
    ];
    for (label, values) in rows {
        writeln!(
            text,
            "  {label:<28}{:>10.2}{:>10.2}{:>10.2}",
            values.p50, values.p90, values.p99
        )?;
    }
    let (name, rate) = ("all streams, tok/s", figures.total_tok_s);
    writeln!(text, "  {name:<28}{rate:>10.2}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Percentiles;

    fn report() -> Report {
        let mut report = Report::new("http://x", "tiny");
        let ttft_ms = Percentiles {
            p50: 1.5,
            p90: 2.0,
            p99: 2.5,
        };
        let figures = Figures {
            name: "decode-1",
            ttft_ms,
            total_tok_s: 42.0,
            ..Figures::default()
        };
        report.add(figures, None);
        report
    }

    #[test]
    fn json_holds_what_a_comparison_needs() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["format"], 1);
        assert_eq!(json["scenarios"]["decode-1"]["ttft_ms"]["p99"], 2.5);
        assert_eq!(json["scenarios"]["decode-1"]["total_tok_s"], 42.0);
        assert!(json.get("memory").is_none() && json.get("first_error").is_none());
    }

    #[test]
    fn the_table_names_scenario_figures_and_memory() {
        let mut report = report();
        report.memory = Some(Memory {
            rss_bytes: 3 << 20,
            peak_bytes: 4 << 20,
        });
        let table = report.table();
        for part in [
            "decode-1: ",
            "1.50      2.00      2.50",
            "42.00",
            "3.0 MiB",
            "4.0 MiB",
        ] {
            assert!(table.contains(part), "{part:?} in {table}");
        }
    }

    #[test]
    fn the_first_error_stays() {
        let mut report = report();
        report.add(Figures::default(), Some("one".to_owned()));
        report.add(Figures::default(), Some("two".to_owned()));
        assert_eq!(report.first_error.as_deref(), Some("one"));
    }
}
