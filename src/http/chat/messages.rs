//! Messages and tools of a chat request, checked and put into the form that templates read.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::tools::{
    CUSTOM_ARGUMENT, arguments_in, check_name, check_parameters, left_out,
};
use crate::generate::transcript::{self, Transcript};
use crate::limits::{CONTENT_PARTS_MAX, MESSAGES_MAX, TOOL_CALLS_MAX, TOOLS_MAX};

/// Reads `messages` into the form that templates read.
pub fn messages(field: &Field<'_>) -> Result<Vec<Value>, ApiError> {
    let list = field.list(MESSAGES_MAX)?;
    if list.is_empty() {
        return Err(field.error("must hold at least one message"));
    }
    let mut transcript = Transcript::default();
    for message in &list {
        add(&message.object()?, &mut transcript)?;
    }
    Ok(transcript.end().messages)
}

fn add(object: &Object<'_>, transcript: &mut Transcript) -> Result<(), ApiError> {
    let role = object.require("role")?;
    transcript.push(match role.string()? {
        "system" | "developer" => plain(object, "system"),
        "user" => plain(object, "user"),
        "assistant" => assistant(object),
        // The role `function` dates from before this API had tools.
        "tool" | "function" => return tool_result(object, transcript),
        _ => Err(role.error("must be system, developer, user, assistant, tool or function")),
    }?);
    Ok(())
}

fn plain(object: &Object<'_>, role: &str) -> Result<Value, ApiError> {
    let content = content(&object.require("content")?)?;
    Ok(json!({"role": role, "content": content}))
}

fn tool_result(object: &Object<'_>, transcript: &mut Transcript) -> Result<(), ApiError> {
    let text = match object.get("content") {
        Some(result) if result.value.is_array() => {
            let parts = result.list(CONTENT_PARTS_MAX)?;
            let parts: Result<Vec<String>, ApiError> = parts.iter().map(result_part).collect();
            parts?.concat()
        }
        Some(result) => content(&result)?,
        None => String::new(),
    };
    let mut message = json!({"role": "tool", "content": text});
    let id = object.get("tool_call_id");
    if let Some(id) = &id {
        message["tool_call_id"] = Value::from(id.string()?);
    }
    transcript.push_result(id.as_ref(), message)
}

fn assistant(object: &Object<'_>) -> Result<Value, ApiError> {
    let calls = calls(object)?;
    let content = object.get("content").map(|content| said(&content));
    let content = content.transpose()?;
    let refusal = object.optional_string("refusal")?;
    let reasoning = reasoning(object)?;
    // A message whose generation was cancelled before its first token has no content.
    let (mut text, thoughts) = content.unwrap_or_default();
    text.push_str(refusal.unwrap_or_default());
    let reasoning = reasoning.unwrap_or(thoughts);
    let reasoning = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
    Ok(transcript::assistant(&text, reasoning, calls))
}

/// Text of an assistant's message, and the reasoning among the parts of its content.
fn said(field: &Field<'_>) -> Result<(String, String), ApiError> {
    if !field.value.is_array() {
        return Ok((content(field)?, String::new()));
    }
    let (mut text, mut thoughts) = (String::new(), String::new());
    for part in field.list(CONTENT_PARTS_MAX)? {
        match part.value["type"].as_str() {
            Some("thinking" | "redacted_thinking" | "reasoning") => {
                thoughts.push_str(&thought(&part)?);
            }
            Some("refusal") => text.push_str(part.object()?.require("refusal")?.string()?),
            _ => text.push_str(&text_part(&part)?),
        }
    }
    Ok((text, thoughts))
}

/// Reasoning of the first field that has some; clients send reasoning back under several names.
fn reasoning(object: &Object<'_>) -> Result<Option<String>, ApiError> {
    for name in ["reasoning_content", "reasoning", "reasoning_details"] {
        if let Some(field) = object.get(name) {
            let text = thought(&field)?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }
    Ok(None)
}

/// Text of reasoning: a string, an object with it under one of several names, or a list of either.
/// Objects that another server encrypted count as empty.
fn thought(field: &Field<'_>) -> Result<String, ApiError> {
    match field.value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(_) => field.list(CONTENT_PARTS_MAX)?.iter().map(thought).collect(),
        _ => {
            let part = field.object()?;
            let mut names = ["text", "thinking", "summary", "reasoning"].into_iter();
            let text = names.find_map(|name| part.get(name));
            text.map_or(Ok(String::new()), |text| thought(&text))
        }
    }
}

/// Text of a content: a string, or a list of text parts, which are joined.
fn content(field: &Field<'_>) -> Result<String, ApiError> {
    if let Value::String(text) = field.value {
        return Ok(text.clone());
    }
    if !field.value.is_array() {
        let mut error = field.mismatch("a string or a list of text parts");
        error.message += "; send other values as the text of their JSON";
        return Err(error);
    }
    let parts = field.list(CONTENT_PARTS_MAX)?;
    parts.iter().map(text_part).collect()
}

fn text_part(field: &Field<'_>) -> Result<String, ApiError> {
    let object = field.object()?;
    let kind = object.require("type")?;
    match kind.string()? {
        // Histories of the Responses API have parts of the types `input_text` and `output_text`.
        "text" | "input_text" | "output_text" => Ok(object.require("text")?.string()?.to_string()),
        "image_url" | "input_audio" | "file" | "video_url" | "audio_url" | "input_image"
        | "input_file" => Err(kind.error("this server reads text only")),
        _ => Err(kind.error("must be text, input_text or output_text")),
    }
}

fn result_part(field: &Field<'_>) -> Result<String, ApiError> {
    match field.value["type"].as_str() {
        Some("image_url" | "input_image") => Ok(left_out("image")),
        Some("file" | "input_file") => Ok(left_out("file")),
        Some(kind @ "input_audio") => Ok(left_out(kind)),
        _ => text_part(field),
    }
}

/// Calls of an assistant's message; its field `function_call` is the older form, of one call.
fn calls(object: &Object<'_>) -> Result<Vec<Value>, ApiError> {
    let calls = object.items("tool_calls", TOOL_CALLS_MAX)?;
    let mut calls = calls
        .iter()
        .map(tool_call)
        .collect::<Result<Vec<Value>, ApiError>>()?;
    if let Some(call) = object.get("function_call") {
        calls.push(json!({"type": "function", "function": called(&call.object()?)?}));
    }
    Ok(calls)
}

/// The function that a call names, with its arguments.
fn called(function: &Object<'_>) -> Result<Value, ApiError> {
    let name = function.require("name")?.string()?;
    let arguments = arguments_in(function, "arguments")?;
    Ok(json!({"name": name, "arguments": arguments}))
}

/// Call of a custom tool, whose free text becomes its argument [`CUSTOM_ARGUMENT`].
fn called_with_text(custom: &Object<'_>) -> Result<Value, ApiError> {
    let name = custom.require("name")?.string()?;
    let input = custom.require("input")?.string()?;
    Ok(json!({"name": name, "arguments": {CUSTOM_ARGUMENT: input}}))
}

fn tool_call(field: &Field<'_>) -> Result<Value, ApiError> {
    let object = field.object()?;
    let function = match object.get("type") {
        None => called(&object.require("function")?.object()?)?,
        Some(kind) => match kind.string()? {
            "function" => called(&object.require("function")?.object()?)?,
            "custom" => called_with_text(&object.require("custom")?.object()?)?,
            _ => return Err(kind.error("must be function or custom")),
        },
    };
    let mut call = json!({"type": "function", "function": function});
    if let Some(id) = object.get("id") {
        call["id"] = Value::from(id.string()?);
    }
    Ok(call)
}

/// Reads `tools`, which the template gets unchanged.
pub fn tools(field: &Field<'_>) -> Result<Vec<Value>, ApiError> {
    let mut names = HashSet::new();
    let list = field.list(TOOLS_MAX)?;
    for tool in &list {
        let object = tool.object()?;
        let kind = object.require("type")?;
        if kind.string()? != "function" {
            return Err(kind.error("must be function; other tools are not served"));
        }
        let function = object.require("function")?.object()?;
        let name = function.require("name")?;
        check_name(&name)?;
        if !names.insert(name.string()?) {
            return Err(name.error("is the name of another tool already"));
        }
        function.optional_string("description")?;
        if let Some(parameters) = function.get("parameters") {
            check_parameters(&parameters)?;
        }
        function.boolean("strict", false)?;
    }
    Ok(list.iter().map(|tool| tool.value.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<Vec<Value>, ApiError> {
        messages(&Field {
            value,
            path: "messages".to_string(),
        })
    }

    fn refused(value: Value) -> String {
        read(&value).unwrap_err().param.unwrap()
    }

    fn refused_tool(value: Value) -> String {
        let value = json!([value]);
        tools(&Field {
            value: &value,
            path: "tools".to_string(),
        })
        .unwrap_err()
        .param
        .unwrap()
    }

    #[test]
    fn text_parts_are_joined() {
        let parts = json!([{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert_eq!(read(&parts).unwrap()[0]["content"], "ab");
    }

    #[test]
    fn what_a_tool_shows_beside_text_is_left_out_and_said_so() {
        let picture = json!({"type": "image_url", "image_url": {"url": "data:,"}});
        let shown = json!([{"type": "text", "text": "Look: "}, picture]);
        let result = json!([{"role": "tool", "content": shown}]);
        let expected = format!("Look: {}", left_out("image"));
        assert_eq!(read(&result).unwrap()[0]["content"], expected);
        let unread = json!([{"role": "tool", "content": [{"type": "smell"}]}]);
        assert_eq!(refused(unread), "messages[0].content[0].type");
    }

    #[test]
    fn developer_messages_are_system_messages() {
        let message = json!([{"role": "developer", "content": "x", "name": "ignored"}]);
        assert_eq!(
            read(&message).unwrap(),
            [json!({"role": "system", "content": "x"})]
        );
    }

    #[test]
    fn an_assistant_may_have_calls_instead_of_content() {
        let message = json!([{"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function",
             "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]);
        let read = read(&message).unwrap();
        assert_eq!(read[0]["content"], "");
        assert_eq!(
            read[0]["tool_calls"][0]["function"]["arguments"],
            json!({"a": 1})
        );
    }

    #[test]
    fn results_stand_in_the_order_of_their_calls() {
        let call = |id: &str| json!({"id": id, "function": {"name": "f"}});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
        let with = |results: [&str; 2]| {
            let calls = json!([call("a"), call("b")]);
            let [one, other] = results.map(result);
            read(&json!([{"role": "assistant", "tool_calls": calls}, one, other]))
        };
        assert_eq!(with(["b", "a"]).unwrap(), with(["a", "b"]).unwrap());
        for results in [["a", "a"], ["a", "c"]] {
            let error = with(results).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("messages[2].tool_call_id"));
        }
    }

    #[test]
    fn functions_of_before_tools_are_tools() {
        let messages = json!([
            {"role": "assistant", "content": null,
             "function_call": {"name": "f", "arguments": "{\"a\": 1}"}},
            {"role": "function", "name": "f", "content": "2"}]);
        let call = json!({"type": "function",
            "function": {"name": "f", "arguments": {"a": 1}}});
        let expected = json!([
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "2"}]);
        assert_eq!(Value::from(read(&messages).unwrap()), expected);
    }

    #[test]
    fn a_turn_may_have_nothing_to_say() {
        for role in ["assistant", "tool", "function"] {
            let message = json!([{"role": role, "content": null}]);
            assert_eq!(read(&message).unwrap()[0]["content"], "");
        }
    }

    #[test]
    fn what_an_assistant_refused_is_what_it_said() {
        let refused = json!([{"type": "text", "text": "a "}, {"type": "refusal", "refusal": "no"}]);
        for (message, text) in [
            (json!({"role": "assistant", "content": refused}), "a no"),
            (
                json!({"role": "assistant", "content": null, "refusal": "no"}),
                "no",
            ),
        ] {
            assert_eq!(read(&json!([message])).unwrap()[0]["content"], text);
        }
    }

    #[test]
    fn reasoning_comes_back_in_many_forms() {
        let parts = |kind: &str, name: &str| json!([{"type": kind, name: "why"}]);
        let encrypted = json!({"type": "reasoning.encrypted", "data": "gAAA"});
        for (name, value) in [
            ("reasoning_content", json!("why")),
            ("reasoning", json!("why")),
            ("reasoning", parts("reasoning", "text")),
            ("reasoning_details", parts("reasoning.text", "text")),
            ("reasoning_details", json!([encrypted, {"summary": "why"}])),
            ("content", parts("thinking", "thinking")),
            ("content", parts("reasoning", "reasoning")),
            (
                "content",
                json!([{"type": "thinking", "thinking": parts("text", "text")}]),
            ),
        ] {
            let mut message = json!({"role": "assistant", "content": "so"});
            message[name] = value;
            let found = read(&json!([message])).unwrap();
            assert_eq!(found[0]["reasoning_content"], "why", "{message}");
        }
        let unread = json!([{"role": "assistant", "content": "so", "reasoning_details": [encrypted],
            "reasoning": ""}]);
        assert_eq!(read(&unread).unwrap()[0].get("reasoning_content"), None);
        let odd = json!([{"role": "assistant", "content": "so", "reasoning": [5]}]);
        assert_eq!(refused(odd), "messages[0].reasoning[0]");
    }

    #[test]
    fn arguments_are_an_object_its_json_or_nothing() {
        let read_arguments = |value: &Value| {
            let function = json!({"name": "f", "arguments": value});
            let call = json!([{"role": "assistant", "tool_calls": [{"function": function}]}]);
            let read = read(&call)?;
            Ok::<_, ApiError>(read[0]["tool_calls"][0]["function"]["arguments"].clone())
        };
        for (value, expected) in [
            (json!({"a": 1}), json!({"a": 1})),
            (json!("{\"a\": 1}"), json!({"a": 1})),
            (json!(""), json!({})),
            (Value::Null, json!({})),
        ] {
            assert_eq!(read_arguments(&value).unwrap(), expected, "{value}");
        }
        for value in [json!([1]), json!(5), json!(true)] {
            let error = read_arguments(&value).unwrap_err();
            let at = "messages[0].tool_calls[0].function.arguments";
            assert_eq!(error.param.as_deref(), Some(at));
            assert!(error.message.contains("must be an object, or a string"));
        }
    }

    #[test]
    fn a_call_with_free_text_keeps_it_as_one_argument() {
        let calls = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
        let custom = json!({"id": "c", "type": "custom", "custom": {"name": "p", "input": "+x"}});
        let expected = json!({"id": "c", "type": "function",
            "function": {"name": "p", "arguments": {"input": "+x"}}});
        assert_eq!(read(&calls(custom)).unwrap()[0]["tool_calls"][0], expected);
        for (call, at) in [
            (json!({"type": "custom"}), "custom"),
            (
                json!({"type": "custom", "custom": {"name": "p"}}),
                "custom.input",
            ),
            (json!({"type": "smell"}), "type"),
        ] {
            assert_eq!(
                refused(calls(call)),
                format!("messages[0].tool_calls[0].{at}")
            );
        }
    }

    #[test]
    fn parts_of_the_responses_api_are_text_too() {
        for role in ["user", "system", "assistant", "tool"] {
            let parts = json!([{"type": "input_text", "text": "a"},
                {"type": "output_text", "text": "b"}]);
            let message = json!([{"role": role, "content": parts}]);
            assert_eq!(read(&message).unwrap()[0]["content"], "ab", "{role}");
        }
        let picture = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
        let error = read(&picture).unwrap_err();
        assert!(
            error.message.contains("reads text only"),
            "{}",
            error.message
        );
        let shown = json!([{"role": "tool", "content": [{"type": "input_image"}]}]);
        assert_eq!(read(&shown).unwrap()[0]["content"], left_out("image"));
    }

    #[test]
    fn a_result_that_is_no_text_says_how_to_send_it() {
        let message = json!([{"role": "tool", "tool_call_id": "c", "content": {"a": 1}}]);
        let error = read(&message).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content"));
        assert!(error.message.contains("the text of their JSON"));
    }

    #[test]
    fn the_field_at_fault_is_named() {
        assert_eq!(refused(json!([])), "messages");
        assert_eq!(refused(json!([1])), "messages[0]");
        assert_eq!(refused(json!([{"content": "x"}])), "messages[0].role");
        assert_eq!(
            refused(json!([{"role": "king", "content": "x"}])),
            "messages[0].role"
        );
        assert_eq!(refused(json!([{"role": "user"}])), "messages[0].content");
        assert_eq!(
            refused(json!([{"role": "user", "content": {}}])),
            "messages[0].content"
        );
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
        assert_eq!(refused(image), "messages[0].content[0].type");
        let call = json!([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]);
        assert_eq!(refused(call), "messages[0].tool_calls[0].function.name");
    }

    /// However it is said where they are, and however many there are.
    #[test]
    fn no_picture_is_fetched_or_decoded() {
        let pictures = [
            "http://169.254.169.254/latest/meta-data",
            "https://a.example\\@127.0.0.1/x.png",
            "file:///etc/passwd",
            "data:image/png;base64,AAAA",
            "data:video/mp4;base64,AAAA",
        ];
        let part = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let text = json!({"type": "text", "text": "look"});
        for url in pictures {
            let content = json!([{"role": "user", "content": [text, part(url)]}]);
            assert_eq!(refused(content), "messages[0].content[1].type", "{url}");
        }
        let many = vec![part(pictures[3]); CONTENT_PARTS_MAX];
        let many = json!([{"role": "user", "content": many}]);
        assert_eq!(refused(many), "messages[0].content[0].type");
        for kind in ["input_audio", "video_url", "file"] {
            let content = json!([{"role": "user", "content": [{"type": kind}]}]);
            assert_eq!(refused(content), "messages[0].content[0].type", "{kind}");
        }
    }

    #[test]
    fn the_number_of_messages_is_bounded_at_the_limit() {
        let many = |count| Value::from(vec![json!({"role": "user", "content": "x"}); count]);
        assert!(read(&many(MESSAGES_MAX)).is_ok());
        assert_eq!(refused(many(MESSAGES_MAX + 1)), "messages");
    }

    #[test]
    fn the_number_of_content_parts_is_bounded_at_the_limit() {
        let part = json!({"type": "text", "text": "x"});
        let many = |count| json!([{"role": "user", "content": vec![part.clone(); count]}]);
        assert!(read(&many(CONTENT_PARTS_MAX)).is_ok());
        assert_eq!(refused(many(CONTENT_PARTS_MAX + 1)), "messages[0].content");
    }

    #[test]
    fn tools_are_checked_by_name() {
        assert_eq!(refused_tool(json!({"type": "web_search"})), "tools[0].type");
        assert_eq!(
            refused_tool(json!({"type": "function"})),
            "tools[0].function"
        );
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        assert_eq!(refused_tool(named("a b")), "tools[0].function.name");
        assert_eq!(
            refused_tool(named(&"a".repeat(129))),
            "tools[0].function.name"
        );
        let twice = json!([named("a"), named("a")]);
        let error = tools(&Field {
            value: &twice,
            path: "tools".to_string(),
        })
        .unwrap_err();
        assert_eq!(error.param.unwrap(), "tools[1].function.name");
    }
}
