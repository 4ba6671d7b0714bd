//! Manifests as text in the form people write: digits in groups, absent tables as comments.

use std::fmt::{Display, Write};
use std::ops::RangeInclusive;

use serde::Serialize;

use super::rules::Rule;
use crate::schema::leaf::{Limits, Op, Steps};
use crate::schema::model::{Checkpoint, Model};

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

    fn text(&mut self, key: &str, value: &str) {
        self.set(key, format!("{value:?}"));
    }

    /// Writes the keys of `facts`.
    fn facts(&mut self, facts: &impl Serialize) {
        let text = toml::to_string(facts).expect("plain structures always serialise");
        self.0 += &written(&text);
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
    let mut lines = Lines(written(&facts));
    for (quant, checkpoint) in &checkpoints {
        weights(&mut lines, quant, checkpoint);
    }
    lines.0
}

/// Tables that mean the same as their absence, and that manifests leave out.
const EMPTY: [&str; 2] = ["[mtp]\nlayers = 0", "[checkpoint]"];

/// Lines of TOML with their numbers in groups of digits.
fn written(text: &str) -> String {
    let line = |line: &str| {
        let number = line.split_once(" = ").and_then(|(key, value)| {
            let whole = value.parse().ok().map(grouped);
            let number = whole.or_else(|| value.parse().ok().map(real))?;
            Some(format!("{key} = {number}\n"))
        });
        number.unwrap_or_else(|| format!("{line}\n"))
    };
    text.lines().map(line).collect()
}

/// Tokens that end a reply in harmony: `<|return|>`, `<|call|>`, `<|endoftext|>`.
const HARMONY_STOPS: [u64; 3] = [200_002, 200_012, 199_999];
/// Ids of the special tokens of harmony.
const HARMONY_IDS: RangeInclusive<u64> = 199_998..=200_018;
/// Ids and words of harmony's special tokens that are not reserved.
const HARMONY_WORDS: [(u64, &str); 10] = [
    (199_998, "startoftext"),
    (199_999, "endoftext"),
    (200_002, "return"),
    (200_003, "constrain"),
    (200_005, "channel"),
    (200_006, "start"),
    (200_007, "end"),
    (200_008, "message"),
    (200_012, "call"),
    (200_018, "endofprompt"),
];

/// The list of harmony's special tokens, as a comment.
fn harmony_texts() -> String {
    let texts = HARMONY_IDS.map(|id| {
        let word = HARMONY_WORDS.iter().find(|(known, _)| *known == id);
        let word = word.map_or(format!("reserved_{id}"), |(_, word)| word.to_string());
        format!("#     \"<|{word}|>\",\n")
    });
    format!("\n{}# ", texts.collect::<String>())
}

/// The `[chat]` table of a model, as comments: only `stops` are known, and the format that these
/// ids suggest.
fn chat(stops: &[u64]) -> String {
    let is_harmony = stops.contains(&HARMONY_STOPS[0]);
    let (stops, format, first, texts) = match is_harmony {
        true => (
            &HARMONY_STOPS[..],
            "harmony",
            *HARMONY_IDS.start(),
            harmony_texts(),
        ),
        false => (stops, "hermes", 0, String::new()),
    };
    let ids: Vec<String> = stops.iter().map(|&id| grouped(id)).collect();
    format!(
        "\n# A model without this table builds and does not serve.\n\
         # [chat]\n\
         # stop_ids = [{}]\n\
         # tool_format = \"{format}\"\n\
         # thinking = {is_harmony}\n\
         # tokenizer = \"tokenizer.json\"\n\
         # template = \"chat_template.jinja\"\n\
         #\n\
         # [chat.added_tokens]\n\
         # first = {}\n\
         # texts = [{texts}]\n",
        ids.join(", "),
        grouped(first)
    )
}

fn weights(lines: &mut Lines, quant: &str, checkpoint: &Checkpoint) {
    lines.table(&format!("checkpoint.{quant}"));
    lines.0 += "# repository = \"owner/name\"\n# revision = \"\"\n# text_nll = 0.0\n";
    lines.facts(checkpoint);
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
    lines.facts(limits);
    lines.table("steps");
    lines.facts(steps);
    lines.0
}

/// Adds the choice of a kernel to a leaf.
pub(super) fn add_op(leaf: &mut String, table: &str, op: &Op) {
    let mut lines = Lines(std::mem::take(leaf));
    lines.table(&format!("op.{table:?}"));
    lines.text("kernel", &op.kernel);
    lines.set("threads", op.threads);
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
    use super::{HARMONY_STOPS, chat, grouped, real};
    use crate::schema::model::{Chat, ToolFormat};

    #[test]
    fn harmony_is_known_by_the_token_that_ends_a_reply() {
        let table = chat(&HARMONY_STOPS[..1]);
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
