//! Comparison of a model's facts with the configuration files beside its manifest.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::ManifestError;
use crate::facts::{FAMILY, Fact, contradiction};
use crate::family::{FeedForward, MAMBA, Mixers, Switch};
use crate::numbers::{
    self, Has, Number, ROPE_THETA, ROTARY_DIM, TURNED_ELEMENTS, TURNED_PAIRS, of_table, places,
};
use crate::params;
use crate::schema::model::{self as schema, AddedTokens, Attention, Form, Mixer, Model};
use crate::table::{ALGORITHM, Format};
use crate::target::Target;

/// A fact with one right value.
pub(crate) fn fact(key: &'static str, value: impl Into<Value>, pointer: &'static str) -> Fact {
    one_of(key, &[value.into()], pointer)
}

/// A fact with several right values.
fn one_of(key: &'static str, right: &[Value], pointer: &'static str) -> Fact {
    Fact {
        key,
        pointer,
        elsewhere: &[],
        right: Cow::Owned(Value::from(right).to_string()),
        required: false,
        switch: None,
    }
}

/// A fact that follows from the family, with one or several right values.
pub(crate) fn family_fact(right: &[Value], pointer: &'static str) -> Fact {
    one_of(FAMILY, right, pointer)
}

impl Fact {
    /// The fact, with `elsewhere` as its pointers in older configurations.
    fn or(self, elsewhere: &'static [&'static str]) -> Fact {
        Fact { elsewhere, ..self }
    }
}

/// Every fact of a configuration that answers depend on: dimensions, and settings that change
/// answers but no tensor's shape. `max_position` is none; only builds compare it.
pub(crate) fn config_facts(target: &Target) -> Vec<Fact> {
    let model = &target.model;
    let stated = Stated::of(target);
    let mut facts = target.traits().facts(&dense_layers(target));
    facts.extend(both(target));
    if !target.has(Switch::Unturned) {
        facts.extend(stated.rope());
    }
    facts.extend(stated.numbers());
    if target.has(Switch::Latent) {
        facts.extend(latent(model));
    }
    facts.extend(layers(target));
    facts.extend(quantisation(target));
    facts.extend(model.chat.as_ref().map(|chat| {
        // `generation_config.json` may list one more id.
        let fewer = chat.stop_ids.iter().map(|id| {
            let others = chat.stop_ids.iter().filter(|other| *other != id);
            others.copied().collect::<Vec<u64>>()
        });
        let lists = fewer.filter(|ids| !ids.is_empty());
        let lists = std::iter::once(chat.stop_ids.clone()).chain(lists);
        let mut right: Vec<_> = chat.stop_ids.iter().map(|id| json!(id)).collect();
        for value in lists.flat_map(|ids| orders(&ids)) {
            if !right.contains(&value) {
                right.push(value);
            }
        }
        one_of("chat.stop_ids", &right, "/eos_token_id")
    }));
    match target.form() {
        Form::Transformers => facts,
        Form::Mistral => params::facts(model, facts),
    }
}

/// Fact that experts stand beside the MLP of every layer.
fn both(target: &Target) -> Option<Fact> {
    let parts = target.model.feed_forward();
    let both = parts.contains(&schema::FeedForward::Both);
    let switch = fact("layers.feed_forward", both, "/enable_moe_block");
    target.has(Switch::Both).then_some(Fact {
        required: both,
        ..switch
    })
}

/// Indices of layers with an MLP.
fn dense_layers(target: &Target) -> Vec<usize> {
    let parts = target.model.feed_forwards().into_iter().enumerate();
    let dense = parts.filter(|(_, part)| *part == schema::FeedForward::Mlp);
    dense.map(|(layer, _)| layer).collect()
}

/// Number of leading layers that `layers` lists: the first index that is missing.
pub(crate) fn leading(layers: &[usize]) -> usize {
    let layers = layers.iter().enumerate();
    layers.take_while(|(at, layer)| at == *layer).count()
}

/// A fact at the first of `places`; the other places are its `elsewhere`.
fn at(
    key: &'static str,
    value: impl Into<Value>,
    places: &'static [&'static str],
    required: bool,
) -> Fact {
    let (pointer, elsewhere) = places.split_first().expect("a fact has a place");
    Fact {
        required,
        ..fact(key, value, pointer).or(elsewhere)
    }
}

/// Pointers to the kind of a RoPE scaling, in both forms of configurations and under both names.
pub(crate) const KIND: &[&str] = &[
    "/rope_parameters/rope_type",
    "/rope_parameters/type",
    "/rope_scaling/rope_type",
    "/rope_scaling/type",
];
/// RoPE scalings: table of the manifest, and kind in configurations.
pub(crate) const SCALINGS: [[&str; 2]; 2] = [
    ["attention.rope_scaling", "llama3"],
    ["attention.yarn", "yarn"],
];

/// A model as its manifest states it.
struct Stated<'a> {
    target: &'a Target,
    form: numbers::Form,
    manifest: Value,
}

impl Stated<'_> {
    fn of(target: &Target) -> Stated<'_> {
        Stated {
            target,
            form: numbers::Form::of(&target.model),
            manifest: json!(target.model),
        }
    }

    /// Value of a key in the manifest; null if it is absent.
    fn value(&self, key: &str) -> Value {
        let stated = self.manifest.pointer(&numbers::pointer(key));
        stated.cloned().unwrap_or_default()
    }

    /// Facts of the model's numbers, without those of rotation and windows.
    fn numbers(&self) -> Vec<Fact> {
        let facts = numbers::all(self.target.traits()).flat_map(|number| {
            match (number.key, number.table()) {
                ("sliding.window", _) => self.window(),
                (ROPE_THETA, _) | (_, "sliding" | "attention.rope_scaling" | "attention.yarn") => {
                    Vec::new()
                }
                _ => Vec::from_iter(self.number(number)),
            }
        });
        facts.collect()
    }

    /// Facts of a table's numbers, if the model has the table.
    fn of_table(&self, table: &str) -> impl Iterator<Item = Fact> {
        of_table(self.target.traits(), table).filter_map(|number| self.number(number))
    }

    /// A number as configurations state it; none if configurations imply it by other numbers.
    fn number(&self, number: &Number) -> Option<Fact> {
        let (traits, model) = (self.target.traits(), &self.target.model);
        let (value, table) = (self.value(number.key), number.table());
        if !table.is_empty() && self.value(table).is_null() {
            return None;
        }
        let yarn = model.attention.yarn.as_ref();
        let alone = yarn.is_some_and(|yarn| yarn.mscale_all_dim.is_none());
        let is_latent = traits.has(Switch::Latent);
        let (value, required) = match number.key {
            "max_position" | ROTARY_DIM | TURNED_PAIRS => return None,
            "sliding.rotary_dim" | "sliding.turned_pairs" => return None,
            "attention.kv_heads" | "attention.head_dim" if is_latent => return None,
            "tied_head" => (value, model.tied_head != traits.tied),
            "attention.head_dim" => (value, !self.is_share(&model.attention)),
            "attention.yarn.truncate" => (json!(!value.is_null()), value.is_null()),
            "attention.yarn.attention_factor" => (value, alone),
            "moe.shared_intermediate" if traits.feed_forward == FeedForward::UngatedShared => {
                (self.shared_experts(), true)
            }
            _ => (value, number.required),
        };
        // Numbers outside of tables are compared in every family.
        let has = table.is_empty() || (number.of)(&self.form) != Has::Never;
        let stated = !value.is_null();
        let places = number.places(traits);
        (stated || has).then(|| at(number.key, value, places, required && stated))
    }

    /// Whether heads have the width that transformers assumes where none is stated.
    fn is_share(&self, attention: &Attention) -> bool {
        let share = self.target.model.hidden == attention.heads * attention.head_dim;
        self.target.traits().default_head_dim && share
    }

    /// Number of shared experts: their inner width divided by that of a routed expert.
    fn shared_experts(&self) -> Value {
        let moe = self.target.model.moe();
        match moe.shared().is_multiple_of(moe.intermediate) {
            true => json!(moe.shared() / moe.intermediate),
            false => json!(moe.shared() as f64 / moe.intermediate as f64),
        }
    }

    /// Facts of RoPE, at the pointers of both forms of configurations.
    fn rope(&self) -> Vec<Fact> {
        let (attention, traits) = (&self.target.model.attention, self.target.traits());
        let is_latent = traits.has(Switch::Latent);
        let mut facts = Vec::from_iter(self.number(numbers::of_key(ROPE_THETA)));
        if !is_latent {
            let key = traits
                .word(TURNED_PAIRS)
                .map_or(ROTARY_DIM, |_| TURNED_PAIRS);
            facts.push(self.turned(key, attention));
        }
        facts.push(fact(FAMILY, is_latent, "/rope_interleave"));
        let is_there = |[table, _]: &[&str; 2]| !self.value(table).is_null();
        let Some([table, kind]) = SCALINGS.into_iter().find(is_there) else {
            let [table, _] = SCALINGS[usize::from(traits.mixers == Mixers::Windowed)];
            let kinds = [json!("default"), json!("mrope")];
            let kind = one_of(table, &kinds, KIND[0]).or(&KIND[1..]);
            return [facts, vec![kind, at(table, 1, places!("factor"), false)]].concat();
        };
        facts.push(at(table, kind, KIND, true));
        facts.extend(self.of_table(table));
        // The quotient of YaRN's two `mscale` scales queries and keys; it must be 1.
        facts.extend(attention.yarn.as_ref().map(|yarn| {
            let (key, number) = ("attention.yarn.mscale_all_dim", yarn.mscale_all_dim);
            at(key, number, places!("mscale"), number.is_some())
        }));
        facts
    }

    /// Fact of the elements of a head that are rotated.
    fn turned(&self, key: &'static str, attention: &Attention) -> Fact {
        let places = numbers::of_key(key).places(self.target.traits());
        let share = attention.turned_share();
        let turned = at(key, share, places, share != 1.0);
        match places.contains(&TURNED_ELEMENTS) {
            // A number of elements, which cannot be mistaken for a share.
            true => Fact {
                right: Cow::Owned(json!([attention.rotary_dim, share]).to_string()),
                ..turned
            },
            false => turned,
        }
    }

    /// Facts of the window of positions, or of its absence.
    fn window(&self) -> Vec<Fact> {
        let traits = self.target.traits();
        let model = &self.target.model;
        let Some(sliding) = &model.sliding else {
            let none = Fact {
                switch: traits.window_switch,
                ..fact(FAMILY, Value::Null, "/sliding_window")
            };
            return Vec::from_iter((traits.mixers != Mixers::Windowed).then_some(none));
        };
        let mut facts: Vec<_> = self.of_table("sliding").collect();
        facts.push(self.turned("sliding.rotary_dim", sliding));
        let kinds = LAYER_ROPE_TYPES
            .into_iter()
            .zip([&model.attention, sliding]);
        facts.extend(kinds.map(|(pointer, its)| match its.turned_pairs {
            Some(_) => at(TURNED_PAIRS, "proportional", pointer, true),
            None => at(FAMILY, "default", pointer, false),
        }));
        facts
    }
}

/// Facts of the order of layers.
fn layers(target: &Target) -> Vec<Fact> {
    let names = target.mixers().into_iter().map(|mixer| match mixer {
        Mixer::Recurrent(recurs) => recurs.stated,
        Mixer::Attention => "full_attention",
        Mixer::Sliding => "sliding_attention",
        Mixer::None => "none",
    });
    let names = Value::from_iter(names);
    if target.traits().mixers == Mixers::Mamba {
        return vec![pattern(target)];
    }
    let period = &target.model.layers.period;
    let mut facts = vec![fact("layers.period", names, "/layer_types")];
    let (last, others) = period.split_last().expect("a checked period is not empty");
    if target.traits().mixers == Mixers::Hybrid
        && *last == Mixer::Attention
        && others.iter().all(|mixer| mixer.recurs())
    {
        facts.push(fact(
            "layers.period",
            period.len(),
            "/full_attention_interval",
        ));
    }
    facts
}

/// Blocks of layers with one block: letter and word in configurations, mixer and feed-forward.
pub(crate) const BLOCKS: [([&str; 2], (Mixer, schema::FeedForward)); 3] = [
    (
        ["M", "linear_attention"],
        (Mixer::Recurrent(&MAMBA), schema::FeedForward::None),
    ),
    (
        ["*", "full_attention"],
        (Mixer::Attention, schema::FeedForward::None),
    ),
    (["E", "moe"], (Mixer::None, schema::FeedForward::Moe)),
];

/// Fact of the block of each layer, as a text of letters or a list of words.
fn pattern(target: &Target) -> Fact {
    let mixers = target.mixers().into_iter();
    let blocks = mixers.flat_map(|mixer| BLOCKS.iter().find(|(_, (its, _))| *its == mixer));
    let blocks = blocks.map(|([letter, word], _)| (*letter, *word));
    let (letters, words): (String, Vec<_>) = blocks.unzip();
    let right = [json!(letters), json!(words)];
    Fact {
        required: true,
        ..one_of("layers.period", &right, "/hybrid_override_pattern").or(&["/layers_block_type"])
    }
}

/// Facts of `quantization_config`: the leaf's first format that is not a float, beside formats of
/// another algorithm. A leaf that derives its weights reads its source's configuration instead.
fn quantisation(target: &Target) -> Vec<Fact> {
    const MIXED: &str = "\"MIXED_PRECISION\"";
    if target.leaf.derive.is_some() {
        return Vec::new();
    }
    let rows = target.table();
    let formats = rows.iter().filter_map(|row| row.format());
    let described = formats.map(Format::described);
    let described: Vec<_> = described.filter(|facts| !facts.is_empty()).collect();
    let Some(facts) = described.first() else {
        return vec![fact("format", Value::Null, "/quantization_config")];
    };
    let of = |(at, json): &(&'static str, &'static str)| {
        let differs = |(other, its): &(&str, &str)| other == at && its != json;
        let mut all = described.iter().copied().flatten();
        let mixed = *at == ALGORITHM && all.any(differs);
        let json = if mixed { MIXED } else { json };
        let value: Value = serde_json::from_str(json).expect("JSON of the table of formats");
        fact("format", value, at)
    };
    facts.iter().map(of).collect()
}

/// Right values of a list of ids: in the manifest's order, ascending, descending.
fn orders(ids: &[u64]) -> [Value; 3] {
    let mut up = ids.to_vec();
    up.sort_unstable();
    let down: Vec<u64> = up.iter().rev().copied().collect();
    [json!(ids), json!(up), json!(down)]
}

/// Compares the model of `target` with the content of `config.json` at `path`.
///
/// # Errors
/// Text that is no JSON, or the first fact that the configuration states differently.
pub(crate) fn check_config(
    target: &Target,
    path: &str,
    content: &[u8],
) -> Result<(), ManifestError> {
    compare(target, path, content, &config_checks(target))
}

/// Facts that a build compares with `config.json`.
pub(crate) fn config_checks(target: &Target) -> Vec<Fact> {
    let mut facts = config_facts(target);
    let positions = target.model.max_position;
    facts.push(fact("max_position", positions, "/max_position_embeddings"));
    facts
}

/// Facts of the widths of heads that are made of latents.
fn latent(model: &Model) -> Vec<Fact> {
    let (heads, rotary_dim) = (model.attention.heads, model.attention.rotary_dim);
    let head = model.latent().nope_dim + rotary_dim;
    let share = rotary_dim as f64 / head as f64;
    let places = places!("partial_rotary_factor");
    vec![
        fact(FAMILY, heads, "/num_key_value_heads"),
        at(ROTARY_DIM, rotary_dim, &["/qk_rope_head_dim"], true),
        at(
            "attention.head_dim",
            model.latent_rank(),
            &["/kv_lora_rank"],
            true,
        ),
        fact("latent.nope_dim", head, "/head_dim"),
        fact("latent.nope_dim", head, "/qk_head_dim"),
        at(ROTARY_DIM, share, places, false),
    ]
}

/// Pointers to the RoPE scaling of each kind of layer.
const LAYER_ROPE_TYPES: [&[&str]; 2] = [
    &["/rope_parameters/full_attention/rope_type"],
    &["/rope_parameters/sliding_attention/rope_type"],
];

/// Facts of `generation_config.json`: tokens that end a reply, which answers depend on.
pub(crate) fn generation_facts(model: &Model) -> Vec<Fact> {
    let Some(chat) = &model.chat else {
        return Vec::new();
    };
    let mut right = orders(&chat.stop_ids).to_vec();
    if let [only] = chat.stop_ids[..] {
        right.push(json!(only));
    }
    vec![one_of("chat.stop_ids", &right, "/eos_token_id")]
}

/// Compares the model of `target` with the content of `generation_config.json` at `path`.
pub(crate) fn check_generation(
    target: &Target,
    path: &str,
    content: &[u8],
) -> Result<(), ManifestError> {
    compare(target, path, content, &generation_checks(&target.model))
}

/// Facts that a build compares with `generation_config.json`.
pub(crate) fn generation_checks(model: &Model) -> Vec<Fact> {
    let sampling = &model.sampling;
    let mut facts = generation_facts(model);
    facts.extend([
        fact("sampling.temperature", sampling.temperature, "/temperature"),
        fact("sampling.top_k", sampling.top_k, "/top_k"),
        fact("sampling.top_p", sampling.top_p, "/top_p"),
    ]);
    facts
}

/// Compares the added tokens of the model with the content of `tokenizer.json` at `path`.
pub(crate) fn check_tokenizer(
    target: &Target,
    path: &str,
    content: &[u8],
) -> Result<(), ManifestError> {
    let tokenizer = parse(path, content)?;
    let added = tokenizer.get("added_tokens").and_then(Value::as_array);
    let Some(chat) = &target.model.chat else {
        return Ok(());
    };
    let AddedTokens { first, texts } = &chat.added_tokens;
    for (id, text) in (*first..).zip(texts) {
        let is = |token: &&Value| token.get("id").and_then(Value::as_u64) == Some(id);
        let token = added.and_then(|tokens| tokens.iter().find(is));
        let stated = token.and_then(|token| token.get("content")?.as_str());
        if stated != Some(text) {
            let rule = format!("{path} states {stated:?} for the token {id}");
            return Err(ManifestError::key(
                &target.model_path("model.toml"),
                "chat.added_tokens",
                format!("{text:?}"),
                &rule,
            ));
        }
    }
    Ok(())
}

fn parse(path: &str, content: &[u8]) -> Result<Value, ManifestError> {
    serde_json::from_slice(content).map_err(|error| ManifestError::file(path, error.to_string()))
}

fn compare(
    target: &Target,
    path: &str,
    content: &[u8],
    facts: &[Fact],
) -> Result<(), ManifestError> {
    let config = parse(path, content)?;
    let Some(found) = contradiction(&config, facts) else {
        return Ok(());
    };
    let file = target.model_path("model.toml");
    let (value, rule) = match found.key {
        FAMILY => (
            json!(target.model.family).to_string(),
            format!(
                "{path} {}; its layer math has {}",
                found.stated, found.right
            ),
        ),
        _ => (found.right, format!("{path} {}", found.stated)),
    };
    Err(ManifestError::key(&file, found.key, value, &rule))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use std::collections::BTreeSet;

    use super::{check_config, check_generation, check_tokenizer, config_facts};
    use crate::error::ManifestError;
    use crate::facts::{contradiction, unknown_maths};
    use crate::schema::model::Family;
    use crate::target::Target;
    use crate::testing::{repository, usual};

    type Check = fn(&Target, &str, &[u8]) -> Result<(), ManifestError>;

    const CONFIG: &str = include_str!("../../../targets/_model/tiny/config.json");

    fn message(check: Check, content: &str) -> String {
        let target = repository("cpu/tiny/nvfp4");
        let error = check(&target, "a.json", content.as_bytes()).unwrap_err();
        let text = error.to_string();
        text.strip_prefix("targets/_model/tiny/")
            .unwrap_or(&text)
            .to_string()
    }

    /// The message for the configuration of `tiny` with one value replaced.
    fn config_with(pointer: &str, value: Value) -> String {
        let mut config: Value = serde_json::from_str(CONFIG).unwrap();
        *config.pointer_mut(pointer).unwrap() = value;
        message(check_config, &config.to_string())
    }

    #[test]
    fn another_width_is_refused() {
        let expected = "model.toml: hidden = 256: a.json states 128 at \
                        /text_config/hidden_size";
        assert_eq!(
            config_with("/text_config/hidden_size", json!(128)),
            expected
        );
    }

    #[test]
    fn another_rotary_share_is_refused() {
        let pointer = "/text_config/rope_parameters/partial_rotary_factor";
        let expected = "model.toml: attention.rotary_dim = 0.25: a.json states 0.5 at \
                        /text_config/rope_parameters/partial_rotary_factor";
        assert_eq!(config_with(pointer, json!(0.5)), expected);
    }

    #[test]
    fn other_layers_are_refused() {
        let message = config_with("/text_config/layer_types/0", json!("full_attention"));
        assert!(message.starts_with("model.toml: layers.period = [\"linear_attention\","));
        assert!(
            message.contains("a.json states [\"full_attention\","),
            "{message}"
        );
    }

    #[test]
    fn other_stop_tokens_are_refused() {
        let expected = "model.toml: chat.stop_ids = [3065,3063]: a.json states 3065 at \
                        /eos_token_id";
        assert_eq!(
            message(check_generation, r#"{"eos_token_id": 3065}"#),
            expected
        );
    }

    #[test]
    fn another_temperature_is_refused() {
        let expected = "model.toml: sampling.temperature = 0.7: a.json states 1.0 at /temperature";
        assert_eq!(
            message(check_generation, r#"{"temperature": 1.0}"#),
            expected
        );
    }

    #[test]
    fn an_added_token_of_another_text_is_refused() {
        let text = r#"{"added_tokens": [{"id": 3063, "content": "<tool_call>"}]}"#;
        let expected = "model.toml: chat.added_tokens = \"<|endoftext|>\": a.json states \
                        Some(\"<tool_call>\") for the token 3063";
        assert_eq!(message(check_tokenizer, text), expected);
    }

    #[test]
    fn text_that_is_no_json_is_refused() {
        assert_eq!(
            message(check_config, "{"),
            "a.json: EOF while parsing an object at line 1 column 1"
        );
    }

    /// Edits of the configuration of `tiny`: where, what is written there, and what is right.
    const EDITS: [(&str, &str, &str); 29] = [
        (
            "/text_config/rope_parameters/rope_type",
            "\"yarn\"",
            "\"default\"",
        ),
        (
            "/text_config/rope_parameters/rope_type",
            "\"linear\"",
            "\"default\"",
        ),
        (
            "/text_config/rope_parameters/rope_theta",
            "10000",
            "10000000.0",
        ),
        ("/text_config/rope_parameters/factor", "4.0", "1"),
        (
            "/text_config/rope_scaling",
            r#"{"type": "linear", "factor": 2.0}"#,
            "\"default\"",
        ),
        ("/rope_scaling", r#"{"rope_type": "yarn"}"#, "\"default\""),
        ("/text_config/rope_theta", "10000", "10000000.0"),
        ("/text_config/hidden_act", "\"gelu\"", "\"silu\""),
        ("/text_config/attention_bias", "true", "false"),
        ("/text_config/attn_output_gate", "false", "true"),
        ("/text_config/norm_topk_prob", "false", "true"),
        ("/text_config/routed_scaling_factor", "2.5", "1"),
        ("/text_config/scoring_func", "\"sigmoid\"", "\"softmax\""),
        ("/text_config/num_experts_per_tok", "4", "2"),
        ("/text_config/rms_norm_eps", "0.00001", "1e-6"),
        ("/text_config/sliding_window", "512", "none"),
        ("/text_config/final_logit_softcapping", "30.0", "none"),
        ("/text_config/mlp_only_layers", "[0]", "[]"),
        ("/text_config/tie_word_embeddings", "true", "false"),
        ("/text_config/is_causal", "false", "true"),
        ("/is_causal", "false", "true"),
        ("/text_config/num_local_experts", "9", "8"),
        ("/num_local_experts", "7", "8"),
        ("/text_config/use_sliding_window", "true", "false"),
        (
            "/text_config/model_type",
            "\"llama\"",
            "\"qwen3_5_moe_text\"",
        ),
        ("/model_type", "\"llama\"", "\"qwen3_5_moe_text\""),
        (
            "/architectures",
            "[\"LlamaForCausalLM\"]",
            "[\"Qwen3_5MoeForCausalLM\"]",
        ),
        (
            "/quantization_config/quant_method",
            "\"gptq\"",
            "\"compressed-tensors\"",
        ),
        (
            "/quantization_config/config_groups/group_0/weights/type",
            "\"int\"",
            "\"float\"",
        ),
    ];

    /// The configuration of `tiny` with `value` at `pointer`, which may be there or not.
    fn edited(pointer: &str, value: &str) -> Value {
        let mut config: Value = serde_json::from_str(CONFIG).unwrap();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = config.pointer_mut(parent).unwrap();
        parent[name] = serde_json::from_str(value).unwrap();
        config
    }

    #[test]
    fn every_edit_that_changes_answers_is_refused_by_its_key() {
        for (pointer, value, right) in EDITS {
            let message = message(check_config, &edited(pointer, value).to_string());
            let states = format!("states {}", value.split(['{', '}']).next().unwrap());
            assert!(
                message.contains(&states) && message.contains(pointer),
                "{message}"
            );
            assert!(message.contains(right), "{message}");
        }
    }

    #[test]
    fn a_configuration_that_hides_what_shapes_do_not_show_is_refused() {
        for name in ["rms_norm_eps", "rope_parameters", "num_experts_per_tok"] {
            let pointer = format!("/text_config/{name}");
            let message = message(check_config, &edited(&pointer, "null").to_string());
            assert!(message.contains("does not state"), "{message}");
        }
    }

    #[test]
    fn what_changes_no_answer_may_be_stated() {
        for (pointer, value) in [
            ("/text_config/rope_scaling", "null"),
            ("/text_config/rope_theta", "1e7"),
            ("/text_config/rope_parameters/mrope_section", "[0, 0, 0]"),
            ("/text_config/hidden_act", "\"swish\""),
            ("/text_config/use_sliding_window", "false"),
            ("/text_config/sliding_window", "null"),
            ("/text_config/is_causal", "true"),
            ("/text_config/num_local_experts", "8"),
            ("/text_config/residual_scale", "2.0"),
            ("/transformers_version", "\"9.9\""),
            ("/eos_token_id", "[3063, 3065]"),
            ("/quantization_config", "null"),
        ] {
            let target = repository("cpu/tiny/nvfp4");
            let config = edited(pointer, value).to_string();
            check_config(&target, "a.json", config.as_bytes()).unwrap();
        }
    }

    /// A model, its window and the window's switch, and whether that is refused.
    const WINDOWS: [(&str, Option<u64>, Option<bool>, bool); 8] = [
        ("qwen3-1", Some(4096), Some(false), false),
        ("qwen3_moe-1", Some(1), Some(false), false),
        ("qwen3_next-1", Some(64), Some(false), false),
        ("qwen3-1", Some(4096), None, true),
        ("qwen3-1", Some(4096), Some(true), true),
        ("qwen3-1", None, Some(true), true),
        ("llama-3", Some(4096), Some(false), true),
        ("mixtral-1", Some(4096), Some(false), true),
    ];

    #[test]
    fn a_window_that_is_switched_off_is_none_where_the_library_has_the_switch() {
        for (model, window, switch, refused) in WINDOWS {
            let target = repository(&format!("cpu/random-{model}/bf16"));
            let mut config = usual(&config_facts(&target));
            config["sliding_window"] = json!(window);
            config["use_sliding_window"] = json!(switch);
            let found = check_config(&target, "a.json", config.to_string().as_bytes());
            assert_eq!(found.is_err(), refused, "{model}: {config}");
        }
    }

    #[test]
    fn experts_may_stand_under_either_name_and_under_both_if_equal() {
        for model in ["qwen3_moe-1", "mixtral-1", "qwen3_next-1", "ratio1"] {
            let target = repository(&format!("cpu/random-{model}/bf16"));
            let experts = target.model.moe().experts;
            for (one, other) in [
                (experts, None),
                (experts, Some(experts)),
                (experts, Some(99)),
            ] {
                for [a, b] in [
                    ["num_experts", "num_local_experts"],
                    ["num_local_experts", "num_experts"],
                ] {
                    let mut config = usual(&config_facts(&target));
                    config[a] = one.into();
                    config[b] = other.map_or(Value::Null, Value::from);
                    let found = check_config(&target, "a.json", config.to_string().as_bytes());
                    assert_eq!(
                        found.is_ok(),
                        other.is_none_or(|other| other == one),
                        "{config}"
                    );
                }
            }
        }
    }

    #[test]
    fn tokens_that_end_a_reply_may_lack_one_and_have_no_others() {
        let target = repository("h200/gemma-4-26b-a4b/nvfp4a16");
        for (ids, right) in [
            (json!([1, 106]), true),
            (json!([1, 106, 50]), true),
            (json!(1), true),
            (json!([1, 2]), false),
            (json!([]), false),
        ] {
            let mut config = usual(&config_facts(&target));
            config["eos_token_id"] = ids;
            let found = check_config(&target, "a.json", config.to_string().as_bytes());
            assert_eq!(found.is_ok(), right, "{found:?}");
        }
    }

    #[test]
    fn a_tied_head_must_be_stated() {
        for model in ["llama-1", "qwen3-1", "mixtral-2", "qwen3_next-2"] {
            let target = repository(&format!("cpu/random-{model}/bf16"));
            let mut config = usual(&config_facts(&target));
            config["tie_word_embeddings"].take();
            let error = check_config(&target, "a.json", config.to_string().as_bytes()).unwrap_err();
            let expected = "tied_head = true: a.json does not state /tie_word_embeddings";
            assert!(error.to_string().ends_with(expected), "{error}");
        }
    }

    #[test]
    fn no_key_of_the_repository_s_configurations_is_a_stranger() {
        for leaf in [
            "cpu/tiny/nvfp4",
            "cpu/random-mixtral-1/bf16",
            "cpu/random-llama-2/bf16",
        ] {
            let target = repository(leaf);
            let path = format!("targets/_model/{}/config.json", target.leaf.model);
            let config = std::fs::read(crate::testing::root().join(path)).unwrap();
            let config: Value = serde_json::from_slice(&config).unwrap();
            assert_eq!(
                unknown_maths(&config, &config_facts(&target)),
                [""; 0],
                "{leaf}"
            );
        }
    }

    #[test]
    fn keys_that_speak_of_maths_are_told_but_for_towers_and_what_is_compared() {
        let facts = config_facts(&repository("cpu/tiny/nvfp4"));
        let config = json!({
            "routed_scaling_factor": 1, "logit_scale": 1, "rope_scaling": {"factor": 1},
            "is_causal": true, "vision_config": {"embed_scale": 2}, "hidden_size": 3,
            "attention_scale": null, "quantization_config": {"scale_fmt": "ue8m0"},
            "qk_clip": 7, "text_config": {"attn_temperature_tuning": true,
                "rope_parameters": {"mscale": 0.5}, "bidirectional": [1]},
        });
        let expected = [
            "/qk_clip = 7",
            "/text_config/attn_temperature_tuning = true",
            "/text_config/bidirectional = [1]",
            "/text_config/rope_parameters/mscale = 0.5",
        ];
        let mut found = unknown_maths(&config, &facts);
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_model_without_quantisation_has_no_description_of_one() {
        let target = repository("cpu/random-ratio3/bf16");
        let path = crate::testing::root().join("targets/_model/random-ratio3/config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        check_config(&target, "a.json", config.to_string().as_bytes()).unwrap();
        config["quantization_config"] = json!({"quant_method": "awq"});
        let error = check_config(&target, "a.json", config.to_string().as_bytes()).unwrap_err();
        assert!(
            error.to_string().contains("/quantization_config"),
            "{error}"
        );
    }

    #[test]
    fn what_the_library_would_not_assume_of_experts_must_be_stated() {
        let target = repository("cpu/random-qwen3_moe-1/bf16");
        let mut config = usual(&config_facts(&target));
        config["norm_topk_prob"].take();
        let error = check_config(&target, "a.json", config.to_string().as_bytes()).unwrap_err();
        let expected = "family = \"qwen3_moe\": a.json does not state /norm_topk_prob; its layer \
                        math has true";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    #[test]
    fn what_must_be_stated_may_stand_where_older_configurations_have_it() {
        let target = repository("cpu/random-ratio3/bf16");
        let mut config = usual(&config_facts(&target));
        config["rope_parameters"].take();
        check_config(&target, "a.json", config.to_string().as_bytes()).unwrap();
        config["rope_theta"].take();
        let error = check_config(&target, "a.json", config.to_string().as_bytes()).unwrap_err();
        let expected = "a.json does not state /rope_parameters/rope_theta";
        assert!(error.to_string().ends_with(expected), "{error}");
    }

    #[test]
    fn every_family_is_compared_with_a_configuration_that_is_right_for_it() {
        let mut families = BTreeSet::new();
        let leaves = crate::target::leaves(&crate::testing::root()).unwrap();
        for leaf in leaves.iter().filter(|leaf| leaf.starts_with("cpu/")) {
            let target = repository(leaf);
            families.insert(target.traits().name);
            let facts = config_facts(&target);
            assert_eq!(contradiction(&usual(&facts), &facts), None, "{leaf}");
        }
        assert_eq!(families.len(), Family::ALL.len(), "{families:?}");
    }
}
