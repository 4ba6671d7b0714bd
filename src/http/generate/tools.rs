//! Checks of tools that every dialect shares, and texts about calls and results for the model.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::json;
use text::template::digits;
use text::tools::{NAME_BYTES_MAX, is_name};

/// Name of the one argument of a tool that takes free text.
pub const CUSTOM_ARGUMENT: &str = "input";

/// Checks that a tool's name can stand in calls.
///
/// # Errors
/// States the allowed length and characters.
pub fn check_name(field: &Field<'_>) -> Result<(), ApiError> {
    if !is_name(field.string()?) {
        let problem =
            format!("must be 1 to {NAME_BYTES_MAX} of the characters a-z A-Z 0-9 _ - . :");
        return Err(field.error(problem));
    }
    Ok(())
}

/// Checks that a schema can describe a tool's parameters, which are the members of an object.
///
/// # Errors
/// Names the keyword at fault.
pub fn check_parameters(field: &Field<'_>) -> Result<(), ApiError> {
    field.object()?;
    let refuse = |keyword, problem| {
        let path = format!("{}.{keyword}", field.path);
        Err(ApiError::field(path, problem))
    };
    let is_object = match &field.value["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "object"),
        kind => kind == "object",
    };
    if !is_object {
        return refuse("type", "must be object: a call's arguments have names");
    }
    if !matches!(field.value["properties"], Value::Null | Value::Object(_)) {
        return refuse("properties", "must be an object of schemas by name");
    }
    match &field.value["required"] {
        Value::Null => Ok(()),
        Value::Array(names) if names.iter().all(Value::is_string) => Ok(()),
        _ => refuse("required", "must be a list of names"),
    }
}

/// Arguments of a call as an object. Malformed arguments that the model wrote come back in the
/// history and must not end the conversation, so a text that is no object becomes the only member.
///
/// # Errors
/// When the field is neither an object nor a string.
pub fn arguments_object(field: &Field<'_>) -> Result<Map<String, Value>, ApiError> {
    if let Value::Object(map) = field.value {
        return Ok(map.clone());
    }
    let Value::String(text) = field.value else {
        return Err(field.mismatch("an object, or a string of its JSON"));
    };
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match json::parse(digits::quoted(text).as_bytes()) {
        Ok(Value::Object(map)) => Ok(map),
        _ => {
            let text = Value::from(text.as_str());
            Ok(Map::from_iter([("arguments".to_string(), text)]))
        }
    }
}

/// Arguments of a call in the field `name` of `object`; none if the field is absent.
///
/// # Errors
/// Errors of [`arguments_object`].
pub fn arguments_in(object: &Object<'_>, name: &str) -> Result<Map<String, Value>, ApiError> {
    let arguments = object.get(name).map(|field| arguments_object(&field));
    Ok(arguments.transpose()?.unwrap_or_default())
}

/// Characters of a tool's type that are compared with known types.
const TYPE_CHARS_MAX: usize = 40;
/// Characters that a misspelt type may add, leave out or change.
const SLIPS_MAX: usize = 2;

/// The type of `known` that `kind` misspells, if there is one.
pub fn misspelt(kind: &str, known: &[&'static str]) -> Option<&'static str> {
    let kind: String = kind.chars().take(TYPE_CHARS_MAX).collect();
    let near = |known: &&&str| {
        let slips = strsim::levenshtein(&kind, known);
        (1..=SLIPS_MAX).contains(&slips)
    };
    known.iter().find(near).copied()
}

/// Warning about a tool that another server would run itself.
pub fn not_run_here(kind: &str) -> String {
    let shown: String = kind.chars().take(TYPE_CHARS_MAX).collect();
    format!("tools of the type {shown:?} are not run here: it is left out")
}

/// Error if a call is required but no tool is callable. `left_out`: warnings about tools left out.
pub fn needs_tools(left_out: &[String]) -> String {
    match left_out {
        [] => "needs tools".to_string(),
        [first, ..] => format!("needs tools that the client runs; {first}"),
    }
}

/// Placeholder in a tool's result for a part that this server cannot read. The client sends such a
/// part again with every turn: refusing it would end the conversation.
pub fn left_out(kind: &str) -> String {
    format!("[{kind} left out: this model reads text only]")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_the_members_of_an_object() {
        let checked = |schema: Value| {
            let field = Field {
                value: &schema,
                path: "p".to_string(),
            };
            check_parameters(&field).map_err(|error| error.param.unwrap())
        };
        for schema in [
            json!({}),
            json!({"type": "object", "properties": {}, "required": []}),
            json!({"type": ["object", "null"], "properties": null, "required": null}),
        ] {
            assert_eq!(checked(schema), Ok(()));
        }
        for (schema, at) in [
            (json!([]), "p"),
            (json!({"type": "string"}), "p.type"),
            (json!({"type": ["array", "null"]}), "p.type"),
            (json!({"properties": []}), "p.properties"),
            (json!({"required": "a"}), "p.required"),
            (json!({"required": [1]}), "p.required"),
        ] {
            assert_eq!(checked(schema), Err(at.to_string()));
        }
    }

    #[test]
    fn a_slip_of_the_pen_is_distinguished_from_another_type() {
        let known = ["function", "custom"];
        for (kind, meant) in [
            ("fucntion", Some("function")),
            ("Function", Some("function")),
            ("functions", Some("function")),
            ("custm", Some("custom")),
            ("function", None),
            ("web_search", None),
            ("computer", None),
            ("", None),
        ] {
            assert_eq!(misspelt(kind, &known), meant, "{kind}");
        }
    }

    #[test]
    fn arguments_that_are_no_object_stay_readable() {
        for bad in ["{\"a\":", "[1]", "{\"a\":1,\"a\":2}"] {
            let value = Value::from(bad);
            let field = Field {
                value: &value,
                path: String::new(),
            };
            assert_eq!(arguments_object(&field).unwrap()["arguments"], bad);
        }
    }
}
