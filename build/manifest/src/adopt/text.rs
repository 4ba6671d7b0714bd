//! Manifests as text, as people write them: digits in groups, absent tables as comments.

use std::fmt::{Display, Write};

use serde::Serialize;

use super::rules::Rule;
use crate::expand::toml_name;
use crate::schema::leaf::{Limits, Steps};
use crate::schema::model::{
    Attention, Checkpoint, Gdn, Latent, Layers, Mamba, Mixer, Mlp, Model, Moe,
};

/// Digits from which on they are grouped.
const GROUPED: usize = 5;

/// Lines `key = value` of a table.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn table(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n[{name}]");
    }

    fn set(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.0, "{key} = {value}");
    }

    fn count(&mut self, key: &str, value: u64) {
        self.set(key, grouped(value));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.set(key, format!("{value:?}"));
    }

    fn real(&mut self, key: &str, value: f64) {
        self.set(key, real(value));
    }

    /// A list that is set where it has something.
    fn names<T: Copy>(&mut self, key: &str, all: &[T], name: fn(T) -> &'static str) {
        let names = all.iter().map(|each| format!("{:?}", name(*each)));
        let names: Vec<_> = names.collect();
        if !names.is_empty() {
            self.set(key, format!("[{}]", names.join(", ")));
        }
    }

    /// A key that is set where it holds.
    fn flag(&mut self, key: &str, holds: bool) {
        if holds {
            self.set(key, holds);
        }
    }
}

/// A number with its digits in groups of three.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    if digits.len() < GROUPED {
        return digits;
    }
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

/// A number in the shorter of its two forms.
fn real(value: f64) -> String {
    let (plain, power) = (format!("{value:?}"), format!("{value:e}"));
    match power.len() < plain.len() {
        true => power,
        false => plain,
    }
}

/// `model.toml` of a model; `stops`: ids that its configuration has for the ends of replies.
pub(super) fn model(model: &Model, stops: &[u64]) -> String {
    let mut lines = Lines::default();
    lines.text("title", &model.title);
    lines.text("id", &model.id);
    lines.text("family", model.family.traits().name);
    lines.text("licence", &model.licence);
    lines.count("hidden", model.hidden);
    lines.count("vocab", model.vocab);
    lines.set("tied_head", model.tied_head);
    lines.real("norm_eps", model.norm_eps);
    lines.count("max_position", model.max_position);
    let scale = model.query_pre_attn_scalar.iter();
    scale.for_each(|stated| lines.count("query_pre_attn_scalar", *stated));
    let cap = model.logit_cap.iter();
    cap.for_each(|cap| lines.real("logit_cap", *cap));
    layers(&mut lines, &model.layers);
    attention(&mut lines, "attention", &model.attention);
    let sliding = model.sliding.iter();
    sliding.for_each(|each| attention(&mut lines, "sliding", each));
    let latents = model.latent.iter();
    latents.for_each(|each| latent(&mut lines, each));
    model.gdn.iter().for_each(|each| gdn(&mut lines, each));
    model.mamba.iter().for_each(|each| mamba(&mut lines, each));
    model.moe.iter().for_each(|each| moe(&mut lines, each));
    model.mlp.iter().for_each(|each| mlp(&mut lines, each));
    if model.mtp.layers > 0 {
        lines.table("mtp");
        lines.count("layers", model.mtp.layers);
        let ids = model.mtp.draft_ids.iter();
        ids.for_each(|&ids| lines.count("draft_ids", ids));
    }
    if let Some(vision) = &model.vision {
        lines.table("vision");
        lines.count("tensors", vision.tensors);
        lines.count("bytes", vision.bytes);
    }
    lines.0.push_str(&chat(stops));
    lines.table("sampling");
    lines.real("temperature", model.sampling.temperature);
    lines.count("top_k", model.sampling.top_k.into());
    lines.real("top_p", model.sampling.top_p);
    for (quant, checkpoint) in &model.checkpoint {
        weights(&mut lines, quant, checkpoint);
    }
    lines.0
}

fn layers(lines: &mut Lines, layers: &Layers) {
    lines.table("layers");
    lines.count("count", layers.count as u64);
    if layers.period != [Mixer::Attention] {
        lines.set("period", list(&layers.period));
    }
    if !layers.feed_forward.is_empty() {
        lines.set("feed_forward", list(&layers.feed_forward));
    }
}

/// A list of words, as TOML has it.
fn list(words: &[impl Serialize]) -> String {
    let words: Vec<String> = words.iter().map(toml_name).collect();
    format!("[{}]", words.join(", "))
}

fn attention(lines: &mut Lines, table: &str, attention: &Attention) {
    lines.table(table);
    lines.count("heads", attention.heads);
    lines.count("kv_heads", attention.kv_heads);
    lines.count("head_dim", attention.head_dim);
    if attention.rotary_dim > 0 {
        lines.count("rotary_dim", attention.rotary_dim);
    }
    let turned = attention.turned_pairs.iter();
    turned.for_each(|pairs| lines.count("turned_pairs", *pairs));
    attention
        .window
        .iter()
        .for_each(|window| lines.count("window", *window));
    if attention.rope_theta > 0.0 {
        lines.real("rope_theta", attention.rope_theta);
    }
    if let Some(scaling) = &attention.rope_scaling {
        lines.table(&format!("{table}.rope_scaling"));
        lines.real("factor", scaling.factor);
        lines.real("low_freq_factor", scaling.low_freq_factor);
        lines.real("high_freq_factor", scaling.high_freq_factor);
        lines.count("original_max_position", scaling.original_max_position);
    }
    if let Some(yarn) = &attention.yarn {
        lines.table(&format!("{table}.yarn"));
        lines.real("factor", yarn.factor);
        lines.real("beta_fast", yarn.beta_fast);
        lines.real("beta_slow", yarn.beta_slow);
        lines.count("original_max_position", yarn.original_max_position);
        if yarn.truncate {
            lines.set("truncate", true);
        }
        let growth = yarn.attention_factor.iter();
        growth.for_each(|growth| lines.real("attention_factor", *growth));
        let number = yarn.mscale_all_dim.iter();
        number.for_each(|number| lines.real("mscale_all_dim", *number));
    }
}

fn latent(lines: &mut Lines, latent: &Latent) {
    lines.table("latent");
    lines.count("query_rank", latent.query_rank);
    lines.count("nope_dim", latent.nope_dim);
    lines.count("value_dim", latent.value_dim);
    let beta = latent.temperature_beta.iter();
    beta.for_each(|beta| lines.real("temperature_beta", *beta));
}

fn gdn(lines: &mut Lines, gdn: &Gdn) {
    lines.table("gdn");
    lines.count("key_heads", gdn.key_heads);
    lines.count("value_heads", gdn.value_heads);
    lines.count("key_dim", gdn.key_dim);
    lines.count("value_dim", gdn.value_dim);
    lines.count("conv_kernel", gdn.conv_kernel);
}

fn mamba(lines: &mut Lines, mamba: &Mamba) {
    lines.table("mamba");
    lines.count("heads", mamba.heads);
    lines.count("head_dim", mamba.head_dim);
    lines.count("groups", mamba.groups);
    lines.count("state_dim", mamba.state_dim);
    lines.count("conv_kernel", mamba.conv_kernel);
}

fn moe(lines: &mut Lines, moe: &Moe) {
    lines.table("moe");
    lines.count("experts", moe.experts);
    lines.count("experts_per_token", moe.experts_per_token);
    lines.count("intermediate", moe.intermediate);
    if let Some(shared) = moe.shared_intermediate {
        lines.count("shared_intermediate", shared);
    }
    moe.latent
        .iter()
        .for_each(|width| lines.count("latent", *width));
    moe.scale
        .iter()
        .for_each(|scale| lines.real("scale", *scale));
}

fn mlp(lines: &mut Lines, mlp: &Mlp) {
    lines.table("mlp");
    lines.count("intermediate", mlp.intermediate);
}

/// The token by which a reply in harmony ends, and the first token and texts of its vocabulary that
/// no merge makes.
const HARMONY_RETURN: u64 = 200_002;
const HARMONY_FIRST: u64 = 199_998;
const HARMONY_TEXTS: [&str; 21] = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|reserved_200000|>",
    "<|reserved_200001|>",
    "<|return|>",
    "<|constrain|>",
    "<|reserved_200004|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|reserved_200009|>",
    "<|reserved_200010|>",
    "<|reserved_200011|>",
    "<|call|>",
    "<|reserved_200013|>",
    "<|reserved_200014|>",
    "<|reserved_200015|>",
    "<|reserved_200016|>",
    "<|reserved_200017|>",
    "<|endofprompt|>",
];

/// The table of a model that speaks harmony, as comments for somebody to confirm.
fn harmony() -> String {
    let place = |wanted| {
        (HARMONY_FIRST..)
            .zip(HARMONY_TEXTS)
            .find(|(_, text)| *text == wanted)
    };
    let stops = ["<|return|>", "<|call|>", "<|endoftext|>"];
    let stops = stops
        .into_iter()
        .filter_map(place)
        .map(|(id, _)| grouped(id));
    let stops: Vec<String> = stops.collect();
    let texts = HARMONY_TEXTS.map(|text| format!("#     {text:?},\n"));
    format!(
        "\n# A model without this table builds and does not serve.\n\
         # [chat]\n\
         # stop_ids = [{}]\n\
         # tool_format = \"harmony\"\n\
         # thinking = true\n\
         # tokenizer = \"tokenizer.json\"\n\
         # template = \"chat_template.jinja\"\n\
         #\n\
         # [chat.added_tokens]\n\
         # first = {}\n\
         # texts = [\n{}# ]\n",
        stops.join(", "),
        grouped(HARMONY_FIRST),
        texts.concat()
    )
}

/// The table that a model serves with, as comments: nothing but the ids of `stops` is known of it,
/// and the format that goes with them.
fn chat(stops: &[u64]) -> String {
    if stops.contains(&HARMONY_RETURN) {
        return harmony();
    }
    let ids: Vec<String> = stops.iter().map(|&id| grouped(id)).collect();
    format!(
        "\n# A model without this table builds and does not serve.\n\
         # [chat]\n\
         # stop_ids = [{}]\n\
         # tool_format = \"hermes\"\n\
         # thinking = false\n\
         # tokenizer = \"tokenizer.json\"\n\
         # template = \"chat_template.jinja\"\n\
         #\n\
         # [chat.added_tokens]\n\
         # first = 0\n\
         # texts = []\n",
        ids.join(", ")
    )
}

fn weights(lines: &mut Lines, quant: &str, checkpoint: &Checkpoint) {
    lines.table(&format!("checkpoint.{quant}"));
    lines
        .0
        .push_str("# repository = \"owner/name\"\n# revision = \"\"\n");
    if let Some(tensors) = checkpoint.tensors {
        lines.count("tensors", tensors);
    }
    if let Some(bytes) = checkpoint.tensor_bytes {
        lines.count("tensor_bytes", bytes);
    }
    lines.names("input_scales", &checkpoint.input_scales, |format| {
        format.name()
    });
    lines.names("stacked_experts", &checkpoint.stacked_experts, |part| {
        part.name()
    });
    lines.flag("kv_scales", checkpoint.kv_scales);
    lines.flag("tied_head_stored", checkpoint.tied_head_stored);
    lines.flag("without_mtp", checkpoint.without_mtp);
    lines.0.push_str("# text_nll = 0.0\nfiles = []\n");
}

/// A leaf of `hw` for `model`, keys and values kept as `kv`.
pub(super) fn leaf(
    [hw, model, kv]: [&str; 3],
    rules: &[Rule],
    (limits, steps): &(Limits, Steps),
) -> String {
    let mut lines = Lines::default();
    lines.text("hw", hw);
    lines.text("model", model);
    rules.iter().for_each(|each| rule(&mut lines, each));
    lines.table("numbers");
    lines.text("kv", kv);
    lines.table("limits");
    lines.count("sequences", limits.sequences);
    lines.count("context", limits.context);
    lines.count("kv_tokens", limits.kv_tokens);
    if let Some(snapshots) = limits.snapshots {
        lines.count("snapshots", snapshots);
    }
    if let Some(drafts) = limits.drafts {
        lines.count("drafts", drafts);
    }
    lines.count("queued", limits.queued);
    lines.count("page", limits.page);
    lines.table("steps");
    lines.count("prefill", steps.prefill);
    lines.0
}

fn rule(lines: &mut Lines, rule: &Rule) {
    lines.table("[format]");
    match &rule.patterns[..] {
        [only] => lines.text("match", only),
        patterns => {
            let each = patterns.iter().map(|pattern| format!("    {pattern:?},\n"));
            lines.set("match", format!("[\n{}]", each.collect::<String>()));
        }
    }
    if let Some(layers) = &rule.layers {
        lines.set("layers", format!("{layers:?}"));
    }
    lines.text("as", rule.format.name());
}

#[cfg(test)]
mod tests {
    use super::{HARMONY_RETURN, chat, grouped, real};
    use crate::schema::model::{Chat, ToolFormat};

    #[test]
    fn harmony_is_known_by_the_token_that_ends_a_reply() {
        let table = chat(&[HARMONY_RETURN]);
        let lines = table.lines().filter_map(|line| line.strip_prefix('#'));
        let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
        let lines: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("stop_ids"))
            .collect();
        let text = lines
            .join("\n")
            .replace("[chat.added_tokens]", "[added_tokens]");
        let chat: Chat = toml::from_str(&text).unwrap();
        assert_eq!(chat.tool_format, Some(ToolFormat::Harmony));
        assert_eq!(chat.stop_ids, [200_002, 200_012, 199_999]);
        let channel = chat
            .added_tokens
            .texts
            .iter()
            .zip(chat.added_tokens.first..);
        let mut channel = channel.filter(|(text, _)| *text == "<|channel|>");
        assert_eq!(channel.next().map(|(_, id)| id), Some(200_005));
    }

    #[test]
    fn numbers_read_as_people_write_them() {
        let shown = [0, 8192, 10_000, 151_936, 16_060_522_496].map(grouped);
        assert_eq!(shown, ["0", "8192", "10_000", "151_936", "16_060_522_496"]);
        let shown = [1e-6, 5e5, 1e7, 8.0, 0.7, 10_000.5].map(real);
        assert_eq!(shown, ["1e-6", "5e5", "1e7", "8.0", "0.7", "10000.5"]);
    }
}
