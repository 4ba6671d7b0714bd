//! What the tools of every dialect are checked for.

use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::fields::Field;
use crate::text::tools::NAME_BYTES_MAX;

/// The one argument of a tool that takes free text.
pub const CUSTOM_ARGUMENT: &str = "input";

/// That calls can carry a tool's name.
///
/// # Errors
/// Says how long it may be, and of which characters.
pub fn check_name(field: &Field<'_>) -> Result<(), ApiError> {
    let name = field.string()?;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(legal) {
        let problem =
            format!("must be 1 to {NAME_BYTES_MAX} of the characters a-z A-Z 0-9 _ - . :");
        return Err(field.error(problem));
    }
    Ok(())
}

/// That a schema can be one of a tool's parameters: these are the members of an object.
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
}
