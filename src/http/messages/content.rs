//! `system` and `messages` of the Messages API, put into the form that templates read.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::conversation_tools::ConversationTools;
use crate::generate::tools::{arguments_object, left_out};
use crate::generate::transcript::{self, Read, Transcript};
use crate::limits::{CONTENT_PARTS_MAX, MESSAGES_MAX};
use crate::seal::Seal;

use super::documents;
use super::tools;

/// Signature of thinking blocks that come with their text; other servers sign the text there.
pub const UNSEALED: &str = "atlas";
/// Beginning of a block in which a coding agent identifies itself for billing. The block differs in
/// each request, at the head of the prompt, so it would defeat the prefix cache; no model needs it.
const BILLING_MARK: &str = "x-anthropic-billing-header";
/// Separator of the blocks of one text.
const BLOCK_GAP: &str = "\n\n";
/// Prefix of the result of a tool that failed.
const ERROR_MARK: &str = "Error: ";

/// Suffix of the types of blocks with output of a tool that another server ran.
const SERVED_RESULT: &str = "_tool_result";
/// Prefix of fields that only the server that wrote them can read.
const ENCRYPTED: &str = "encrypted_";

/// The whole conversation, system text first; no messages if the field is absent. Tools that
/// messages refer to are loaded.
///
/// `cache_control` may stand on any block; it concerns caching, not content, and is ignored.
pub fn conversation(
    object: &Object<'_>,
    known: &mut ConversationTools,
    seal: &Seal,
) -> Result<Read, ApiError> {
    let mut out = Transcript::default();
    if let Some(system) = object.get("system") {
        let text = system_text(&system)?;
        if !text.is_empty() {
            out.push(json!({"role": "system", "content": text}));
        }
    }
    for field in object.items("messages", MESSAGES_MAX)? {
        message(&field, (known, seal), &mut out)?;
    }
    Ok(out.end())
}

fn system_text(field: &Field<'_>) -> Result<String, ApiError> {
    let Some(blocks) = blocks(field)? else {
        return Ok(field.string()?.to_string());
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        let text = text_block(block)?;
        if !is_billing(at, text) {
            texts.push(text);
        }
    }
    Ok(texts.join(BLOCK_GAP))
}

fn is_billing(at: usize, text: &str) -> bool {
    at == 0 && text.starts_with(BILLING_MARK)
}

/// A system message within the conversation, which may change the tools.
fn system_message(field: &Field<'_>, known: &mut ConversationTools) -> Result<String, ApiError> {
    let Some(blocks) = blocks(field)? else {
        return Ok(field.string()?.to_string());
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        texts.push(match block.value["type"].as_str() {
            Some("tool_addition") => match added(&block.object()?, known)? {
                Some(text) => text,
                None => continue,
            },
            Some("tool_removal") => {
                let tool = block.object()?.require("tool")?.object()?;
                known.remove(&referred(&tool)?)?
            }
            _ => match text_block(block)? {
                text if is_billing(at, text) => continue,
                text => text.to_string(),
            },
        });
    }
    Ok(texts.join(BLOCK_GAP))
}

/// Text that describes a tool which a system message adds; None if another server would run it.
fn added(block: &Object<'_>, known: &mut ConversationTools) -> Result<Option<String>, ApiError> {
    let tool = block.require("tool")?.object()?;
    let kind = tool.require("type")?;
    if kind.string()? != "tool_definition" {
        return known.load(&referred(&tool)?).map(Some);
    }
    let defined = tools::defined(&tool.require("definition")?.object()?)?;
    let text = defined.map(|(name, tool)| known.define(&name, tool));
    text.transpose()
}

/// Field with the name of the tool in a reference.
fn referred<'v>(tool: &Object<'v>) -> Result<Field<'v>, ApiError> {
    let kind = tool.require("type")?;
    match kind.string()? {
        "tool_reference" => tool.require("name"),
        _ => Err(kind.error("must be tool_reference, or tool_definition where a tool is added")),
    }
}

/// Blocks of a content; None if it is a string.
fn blocks<'v>(field: &Field<'v>) -> Result<Option<Vec<Field<'v>>>, ApiError> {
    match field.value {
        Value::String(_) => Ok(None),
        Value::Array(_) => field.list(CONTENT_PARTS_MAX).map(Some),
        _ => Err(field.error("must be a string or a list of content blocks")),
    }
}

fn message(
    field: &Field<'_>,
    (known, seal): (&mut ConversationTools, &Seal),
    out: &mut Transcript,
) -> Result<(), ApiError> {
    let object = field.object()?;
    let role = object.require("role")?;
    let content = object.require("content")?;
    match role.string()? {
        "user" => user(&content, known, out),
        "assistant" => assistant(&content, seal, out),
        "system" => {
            let text = system_message(&content, known)?;
            if !text.is_empty() {
                out.push(json!({"role": "system", "content": text}));
            }
            Ok(())
        }
        _ => Err(role.error("must be user, assistant or system")),
    }
}

/// Adds the texts of a user's message in their order; tool results go after their calls.
fn user(
    content: &Field<'_>,
    known: &mut ConversationTools,
    out: &mut Transcript,
) -> Result<(), ApiError> {
    let Some(blocks) = blocks(content)? else {
        out.push(json!({"role": "user", "content": content.string()?}));
        return Ok(());
    };
    let mut texts: Vec<Cow<'_, str>> = Vec::new();
    let mut has_results = false;
    for block in &blocks {
        let object = block.object()?;
        if object.require("type")?.string()? != "tool_result" {
            texts.push(written(block)?);
            continue;
        }
        tool_result(&object, known, out)?;
        has_results = true;
    }
    if !texts.is_empty() || !has_results {
        out.push(json!({"role": "user", "content": texts.join(BLOCK_GAP)}));
    }
    Ok(())
}

fn tool_result(
    object: &Object<'_>,
    known: &mut ConversationTools,
    out: &mut Transcript,
) -> Result<(), ApiError> {
    let text = match object.get("content") {
        Some(content) => match blocks(&content)? {
            Some(blocks) => {
                let texts = blocks.iter().map(|block| result_block(block, known));
                let texts: Result<Vec<Cow<'_, str>>, ApiError> = texts.collect();
                texts?.join(BLOCK_GAP)
            }
            None => content.string()?.to_string(),
        },
        None => String::new(),
    };
    push_output(object, text, out)
}

/// Adds the output of a tool, or its error with a mark.
fn push_output(object: &Object<'_>, text: String, out: &mut Transcript) -> Result<(), ApiError> {
    let failed = object.boolean("is_error", false)?;
    let mark = if failed { ERROR_MARK } else { "" };
    out.push_output(&object.require("tool_use_id")?, &format!("{mark}{text}"))
}

/// Text of a block of a tool's result; a placeholder if the block has no text.
fn result_block<'v>(
    field: &Field<'v>,
    known: &mut ConversationTools,
) -> Result<Cow<'v, str>, ApiError> {
    match field.value["type"].as_str() {
        Some("image") => Ok(left_out("image").into()),
        Some("document") => {
            let text = documents::text(field)?;
            Ok(text.unwrap_or_else(|| left_out("document")).into())
        }
        Some("tool_reference") => {
            let name = field.object()?.require("tool_name")?;
            known.load(&name).map(Cow::from)
        }
        _ => written(field),
    }
}

/// Text of a block: of text, of a document or of a search result.
fn written<'v>(field: &Field<'v>) -> Result<Cow<'v, str>, ApiError> {
    match documents::text(field)? {
        Some(text) => Ok(text.into()),
        None => text_block(field).map(Cow::from),
    }
}

fn text_block<'v>(field: &Field<'v>) -> Result<&'v str, ApiError> {
    let object = field.object()?;
    let kind = object.require("type")?;
    match kind.string()? {
        "text" => object.require("text")?.string(),
        "image" | "document" | "search_result" | "container_upload" | "tool_reference" => {
            Err(kind.error("this server reads text only"))
        }
        _ => Err(kind.error("must be text here")),
    }
}

/// Blocks of an assistant's message between two outputs of tools that another server ran.
#[derive(Default)]
struct Turn<'v> {
    thoughts: Vec<Cow<'v, str>>,
    texts: Vec<&'v str>,
    calls: Vec<Value>,
}

impl<'v> Turn<'v> {
    fn add(&mut self, kind: &str, block: &Field<'v>) -> Result<(), ApiError> {
        let object = block.object()?;
        match kind {
            "tool_use" | "server_tool_use" | "mcp_tool_use" => self.calls.push(tool_use(&object)?),
            // A compaction block summarises the earlier conversation.
            "compaction" => self.texts.extend(object.optional_string("content")?),
            _ => self.texts.push(text_block(block)?),
        }
        Ok(())
    }

    fn message(self) -> Value {
        let reasoning = (!self.thoughts.is_empty()).then(|| self.thoughts.join(BLOCK_GAP));
        transcript::assistant(&self.texts.join(BLOCK_GAP), reasoning, self.calls)
    }
}

/// Adds reasoning, text and calls as one message, which ends at an output of another server's tool.
fn assistant(content: &Field<'_>, seal: &Seal, out: &mut Transcript) -> Result<(), ApiError> {
    let Some(blocks) = blocks(content)? else {
        out.push(json!({"role": "assistant", "content": content.string()?}));
        return Ok(());
    };
    let mut open: Option<Turn<'_>> = None;
    let mut is_silent = true;
    for block in &blocks {
        let object = block.object()?;
        match object.require("type")?.string()? {
            // Only the server that encrypted the block can read it.
            "redacted_thinking" => out.leave_out_reasoning(object.path_of("data")),
            "thinking" => match thought(&object, seal)? {
                Some(text) => open.get_or_insert_default().thoughts.push(text),
                None => out.leave_out_reasoning(object.path_of("signature")),
            },
            kind if kind.ends_with(SERVED_RESULT) => {
                if let Some(turn) = open.take() {
                    out.push(turn.message());
                }
                served_result(&object, out)?;
                is_silent = false;
            }
            kind => open.get_or_insert_default().add(kind, block)?,
        }
    }
    if is_silent {
        open.get_or_insert_default();
    }
    open.into_iter().for_each(|turn| out.push(turn.message()));
    Ok(())
}

/// Reasoning of a thinking block: its text, or else the sealed text in its signature; None if
/// another server signed.
fn thought<'v>(block: &Object<'v>, seal: &Seal) -> Result<Option<Cow<'v, str>>, ApiError> {
    let text = block.require("thinking")?.string()?;
    match block.optional_string("signature")? {
        Some(signature) if text.is_empty() && ![UNSEALED, ""].contains(&signature) => {
            Ok(seal.open(signature).map(Cow::from))
        }
        _ => Ok(Some(text.into())),
    }
}

/// Appends the output of a tool that another API server ran.
fn served_result(object: &Object<'_>, out: &mut Transcript) -> Result<(), ApiError> {
    let shown = |value: &Value| match (value.as_str(), value["text"].as_str()) {
        (Some(text), _) | (None, Some(text)) => text.to_string(),
        (None, None) => readable(value).to_string(),
    };
    let text = match object.get("content").map(|content| content.value) {
        Some(Value::Array(parts)) => parts.iter().map(shown).collect::<Vec<_>>().join(BLOCK_GAP),
        Some(content) => shown(content),
        None => String::new(),
    };
    push_output(object, text, out)
}

/// The value without encrypted fields and files, which a model cannot read.
fn readable(value: &Value) -> Value {
    match value {
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "base64") => {
            Value::from(left_out("file"))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let open = fields.filter(|(name, _)| !name.starts_with(ENCRYPTED));
            let read = open.map(|(name, value)| (name.clone(), readable(value)));
            Value::Object(read.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(readable).collect(),
        other => other.clone(),
    }
}

fn tool_use(object: &Object<'_>) -> Result<Value, ApiError> {
    let id = object.require("id")?.string()?;
    let name = object.require("name")?.string()?;
    let input = arguments_object(&object.require("input")?)?;
    let function = json!({"name": name, "arguments": input});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Vec<Value>, ApiError> {
        read_with(&body, &mut ConversationTools::default(), &Seal::new(None))
            .map(|read| read.messages)
    }

    fn read_with(
        body: &Value,
        known: &mut ConversationTools,
        seal: &Seal,
    ) -> Result<Read, ApiError> {
        conversation(&Object::root(body).unwrap(), known, seal)
    }

    fn messages(messages: Value) -> Vec<Value> {
        read(json!({"messages": messages})).unwrap()
    }

    fn refused(messages: Value) -> String {
        read(json!({"messages": messages}))
            .unwrap_err()
            .param
            .unwrap()
    }

    fn blocks_of(role: &str, blocks: Value) -> Value {
        json!([{"role": role, "content": blocks}])
    }

    /// Calls with these ids, and after them what `role` says.
    fn after_calls(ids: &[&str], role: &str, blocks: Value) -> Value {
        let call = |id: &&str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
        let calls: Vec<Value> = ids.iter().map(call).collect();
        json!([{"role": "assistant", "content": calls}, {"role": role, "content": blocks}])
    }

    #[test]
    fn system_text_comes_first_as_a_string_or_blocks() {
        let string = read(json!({"system": "Be kind."})).unwrap();
        assert_eq!(string, [json!({"role": "system", "content": "Be kind."})]);
        let blocks = json!({"system": [
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be brief."}]});
        assert_eq!(read(blocks).unwrap()[0]["content"], "Be kind.\n\nBe brief.");
    }

    #[test]
    fn what_a_tool_shows_beside_text_is_left_out_and_said_so() {
        let picture = json!({"type": "image", "source": {"type": "base64", "data": ""}});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [picture]});
        let found = messages(after_calls(&["t"], "user", json!([result])));
        assert_eq!(found[1]["content"], left_out("image"));
        assert_eq!(
            refused(blocks_of("user", json!([picture]))),
            "messages[0].content[0].type"
        );
    }

    #[test]
    fn a_reference_to_a_tool_becomes_its_definition() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let mut known = ConversationTools::new(Vec::new(), vec![tool]);
        let find = |name: &str| {
            let found = json!([{"type": "tool_reference", "tool_name": name}]);
            let result = json!({"type": "tool_result", "tool_use_id": "t", "content": found});
            json!({"messages": after_calls(&["t"], "user", json!([result]))})
        };
        let seal = Seal::new(None);
        let found = read_with(&find("f"), &mut known, &seal).unwrap().messages;
        let text = found[1]["content"].as_str().unwrap();
        assert!(text.contains(r#""parameters":{}"#), "{text}");
        let unknown = read_with(&find("g"), &mut known, &seal);
        assert_eq!(
            unknown.unwrap_err().param.unwrap(),
            "messages[1].content[0].content[0].tool_name"
        );
    }

    #[test]
    fn a_system_message_changes_the_tools() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let mut known = ConversationTools::new(vec![tool("f")], vec![tool("g")]);
        let mut say = |kind: &str, tool: Value| {
            let body = json!({"messages": blocks_of("system", json!([{"type": kind,
                "tool": tool}]))});
            let said = read_with(&body, &mut known, &Seal::new(None));
            said.map(|said| said.messages[0]["content"].as_str().unwrap().to_string())
                .map_err(|error| error.param.unwrap())
        };
        let reference = |name: &str| json!({"type": "tool_reference", "name": name});
        let definition = json!({"type": "tool_definition",
            "definition": {"name": "h", "input_schema": {"type": "object"}}});
        assert!(
            say("tool_addition", reference("g"))
                .unwrap()
                .contains(r#"{"name":"g"}"#)
        );
        assert!(
            say("tool_addition", definition)
                .unwrap()
                .contains(r#"{"name":"h""#)
        );
        let with_schema = json!({"type": "function",
            "function": {"name": "h", "parameters": {"type": "object"}}});
        let removed = say("tool_removal", reference("f")).unwrap();
        assert_eq!(removed, "f cannot be called any more.");
        let unknown = say("tool_removal", reference("i")).unwrap_err();
        assert_eq!(unknown, "messages[0].content[0].tool.name");
        assert_eq!(known.callable(), [tool("g"), with_schema]);
    }

    #[test]
    fn a_tool_that_another_server_would_run_is_not_said_to_be_there() {
        let hosted = json!({"type": "web_search_20250305", "name": "web_search"});
        let addition = json!({"type": "tool_addition",
            "tool": {"type": "tool_definition", "definition": hosted}});
        assert_eq!(
            messages(blocks_of("system", json!([addition]))),
            [] as [Value; 0]
        );
        let said = json!([addition, {"type": "text", "text": "a"}]);
        assert_eq!(messages(blocks_of("system", said))[0]["content"], "a");
    }

    #[test]
    fn the_billing_block_is_stripped_at_the_head_only() {
        let billing = json!({"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"});
        let other = json!({"type": "text", "text": "Be kind."});
        let head = read(json!({"system": [billing, other]})).unwrap();
        assert_eq!(head[0]["content"], "Be kind.");
        assert_eq!(
            read(json!({"system": [billing]})).unwrap(),
            [] as [Value; 0]
        );
        let later = read(json!({"system": [other, billing]})).unwrap();
        assert!(later[0]["content"].as_str().unwrap().contains("billing"));
    }

    #[test]
    fn a_system_message_keeps_its_position() {
        let found = messages(json!([
            {"role": "user", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"}]));
        assert_eq!(found[1], json!({"role": "system", "content": "b"}));
    }

    #[test]
    fn tool_results_stand_in_the_order_of_their_calls_and_texts_after_them() {
        let found = messages(after_calls(
            &["t1", "t2", "t3"],
            "user",
            json!([
            {"type": "tool_result", "tool_use_id": "t2", "is_error": true,
             "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "such city"}]},
            {"type": "text", "text": "And?"},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
            {"type": "text", "text": "Well?"}]),
        ));
        let expected = json!([
            {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "t2", "content": "Error: no\n\nsuch city"},
            {"role": "tool", "tool_call_id": "t3", "content": ""},
            {"role": "user", "content": "And?\n\nWell?"}]);
        assert_eq!(Value::from(&found[1..]), expected);
        let foreign = json!([{"type": "tool_result", "tool_use_id": "t1"}]);
        let at = "messages[1].content[0].tool_use_id";
        assert_eq!(refused(after_calls(&["t2"], "user", foreign)), at);
    }

    #[test]
    fn an_assistant_turn_keeps_reasoning_text_and_calls() {
        let found = messages(blocks_of(
            "assistant",
            json!([
            {"type": "thinking", "thinking": "why", "signature": "anything"},
            {"type": "redacted_thinking", "data": "secret"},
            {"type": "text", "text": "Look:"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]),
        ));
        let expected = json!({"role": "assistant", "content": "Look:", "reasoning_content": "why",
            "tool_calls": [{"id": "t1", "type": "function",
                            "function": {"name": "f", "arguments": {"a": 1}}}]});
        assert_eq!(found, [expected]);
        assert_eq!(
            messages(blocks_of("assistant", json!([])))[0]["content"],
            ""
        );
    }

    #[test]
    fn thinking_that_was_not_shown_is_in_its_signature() {
        let seal = Seal::new(None);
        let mut known = ConversationTools::default();
        let mut read = |block: Value| {
            let said = json!([block, {"type": "text", "text": "so"}]);
            let body = json!({"messages": blocks_of("assistant", said)});
            let read = read_with(&body, &mut known, &seal).unwrap();
            (
                read.messages[0]["reasoning_content"].clone(),
                read.left_out.len(),
            )
        };
        let thinking = |text: &str, signature: &str| {
            let kind = "thinking";
            json!({"type": kind, kind: text, "signature": signature})
        };
        let foreign = Seal::new(None).close("why");
        assert_eq!(read(thinking("", &seal.close("why"))), (json!("why"), 0));
        assert_eq!(read(thinking("shown", &foreign)), (json!("shown"), 0));
        for unread in [
            thinking("", &foreign),
            thinking("", "ErUB"),
            json!({"type": "redacted_thinking", "data": "ErUB"}),
        ] {
            assert_eq!(read(unread), (Value::Null, 1));
        }
    }

    #[test]
    fn a_tool_of_another_server_is_a_call_and_what_it_put_out() {
        let found = json!([{"type": "web_search_result", "url": "u", "encrypted_content": "x"}]);
        let found = messages(blocks_of(
            "assistant",
            json!([
            {"type": "text", "text": "a"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": found},
            {"type": "thinking", "thinking": "why"},
            {"type": "text", "text": "b"}]),
        ));
        let call = json!({"id": "s", "type": "function",
            "function": {"name": "web_search", "arguments": {"query": "q"}}});
        let result = r#"{"type":"web_search_result","url":"u"}"#;
        let expected = json!([
            {"role": "assistant", "content": "a", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "s", "content": result},
            {"role": "assistant", "content": "b", "reasoning_content": "why"}]);
        assert_eq!(Value::from(found), expected);
    }

    #[test]
    fn what_another_server_put_out_is_shown_as_far_as_it_can_be_read() {
        let shown = |content: Value| {
            let call = json!({"type": "mcp_tool_use", "id": "s", "name": "f", "input": {}});
            let result = json!({"type": "mcp_tool_result", "tool_use_id": "s", "is_error": true,
                "content": content});
            messages(blocks_of("assistant", json!([call, result])))[1]["content"].clone()
        };
        assert_eq!(shown(json!("no")), "Error: no");
        assert_eq!(
            shown(json!([{"type": "text", "text": "no"}, {"a": 1}])),
            "Error: no\n\n{\"a\":1}"
        );
        let file = json!({"source": {"type": "base64", "data": "AAAA"}});
        let expected = json!({"source": left_out("file")});
        assert_eq!(shown(file), format!("Error: {expected}"));
    }

    #[test]
    fn what_a_conversation_was_summed_up_to_is_said() {
        let block = json!([{"type": "compaction", "content": "They met."},
            {"type": "compaction", "content": null}]);
        assert_eq!(
            messages(blocks_of("assistant", block))[0]["content"],
            "They met."
        );
    }

    #[test]
    fn broken_arguments_of_the_history_end_nothing() {
        let call = |input: &str| {
            let block = json!([{"type": "tool_use", "id": "t", "name": "f", "input": input}]);
            let said = messages(blocks_of("assistant", block));
            said[0]["tool_calls"][0]["function"]["arguments"].clone()
        };
        assert_eq!(call(r#"{"a": 1}"#), json!({"a": 1}));
        assert_eq!(call(r#"{"a":"#), json!({"arguments": r#"{"a":"#}));
    }

    #[test]
    fn what_is_not_served_is_refused_by_its_path() {
        for kind in ["image", "document"] {
            let block = json!([{"type": kind, "source": {}}]);
            let at = refused(blocks_of("user", block));
            assert_eq!(at, "messages[0].content[0].type");
        }
        let result = json!([{"type": "tool_result", "tool_use_id": "t",
            "content": [{"type": "search_result"}]}]);
        let at = refused(blocks_of("user", result));
        assert_eq!(at, "messages[0].content[0].content[0].content");
        assert_eq!(
            refused(json!([{"role": "king", "content": "x"}])),
            "messages[0].role"
        );
        assert_eq!(refused(json!([{"role": "user"}])), "messages[0].content");
        assert_eq!(
            refused(json!([{"role": "user", "content": 5}])),
            "messages[0].content"
        );
        let input = json!([{"type": "tool_use", "id": "t", "name": "f", "input": 5}]);
        let at = refused(blocks_of("assistant", input));
        assert_eq!(at, "messages[0].content[0].input");
        let unnamed = json!([{"type": "tool_result", "content": "x"}]);
        let at = refused(blocks_of("user", unnamed));
        assert_eq!(at, "messages[0].content[0].tool_use_id");
    }
}
