//! A conversation as a template sees it, in the way of Hugging Face's `apply_chat_template`.

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use super::digits;
use super::{Abilities, CallIds, Conversation};

/// Names of a message's reasoning; templates read either one. Requests use the first.
const REASONING: [&str; 2] = ["reasoning_content", "thinking"];

/// Variables of a rendering in the template's form; absent variables are defined as none.
pub(super) fn of(conversation: &Conversation, abilities: &Abilities) -> Value {
    let messages = conversation.messages.iter();
    let messages: Value = messages.map(|one| message(one, abilities)).collect();
    let tools = match conversation.tools.is_empty() {
        true => Value::from(()),
        false => conversation.tools.iter().map(value).collect(),
    };
    let set = conversation.variables.iter();
    let set = set.map(|(name, set)| (name.as_str(), value(set)));
    let generates = Value::from(conversation.add_generation_prompt);
    let own = [
        ("messages", messages),
        ("tools", tools),
        ("documents", Value::from(())),
        ("add_generation_prompt", generates),
        ("enable_thinking", Value::from(conversation.enable_thinking)),
        ("opens_reasoning", Value::from(conversation.opens_reasoning)),
    ];
    Value::from_pairs(own.into_iter().chain(set))
}

/// A message without fields that are null, with its reasoning under both names.
fn message(message: &Json, abilities: &Abilities) -> Value {
    let Json::Object(fields) = message else {
        return value(message);
    };
    let shown = fields.iter().filter(|(_, value)| !value.is_null());
    let mut pairs: Vec<(&str, Value)> = shown
        .map(|(name, field)| match (name.as_str(), field.as_str()) {
            ("content", Some(text)) if abilities.parts => ("content", part(text)),
            ("tool_call_id", Some(id)) => ("tool_call_id", shaped(id, abilities.call_ids)),
            ("tool_calls", None) => ("tool_calls", calls(field, abilities.call_ids)),
            (name, _) => (name, value(field)),
        })
        .collect();
    let reasoning = REASONING.iter().find_map(|name| fields.get(*name));
    if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_null()) {
        let missing = REASONING.iter().filter(|name| !has(fields, name));
        pairs.extend(missing.map(|name| (*name, value(reasoning))));
    }
    Value::from_pairs(pairs)
}

fn shaped(id: &str, ids: CallIds) -> Value {
    Value::from(ids.shaped(id).as_ref())
}

/// Calls, with ids in the form that the template takes.
fn calls(calls: &Json, ids: CallIds) -> Value {
    let Json::Array(all) = calls else {
        return value(calls);
    };
    let call = |call: &Json| match call {
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, field)| match field.as_str() {
                Some(id) if name == "id" => ("id", shaped(id, ids)),
                _ => (name.as_str(), value(field)),
            }))
        }
        other => value(other),
    };
    all.iter().map(call).collect()
}

/// Content that is a list of one text part.
fn part(text: &str) -> Value {
    let part = Value::from_pairs([("type", "text"), ("text", text)]);
    Value::from(vec![part])
}

fn has(fields: &Map<String, Json>, name: &str) -> bool {
    fields.get(name).is_some_and(|field| !field.is_null())
}

/// JSON as a value of the template engine.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::from(number),
            (None, Some(number), _) => Value::from(number),
            (None, None, number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => digits::value(text).unwrap_or_else(|| Value::from(text.as_str())),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(name, field)| (name.as_str(), value(field))),
        ),
    }
}
