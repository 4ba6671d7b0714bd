//! What schemas say of arguments that are read as text, as expressions of Lark.

use std::collections::HashSet;

use llguidance::regex_to_lark;
use serde_json::Value;

use crate::text::grammar::{ecma, expression, keywords};
use crate::text::tools::{Root, SCHEMA_DEPTH_MAX};

use super::{one_of, quoted};

/// Any text, with its line breaks.
pub const ANY_TEXT: &str = r"/(?s:.*)/";

/// Keywords of text that are honoured, or refused with words of their own.
const TEXT_KEYWORDS: &[&str] = &["format", "maxLength", "minLength", "pattern"];

/// What a schema says of an argument that is read as text, as an expression of Lark. The text
/// cannot hold `tag`.
///
/// # Errors
/// What cannot be said.
pub fn text_of<'v>(schema: &'v Value, root: &Root<'v>, tag: &str) -> Result<String, String> {
    let mut texts = Texts {
        root,
        tag,
        null: root.types(schema).has_null(),
        seen: HashSet::new(),
        open: Vec::new(),
    };
    let found = texts.of(schema, 0)?;
    found.ok_or_else(|| "has no text to choose".to_string())
}

struct Texts<'r, 'v> {
    root: &'r Root<'v>,
    /// What ends a text.
    tag: &'r str,
    /// Null is written by its name, and that is read as null.
    null: bool,
    /// Each schema adds its texts once, or those that share others would take for ever.
    seen: HashSet<*const Value>,
    /// Those that are being read.
    open: Vec<*const Value>,
}

impl<'v> Texts<'_, 'v> {
    /// The texts of a schema; None where it adds none.
    fn of(&mut self, schema: &'v Value, depth: usize) -> Result<Option<String>, String> {
        let schema = keywords::followed(schema, self.root)?;
        // Nobody knows what type such a schema allows.
        if self.open.contains(&std::ptr::from_ref(schema)) {
            return Err("text that refers to itself is not enforced".to_string());
        }
        if !self.seen.insert(schema) {
            return Ok(None);
        }
        self.open.push(schema);
        let texts = self.read(schema, depth);
        self.open.pop();
        texts
    }

    fn read(&mut self, schema: &'v Value, depth: usize) -> Result<Option<String>, String> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!(
                "more than {SCHEMA_DEPTH_MAX} levels are not enforced"
            ));
        }
        check_type(schema)?;
        if let Some(values) = keywords::fixed(schema)? {
            return self.listed(&values);
        }
        let null = self.null;
        let read = |option| {
            let types = self.root.types(option);
            types.is_text() || (null && types.has_null())
        };
        if let Some(options) = keywords::alternatives(schema, self.root, read)? {
            return self.any_of(options, depth);
        }
        pattern_of(schema).map(Some)
    }

    /// Text of one of several schemas; those of other types are left out, since the value will be
    /// read as text.
    fn any_of(&mut self, options: &'v [Value], depth: usize) -> Result<Option<String>, String> {
        let mut texts = Vec::new();
        for option in options {
            let types = self.root.types(option);
            if types.is_text() {
                texts.extend(self.of(option, depth + 1)?);
            } else if self.null && types.is_null() {
                texts.push(quoted("null"));
            }
        }
        if texts.iter().any(|text| text == ANY_TEXT) {
            return Ok(Some(ANY_TEXT.to_string()));
        }
        // A conjunction is no operand of an alternative.
        if texts.iter().any(|text| text.contains(" & ")) {
            let problem = "alternatives of text with several keywords are not enforced";
            return Err(problem.to_string());
        }
        Ok(Some(texts.join(" | "))
            .filter(|all| !all.is_empty())
            .map(|all| format!("({all})")))
    }

    /// The strings among some values, and null by its name.
    ///
    /// # Errors
    /// Names one that would end early.
    fn listed(&self, values: &[&Value]) -> Result<Option<String>, String> {
        let text = |value: &&Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Null if self.null => Some("null".to_string()),
            _ => None,
        };
        let texts: Vec<String> = values.iter().filter_map(text).collect();
        let tag = self.tag;
        if let Some(text) = texts.iter().find(|text| text.contains(tag)) {
            return Err(format!(
                "the value {text:?} holds {tag:?}, which ends a value in the model's calls"
            ));
        }
        Ok((!texts.is_empty()).then(|| one_of(&texts)))
    }
}

/// # Errors
/// Says why a schema is none of text.
fn check_type(schema: &Value) -> Result<(), String> {
    if *schema == false {
        return Err("a schema that allows nothing is not enforced".to_string());
    }
    if !schema.is_object() && *schema != true {
        return Err("a schema must be an object or a boolean".to_string());
    }
    let Some(names) = schema.get("type") else {
        return Ok(());
    };
    let listed = names.as_array().map(Vec::as_slice);
    let names = listed.unwrap_or(std::slice::from_ref(names));
    let known = |name: &Value| name.as_str().is_some_and(keywords::is_type);
    match names.iter().find(|name| !known(name)) {
        Some(name) => Err(format!("the type {name} is not known")),
        None if names.is_empty() => Err("type names none".to_string()),
        None => Ok(()),
    }
}

/// The texts of a schema without alternatives.
fn pattern_of(schema: &Value) -> Result<String, String> {
    keywords::check(schema, TEXT_KEYWORDS)?;
    let mut parts = Vec::new();
    match &schema["pattern"] {
        Value::Null => {}
        Value::String(pattern) => parts.push(searched(pattern)?),
        _ => return Err("pattern must be a string".to_string()),
    }
    if let Some(format) = schema.get("format") {
        return Err(format!("the format {format} is not enforced"));
    }
    parts.extend(length(schema)?);
    Ok(match parts.is_empty() {
        true => ANY_TEXT.to_string(),
        false => parts.join(" & "),
    })
}

/// Texts in which a pattern is found.
fn searched(pattern: &str) -> Result<String, String> {
    let whole = whole_match(
        &ecma::searched(pattern)
            .map_err(|problem| format!("the pattern {pattern:?} is not enforced: {problem}"))?,
    );
    let whole = whole.ok_or_else(|| format!("the pattern {pattern:?} is not enforced in text"))?;
    Ok(format!("/{}/", regex_to_lark(&whole, "")))
}

/// Texts of the length that a schema asks for, if it does.
fn length(schema: &Value) -> Result<Option<String>, String> {
    let bound = |name: &str| match schema.get(name).map(|value| (value, value.as_u64())) {
        Some((value, None)) => Err(format!("{name} must be a whole number, not {value}")),
        Some((_, bound)) => Ok(bound),
        None => Ok(None),
    };
    let (least, most) = (bound("minLength")?.unwrap_or(0), bound("maxLength")?);
    if least == 0 && most.is_none() {
        return Ok(None);
    }
    let most = most.map_or(String::new(), |most| most.to_string());
    let texts = format!("(?s:.{{{least},{most}}})");
    expression::check_whole(&texts)
        .map_err(|_| format!("a length from {least} to {most} is not enforced"))?;
    Ok(Some(format!("/{texts}/")))
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

    fn text(schema: &Value, document: &Value) -> Result<String, String> {
        let mut document = document.clone();
        document["schema"] = schema.clone();
        text_of(&document["schema"], &Root::new(&document), "</p>")
    }

    #[test]
    fn what_stands_beside_the_whole_of_a_text_is_not_passed_over() {
        let root = json!({"$defs": {"c": {"type": "string"}, "e": {"enum": ["a"],
            "maxLength": 2}, "via": {"$ref": "#/$defs/c", "minLength": 2}}});
        for schema in [
            json!({"type": "string", "enum": ["Paris"], "maxLength": 2}),
            json!({"const": "Paris", "pattern": "^x"}),
            json!({"const": "Paris", "enum": ["Rome"]}),
            json!({"pattern": "^x", "anyOf": [{"type": "string"}]}),
            json!({"anyOf": [{"type": "string"}], "oneOf": [{"type": "string"}]}),
            json!({"$ref": "#/$defs/c", "maxLength": 2}),
            json!({"$ref": "#/$defs/c", "type": "integer"}),
            json!({"$ref": "#/$defs/e"}),
            json!({"$ref": "#/$defs/via"}),
            json!({"$ref": "#/$defs/absent"}),
            json!({"anyOf": [{"$ref": "#/$defs/c", "enum": ["Rome"]}]}),
            json!({"type": "STRING"}),
            json!({"type": []}),
            json!({"type": ["string", "foo"]}),
            json!({"$id": "z", "$ref": "#/$defs/c"}),
            json!({"type": "string", "minLength": "2"}),
            json!({"type": "string", "maxLength": 5_000_000_000_u64}),
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            json!({"type": "string", "pattern": 2}),
            json!({"type": "string", "pattern": "^(?=a)"}),
            json!(["string"]),
            json!(false),
        ] {
            assert!(text(&schema, &root).is_err(), "{schema}");
        }
        for schema in [
            json!({"$ref": "#/$defs/c", "description": "d"}),
            json!({"type": "string", "enum": ["Paris"], "default": "Paris", "x-order": 1}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}], "title": "t"}),
        ] {
            assert!(text(&schema, &root).is_ok(), "{schema}");
        }
    }

    #[test]
    fn one_of_texts_is_taken_where_no_text_is_of_two() {
        let root = json!({"$defs": {"c": {"const": "c"}}});
        for apart in [
            json!([{"const": "a"}, {"enum": ["b", "d"]}, {"$ref": "#/$defs/c"}]),
            json!([{"type": "string", "pattern": "^x"}, {"type": "null"}]),
            json!([{"type": "string"}, {"type": "integer"}, {"type": "number"}]),
        ] {
            let schema = json!({"oneOf": apart});
            assert!(text(&schema, &root).is_ok(), "{schema}");
        }
        for overlapping in [
            json!([{"const": "a"}, {"enum": ["b", "a"]}]),
            json!([{"type": "string"}, {"const": "a"}]),
            json!([{"type": "string", "pattern": "^x"}, {"type": "string", "maxLength": 3}]),
            json!([{"type": ["string", "null"]}, {"type": ["integer", "null"]}]),
            json!([{"type": "string"}, {"$ref": "#/$defs/c"}]),
            json!([{"type": "string"}, {"minimum": 3}]),
            json!([{"type": "string"}, {"anyOf": [{}, {"type": "integer"}]}]),
        ] {
            let schema = json!({"oneOf": overlapping});
            assert!(text(&schema, &root).is_err(), "{schema}");
        }
    }

    #[test]
    fn a_value_of_a_type_that_is_not_allowed_is_no_choice() {
        let texts = |schema: Value| text(&schema, &json!({})).unwrap();
        assert_eq!(
            texts(json!({"type": "string", "enum": ["a", null, 1]})),
            r#"("a")"#
        );
        assert_eq!(texts(json!({"enum": ["a", null, 1]})), r#"("a" | "null")"#);
        let never_null =
            json!({"type": "string", "anyOf": [{"enum": ["a", null]}, {"type": "null"}]});
        assert_eq!(texts(never_null), r#"(("a"))"#);
    }

    #[test]
    fn a_value_that_holds_the_closing_tag_is_refused() {
        for schema in [
            json!({"const": "a</p>b"}),
            json!({"enum": ["a", "</p>"]}),
            json!({"anyOf": [{"const": "a"}, {"enum": ["</p>"]}]}),
        ] {
            let problem = text(&schema, &json!({})).unwrap_err();
            assert!(problem.contains("</p>"), "{problem}");
        }
        let apart = json!({"type": "string", "enum": ["</p", "<p>"]});
        assert!(text(&apart, &json!({})).is_ok());
        let never_text = json!({"type": "string", "enum": ["a", ["</p>"]]});
        assert!(text(&never_text, &json!({})).is_ok());
    }

    #[test]
    fn schemas_that_refer_to_each_other_end() {
        let next = |at: usize| json!({"$ref": format!("#/$defs/{}", at % 30)});
        let one = |at: usize| {
            let options = [next(at + 1), next(at + 1), json!({"const": at.to_string()})];
            (at.to_string(), json!({"anyOf": options}))
        };
        let root = json!({"$defs": (0..30).map(one).collect::<Value>()});
        assert!(text(&next(29), &root).is_err());
        let root = json!({"$defs": {"0": {"anyOf": [next(0), {"const": "a"}]}}});
        assert!(text(&next(0), &root).is_err());
        let shared = json!({"anyOf": [next(0), {"const": "a"}, next(0)]});
        let root = json!({"$defs": {"0": {"const": "b"}}});
        assert_eq!(text(&shared, &root).unwrap(), r#"(("b") | ("a"))"#);
    }
}
