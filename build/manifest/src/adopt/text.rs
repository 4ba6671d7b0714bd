//! Manifests as text in the form people write: digits in groups, absent tables as comments.

use std::fmt::{Display, Write};

use super::rules::Rule;
use crate::schema::leaf::{Limits, Op, Steps};
use crate::schema::model::{Checkpoint, Form, Model};

/// Length from which on digits are grouped.
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

    /// Writes a list, unless it is empty.
    fn names<T: Copy>(&mut self, key: &str, all: &[T], name: fn(T) -> &'static str) {
        let names = all.iter().map(|each| format!("{:?}", name(*each)));
        let names: Vec<_> = names.collect();
        if !names.is_empty() {
            self.set(key, format!("[{}]", names.join(", ")));
        }
    }

    /// Writes `key = true`, if `holds`.
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

/// A number in decimal or exponent form, whichever is shorter.
fn real(value: f64) -> String {
    let (plain, power) = (format!("{value:?}"), format!("{value:e}"));
    match power.len() < plain.len() {
        true => power,
        false => plain,
    }
}

/// `model.toml` of a model; `stops`: ids of end tokens that its configuration states.
pub(super) fn model(model: &Model, stops: &[u64]) -> String {
    let mut facts = model.clone();
    let checkpoints = std::mem::take(&mut facts.checkpoint);
    let text = toml::to_string(&facts).expect("plain structures always serialise");
    let tables = text.trim_end().split("\n\n");
    let mut stated: Vec<_> = tables.filter(|table| !EMPTY.contains(table)).collect();
    let sampling = stated.pop().unwrap_or_default();
    let facts = format!("{}\n{}\n{sampling}", stated.join("\n\n"), chat(stops));
    let mut lines = Lines(facts.lines().map(|line| written(line) + "\n").collect());
    for (quant, checkpoint) in &checkpoints {
        weights(&mut lines, quant, checkpoint);
    }
    lines.0
}

/// Tables that mean the same as their absence, and that manifests leave out.
const EMPTY: [&str; 2] = ["[mtp]\nlayers = 0", "[checkpoint]"];

/// A line of TOML with its number in groups of digits.
fn written(line: &str) -> String {
    let number = line.split_once(" = ").and_then(|(key, value)| {
        let whole = value.parse().ok().map(grouped);
        let number = whole.or_else(|| value.parse().ok().map(real))?;
        Some(format!("{key} = {number}"))
    });
    number.unwrap_or_else(|| line.to_string())
}

/// The token that ends a reply in harmony; then the first id and the texts of its special tokens.
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

/// The `[chat]` table of a model that speaks harmony, as comments for a person to confirm.
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

/// The `[chat]` table of a model, as comments: only `stops` are known, and the format that these
/// ids suggest.
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
    if checkpoint.form == Form::Mistral {
        lines.text("form", "mistral");
    }
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

/// A leaf of `hw` for `model`, with keys and values in format `kv`.
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

/// Adds the choice of a kernel to a leaf.
pub(super) fn add_op(leaf: &mut String, table: &str, op: &Op) {
    let mut lines = Lines(std::mem::take(leaf));
    lines.table(&format!("op.{table:?}"));
    lines.text("kernel", &op.kernel);
    lines.count("threads", op.threads);
    lines.text("why", &op.why);
    *leaf = lines.0;
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
