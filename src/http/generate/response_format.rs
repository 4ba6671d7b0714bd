//! The fields that say what the whole answer must be: `response_format`, and vLLM's
//! `structured_outputs` with the flat names that came before it.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use text::grammar::limits::ALTERNATIVES_MAX;
use text::grammar::{Grammar, JsonGrammar, gbnf, standard};

/// The fields that each say what the whole answer must be.
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

/// What the answer must be, and the field that says so.
///
/// # Errors
/// Names the first field that is not served, or two that exclude each other.
pub fn asked(object: &Object<'_>) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let mut found: Option<(&'static str, Grammar)> = None;
    for &name in FIELDS {
        let Some(field) = object.get(name) else {
            continue;
        };
        let grammar = match name {
            "response_format" => response_format(&field)?,
            "structured_outputs" => structured_outputs(&field)?,
            "guided_json" | "json_schema" => Some(json_of(&field, true)?),
            "guided_regex" | "regex" => Some(Grammar::Regex(field.string()?.to_string())),
            "guided_choice" => Some(choice(&field)?),
            // By these names clients send GBNF; an empty one is none.
            "grammar" if field.value == "" => None,
            _ => Some(grammar(&field)?),
        };
        match (&found, grammar) {
            (_, None) => {}
            (None, Some(grammar)) => found = Some((name, grammar)),
            (Some((other, _)), Some(_)) => {
                return Err(field.error(format!("cannot be sent with {other}")));
            }
        }
    }
    Ok(found)
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

/// Options of vLLM's field that have no meaning here unless they are off.
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
        let Some(field) = object.get(name) else {
            continue;
        };
        found.push(match name {
            "json" => json_of(&field, true)?,
            "regex" => Grammar::Regex(field.string()?.to_string()),
            "choice" => choice(&field)?,
            _ => grammar(&field)?,
        });
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

fn choice(field: &Field<'_>) -> Result<Grammar, ApiError> {
    let text = |field: &Field<'_>| field.string().map(str::to_string);
    let choices: Result<_, _> = field.list(ALTERNATIVES_MAX)?.iter().map(text).collect();
    Ok(Grammar::Choice(choices?))
}

/// A grammar in Lark, or in GBNF, which becomes Lark.
fn grammar(field: &Field<'_>) -> Result<Grammar, ApiError> {
    let text = field.string()?;
    if !gbnf::is_gbnf(text) {
        return Ok(Grammar::Lark(text.to_string()));
    }
    let lark = gbnf::to_lark(text).map_err(|problem| field.error(problem))?;
    Ok(Grammar::Lark(lark))
}

/// A schema, as an object or as the text of one.
///
/// # Errors
/// When it is no schema.
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
