//! Fields that several dialects share: how the next token is chosen, how long a reply may be and
//! where it stops.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::limits::{CHOICES_MAX, LOGIT_BIAS_MAX, STOP_BYTES_MAX, STOP_TOKENS_MAX, STOPS_MAX};
use crate::random;
use engine::adaptive::Sections;
use engine::request::{Dry, MAX_TOP_LOGPROBS, Sampling, Xtc};
use step::Facts;
use step::executor::TokenId;

/// Length by which clients of llama-server and LM Studio ask for no limit.
const NO_LIMIT: i64 = -1;

/// Checks `model`, which may be any name: clients send names of other models, and agents a second
/// one for small tasks. The answer names the model that is served.
///
/// # Errors
/// When `model` is no text.
pub fn check_model(object: &Object<'_>) -> Result<(), ApiError> {
    object.optional_string("model").map(drop)
}

/// Salt of the prefix cache, which keeps a client's prompts apart from other clients': any JSON.
pub fn salt(object: &Object<'_>) -> String {
    let names = ["cache_salt", "extra_key"].map(|name| object.get(name).map(|name| name.value));
    match names {
        [None, None] => String::new(),
        names => json!(names).to_string(),
    }
}

/// Sampling of the next token, with the defaults of the target.
///
/// # Errors
/// Names the field that is out of range.
pub fn sampling(object: &Object<'_>, facts: &Facts) -> Result<Sampling, ApiError> {
    let temperature = f64::from(facts.temperature);
    let top_k = object.integer("top_k", -1..=i64::from(i32::MAX))?;
    // `top_p` 0 leaves the most likely token, as the smallest `top_p` above 0 does.
    let top_p = object.number("top_p", 0.0..=1.0, f64::from(facts.top_p))?;
    let repetition = object.number("repetition_penalty", 0.01..=100.0, 1.0)?;
    Ok(Sampling {
        temperature: object.number("temperature", 0.0..=2.0, temperature)? as f32,
        top_k: top_k.map_or(facts.top_k, |k| k.max(0) as u32),
        top_p: (top_p as f32).max(f32::MIN_POSITIVE),
        min_p: object.number("min_p", 0.0..=1.0, 0.0)? as f32,
        presence_penalty: object.number("presence_penalty", -2.0..=2.0, 0.0)? as f32,
        frequency_penalty: object.number("frequency_penalty", -2.0..=2.0, 0.0)? as f32,
        repetition_penalty: repetition as f32,
        logit_bias: logit_bias(object, facts.vocab)?,
        dry: dry(object)?,
        // llama-server turns `top_n_sigma` off by a value below 0.
        top_n_sigma: object.number("top_n_sigma", -1.0..=100.0, 0.0)?.max(0.0) as f32,
        typical_p: (object.number("typical_p", 0.0..=1.0, 1.0)? as f32).max(f32::MIN_POSITIVE),
        xtc: Xtc {
            probability: object.number("xtc_probability", 0.0..=1.0, 0.0)? as f32,
            threshold: object.number("xtc_threshold", 0.0..=1.0, 0.1)? as f32,
        },
        adaptive: object
            .boolean("adaptive_sampling", false)?
            .then(Sections::default),
        min_tokens: count(object, "min_tokens", 0)?.unwrap_or(0),
        allowed: allowed(object, facts.vocab)?,
        bad_words: Vec::new(),
        seed: object
            .integer("seed", i64::MIN..=i64::MAX)?
            .map_or_else(random::bits, |seed| seed as u64),
        thinking_budget: None,
    })
}

/// The field `name` as a number of tokens, at least `least`; None if it is absent.
fn count(object: &Object<'_>, name: &str, least: i64) -> Result<Option<usize>, ApiError> {
    let wanted = object.integer(name, least..=i64::MAX)?;
    Ok(wanted.map(|wanted| usize::try_from(wanted).unwrap_or(usize::MAX)))
}

/// Settings of the DRY rule without its breakers, which are texts.
fn dry(object: &Object<'_>) -> Result<Dry, ApiError> {
    let off = Dry::default();
    let (multiplier, base) = (f64::from(off.multiplier), f64::from(off.base));
    let last = object.integer("dry_penalty_last_n", -1..=i64::MAX)?;
    Ok(Dry {
        multiplier: object.number("dry_multiplier", 0.0..=100.0, multiplier)? as f32,
        base: object.number("dry_base", 1.0..=100.0, base)? as f32,
        allowed: count(object, "dry_allowed_length", 1)?.unwrap_or(off.allowed),
        last: last.and_then(|last| usize::try_from(last).ok()),
        breakers: Vec::new(),
    })
}

/// `allowed_token_ids`, each below `vocab`; empty if the field is absent.
fn allowed(object: &Object<'_>, vocab: usize) -> Result<Vec<TokenId>, ApiError> {
    let Some(field) = object.get("allowed_token_ids") else {
        return Ok(Vec::new());
    };
    let ids = field.list(vocab)?;
    match ids.is_empty() {
        true => Err(field.error("must name a token")),
        false => ids.iter().map(|id| token(id, vocab)).collect(),
    }
}

fn logit_bias(object: &Object<'_>, vocab: usize) -> Result<Vec<(TokenId, f32)>, ApiError> {
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
        let id = key.parse::<TokenId>().ok();
        let id = id.filter(|&id| plain && (id as usize) < vocab);
        let id = id.ok_or_else(|| {
            field.error(format!("keys must be token ids from 0 to {}", vocab - 1))
        })?;
        if found.iter().any(|(known, _)| *known == id) {
            return Err(field.error(format!("names token {id} twice")));
        }
        found.push((id, biases.require(key)?.number(-100.0..=100.0)? as f32));
    }
    Ok(found)
}

/// Length of a reply as a request states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Unstated,
    /// Tokens up to the end of the context.
    Unlimited,
    /// Number of tokens, and the field that states it.
    Tokens(usize, &'static str),
}

impl Length {
    /// The last of the fields `names` that is present: at least `least`, or [`NO_LIMIT`].
    ///
    /// # Errors
    /// Names the field with another value.
    pub fn read(
        object: &Object<'_>,
        names: &[&'static str],
        least: i64,
    ) -> Result<Length, ApiError> {
        let mut found = Length::Unstated;
        for name in names {
            let Some(field) = object.get(name) else {
                continue;
            };
            found = match field.integer(NO_LIMIT..=i64::MAX)? {
                NO_LIMIT => Length::Unlimited,
                few if few < least => {
                    let problem = format!("must be at least {least}, or {NO_LIMIT} for no limit");
                    return Err(field.error(problem));
                }
                tokens => Length::Tokens(usize::try_from(tokens).unwrap_or(usize::MAX), name),
            };
        }
        Ok(found)
    }

    /// The number of tokens, if the request states one.
    pub fn most(self) -> Option<usize> {
        match self {
            Length::Tokens(tokens, _) => Some(tokens),
            Length::Unstated | Length::Unlimited => None,
        }
    }
}

/// `n`, the number of replies to each prompt.
///
/// # Errors
/// When `n` is out of range.
pub fn choices(object: &Object<'_>) -> Result<usize, ApiError> {
    let wanted = object.integer("n", 1..=CHOICES_MAX as i64)?;
    Ok(wanted.unwrap_or(1) as usize)
}

/// `prompt_logprobs`: number of most likely tokens that are reported at each token of the prompt.
///
/// # Errors
/// When the number is out of range or the answer is a stream, whose chunks have no field for it.
pub fn prompt_logprobs(object: &Object<'_>, stream: bool) -> Result<Option<usize>, ApiError> {
    let wanted = object.integer("prompt_logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
    match wanted {
        Some(_) if stream => Err(ApiError::field(
            "prompt_logprobs",
            "is told in whole answers only; send stream false",
        )),
        wanted => Ok(wanted.map(|wanted| wanted as usize)),
    }
}

/// `stop`: a string or a bounded list of them.
///
/// # Errors
/// Names the field with another value.
pub fn stops(object: &Object<'_>) -> Result<Vec<String>, ApiError> {
    let Some(field) = object.get("stop") else {
        return Ok(Vec::new());
    };
    match field.value {
        Value::String(_) => Ok(vec![field.text(STOP_BYTES_MAX)?]),
        Value::Array(_) => field.texts(STOPS_MAX, STOP_BYTES_MAX),
        _ => Err(field.error("must be a string or a list of strings")),
    }
}

/// `stop_token_ids`.
///
/// # Errors
/// Names the field that is no token id.
pub fn stop_tokens(object: &Object<'_>, vocab: usize) -> Result<Vec<TokenId>, ApiError> {
    let ids = object.items("stop_token_ids", STOP_TOKENS_MAX)?;
    ids.iter().map(|id| token(id, vocab)).collect()
}

/// A token id below `vocab`.
///
/// # Errors
/// When the vocabulary does not have the id.
pub fn token(field: &Field<'_>, vocab: usize) -> Result<TokenId, ApiError> {
    let id = field.integer(0..=vocab as i64 - 1)?;
    Ok(id as TokenId)
}
