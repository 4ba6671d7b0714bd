//! Completion requests, parsed from JSON to an [`Ask`] and encoded prompts.

use serde_json::Value;

use crate::chat::usage::UsageReport;
use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::Ask;
use crate::generate::constraint::Rule;
use crate::generate::field_support::{Api, check};
use crate::generate::parameters::{
    Length, check_model, choices, prompt_logprobs, stop_tokens, stops, token,
};
use crate::generate::response_format;
use crate::keys::{self, KeyId};
use crate::limits::COMPLETION_TOKENS_DEFAULT;
use engine::request::MAX_TOP_LOGPROBS;
use step::Facts;
use step::executor::TokenId;
use text::chat::{Prompt, counted};
use text::tokenizer::{Encoded, Tokenizer};

/// A checked request for completions, without its prompts.
#[derive(Debug)]
pub struct CompletionRequest {
    pub ask: Ask,
    /// Whether each text begins with its prompt.
    pub echo: bool,
    /// The request's `prompt_logprobs`; the field of the same name in `ask` also serves `echo`.
    pub prompt_logprobs: Option<usize>,
    /// Whether tokens are given as `token_id:` and their number.
    pub tokens_as_ids: bool,
    pub stream: bool,
    pub usage: UsageReport,
}

impl CompletionRequest {
    /// Reads a body and encodes its prompts. A prompt and its reply have at most `context` tokens.
    pub fn parse(
        body: &Value,
        (tokenizer, key): (&Tokenizer, Option<KeyId>),
        context: usize,
        facts: &Facts,
    ) -> Result<(CompletionRequest, Vec<Prompt>), ApiError> {
        let object = Object::root(body)?;
        check_model(&object)?;
        check(&object, Api::Completions)?;
        let stream = object.boolean("stream", false)?;
        let echo = object.boolean("echo", false)?;
        let logprobs = object.integer("logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
        let logprobs = logprobs.map(|count| count as usize);
        let prompt_logprobs = prompt_logprobs(&object, stream)?;
        let length = length(&object, echo || prompt_logprobs.is_some())?;
        let wanted = if echo { logprobs } else { None };
        // The prompt of a request for no tokens is scored even if no log-probabilities are asked
        // for: the request ends when the scoring does.
        let scored = matches!(length, Length::Tokens(0, _)).then_some(0);
        let ask = Ask {
            messages_field: "prompt",
            max_tokens: length.most(),
            stops: stops(&object)?,
            stop_tokens: stop_tokens(&object, facts.vocab)?,
            ignore_eos: object.boolean("ignore_eos", false)?,
            logprobs,
            prompt_logprobs: wanted.max(prompt_logprobs).max(scored),
            choices: choices(&object)?,
            raw: true,
            rule: response_format::asked(&object)?
                .map(|(field, grammar)| Rule::whole(field, grammar)),
            ..Ask::read(&object, facts)?
        };
        let tokens_as_ids = object.boolean("return_tokens_as_token_ids", false)?;
        let usage = UsageReport::read(&object, stream)?;
        let domain = keys::domain(key, &ask.salt);
        let prompts = prompts(&object, (tokenizer, domain), (context, facts))?;
        let mut request = CompletionRequest {
            ask,
            echo,
            prompt_logprobs,
            tokens_as_ids,
            stream,
            usage,
        };
        request.fit(&prompts, length, (context, facts.queued))?;
        object.report_unknown();
        Ok((request, prompts))
    }

    /// Checks that all replies fit into the queue and the longest prompt into the context, and sets
    /// a length that the request did not state.
    fn fit(
        &mut self,
        prompts: &[Prompt],
        length: Length,
        (context, queued): (usize, usize),
    ) -> Result<(), ApiError> {
        if prompts.len() * self.ask.choices > queued {
            let problem = format!(
                "{} prompts with {} replies each are more than {queued} replies",
                prompts.len(),
                self.ask.choices
            );
            return Err(ApiError::field("prompt", problem));
        }
        let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max();
        let longest = longest.unwrap_or(0);
        let remaining = context.saturating_sub(longest);
        let wants_reply = self.ask.max_tokens.is_none_or(|wanted| wanted > 0);
        if wants_reply && remaining == 0 {
            return Err(too_long(longest, "", context));
        }
        if length == Length::Unstated {
            self.ask.max_tokens = Some(COMPLETION_TOKENS_DEFAULT.min(remaining));
        }
        Ok(())
    }
}

/// Error for a prompt of `tokens` tokens; `least` precedes the number in the message.
fn too_long(tokens: usize, least: &str, context: usize) -> ApiError {
    ApiError::context(
        "prompt",
        (tokens, context),
        &format!("your prompt has {least}{tokens} tokens. Please shorten it."),
    )
}

/// Largest length of a reply in tokens; may be 0 where the answer includes the prompt (`echo`).
fn length(object: &Object<'_>, prompt_reported: bool) -> Result<Length, ApiError> {
    let length = Length::read(object, &["n_predict", "max_tokens"], 0)?;
    match length {
        Length::Tokens(0, name) if !prompt_reported => Err(ApiError::field(
            name,
            "must be at least 1, or echo true to have the prompt scored",
        )),
        length => Ok(length),
    }
}

/// The prompts of `prompt`: a text, a list of texts, a list of token ids, or a list of such lists.
fn prompts(
    object: &Object<'_>,
    encoder: (&Tokenizer, u128),
    (context, facts): (usize, &Facts),
) -> Result<Vec<Prompt>, ApiError> {
    let vocab = facts.vocab;
    let special = object.boolean("add_special_tokens", true)?;
    let field = object.require("prompt")?;
    let encode = |field: &Field<'_>| encode(field, special, encoder, context);
    match field.value {
        Value::String(_) => Ok(vec![encode(&field)?]),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            Ok(vec![tokens(&field, context, vocab)?])
        }
        Value::Array(items) if !items.is_empty() => {
            let one = |field: &Field<'_>| match field.value {
                Value::String(_) => encode(field),
                Value::Array(_) => tokens(field, context, vocab),
                _ => Err(field.error("must be a string or a list of token ids")),
            };
            field.list(facts.queued)?.iter().map(one).collect()
        }
        _ => Err(field.error("must be a string, a list of strings or a list of token ids")),
    }
}

/// Encodes a text without a template; the texts of control tokens become these tokens.
fn encode(
    field: &Field<'_>,
    special: bool,
    (tokenizer, domain): (&Tokenizer, u128),
    context: usize,
) -> Result<Prompt, ApiError> {
    let text = field.string()?;
    let encoded = tokenizer
        .encode_at_most(text, special, counted(context), domain)
        .map_err(|error| field.error(error.to_string()))?;
    match encoded {
        Encoded::Whole(tokens) => prompt(field, tokens, context),
        Encoded::AtLeast(tokens) => Err(too_long(tokens, "at least ", context)),
    }
}

fn tokens(field: &Field<'_>, context: usize, vocab: usize) -> Result<Prompt, ApiError> {
    let count = field.value.as_array().map_or(0, Vec::len);
    if count > context {
        return Err(too_long(count, "", context));
    }
    let ids = field.list(usize::MAX)?;
    let ids: Result<Vec<TokenId>, ApiError> = ids.iter().map(|id| token(id, vocab)).collect();
    prompt(field, ids?, context)
}

fn prompt(field: &Field<'_>, tokens: Vec<TokenId>, context: usize) -> Result<Prompt, ApiError> {
    if tokens.is_empty() {
        return Err(field.error("must have at least one token"));
    }
    if tokens.len() > context {
        return Err(too_long(tokens.len(), "", context));
    }
    Ok(Prompt {
        head: 0,
        tokens,
        reasoning_opened: false,
        amid: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with;
    use serde_json::json;
    use step::testing::TINY;
    use text::testing::{END_OF_TURN, chat_model};

    fn parse(fields: Value) -> Result<(CompletionRequest, Vec<Prompt>), ApiError> {
        let body = with(json!({"prompt": "ab"}), fields);
        let tokenizer = chat_model().tokenizer;
        CompletionRequest::parse(&body, (&tokenizer, None), TINY.context, &TINY)
    }

    fn prompts_of(value: Value) -> Vec<Vec<TokenId>> {
        let (_, prompts) = parse(json!({"prompt": value})).unwrap();
        prompts.into_iter().map(|prompt| prompt.tokens).collect()
    }

    fn refused(fields: Value) -> String {
        match parse(fields.clone()) {
            Err(error) => error.param.unwrap(),
            Ok(_) => panic!("{fields} was taken"),
        }
    }

    #[test]
    fn prompts_come_in_four_forms() {
        assert_eq!(prompts_of(json!("ab")), [[97, 98]]);
        assert_eq!(prompts_of(json!(["a", "bc"])), [vec![97], vec![98, 99]]);
        assert_eq!(prompts_of(json!([1, 2])), [[1, 2]]);
        assert_eq!(prompts_of(json!([[1], [2, 3]])), [vec![1], vec![2, 3]]);
    }

    #[test]
    fn control_tokens_in_a_text_are_tokens() {
        assert_eq!(prompts_of(json!("a<|im_end|>")), [[97, END_OF_TURN]]);
    }

    #[test]
    fn a_prompt_that_is_none_is_named() {
        for (prompt, at) in [
            (json!(""), "prompt"),
            (json!([]), "prompt"),
            (json!([[]]), "prompt[0]"),
            (json!(5), "prompt"),
            (json!({}), "prompt"),
            (json!(null), "prompt"),
            (json!([1, "a"]), "prompt[1]"),
            (json!(["a", 1]), "prompt[1]"),
            (json!(["a", ""]), "prompt[1]"),
            (json!([[1], [2, -1]]), "prompt[1][1]"),
            (json!([TINY.vocab]), "prompt[0]"),
            (json!([1.5]), "prompt[0]"),
            (json!([true]), "prompt[0]"),
        ] {
            assert_eq!(refused(json!({"prompt": prompt.clone()})), at, "{prompt}");
        }
    }

    #[test]
    fn replies_are_bounded_at_the_limit() {
        let many = |count: usize| json!({"prompt": vec!["a"; count]});
        assert!(parse(many(TINY.queued)).is_ok());
        assert_eq!(refused(many(TINY.queued + 1)), "prompt");
        let mut twice = many(TINY.queued / 2 + 1);
        twice["n"] = json!(2);
        assert_eq!(refused(twice), "prompt");
    }

    #[test]
    fn no_reply_is_wanted_only_where_the_prompt_is_reported() {
        assert_eq!(refused(json!({"max_tokens": 0})), "max_tokens");
        let (request, _) = parse(json!({"max_tokens": 0, "echo": true})).unwrap();
        assert_eq!(request.ask.max_tokens, Some(0));
        assert_eq!(request.ask.prompt_logprobs, Some(0));
        assert!(parse(json!({"max_tokens": 0, "prompt_logprobs": 1})).is_ok());
    }

    #[test]
    fn minus_one_is_no_limit() {
        let length = |fields: Value| parse(fields).unwrap().0.ask.max_tokens;
        assert_eq!(length(json!({"max_tokens": -1})), None);
        assert_eq!(length(json!({"n_predict": -1})), None);
        assert_eq!(length(json!({"n_predict": 3})), Some(3));
        let both = json!({"n_predict": -1, "max_tokens": 4});
        assert_eq!(length(both), Some(4));
        assert_eq!(refused(json!({"max_tokens": -2})), "max_tokens");
    }

    #[test]
    fn the_default_length_takes_what_the_context_has_left() {
        let prompt = |tokens: usize| json!({"prompt": vec![1; tokens]});
        let length = |tokens| parse(prompt(tokens)).unwrap().0.ask.max_tokens.unwrap();
        assert_eq!(length(3), COMPLETION_TOKENS_DEFAULT);
        assert_eq!(length(TINY.context - 5), 5);
        assert_eq!(refused(prompt(TINY.context)), "prompt");
        let mut scored = prompt(TINY.context);
        scored["echo"] = json!(true);
        scored["max_tokens"] = json!(0);
        assert!(parse(scored.clone()).is_ok());
        scored["prompt"] = json!(vec![1; TINY.context + 1]);
        assert_eq!(refused(scored), "prompt");
        let stated = json!({"prompt": vec![1; TINY.context - 5], "max_tokens": 6});
        assert!(parse(stated).is_ok(), "it ends where the context is full");
    }

    #[test]
    fn echoed_log_probabilities_are_of_the_prompt_too() {
        let wanted = |fields| parse(fields).unwrap().0.ask.prompt_logprobs;
        assert_eq!(wanted(json!({"logprobs": 3})), None);
        assert_eq!(wanted(json!({"logprobs": 3, "echo": true})), Some(3));
        let more = json!({"logprobs": 3, "echo": true, "prompt_logprobs": 5});
        assert_eq!(wanted(more), Some(5));
        assert_eq!(refused(json!({"logprobs": 21})), "logprobs");
        assert_eq!(refused(json!({"logprobs": true})), "logprobs");
    }
}
