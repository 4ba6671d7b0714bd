//! Fields that state the form of a whole answer: `response_format`, and vLLM's `structured_outputs`
//! with the older fields `guided_json` and the like.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use text::grammar::limits::ALTERNATIVES_MAX;
use text::grammar::{Grammar, JsonGrammar, gbnf, standard};

/// Fields that state the form of a whole answer; only one form is allowed.
const FIELDS: &[&str] = &[
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "ebnf",
    "json_schema",
    "regex",
];

/// Form that the answer must have, with the field that states it.
///
/// # Errors
/// Names the first field that is not served, or two that exclude each other.
pub fn asked(object: &Object<'_>) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let mut found = None;
    for &name in FIELDS {
        let Some(field) = object.get(name) else {
            continue;
        };
        let grammar = match name {
            "response_format" => response_format(&field)?,
            "structured_outputs" => structured_outputs(&field)?,
            // Clients send GBNF in the field `grammar`; an empty text asks for no grammar.
            "grammar" if field.value == "" => None,
            name => Some(named(name.trim_start_matches("guided_"), &field)?),
        };
        found = joined(found, grammar.map(|grammar| (name, grammar)))?;
    }
    Ok(found)
}

/// Form that one or both of two fields ask for, with the name of the first: some clients send a
/// form under its old and its new name.
///
/// # Errors
/// Names both fields if they ask for different forms.
pub fn joined(
    one: Option<(&'static str, Grammar)>,
    other: Option<(&'static str, Grammar)>,
) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    match (one, other) {
        (Some((name, one)), Some((other_name, other))) => match same(one, other) {
            Some(grammar) => Ok(Some((name, grammar))),
            None => {
                let problem = format!("cannot be sent with {name}, which asks for something else");
                Err(ApiError::field(other_name, problem))
            }
        },
        (one, other) => Ok(one.or(other)),
    }
}

/// The stricter of two grammars that allow the same texts up to strictness and whitespace; None if
/// the grammars differ otherwise.
fn same(one: Grammar, other: Grammar) -> Option<Grammar> {
    match (one, other) {
        (Grammar::Json(one), Grammar::Json(other)) => (one.schema == other.schema).then(|| {
            Grammar::Json(JsonGrammar {
                strict: one.strict || other.strict,
                whitespace: one.whitespace && other.whitespace,
                ..one
            })
        }),
        (Grammar::Choice(one), Grammar::Choice(mut other)) => {
            let mut sorted = one.clone();
            sorted.sort_unstable();
            other.sort_unstable();
            (sorted == other).then_some(Grammar::Choice(one))
        }
        (one, other) => (one == other).then_some(one),
    }
}

fn response_format(field: &Field<'_>) -> Result<Option<Grammar>, ApiError> {
    let object = field.object()?;
    let kind = object.require("type")?;
    match kind.string()? {
        "text" => Ok(None),
        "json_object" => Ok(Some(match object.get("schema") {
            Some(schema) => json_of(&schema, false)?,
            None => any_object(),
        })),
        "json_schema" => {
            let format = object.require("json_schema")?.object()?;
            let strict = format.boolean("strict", false)?;
            Ok(Some(json_of(&format.require("schema")?, strict)?))
        }
        _ => Err(kind.error("must be text, json_object or json_schema")),
    }
}

/// Options of `structured_outputs` that are not supported, so must be off.
const OPTIONS_REFUSED: &[&str] = &["structural_tag", "whitespace_pattern"];

fn structured_outputs(field: &Field<'_>) -> Result<Option<Grammar>, ApiError> {
    let object = field.object()?;
    for &name in OPTIONS_REFUSED {
        if let Some(option) = object.get(name) {
            return Err(option.error("is not served; leave it out"));
        }
    }
    if object.boolean("disable_additional_properties", false)? {
        let path = object.path_of("disable_additional_properties");
        return Err(ApiError::field(
            path,
            "is not served; put additionalProperties into the schema",
        ));
    }
    let compact = object.boolean("disable_any_whitespace", false)?;
    let mut found = Vec::new();
    for name in ["json", "regex", "choice", "grammar"] {
        let field = object.get(name);
        found.extend(field.map(|field| named(name, &field)).transpose()?);
    }
    if object.boolean("json_object", false)? {
        found.push(any_object());
    }
    match found.len() {
        0 => Err(field.error("needs one of json, regex, choice, grammar or json_object")),
        1 => Ok(found.pop().map(|grammar| match grammar {
            Grammar::Json(json) => Grammar::Json(JsonGrammar {
                whitespace: !compact,
                ..json
            }),
            other => other,
        })),
        _ => Err(field.error("takes one of json, regex, choice, grammar and json_object")),
    }
}

/// Grammar from a field whose name states its kind, such as `json` or `regex`.
fn named(kind: &str, field: &Field<'_>) -> Result<Grammar, ApiError> {
    match kind {
        "json" | "json_schema" => json_of(field, true),
        "regex" => Ok(Grammar::Regex(field.string()?.to_string())),
        "choice" => choice(field),
        _ => grammar(field),
    }
}

fn choice(field: &Field<'_>) -> Result<Grammar, ApiError> {
    let text = |field: &Field<'_>| field.string().map(str::to_string);
    let choices: Result<_, _> = field.list(ALTERNATIVES_MAX)?.iter().map(text).collect();
    Ok(Grammar::Choice(choices?))
}

/// Grammar from a text in Lark or in GBNF, which is translated to Lark.
fn grammar(field: &Field<'_>) -> Result<Grammar, ApiError> {
    let text = field.string()?;
    if !gbnf::is_gbnf(text) {
        return Ok(Grammar::Lark(text.to_string()));
    }
    let lark = gbnf::to_lark(text).map_err(|problem| field.error(problem))?;
    Ok(Grammar::Lark(lark))
}

/// Grammar of a JSON schema, which comes as an object or as its text.
///
/// # Errors
/// When the field is no schema.
pub fn json_of(field: &Field<'_>, strict: bool) -> Result<Grammar, ApiError> {
    let schema = match field.value {
        Value::String(text) => crate::json::parse(text.as_bytes())
            .map_err(|problem| field.error(problem.replacen("the body", "the text", 1)))?,
        other => other.clone(),
    };
    if !schema.is_object() {
        return Err(field.error("must be a JSON schema: an object"));
    }
    Ok(Grammar::Json(JsonGrammar {
        schema: standard(&schema),
        strict,
        whitespace: true,
    }))
}

/// Any JSON object.
pub fn any_object() -> Grammar {
    Grammar::Json(JsonGrammar {
        schema: json!({"type": "object"}),
        strict: false,
        whitespace: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_of(body: &Value) -> Result<Option<(&'static str, Grammar)>, ApiError> {
        asked(&Object::root(body).unwrap())
    }

    #[test]
    fn one_thing_by_two_names_is_asked_once() {
        let schema = json!({"type": "object", "properties": {"a": {}}});
        let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
        for (body, name) in [
            (
                json!({"guided_grammar": "start: \"a\"",
                    "structured_outputs": {"grammar": "start: \"a\""}}),
                "structured_outputs",
            ),
            (
                json!({"guided_json": schema, "response_format": format}),
                "response_format",
            ),
            (
                json!({"json_schema": schema.to_string(), "guided_json": schema}),
                "guided_json",
            ),
            (
                json!({"guided_regex": "a|b", "regex": "a|b"}),
                "guided_regex",
            ),
            (
                json!({"guided_choice": ["a", "b"], "structured_outputs": {"choice": ["b", "a"]}}),
                "structured_outputs",
            ),
            (
                json!({"response_format": {"type": "text"}, "guided_choice": ["a"]}),
                "guided_choice",
            ),
        ] {
            let (found, grammar) = asked_of(&body).unwrap().unwrap();
            assert_eq!(found, name, "{body}");
            if let Grammar::Json(json) = grammar {
                assert!(json.strict, "the stricter one counts: {body}");
            }
        }
    }

    #[test]
    fn two_things_are_refused_by_both_names() {
        for (body, [param, other]) in [
            (
                json!({"guided_grammar": "start: \"a\"",
                    "structured_outputs": {"grammar": "start: \"b\""}}),
                ["guided_grammar", "structured_outputs"],
            ),
            (
                json!({"guided_regex": "a", "regex": "b"}),
                ["regex", "guided_regex"],
            ),
            (
                json!({"guided_json": {"type": "object"}, "guided_choice": ["a"]}),
                ["guided_choice", "guided_json"],
            ),
            (
                json!({"guided_json": {"type": "object"}, "json_schema": {"type": "array"}}),
                ["json_schema", "guided_json"],
            ),
        ] {
            let error = asked_of(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
            assert!(error.message.contains(other), "{}", error.message);
        }
    }
}
