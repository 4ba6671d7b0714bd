//! `POST /v1/chat/completions`: from JSON to what the engine and the reply need.
//!
//! A field that this server knows is honoured or refused by name; others are ignored.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use serde_json::Value;

use crate::engine::request::{MAX_TOP_LOGPROBS, Sampling, TokenId};
use crate::http::error::ApiError;
use crate::http::fields::{Field, Object};
use crate::http::generate::Ask;
use crate::http::limits::{
    CHOICES_MAX, LOGIT_BIAS_MAX, STOP_BYTES_MAX, STOP_TOKENS_MAX, STOPS_MAX,
};
use crate::target;

use super::messages;

/// A checked request.
#[derive(Debug)]
pub struct ChatRequest {
    pub ask: Ask,
    pub stream: bool,
    pub include_usage: bool,
}

/// Fields that are taken only with the value that changes nothing, and what to do instead.
const REFUSED: &[(&str, &str, &str)] = &[
    ("functions", "[]", "send tools"),
    ("function_call", "\"none\"", "send tool_choice"),
    ("audio", "null", "this server writes text only"),
    ("modalities", "[\"text\"]", "this server writes text only"),
    ("prediction", "null", "predicted outputs are not served"),
    (
        "web_search_options",
        "null",
        "this server reaches no network",
    ),
    ("best_of", "1", "send n"),
    ("use_beam_search", "false", "beam search is not served"),
    ("length_penalty", "1.0", "beam search is not served"),
    ("min_tokens", "0", "a least length is not served"),
    ("echo", "false", "the prompt is not repeated"),
    (
        "prompt_logprobs",
        "null",
        "log-probabilities are of the reply only",
    ),
    ("bad_words", "[]", "send logit_bias"),
    ("allowed_token_ids", "null", "send logit_bias"),
    (
        "structured_outputs",
        "null",
        "constrained output is not served",
    ),
    ("guided_json", "null", "constrained output is not served"),
    ("guided_regex", "null", "constrained output is not served"),
    ("guided_choice", "null", "constrained output is not served"),
    ("guided_grammar", "null", "constrained output is not served"),
    ("regex", "null", "constrained output is not served"),
    ("ebnf", "null", "constrained output is not served"),
    ("grammar", "null", "constrained output is not served"),
    ("json_schema", "null", "constrained output is not served"),
    ("chat_template", "null", "the template comes with the model"),
    ("documents", "null", "put documents into messages"),
    (
        "add_generation_prompt",
        "true",
        "a reply is always the assistant's turn",
    ),
    (
        "continue_final_message",
        "false",
        "a reply is always a turn of its own",
    ),
    (
        "truncate_prompt_tokens",
        "null",
        "prompts are never cut; send less",
    ),
    (
        "include_stop_str_in_output",
        "false",
        "stop strings are no part of a reply",
    ),
    ("skip_special_tokens", "true", "special tokens have no text"),
    ("return_token_ids", "false", "send logprobs"),
    ("return_tokens_as_token_ids", "false", "send logprobs"),
    ("include_reasoning", "true", "reasoning is always reported"),
    ("separate_reasoning", "true", "reasoning is always separate"),
    (
        "thinking",
        "null",
        "send chat_template_kwargs.enable_thinking",
    ),
    (
        "thinking_token_budget",
        "null",
        "send chat_template_kwargs.enable_thinking",
    ),
    ("reasoning", "null", "send reasoning_effort"),
    ("priority", "0", "requests are served in their order"),
    ("repetition_detection", "null", "replies are never watched"),
    ("typical_p", "1.0", "send top_p"),
    ("top_n_sigma", "-1.0", "send min_p"),
    ("logits_processors", "null", "send logit_bias"),
    ("stop_regex", "null", "send stop"),
];

impl ChatRequest {
    /// Reads a body; `model_id` is what this server answers to.
    ///
    /// # Errors
    /// Names the field that is not served.
    pub fn parse(body: &Value, model_id: &str) -> Result<ChatRequest, ApiError> {
        let object = Object::root(body)?;
        check_model(&object, model_id)?;
        for (name, neutral, instead) in REFUSED {
            check_refused(&object, name, neutral, instead)?;
        }
        check_response_format(&object)?;
        let messages = messages::messages(&object.require("messages")?)?;
        let tools = offered_tools(&object)?;
        let stream = object.boolean("stream", false)?;
        let choices = object.integer("n", 1..=CHOICES_MAX as i64)?.unwrap_or(1) as usize;
        let ask = Ask {
            messages,
            tools,
            parallel_tool_calls: object.boolean("parallel_tool_calls", true)?,
            thinking: thinking(&object)?,
            sampling: sampling(&object)?,
            max_tokens: max_tokens(&object)?,
            stops: stops(&object)?,
            stop_tokens: stop_tokens(&object)?,
            ignore_eos: object.boolean("ignore_eos", false)?,
            logprobs: logprobs(&object)?,
            choices,
        };
        Ok(ChatRequest {
            ask,
            stream,
            include_usage: include_usage(&object, stream)?,
        })
    }
}

fn check_model(object: &Object<'_>, model_id: &str) -> Result<(), ApiError> {
    let Some(model) = object.get("model") else {
        return Ok(());
    };
    if model.string()? == model_id {
        return Ok(());
    }
    Err(ApiError {
        code: Some("model_not_found"),
        status: hyper::StatusCode::NOT_FOUND,
        ..model.error(format!("this server has one model, {model_id}"))
    })
}

fn check_refused(
    object: &Object<'_>,
    name: &str,
    neutral: &str,
    instead: &str,
) -> Result<(), ApiError> {
    let Some(field) = object.get(name) else {
        return Ok(());
    };
    let neutral: Value = serde_json::from_str(neutral).unwrap_or(Value::Null);
    let same_number = field.value.as_f64().is_some() && field.value.as_f64() == neutral.as_f64();
    if *field.value == neutral || same_number {
        return Ok(());
    }
    Err(ApiError {
        code: Some("unsupported_parameter"),
        ..field.error(format!("is not served; {instead}"))
    })
}

fn check_response_format(object: &Object<'_>) -> Result<(), ApiError> {
    let Some(format) = object.get("response_format") else {
        return Ok(());
    };
    let kind = format.object()?.require("type")?;
    match kind.string()? {
        "text" => Ok(()),
        _ => Err(kind.error("must be text; constrained output is not served")),
    }
}

/// The tools that the reply may call.
fn offered_tools(object: &Object<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = object
        .get("tools")
        .map(|tools| messages::tools(&tools))
        .transpose()?;
    let tools = tools.unwrap_or_default();
    let Some(choice) = object.get("tool_choice") else {
        return Ok(tools);
    };
    match choice.value.as_str() {
        Some("auto") => Ok(tools),
        Some("none") => Ok(Vec::new()),
        _ => Err(choice.error("must be auto or none; forced calls are not served")),
    }
}

/// Whether the reply starts with reasoning: the template's switch counts before the effort.
fn thinking(object: &Object<'_>) -> Result<bool, ApiError> {
    let mut thinking = target::THINKING_DEFAULT;
    if let Some(effort) = object.get("reasoning_effort") {
        thinking = match effort.string()? {
            "none" => false,
            "minimal" | "low" | "medium" | "high" | "xhigh" | "max" => true,
            _ => return Err(effort.error("must be none, minimal, low, medium, high, xhigh or max")),
        };
    }
    thinking = object.boolean("enable_thinking", thinking)?;
    let Some(arguments) = object.get("chat_template_kwargs") else {
        return Ok(thinking);
    };
    let arguments = arguments.object()?;
    if let Some(unknown) = arguments.keys().find(|key| *key != "enable_thinking") {
        let shown: String = unknown.chars().take(64).collect();
        let path = arguments.path_of(&shown);
        return Err(ApiError::field(
            path,
            "is unknown; enable_thinking is the only one",
        ));
    }
    arguments.boolean("enable_thinking", thinking)
}

fn sampling(object: &Object<'_>) -> Result<Sampling, ApiError> {
    let temperature = f64::from(target::DEFAULT_TEMPERATURE);
    let top_k = object.integer("top_k", -1..=i64::from(i32::MAX))?;
    // A small positive value must stay positive as a float of fewer bits.
    let smallest = f64::from(f32::MIN_POSITIVE);
    let top_p = object.number("top_p", smallest..=1.0, f64::from(target::DEFAULT_TOP_P))?;
    let repetition = object.number("repetition_penalty", 0.01..=100.0, 1.0)?;
    Ok(Sampling {
        temperature: object.number("temperature", 0.0..=2.0, temperature)? as f32,
        top_k: top_k.map_or(target::DEFAULT_TOP_K, |k| k.max(0) as u32),
        top_p: top_p as f32,
        min_p: object.number("min_p", 0.0..=1.0, 0.0)? as f32,
        presence_penalty: object.number("presence_penalty", -2.0..=2.0, 0.0)? as f32,
        frequency_penalty: object.number("frequency_penalty", -2.0..=2.0, 0.0)? as f32,
        repetition_penalty: repetition as f32,
        logit_bias: logit_bias(object)?,
        seed: object
            .integer("seed", i64::MIN..=i64::MAX)?
            .map_or_else(random_seed, |seed| seed as u64),
    })
}

/// A seed for a request that names none, from the randomness of the standard library's hashing.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn logit_bias(object: &Object<'_>) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(field) = object.get("logit_bias") else {
        return Ok(Vec::new());
    };
    let biases = field.object()?;
    if biases.keys().count() > LOGIT_BIAS_MAX {
        return Err(field.error(format!("at most {LOGIT_BIAS_MAX} tokens are taken")));
    }
    let mut found: Vec<(TokenId, f32)> = Vec::new();
    for key in biases.keys() {
        let plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let id = key
            .parse::<TokenId>()
            .ok()
            .filter(|&id| plain && (id as usize) < target::VOCAB);
        let id = id.ok_or_else(|| {
            field.error(format!(
                "keys must be token ids from 0 to {}",
                target::VOCAB - 1
            ))
        })?;
        if found.iter().any(|(known, _)| *known == id) {
            return Err(field.error(format!("names token {id} twice")));
        }
        found.push((id, biases.require(key)?.number(-100.0..=100.0)? as f32));
    }
    Ok(found)
}

fn max_tokens(object: &Object<'_>) -> Result<Option<(usize, &'static str)>, ApiError> {
    let mut found = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some(value) = object.integer(name, 1..=i64::MAX)? {
            found = Some((usize::try_from(value).unwrap_or(usize::MAX), name));
        }
    }
    Ok(found)
}

fn stops(object: &Object<'_>) -> Result<Vec<String>, ApiError> {
    let Some(field) = object.get("stop") else {
        return Ok(Vec::new());
    };
    let fields = match field.value {
        Value::String(_) => vec![field],
        Value::Array(_) => field.list(STOPS_MAX)?,
        _ => return Err(field.error("must be a string or a list of strings")),
    };
    let stop = |field: &Field<'_>| {
        let text = field.string()?;
        if text.is_empty() || text.len() > STOP_BYTES_MAX {
            return Err(field.error(format!("must have 1 to {STOP_BYTES_MAX} bytes")));
        }
        Ok(text.to_string())
    };
    fields.iter().map(stop).collect()
}

fn stop_tokens(object: &Object<'_>) -> Result<Vec<TokenId>, ApiError> {
    let Some(field) = object.get("stop_token_ids") else {
        return Ok(Vec::new());
    };
    let id = |field: &Field<'_>| {
        field
            .integer(0..=target::VOCAB as i64 - 1)
            .map(|id| id as TokenId)
    };
    field.list(STOP_TOKENS_MAX)?.iter().map(id).collect()
}

fn logprobs(object: &Object<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = object.boolean("logprobs", false)?;
    let top = object.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "needs logprobs to be true")),
    }
}

fn include_usage(object: &Object<'_>, stream: bool) -> Result<bool, ApiError> {
    let Some(field) = object.get("stream_options") else {
        return Ok(false);
    };
    let options = field.object()?;
    if !stream {
        return Err(field.error("needs stream to be true"));
    }
    if options.boolean("continuous_usage_stats", false)? {
        let path = options.path_of("continuous_usage_stats");
        return Err(ApiError::field(path, "is not served; send include_usage"));
    }
    options.boolean("include_usage", false)
}

#[cfg(test)]
mod tests;
