//! Tools of every dialect: what they are checked for, and how the model reads their calls and
//! results.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::json;
use text::template::digits;
use text::tools::{NAME_BYTES_MAX, is_name};

/// The one argument of a tool that takes free text.
pub const CUSTOM_ARGUMENT: &str = "input";

/// Checks that calls can carry a tool's name.
///
/// # Errors
/// Says how long it may be, and of which characters.
pub fn check_name(field: &Field<'_>) -> Result<(), ApiError> {
    if !is_name(field.string()?) {
        let problem =
            format!("must be 1 to {NAME_BYTES_MAX} of the characters a-z A-Z 0-9 _ - . :");
        return Err(field.error(problem));
    }
    Ok(())
}

/// Checks that a schema can be one of a tool's parameters: these are the members of an object.
///
/// # Errors
/// Names the keyword that says otherwise.
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

/// Arguments as an object. A call that the model itself wrote badly comes back in the history; it
/// must not end the conversation, so what is no object is shown under one name.
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

/// Arguments of a call in the field `name` of `object`; none where it is absent.
///
/// # Errors
/// Errors of [`arguments_object`].
pub fn arguments_in(object: &Object<'_>, name: &str) -> Result<Map<String, Value>, ApiError> {
    let arguments = object.get(name).map(|field| arguments_object(&field));
    Ok(arguments.transpose()?.unwrap_or_default())
}

/// Characters of a type that are compared.
const TYPE_CHARS_MAX: usize = 40;
/// Characters that a misspelt type adds, leaves out or changes.
const SLIPS_MAX: usize = 2;

/// The one of the types `known` that `kind` is a slip of the pen for, if there is one.
pub fn misspelt(kind: &str, known: &[&'static str]) -> Option<&'static str> {
    let kind: String = kind.chars().take(TYPE_CHARS_MAX).collect();
    let near = |known: &&&str| {
        let slips = strsim::levenshtein(&kind, known);
        (1..=SLIPS_MAX).contains(&slips)
    };
    known.iter().find(near).copied()
}

/// Words on a tool that another server would run itself.
pub fn not_run_here(kind: &str) -> String {
    let shown: String = kind.chars().take(TYPE_CHARS_MAX).collect();
    format!("tools of the type {shown:?} are not run here: it is left out")
}

/// Why a call is required where none can be made. `left_out`: warnings of what there was.
pub fn needs_tools(left_out: &[String]) -> String {
    match left_out {
        [] => "needs tools".to_string(),
        [first, ..] => format!("needs tools that the client runs; {first}"),
    }
}

/// Stand-in in a tool's result for a part that this server cannot read. The user's agent put it
/// there, and sends it again with every turn: refused, it would end the conversation.
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
