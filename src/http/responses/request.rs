//! `POST /v1/responses`: parses the JSON of a request, and checks it.
//!
//! The table of `generate::field_support` says how each field is treated.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::Ask;
use crate::generate::field_support::{Api, check};
use crate::generate::generation::ScoredPart;
use crate::generate::parameters::{Length, check_model, stop_tokens, stops};
use crate::generate::response_format::{self, any_object, json_of};
use crate::generate::start::Start;
use crate::generate::template_variables;
use crate::generate::tool_policy;
use crate::generate::transcript::Read;
use crate::limits::{METADATA_BYTES_MAX, METADATA_PAIRS_MAX, TOOLS_MAX};
use crate::seal::Seal;
use crate::thinking;
use engine::request::MAX_TOP_LOGPROBS;
use host::log;
use step::Facts;
use text::grammar::Grammar;

use super::store::{Item, Store};
use super::tools::{self, ToolNames};
use super::{input_items, items};

/// Item of `include` by which clients ask for sealed reasoning, to send back in place of the text.
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";
/// Item of `include` by which clients ask for log-probabilities of the answer's text.
const TEXT_LOGPROBS: &str = "message.output_text.logprobs";

/// A checked request for a response.
#[derive(Debug)]
pub struct ResponsesRequest {
    pub ask: Ask,
    pub stream: bool,
    /// Parts of the request that are stored with the response; None if it is not stored.
    pub stored: Option<StoredRequest>,
    pub names: ToolNames,
    /// Whether reasoning items also have their text sealed.
    pub encrypted_reasoning: bool,
    /// Whether reasoning is sent as its own summary.
    pub summarized: bool,
    /// Fields of the request that the response repeats.
    pub repeated: Map<String, Value>,
}

/// Parts of a request that are stored with its response.
#[derive(Debug)]
pub struct StoredRequest {
    pub input: Vec<Item>,
    /// JSON of the conversation without instructions.
    pub history: String,
    /// Whether the reply continues the last message of `history`.
    pub goes_on: bool,
}

impl ResponsesRequest {
    /// Reads the body of a request; `known` has its owner's stored responses and seal.
    pub fn parse(
        body: &Value,
        known: (&Store, &Seal),
        facts: &Facts,
    ) -> Result<ResponsesRequest, ApiError> {
        let object = Object::root(body)?;
        check(&object, Api::Responses)?;
        check_model(&object)?;
        let start = start(&object);
        // A reply that continues an answer is past its reasoning.
        let thinking = thinking::read(&object, facts.thinking && !start.is_amid())?;
        let read = history(&object, known)?;
        let (history, left_out) = (read.messages, read.left_out);
        let tools::Offered { tools, names } = tools::offered(&object, &history)?;
        let parallel_tool_calls = object.boolean("parallel_tool_calls", true)?;
        let rule =
            tool_policy::combined(&tools.policy, form(&object)?, parallel_tool_calls, facts)?;
        let included = included(&object)?;
        let stored = object.boolean("store", true)?;
        let ask = Ask {
            left_out,
            lenient: tools.policy.is_lenient(),
            messages: with_instructions(&object, &history)?,
            messages_field: "input",
            start,
            variables: template_variables::read(&object)?,
            tools: tools.head,
            loaded_tools: tools.loaded,
            parallel_tool_calls,
            thinking: thinking.on,
            thinking_budget: thinking.budget,
            max_tokens: Length::read(&object, &["max_output_tokens"], 1)?.most(),
            stops: stops(&object)?,
            stop_tokens: stop_tokens(&object, facts.vocab)?,
            ignore_eos: object.boolean("ignore_eos", false)?,
            logprobs: logprobs(&object, &included)?,
            scored: ScoredPart::Text,
            rule,
            ..Ask::read(&object, facts)?
        };
        let input = object.get("input");
        let request = ResponsesRequest {
            repeated: repeated(&object, &ask, stored)?,
            stream: object.boolean("stream", false)?,
            encrypted_reasoning: included.encrypted_reasoning,
            summarized: summary(&object)?.is_some(),
            stored: stored.then(|| StoredRequest {
                input: input.map_or(Vec::new(), |input| input_items::of(input.value, known.0)),
                history: Value::from(history).to_string(),
                goes_on: ask.start.is_amid(),
            }),
            names,
            ask,
        };
        object.report_unknown();
        Ok(request)
    }
}

/// Start of the reply: a last item of the assistant is continued, unless its status is `completed`.
fn start(object: &Object<'_>) -> Start {
    let input = object.get("input");
    let items = input.as_ref().and_then(|input| input.value.as_array());
    let Some((last, before)) = items.and_then(|items| items.split_last()) else {
        return Start::Turn;
    };
    let is_message = matches!(last["type"].as_str(), None | Some("message"));
    match is_message && last["role"] == "assistant" && last["status"] != "completed" {
        true => Start::Amid(format!("input[{}]", before.len())),
        false => Start::Turn,
    }
}

/// The conversation so far, without instructions, which belong to one request alone.
fn history(object: &Object<'_>, known: (&Store, &Seal)) -> Result<Read, ApiError> {
    let mut history = Read::default();
    if let Some(id) = object.get("previous_response_id") {
        history.messages = previous(&id, known.0)?;
    }
    if let Some(input) = object.get("input") {
        history = items::read(&input, history.messages, known)?;
    }
    match history.messages.is_empty() {
        true => Err(ApiError::field(
            "input",
            "is required, with at least one item",
        )),
        false => Ok(history),
    }
}

fn previous(id: &Field<'_>, store: &Store) -> Result<Vec<Value>, ApiError> {
    let unknown = || ApiError {
        status: StatusCode::NOT_FOUND,
        code: Some("previous_response_not_found"),
        ..id.error("is not stored here, or not any more; send the whole conversation as input")
    };
    let stored = store.get(id.string()?).ok_or_else(unknown)?;
    serde_json::from_str(&stored.history).map_err(|_| unknown())
}

fn with_instructions(object: &Object<'_>, history: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::with_capacity(history.len() + 1);
    if let Some(instructions) = object.get("instructions") {
        messages.push(json!({"role": "system", "content": instructions.string()?}));
    }
    messages.extend_from_slice(history);
    Ok(messages)
}

/// Form that the output must have, from the field `text` or a field of another API; and its name.
fn form(object: &Object<'_>) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    response_format::joined(text_format(object)?, response_format::asked(object)?)
}

/// Form of the output that the field `text` states.
fn text_format(object: &Object<'_>) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let Some(text) = object.optional_object("text")? else {
        return Ok(None);
    };
    let Some(format) = text.optional_object("format")? else {
        return Ok(None);
    };
    let kind = format.require("type")?;
    match kind.string()? {
        "text" => Ok(None),
        "json_object" => Ok(Some(("text", any_object()))),
        "json_schema" => {
            let strict = format.boolean("strict", false)?;
            Ok(Some(("text", json_of(&format.require("schema")?, strict)?)))
        }
        _ => Err(kind.error("must be text, json_object or json_schema")),
    }
}

/// Extra parts of items that a request asks for by `include`.
#[derive(Debug, Default)]
struct Included {
    encrypted_reasoning: bool,
    logprobs: bool,
}

/// Reads `include`; most of its values name items that this server never has.
fn included(object: &Object<'_>) -> Result<Included, ApiError> {
    let mut found = Included::default();
    for item in object.items("include", TOOLS_MAX)? {
        match item.string()? {
            ENCRYPTED_REASONING => found.encrypted_reasoning = true,
            TEXT_LOGPROBS => found.logprobs = true,
            other => log::debug(format_args!("{other:?} is not included")),
        }
    }
    Ok(found)
}

/// Number of most likely tokens to report at each token; None for no log-probabilities.
fn logprobs(object: &Object<'_>, included: &Included) -> Result<Option<usize>, ApiError> {
    let top = object.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
    match (included.logprobs, top.unwrap_or(0)) {
        (true, top) => Ok(Some(top as usize)),
        (false, 0) => Ok(None),
        (false, _) => {
            let problem = format!("needs include to hold {TEXT_LOGPROBS:?}");
            Err(ApiError::field("top_logprobs", problem))
        }
    }
}

/// Length of the summary that `reasoning` asks for, under its old or new name. The whole reasoning
/// is sent as the summary, since such clients show nothing else.
fn summary(object: &Object<'_>) -> Result<Option<String>, ApiError> {
    let reasoning = object.optional_object("reasoning")?;
    let asked = reasoning.and_then(|reasoning| {
        let names = ["summary", "generate_summary"];
        names.iter().find_map(|name| reasoning.get(name))
    });
    let Some(asked) = asked else {
        return Ok(None);
    };
    match asked.string()? {
        "none" => Ok(None),
        length @ ("auto" | "concise" | "detailed") => Ok(Some(length.to_string())),
        _ => Err(asked.error("must be auto, concise, detailed or none")),
    }
}

/// Fields of the request that each JSON of the response repeats.
fn repeated(object: &Object<'_>, ask: &Ask, stored: bool) -> Result<Map<String, Value>, ApiError> {
    let given = |name: &str, absent: Value| {
        let field = object.get(name);
        field.map_or(absent, |field| field.value.clone())
    };
    check_metadata(object)?;
    let effort = object.optional_object("reasoning")?;
    let effort = effort.and_then(|reasoning| reasoning.get("effort"));
    let effort = effort.map(|effort| effort.value.clone());
    let fields = json!({
        "background": false,
        "instructions": given("instructions", Value::Null),
        "max_output_tokens": ask.max_tokens,
        "metadata": given("metadata", json!({})),
        "parallel_tool_calls": ask.parallel_tool_calls,
        "previous_response_id": given("previous_response_id", Value::Null),
        "reasoning": {"effort": effort, "summary": summary(object)?},
        "service_tier": "default",
        "store": stored,
        "temperature": given("temperature", plain(ask.sampling.temperature)),
        "text": repeated_text(given("text", json!({}))),
        "tool_choice": given("tool_choice", json!("auto")),
        "tools": given("tools", json!([])),
        "top_logprobs": ask.logprobs.unwrap_or(0),
        "top_p": given("top_p", plain(ask.sampling.top_p)),
        "truncation": given("truncation", json!("disabled")),
    });
    let mut fields = match fields {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    // `max_tool_calls` limits calls that a server makes by itself; this server makes none.
    if let Some(most) = object.integer("max_tool_calls", 0..=i64::MAX)? {
        fields.insert("max_tool_calls".to_string(), Value::from(most));
    }
    Ok(fields)
}

/// A number with the fewest digits that give the same `f32`; as `f64` it would have more.
fn plain(number: f32) -> Value {
    serde_json::from_str(&number.to_string()).unwrap_or(Value::Null)
}

/// The field `text` with a format, which responses always have, though requests need not.
fn repeated_text(mut text: Value) -> Value {
    if let Value::Object(fields) = &mut text {
        let format = fields.entry("format").or_insert(Value::Null);
        if format.is_null() {
            *format = json!({"type": "text"});
        }
    }
    text
}

fn check_metadata(object: &Object<'_>) -> Result<(), ApiError> {
    let Some(field) = object.get("metadata") else {
        return Ok(());
    };
    let metadata = field.object()?;
    if metadata.keys().count() > METADATA_PAIRS_MAX {
        return Err(field.error(format!("has more than {METADATA_PAIRS_MAX} pairs")));
    }
    for name in metadata.keys() {
        let value = metadata.require(name)?;
        if name.len().max(value.string()?.len()) > METADATA_BYTES_MAX {
            return Err(field.error(format!(
                "has a name or value above {METADATA_BYTES_MAX} bytes"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::store::Stored;
    use step::testing::TINY;

    fn with(name: &str, value: Value) -> Value {
        let mut body = json!({"input": "hi"});
        body[name] = value;
        body
    }

    fn parsed(name: &str, value: Value) -> ResponsesRequest {
        ResponsesRequest::parse(
            &with(name, value),
            (&Store::default(), &Seal::new(None)),
            &TINY,
        )
        .unwrap()
    }

    fn refused(name: &str, value: Value) -> String {
        let body = with(name, value);
        let error = ResponsesRequest::parse(&body, (&Store::default(), &Seal::new(None)), &TINY)
            .unwrap_err();
        error.param.unwrap()
    }

    #[test]
    fn what_a_coding_agent_sends_is_taken() {
        for (name, value) in [
            ("model", json!("gpt-any")),
            ("reasoning", json!({"effort": "medium", "summary": "auto"})),
            ("include", json!(["reasoning.encrypted_content"])),
            ("truncation", json!("auto")),
            ("prompt_cache_key", json!("k")),
            ("client_metadata", json!({"a": "b"})),
            (
                "text",
                json!({"verbosity": "low", "format": {"type": "text"}}),
            ),
            ("store", json!(false)),
            ("service_tier", json!("auto")),
            ("stream_options", json!({"include_obfuscation": false})),
        ] {
            parsed(name, value);
        }
    }

    #[test]
    fn where_other_servers_let_a_reply_end_is_honoured() {
        assert_eq!(parsed("stop", json!("a")).ask.stops, ["a"]);
        assert_eq!(parsed("stop_token_ids", json!([3])).ask.stop_tokens, [3]);
        assert!(parsed("ignore_eos", json!(true)).ask.ignore_eos);
    }

    #[test]
    fn the_form_is_one() {
        for (name, value) in [
            ("structured_outputs", json!({"regex": "a"})),
            ("guided_choice", json!(["a"])),
            (
                "response_format",
                json!({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}),
            ),
        ] {
            assert!(parsed(name, value.clone()).ask.rule.is_some(), "{name}");
            let mut both = with(name, value);
            both["text"] = json!({"format": {"type": "json_object"}});
            let error =
                ResponsesRequest::parse(&both, (&Store::default(), &Seal::new(None)), &TINY)
                    .unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
        }
        let mut twice = with("response_format", json!({"type": "json_object"}));
        twice["text"] = json!({"format": {"type": "json_object"}});
        assert!(
            ResponsesRequest::parse(&twice, (&Store::default(), &Seal::new(None)), &TINY).is_ok()
        );
    }

    #[test]
    fn instructions_come_first_and_are_not_stored() {
        let request = parsed("instructions", json!("Be kind."));
        assert_eq!(request.ask.messages[0]["role"], "system");
        assert_eq!(request.ask.messages.len(), 2);
        assert!(!request.stored.unwrap().history.contains("kind"));
        assert!(parsed("store", json!(false)).stored.is_none());
    }

    #[test]
    fn an_earlier_response_is_continued() {
        let store = Store::default();
        let stored = Stored {
            response: "{}".into(),
            history: json!([{"role": "user", "content": "a"}]).to_string().into(),
            input: [].into(),
            items: [].into(),
        };
        store.insert("resp_1", stored);
        let body = with("previous_response_id", json!("resp_1"));
        let request = ResponsesRequest::parse(&body, (&store, &Seal::new(None)), &TINY).unwrap();
        assert_eq!(request.ask.messages.len(), 2);
        let body = with("previous_response_id", json!("resp_2"));
        let error = ResponsesRequest::parse(&body, (&store, &Seal::new(None)), &TINY).unwrap_err();
        assert_eq!(error.code, Some("previous_response_not_found"));
    }

    #[test]
    fn thinking_follows_the_effort() {
        assert!(!parsed("reasoning", json!({"effort": "none"})).ask.thinking);
        let low = parsed("reasoning", json!({"effort": "low"})).ask;
        assert_eq!((low.thinking, low.thinking_budget), (true, Some(2048)));
    }

    #[test]
    fn what_the_response_repeats_is_there() {
        let request = parsed("metadata", json!({"a": "b"}));
        assert_eq!(request.repeated["metadata"], json!({"a": "b"}));
        assert_eq!(request.repeated["tool_choice"], "auto");
        assert_eq!(request.repeated.get("max_tool_calls"), None);
        let brief = parsed("text", json!({"verbosity": "low", "format": null})).repeated;
        let text = json!({"verbosity": "low", "format": {"type": "text"}});
        assert_eq!(
            (&brief["text"], &request.repeated["text"]["format"]),
            (&text, &text["format"])
        );
        let bounded = parsed("max_tool_calls", json!(2)).repeated;
        assert_eq!(bounded["max_tool_calls"], 2);
        let sampled = parsed("temperature", json!(0.7)).repeated;
        assert_eq!(sampled["temperature"].to_string(), "0.7");
        let by_default = plain(TINY.top_p);
        assert_eq!(sampled["top_p"].to_string(), by_default.to_string());
        assert!(by_default.to_string().len() < 8, "{by_default}");
        assert_eq!(parsed("top_p", json!(1)).repeated["top_p"].to_string(), "1");
        let auto = parsed("reasoning", json!({"summary": "auto"}));
        assert!(auto.summarized && auto.repeated["reasoning"]["summary"] == "auto");
        assert!(parsed("include", json!(["reasoning.encrypted_content"])).encrypted_reasoning);
    }

    #[test]
    fn a_value_that_is_not_served_is_refused_by_name() {
        let text = json!({"format": {"type": "xml"}});
        assert_eq!(refused("text", text), "text.format.type");
        let text = json!({"format": {"type": "json_object"}});
        assert!(parsed("text", text).ask.rule.is_some());
        assert_eq!(refused("top_logprobs", json!(2)), "top_logprobs");
        assert_eq!(refused("top_logprobs", json!(21)), "top_logprobs");
        assert_eq!(refused("max_output_tokens", json!(0)), "max_output_tokens");
        assert_eq!(refused("max_tool_calls", json!(-1)), "max_tool_calls");
        assert_eq!(refused("metadata", json!("x")), "metadata");
        assert_eq!(refused("metadata", json!({"a": 1})), "metadata.a");
        let long = "x".repeat(METADATA_BYTES_MAX + 1);
        assert_eq!(refused("metadata", json!({"a": long})), "metadata");
        let pairs = (0..=METADATA_PAIRS_MAX).map(|at| (at.to_string(), json!("")));
        assert_eq!(
            refused("metadata", Value::Object(pairs.collect())),
            "metadata"
        );
        assert_eq!(refused("input", json!([])), "input");
        assert_eq!(refused("input", Value::Null), "input");
        assert_eq!(refused("instructions", json!(7)), "instructions");
    }
}
