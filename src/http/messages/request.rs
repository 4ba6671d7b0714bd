//! `POST /v1/messages`: parses the JSON of a request, and checks it.
//!
//! The table of `generate::field_support` says how each field is treated.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::Ask;
use crate::generate::field_support::{Api, check};
use crate::generate::parameters::check_model;
use crate::generate::response_format::{joined, json_of};
use crate::generate::start::Start;
use crate::generate::template_variables;
use crate::generate::tool_policy;
use crate::limits::{STOP_BYTES_MAX, STOPS_MAX};
use crate::seal::Seal;
use crate::thinking;
use step::Facts;
use text::grammar::Grammar;

use super::{content, tools};

/// A checked request for a message.
#[derive(Debug)]
pub struct MessagesRequest {
    pub ask: Ask,
    pub stream: bool,
    /// Whether thinking blocks have their text.
    pub show_thinking: bool,
}

/// Prefix of the type of the context edit that removes reasoning.
const CLEARS_THINKING: &str = "clear_thinking_";
/// Context edits that a request may ask for.
const EDITS_MAX: usize = 16;

impl MessagesRequest {
    /// Reads the body of a request.
    pub fn parse(body: &Value, seal: &Seal, facts: &Facts) -> Result<MessagesRequest, ApiError> {
        let object = Object::root(body)?;
        let mut ask = conversation(&object, seal, facts)?;
        let messages = object.require("messages")?;
        if is_empty(&messages) {
            return Err(messages.error("must hold at least one message"));
        }
        let max_tokens = object.require("max_tokens")?.integer(1..=i64::MAX)?;
        let max_tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
        ask.max_tokens = Some(max_tokens);
        let request = MessagesRequest {
            ask,
            stream: object.boolean("stream", false)?,
            show_thinking: show_thinking(&object)?,
        };
        object.report_unknown();
        Ok(request)
    }
}

/// Reads the body of a request whose tokens are counted: messages or tools may be absent.
pub fn countable(body: &Value, seal: &Seal, facts: &Facts) -> Result<Ask, ApiError> {
    let object = Object::root(body)?;
    let mut ask = conversation(&object, seal, facts)?;
    object.report_unknown();
    // Templates need a message of the user; an empty one adds only its framing tokens.
    if object.get("messages").is_none_or(|list| is_empty(&list)) {
        ask.messages.push(json!({"role": "user", "content": ""}));
    }
    Ok(ask)
}

fn is_empty(list: &Field<'_>) -> bool {
    list.value.as_array().is_some_and(Vec::is_empty)
}

/// Reads the parts of a request that both a message and a count of tokens need.
fn conversation(object: &Object<'_>, seal: &Seal, facts: &Facts) -> Result<Ask, ApiError> {
    check(object, Api::Messages)?;
    if let Some(thread) = object.get("thread") {
        return Err(ApiError::thread(&thread.path));
    }
    check_model(object)?;
    check_edits(object)?;
    let mut known = tools::tools(object)?;
    let read = content::conversation(object, &mut known, seal)?;
    let calls = tools::calls(object, known)?;
    let (policy, parallel) = (&calls.tools.policy, calls.parallel);
    let rule = tool_policy::combined(policy, format(object)?, parallel, facts)?;
    let lenient = calls.tools.policy.is_lenient();
    // A reply thinks only if the request asks for it, as in the published API.
    let thinking = thinking::read(object, false)?;
    Ok(Ask {
        start: start(object, &read.messages),
        variables: template_variables::read(object)?,
        messages: read.messages,
        messages_field: "messages",
        tools: calls.tools.head,
        loaded_tools: calls.tools.loaded,
        parallel_tool_calls: calls.parallel,
        lenient,
        left_out: [calls.left_out, read.left_out].concat(),
        thinking: thinking.on,
        thinking_budget: thinking.budget,
        stops: stops(object)?,
        rule,
        ..Ask::read(object, facts)?
    })
}

/// Start of the reply: a last message of the assistant is continued.
fn start(object: &Object<'_>, messages: &[Value]) -> Start {
    let last = messages.last();
    let said = last.is_some_and(|last| last["role"] == "assistant");
    let list = object.get("messages");
    let count = list.and_then(|list| list.value.as_array().map(Vec::len));
    match count.filter(|_| said) {
        Some(count) => Start::Amid(format!("messages[{}]", count.saturating_sub(1))),
        None => Start::Turn,
    }
}

/// Schema that the output must obey, from either of two fields.
fn format(object: &Object<'_>) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let nested = object.optional_object("output_config")?;
    let nested = nested.and_then(|output| output.get("format"));
    let read = |name, format: Option<Field<'_>>| format.map(|format| schema_of(name, &format));
    let nested = read("output_config", nested).transpose()?;
    let own = read("output_format", object.get("output_format"));
    joined(nested, own.transpose()?)
}

/// Schema of a format, and the name of its field.
fn schema_of(name: &'static str, format: &Field<'_>) -> Result<(&'static str, Grammar), ApiError> {
    let format = format.object()?;
    let kind = format.require("type")?;
    match kind.string()? {
        "json_schema" => Ok((name, json_of(&format.require("schema")?, true)?)),
        _ => Err(kind.error("must be json_schema")),
    }
}

/// Checks `context_management`, which may only ask for what templates do by themselves: to leave
/// out reasoning from before the last question.
fn check_edits(object: &Object<'_>) -> Result<(), ApiError> {
    let management = object.optional_object("context_management")?;
    let Some(edits) = management.and_then(|management| management.get("edits")) else {
        return Ok(());
    };
    for edit in edits.list(EDITS_MAX)? {
        let kind = edit.object()?.require("type")?;
        if !kind.string()?.starts_with(CLEARS_THINKING) {
            return Err(kind.error("is not served; prompts are never cut, send less"));
        }
    }
    Ok(())
}

/// Whether thinking blocks carry their text. If a summary is asked for, the whole text is sent.
fn show_thinking(object: &Object<'_>) -> Result<bool, ApiError> {
    let thinking = object.optional_object("thinking")?;
    let Some(display) = thinking.and_then(|thinking| thinking.get("display")) else {
        return Ok(true);
    };
    match display.string()? {
        // Streamed thinking is also what `updates` asks for.
        "summarized" | "updates" => Ok(true),
        "omitted" => Ok(false),
        _ => Err(display.error("must be summarized, updates or omitted")),
    }
}

fn stops(object: &Object<'_>) -> Result<Vec<String>, ApiError> {
    let field = object.get("stop_sequences");
    let stops = field.map(|field| field.texts(STOPS_MAX, STOP_BYTES_MAX));
    Ok(stops.transpose()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use step::testing::TINY;

    fn with(name: &str, value: Value) -> Value {
        let mut body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        body[name] = value;
        body
    }

    fn parsed(name: &str, value: Value) -> MessagesRequest {
        MessagesRequest::parse(&with(name, value), &Seal::new(None), &TINY).unwrap()
    }

    fn refused(name: &str, value: Value) -> String {
        let error =
            MessagesRequest::parse(&with(name, value), &Seal::new(None), &TINY).unwrap_err();
        error.param.unwrap()
    }

    #[test]
    fn a_plain_request_does_not_think() {
        let request = parsed("model", json!("claude-any"));
        assert!(!request.ask.thinking && !request.stream);
        assert_eq!(request.ask.max_tokens, Some(9));
        assert_eq!(request.ask.sampling.top_k, TINY.top_k);
    }

    #[test]
    fn what_a_coding_agent_sends_is_taken() {
        for (name, value) in [
            ("metadata", json!({"user_id": "u"})),
            ("service_tier", json!("auto")),
            (
                "context_management",
                json!({"edits": [{"type": "clear_thinking_20251015"}]}),
            ),
            ("thinking", json!({"type": "adaptive"})),
            ("output_config", json!({"effort": "high"})),
            ("some_future_field", json!([1])),
        ] {
            parsed(name, value);
        }
    }

    #[test]
    fn thinking_is_on_where_asked_for() {
        let ask = parsed(
            "thinking",
            json!({"type": "enabled", "budget_tokens": 1024}),
        )
        .ask;
        assert_eq!((ask.thinking, ask.thinking_budget), (true, Some(1024)));
        assert!(parsed("thinking", json!({"type": "adaptive"})).ask.thinking);
        assert!(!parsed("thinking", json!({"type": "disabled"})).ask.thinking);
        assert!(
            !parsed("output_config", json!({"effort": "max"}))
                .ask
                .thinking
        );
        let omitted = json!({"type": "adaptive", "display": "omitted"});
        assert!(!parsed("thinking", omitted).show_thinking);
    }

    #[test]
    fn what_other_dialects_say_of_sampling_counts_here_too() {
        assert_eq!(parsed("seed", json!(7)).ask.sampling.seed, 7);
        assert_eq!(parsed("min_p", json!(0.5)).ask.sampling.min_p, 0.5);
    }

    #[test]
    fn numbers_outside_their_range_or_type_are_refused_by_name() {
        for field in ["max_tokens", "temperature", "top_p", "top_k"] {
            for value in [
                json!(-2),
                json!(u64::MAX),
                json!("1"),
                json!([]),
                json!(true),
            ] {
                assert_eq!(refused(field, value.clone()), field, "{value}");
            }
        }
        assert_eq!(refused("max_tokens", json!(0)), "max_tokens");
        assert_eq!(refused("max_tokens", Value::Null), "max_tokens");
    }

    #[test]
    fn stop_sequences_are_a_bounded_list() {
        assert_eq!(parsed("stop_sequences", json!(["a"])).ask.stops, ["a"]);
        let many = json!(vec!["a"; STOPS_MAX + 1]);
        assert_eq!(refused("stop_sequences", many), "stop_sequences");
        assert_eq!(refused("stop_sequences", json!("a")), "stop_sequences");
        assert_eq!(refused("stop_sequences", json!([""])), "stop_sequences[0]");
    }

    #[test]
    fn a_value_that_is_not_served_is_refused_by_name() {
        assert_eq!(refused("thread", json!({"type": "create"})), "thread");
        let edits = |kind: &str| {
            json!({"edits": [{"type": "clear_thinking_20251015"},
            {"type": kind}]})
        };
        parsed("context_management", edits("clear_thinking_1"));
        let at = refused("context_management", edits("clear_tool_uses_20250919"));
        assert_eq!(at, "context_management.edits[1].type");
        let format = json!({"format": {"type": "xml"}});
        assert_eq!(
            refused("output_config", format),
            "output_config.format.type"
        );
        let schema = json!({"format": {"type": "json_schema", "schema": {"type": "object"}}});
        assert!(parsed("output_config", schema).ask.rule.is_some());
    }

    #[test]
    fn what_is_counted_needs_neither_messages_nor_a_length() {
        let tools = json!({"tools": [{"name": "f", "input_schema": {"type": "object"}}]});
        let ask = countable(&tools, &Seal::new(None), &TINY).unwrap();
        assert_eq!((ask.messages.len(), ask.tools.len()), (1, 1));
        let system = json!({"system": "Be kind.", "messages": []});
        let ask = countable(&system, &Seal::new(None), &TINY).unwrap();
        assert_eq!(ask.messages.len(), 2);
        let question = json!({"messages": [{"role": "user", "content": "hi"}]});
        assert_eq!(
            countable(&question, &Seal::new(None), &TINY)
                .unwrap()
                .messages
                .len(),
            1
        );
        assert!(countable(&json!({"messages": 1}), &Seal::new(None), &TINY).is_err());
    }
}
