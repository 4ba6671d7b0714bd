//! The metrics of this server under the names that dashboards made for vLLM read.
//!
//! Names and labels are those of vLLM's own `/metrics`. Metrics that this server does not have are
//! left out rather than reported as zero.

use step::PAGE;

use super::{FINISHED, Page, figures, finished, responses};
use crate::state::{ServerState, Service};

/// vLLM's name for a metric of the engine.
fn alias(name: &str) -> Option<&'static str> {
    Some(match name {
        "atlas_requests_running" => "vllm:num_requests_running",
        "atlas_requests_waiting" => "vllm:num_requests_waiting",
        "atlas_prompt_tokens_total" => "vllm:prompt_tokens_total",
        "atlas_generation_tokens_total" => "vllm:generation_tokens_total",
        "atlas_prefix_cache_queries_total" => "vllm:prefix_cache_queries_total",
        "atlas_prefix_cache_hits_total" => "vllm:prefix_cache_hits_total",
        "atlas_draft_tokens_total" => "vllm:spec_decode_num_draft_tokens_total",
        "atlas_draft_tokens_accepted_total" => "vllm:spec_decode_num_accepted_tokens_total",
        "atlas_requests_rejected_total" => "vllm:admission_rejections_total",
        _ => return None,
    })
}

/// Appends the metrics under vLLM's names, and metrics that only vLLM reports.
pub fn write(page: &mut Page, state: &ServerState, service: &Service) {
    // The only engine; vLLM counts its engines from 0.
    let model = label_value(&state.model_id);
    let labels = format!("engine=\"0\",model_name=\"{model}\"");
    let braced = format!("{{{labels}}}");
    let stats = service.engine.stats();
    let used = stats.pages_used.get() as f64 / (stats.pages_total.get() as f64).max(1.0);
    let pages = stats.pages_total.get();
    let config = format!("{{{labels},block_size=\"{PAGE}\",num_gpu_blocks=\"{pages}\"}}");
    for metric in stats.metrics() {
        if let Some(name) = alias(metric.name) {
            page.series(metric.kind, name, metric.help, [(&braced, metric.value)]);
        }
    }
    figures! { page:
        gauge "vllm:kv_cache_usage_perc" "KV pages in use; 1 is all of them." => [(&braced, used)],
        gauge "vllm:cache_config_info" "The KV pages." => [(&config, 1.0)],
        counter "vllm:num_preemptions_total" "Sequences preempted: none ever is."
            => [(&braced, 0.0)],
    }
    let finished = finished(stats, ["stop", "length", "error", "abort"]);
    let finished = finished.map(|(reason, count)| {
        let labels = format!("{{{labels},finished_reason=\"{reason}\"}}");
        (labels, count)
    });
    page.series("counter", "vllm:request_success_total", FINISHED, finished);
    for times in service.times.reported() {
        let (name, help) = (times.alias, times.help);
        times.histogram.write(&mut page.text, name, &labels, help);
    }
    let name = "vllm:iteration_tokens_total";
    let help = "Tokens of prompts and replies in a step.";
    let steps = &stats.step_tokens.0;
    steps.write(&mut page.text, name, &labels, help);
    // vLLM's page has these metrics of its routes in this form.
    figures! { page:
        counter "http_requests_total" "Requests by the class of their status."
            => responses(state, "status"),
    }
}

/// Text as a label's value, escaped for the text format.
fn label_value(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_end_its_quotes() {
        assert_eq!(label_value("a\"}\\\n"), "a\\\"}\\\\\\n");
    }
}
