//! What schemas say of arguments that are read as text, as expressions of Lark.

use llguidance::regex_to_lark;
use serde_json::Value;

use crate::text::tools::{Types, resolved};

use super::{one_of, quoted};

/// Any text, with its line breaks.
pub const ANY_TEXT: &str = r"/(?s:.*)/";

/// Keywords that say nothing of a value, or whose place is elsewhere.
const SILENT_KEYWORDS: &[&str] = &[
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "readOnly",
    "title",
    "type",
    "writeOnly",
];

/// Keywords of text that are honoured, or refused with words of their own.
const TEXT_KEYWORDS: &[&str] = &[
    "anyOf",
    "const",
    "enum",
    "format",
    "maxLength",
    "minLength",
    "oneOf",
    "pattern",
];

/// Keywords of text that say all there is to say: what stands beside one is not looked at.
const WHOLE_KEYWORDS: &[&str] = &["$ref", "const", "enum", "anyOf", "oneOf"];

const TYPES: &[&str] = &[
    "array", "boolean", "integer", "null", "number", "object", "string",
];

/// # Errors
/// Says why a schema is not enforced where it is read as text.
fn check_text(schema: &Value) -> Result<(), String> {
    if *schema == false {
        return Err("a schema that allows nothing is not enforced".to_string());
    }
    if let Some(name) = schema["type"].as_str().filter(|name| !TYPES.contains(name)) {
        return Err(format!("the type {name:?} is not known"));
    }
    let has = |name: &&&str| schema.get(**name).is_some();
    let Some(whole) = WHOLE_KEYWORDS.iter().find(has) else {
        return Ok(());
    };
    let beside = TEXT_KEYWORDS.iter().filter(|name| *name != whole).find(has);
    match beside {
        Some(name) => Err(format!(
            "the keyword {name:?} beside {whole:?} is not enforced"
        )),
        None => Ok(()),
    }
}

/// # Errors
/// Names the first keyword of a schema that is neither silent nor `known`.
pub fn check_keywords(schema: &Value, known: &[&str]) -> Result<(), String> {
    let names = schema.as_object().into_iter().flat_map(|map| map.keys());
    let mut unknown = names.filter(|name| {
        !known.contains(&name.as_str()) && !SILENT_KEYWORDS.contains(&name.as_str())
    });
    match unknown.next() {
        Some(name) => Err(format!("the keyword {name:?} is not enforced")),
        None => Ok(()),
    }
}

/// What a schema says of an argument that is read as text, as an expression of Lark.
///
/// # Errors
/// What cannot be said.
pub fn text_of(schema: &Value, root: &Value) -> Result<String, String> {
    check_text(schema)?;
    let schema = resolved(schema, root);
    check_text(schema)?;
    if schema.get("$ref").is_some() {
        return Err("a reference that leads nowhere is not enforced".to_string());
    }
    if let Some(fixed) = schema.get("const") {
        return texts(std::slice::from_ref(fixed));
    }
    if let Some(values) = schema["enum"].as_array() {
        return texts(values);
    }
    check_keywords(schema, TEXT_KEYWORDS)?;
    for keyword in ["anyOf", "oneOf"] {
        if let Some(options) = schema[keyword].as_array() {
            return any_text_of(options, root);
        }
    }
    if let Some(format) = schema["format"].as_str() {
        return Err(format!("the format {format:?} is not enforced"));
    }
    let mut parts = Vec::new();
    if let Some(pattern) = schema["pattern"].as_str() {
        let whole = whole_match(pattern)
            .ok_or_else(|| format!("the pattern {pattern:?} is not enforced in text"))?;
        parts.push(format!("/{}/", regex_to_lark(&whole, "dw")));
    }
    let least = schema["minLength"].as_u64().unwrap_or(0);
    let most = schema["maxLength"].as_u64();
    if least > 0 || most.is_some() {
        let most = most.map_or(String::new(), |most| most.to_string());
        parts.push(format!("/(?s:.{{{least},{most}}})/"));
    }
    Ok(match parts.is_empty() {
        true => ANY_TEXT.to_string(),
        false => parts.join(" & "),
    })
}

/// Text of one of several schemas; those of other types are left out, since the value will be read
/// as text.
fn any_text_of(options: &[Value], root: &Value) -> Result<String, String> {
    let mut texts = Vec::new();
    for option in options {
        let types = Types::of(option, root);
        if types.is_text() {
            texts.push(text_of(option, root)?);
        } else if types.is_null() {
            texts.push(quoted("null"));
        }
    }
    match texts.iter().any(|text| text == ANY_TEXT) {
        true => Ok(ANY_TEXT.to_string()),
        // A conjunction is no operand of an alternative.
        false if texts.iter().any(|text| text.contains(" & ")) => {
            Err("alternatives of text with several keywords are not enforced".to_string())
        }
        false => Ok(format!("({})", texts.join(" | "))),
    }
}

/// The strings among some values, and null by its name.
fn texts(values: &[Value]) -> Result<String, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => Some("null".to_string()),
        _ => None,
    };
    let texts: Vec<String> = values.iter().filter_map(text).collect();
    match texts.is_empty() {
        true => Err("has no text to choose".to_string()),
        false => Ok(one_of(&texts)),
    }
}

/// A pattern that is searched for as one that is matched whole; None where its anchors are
/// elsewhere than at its ends.
fn whole_match(pattern: &str) -> Option<String> {
    let begins = pattern.starts_with('^');
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let ends = inner.ends_with('$') && !inner.ends_with("\\$");
    let inner = if ends {
        &inner[..inner.len() - 1]
    } else {
        inner
    };
    let (mut depth, mut escaped, mut class) = (0_usize, false, false);
    for char in inner.chars() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '^' | '$' => return None,
            '|' if depth == 0 && (begins || ends) => return None,
            _ => {}
        }
    }
    let anything = |anchored: bool| if anchored { "" } else { "(?s:.*)" };
    Some(format!("{}(?:{inner}){}", anything(begins), anything(ends)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_stands_beside_the_whole_of_a_text_is_not_passed_over() {
        let root = json!({"$defs": {"c": {"type": "string"}, "e": {"enum": ["a"],
            "maxLength": 2}}});
        for schema in [
            json!({"type": "string", "enum": ["Paris"], "maxLength": 2}),
            json!({"const": "Paris", "pattern": "^x"}),
            json!({"pattern": "^x", "anyOf": [{"type": "string"}]}),
            json!({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}),
            json!({"$ref": "#/$defs/c", "maxLength": 2}),
            json!({"$ref": "#/$defs/e"}),
            json!({"$ref": "#/$defs/absent"}),
            json!({"anyOf": [{"$ref": "#/$defs/c", "enum": ["Rome"]}]}),
            json!({"type": "STRING"}),
            json!(false),
        ] {
            assert!(text_of(&schema, &root).is_err(), "{schema}");
        }
        for schema in [
            json!({"$ref": "#/$defs/c", "description": "d"}),
            json!({"type": "string", "enum": ["Paris"], "default": "Paris"}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "t"}),
        ] {
            assert!(text_of(&schema, &root).is_ok(), "{schema}");
        }
    }
}
