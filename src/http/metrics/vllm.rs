//! The figures of this server under the names that dashboards made for vLLM read.
//!
//! Names and labels are those of vLLM's own `/metrics`. What this server has no figure for is left
//! out rather than told as zero.

use step::PAGE;

use super::Page;
use crate::state::{Service, State};

/// Appends the aliases.
pub fn write(page: &mut Page, state: &State, service: &Service) {
    // One engine, as vLLM counts its own from 0.
    let labels = format!(
        "engine=\"0\",model_name=\"{}\"",
        label_value(&state.model_id)
    );
    let braced = format!("{{{labels}}}");
    let stats = service.engine.stats();
    let used = stats.pages_used.get() as f64 / (stats.pages_total.get() as f64).max(1.0);
    for (name, help, value) in [
        (
            "vllm:num_requests_running",
            "Sequences that hold a slot.",
            stats.running.get() as f64,
        ),
        (
            "vllm:num_requests_waiting",
            "Accepted requests without a slot.",
            stats.waiting.get() as f64,
        ),
        (
            "vllm:kv_cache_usage_perc",
            "KV pages in use; 1 is all of them.",
            used,
        ),
    ] {
        page.series("gauge", name, help, &[(&braced, value)]);
    }
    let config = format!(
        "{{{labels},block_size=\"{}\",num_gpu_blocks=\"{}\"}}",
        PAGE,
        stats.pages_total.get()
    );
    let name = "vllm:cache_config_info";
    page.series("gauge", name, "The KV pages.", &[(&config, 1.0)]);
    for (name, help, value) in [
        (
            "vllm:prompt_tokens_total",
            "Prompt tokens computed.",
            stats.prompt_tokens.get(),
        ),
        (
            "vllm:generation_tokens_total",
            "Tokens generated.",
            stats.generated_tokens.get(),
        ),
        (
            "vllm:prefix_cache_queries_total",
            "Tokens of prompts that were looked up.",
            stats.looked_up_tokens.get(),
        ),
        (
            "vllm:prefix_cache_hits_total",
            "Those of them that were not computed again.",
            stats.cached_tokens.get(),
        ),
        (
            "vllm:spec_decode_num_draft_tokens_total",
            "Drafts that were tried.",
            stats.drafted_tokens.get(),
        ),
        (
            "vllm:spec_decode_num_accepted_tokens_total",
            "Drafts that held.",
            stats.accepted_tokens.get(),
        ),
        (
            "vllm:num_preemptions_total",
            "Sequences preempted: none ever is.",
            0,
        ),
        (
            "vllm:admission_rejections_total",
            "Requests turned away.",
            stats.rejected.get(),
        ),
    ] {
        page.series("counter", name, help, &[(&braced, value as f64)]);
    }
    let finished = [
        ("stop", &stats.finished_stop),
        ("length", &stats.finished_length),
        ("error", &stats.failed),
        ("abort", &stats.cancelled),
    ]
    .map(|(reason, count)| {
        let labels = format!("{{{labels},finished_reason=\"{reason}\"}}");
        (labels, count.get() as f64)
    });
    let finished = finished
        .each_ref()
        .map(|(labels, count)| (labels.as_str(), *count));
    let help = "Sequences by how they ended.";
    page.series("counter", "vllm:request_success_total", help, &finished);
    histograms(&mut page.text, service, &labels);
    requests(page, state);
}

/// Responses by class, as vLLM's page has them of its routes.
fn requests(page: &mut Page, state: &State) {
    let counts = state.figures.by_class();
    let counts = counts.map(|(class, count)| (format!("{{status=\"{class}\"}}"), count as f64));
    let counts = counts.each_ref();
    let counts = counts.map(|(labels, count)| (labels.as_str(), *count));
    page.series(
        "counter",
        "http_requests_total",
        "Requests by the class of their status.",
        &counts,
    );
}

fn histograms(out: &mut String, service: &Service, labels: &str) {
    let times = &service.times;
    for (histogram, name, help) in [
        (
            &times.first_token,
            "vllm:time_to_first_token_seconds",
            "Until the first token.",
        ),
        (
            &times.between_tokens,
            "vllm:inter_token_latency_seconds",
            "Between tokens.",
        ),
        (
            &times.per_token,
            "vllm:request_time_per_output_token_seconds",
            "Mean between tokens of a request.",
        ),
        (
            &times.request,
            "vllm:e2e_request_latency_seconds",
            "Until the end of a request.",
        ),
        (
            &times.queue,
            "vllm:request_queue_time_seconds",
            "Waiting for a slot.",
        ),
        (
            &times.prefill,
            "vllm:request_prefill_time_seconds",
            "From the slot to the first token.",
        ),
        (
            &times.decode,
            "vllm:request_decode_time_seconds",
            "From the first token to the last.",
        ),
        (
            &times.inference,
            "vllm:request_inference_time_seconds",
            "From the slot to the end.",
        ),
        (
            &times.prompt_tokens,
            "vllm:request_prompt_tokens",
            "Tokens of a prompt.",
        ),
        (
            &times.reply_tokens,
            "vllm:request_generation_tokens",
            "Tokens generated for a request.",
        ),
        (
            &times.choices,
            "vllm:request_params_n",
            "Replies wanted to each prompt.",
        ),
        (
            &times.max_tokens,
            "vllm:request_params_max_tokens",
            "The length that each reply may have.",
        ),
        (
            &times.most_tokens,
            "vllm:request_max_num_generation_tokens",
            "Tokens generated for the longest reply to a request.",
        ),
        (
            &service.engine.stats().step_tokens.0,
            "vllm:iteration_tokens_total",
            "Tokens of prompts and replies in a step.",
        ),
    ] {
        histogram.write(out, name, labels, help);
    }
}

/// As the text format wants it between quotes.
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
