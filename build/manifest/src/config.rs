//! A model's facts against the configuration files that lie beside its manifest.

use serde_json::Value;

use crate::error::ManifestError;
use crate::schema::model::{AddedTokens, Mixer, Model};

/// What `model.toml` states under `key`, and where the configuration states it.
struct Fact {
    key: &'static str,
    value: Value,
    /// JSON pointer.
    pointer: &'static str,
}

fn fact(key: &'static str, value: impl Into<Value>, pointer: &'static str) -> Fact {
    let value = value.into();
    Fact {
        key,
        value,
        pointer,
    }
}

/// Compares `model` (of the manifest `file`) with the content of `config.json` at `path`.
///
/// # Errors
/// Text that is no JSON, or the first fact that the configuration states differently.
pub(crate) fn check_config(
    model: &Model,
    file: &str,
    path: &str,
    content: &[u8],
) -> Result<(), ManifestError> {
    let config = parse(path, content)?;
    let text = config.get("text_config").unwrap_or(&config);
    let rotary = model.attention.rotary_dim as f64 / model.attention.head_dim as f64;
    let mut facts = dims(model);
    facts.extend(mixers(model));
    facts.push(fact(
        "attention.rotary_dim",
        rotary,
        "/rope_parameters/partial_rotary_factor",
    ));
    compare(text, file, path, &facts)?;
    let types = model
        .layers
        .period
        .iter()
        .cycle()
        .take(model.layers.count)
        .map(|mixer| match mixer {
            Mixer::Gdn => "linear_attention",
            Mixer::Attention => "full_attention",
        });
    let types = Value::from_iter(types);
    compare(
        text,
        file,
        path,
        &[fact("layers.period", types, "/layer_types")],
    )
}

fn dims(model: &Model) -> Vec<Fact> {
    vec![
        fact("hidden", model.hidden, "/hidden_size"),
        fact("vocab", model.vocab, "/vocab_size"),
        fact("tied_head", model.tied_head, "/tie_word_embeddings"),
        fact("norm_eps", model.norm_eps, "/rms_norm_eps"),
        fact(
            "max_position",
            model.max_position,
            "/max_position_embeddings",
        ),
        fact("layers.count", model.layers.count, "/num_hidden_layers"),
        fact("mtp.layers", model.mtp.layers, "/mtp_num_hidden_layers"),
        fact("moe.experts", model.moe.experts, "/num_experts"),
        fact(
            "moe.experts_per_token",
            model.moe.experts_per_token,
            "/num_experts_per_tok",
        ),
        fact(
            "moe.intermediate",
            model.moe.intermediate,
            "/moe_intermediate_size",
        ),
        fact(
            "moe.shared_intermediate",
            model.moe.shared_intermediate,
            "/shared_expert_intermediate_size",
        ),
    ]
}

fn mixers(model: &Model) -> Vec<Fact> {
    let (attention, gdn) = (&model.attention, &model.gdn);
    vec![
        fact("attention.heads", attention.heads, "/num_attention_heads"),
        fact(
            "attention.kv_heads",
            attention.kv_heads,
            "/num_key_value_heads",
        ),
        fact("attention.head_dim", attention.head_dim, "/head_dim"),
        fact(
            "attention.rope_theta",
            attention.rope_theta,
            "/rope_parameters/rope_theta",
        ),
        fact("gdn.key_heads", gdn.key_heads, "/linear_num_key_heads"),
        fact(
            "gdn.value_heads",
            gdn.value_heads,
            "/linear_num_value_heads",
        ),
        fact("gdn.key_dim", gdn.key_dim, "/linear_key_head_dim"),
        fact("gdn.value_dim", gdn.value_dim, "/linear_value_head_dim"),
        fact(
            "gdn.conv_kernel",
            gdn.conv_kernel,
            "/linear_conv_kernel_dim",
        ),
    ]
}

/// Compares `model` with the content of `generation_config.json` at `path`.
///
/// # Errors
/// As [`check_config`].
pub(crate) fn check_generation(
    model: &Model,
    file: &str,
    path: &str,
    content: &[u8],
) -> Result<(), ManifestError> {
    let config = parse(path, content)?;
    let sampling = &model.sampling;
    let mut facts = vec![
        fact("sampling.temperature", sampling.temperature, "/temperature"),
        fact("sampling.top_k", sampling.top_k, "/top_k"),
        fact("sampling.top_p", sampling.top_p, "/top_p"),
    ];
    let stop = model.chat.as_ref().map(|chat| chat.stop_ids.clone());
    facts.extend(stop.map(|ids| fact("chat.stop_ids", ids, "/eos_token_id")));
    compare(&config, file, path, &facts)
}

/// Compares the added tokens of `model` with the content of its `tokenizer.json` at `path`.
///
/// # Errors
/// As [`check_config`].
pub(crate) fn check_tokenizer(
    model: &Model,
    file: &str,
    path: &str,
    content: &[u8],
) -> Result<(), ManifestError> {
    let tokenizer = parse(path, content)?;
    let Some(chat) = &model.chat else {
        return Ok(());
    };
    let added = tokenizer.get("added_tokens").and_then(Value::as_array);
    let AddedTokens { first, texts } = &chat.added_tokens;
    for (id, text) in (*first..).zip(texts) {
        let is = |token: &&Value| token.get("id").and_then(Value::as_u64) == Some(id);
        let token = added.and_then(|tokens| tokens.iter().find(is));
        let stated = token.and_then(|token| token.get("content")?.as_str());
        if stated != Some(text) {
            let rule = format!("{path} states {stated:?} for the token {id}");
            return Err(ManifestError::key(
                file,
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

/// The first fact that `config` states with another value; what it does not state is not compared.
fn compare(config: &Value, file: &str, path: &str, facts: &[Fact]) -> Result<(), ManifestError> {
    for Fact {
        key,
        value,
        pointer,
    } in facts
    {
        let Some(stated) = config.pointer(pointer) else {
            continue;
        };
        let same = match (value.as_f64(), stated.as_f64()) {
            (Some(value), Some(stated)) => value == stated,
            _ => value == stated,
        };
        if !same {
            let rule = format!("{path} states {stated} at {pointer}");
            return Err(ManifestError::key(file, key, value, &rule));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{check_config, check_generation, check_tokenizer};
    use crate::error::ManifestError;
    use crate::schema::model::Model;
    use crate::testing::repository;

    type Check = fn(&Model, &str, &str, &[u8]) -> Result<(), ManifestError>;

    const CONFIG: &str = include_str!("../../../targets/_model/tiny/config.json");

    fn message(check: Check, content: &str) -> String {
        let model = repository("cpu/tiny/nvfp4").model;
        let error = check(&model, "model.toml", "a.json", content.as_bytes()).unwrap_err();
        error.to_string()
    }

    /// The message for the configuration of `tiny` with one value replaced.
    fn config_with(pointer: &str, value: Value) -> String {
        let mut config: Value = serde_json::from_str(CONFIG).unwrap();
        *config.pointer_mut(pointer).unwrap() = value;
        message(check_config, &config.to_string())
    }

    #[test]
    fn another_width_is_refused() {
        let expected = "model.toml: hidden = 256: a.json states 128 at /hidden_size";
        assert_eq!(
            config_with("/text_config/hidden_size", json!(128)),
            expected
        );
    }

    #[test]
    fn another_rotary_share_is_refused() {
        let pointer = "/text_config/rope_parameters/partial_rotary_factor";
        let expected = "model.toml: attention.rotary_dim = 0.25: a.json states 0.5 at \
                        /rope_parameters/partial_rotary_factor";
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
}
