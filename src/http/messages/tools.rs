//! `tools` and `tool_choice` of the Messages API.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::http::chat::messages::check_name;
use crate::http::error::ApiError;
use crate::http::fields::{Field, Object};
use crate::http::limits::TOOLS_MAX;
use crate::log;

/// Starts of the types of tools that run inside another server. Clients offer them beside their
/// own; a reply that calls none of them is a reply they are prepared for, so they are left out.
const SERVER_TOOLS: &[&str] = &[
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "mcp_toolset",
    "advisor_",
];

/// What a request says of its calls.
#[derive(Debug)]
pub struct Choice {
    /// Whether any tool may be called.
    pub calls: bool,
    /// Whether more than one may be.
    pub parallel: bool,
}

/// Reads `tool_choice`.
///
/// # Errors
/// When it forces a call.
pub fn choice(object: &Object<'_>) -> Result<Choice, ApiError> {
    let Some(choice) = object.optional_object("tool_choice")? else {
        return Ok(Choice {
            calls: true,
            parallel: true,
        });
    };
    let kind = choice.require("type")?;
    let calls = match kind.string()? {
        "auto" => true,
        "none" => false,
        "any" | "tool" => return Err(kind.error("must be auto or none; no call can be forced")),
        _ => return Err(kind.error("must be auto or none")),
    };
    Ok(Choice {
        calls,
        parallel: !choice.boolean("disable_parallel_tool_use", false)?,
    })
}

/// The tools that the reply may call, in the form of the chat completions API.
///
/// # Errors
/// Names the first field that is not served.
pub fn offered(object: &Object<'_>, choice: &Choice) -> Result<Vec<Value>, ApiError> {
    let Some(field) = object.get("tools") else {
        return Ok(Vec::new());
    };
    let mut names = HashSet::new();
    let mut tools = Vec::new();
    for item in field.list(TOOLS_MAX)? {
        let object = item.object()?;
        if !is_custom(&object)? {
            continue;
        }
        let name = object.require("name")?;
        check_name(&name)?;
        if !names.insert(name.string()?) {
            return Err(name.error("is the name of another tool already"));
        }
        tools.push(tool(&object, &name)?);
    }
    match choice.calls {
        true => Ok(tools),
        false => Ok(Vec::new()),
    }
}

/// Whether the client runs the tool and describes it.
fn is_custom(object: &Object<'_>) -> Result<bool, ApiError> {
    let Some(kind) = object.get("type") else {
        return Ok(true);
    };
    let name = kind.string()?;
    if name == "custom" {
        return Ok(true);
    }
    if SERVER_TOOLS.iter().any(|start| name.starts_with(start)) {
        log::debug(format_args!("messages: the tool {name:?} is left out"));
        return Ok(false);
    }
    Err(kind.error("must be custom; describe the tool with an input_schema"))
}

fn tool(object: &Object<'_>, name: &Field<'_>) -> Result<Value, ApiError> {
    if object.boolean("strict", false)? {
        let path = object.path_of("strict");
        return Err(ApiError::field(
            path,
            "input is not constrained; send false",
        ));
    }
    let schema = object.require("input_schema")?;
    schema.object()?;
    let mut function = Map::new();
    function.insert("name".to_string(), name.value.clone());
    if let Some(description) = object.get("description") {
        description.string()?;
        function.insert("description".to_string(), description.value.clone());
    }
    function.insert("parameters".to_string(), schema.value.clone());
    Ok(json!({"type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Vec<Value>, ApiError> {
        let object = Object::root(&body).unwrap();
        offered(&object, &choice(&object)?)
    }

    fn refused(body: Value) -> String {
        read(body).unwrap_err().param.unwrap()
    }

    #[test]
    fn a_tool_takes_the_form_that_templates_read() {
        let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"},
            "cache_control": {"type": "ephemeral"}});
        let expected = json!({"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object"}}});
        assert_eq!(read(json!({"tools": [tool]})).unwrap(), [expected]);
    }

    #[test]
    fn tools_of_other_servers_are_left_out() {
        let tools = json!([{"type": "web_search_20250305", "name": "web_search"},
            {"type": "custom", "name": "f", "input_schema": {}}]);
        assert_eq!(read(json!({"tools": tools})).unwrap().len(), 1);
        let unknown = json!([{"type": "bash_20250124", "name": "bash"}]);
        assert_eq!(refused(json!({"tools": unknown})), "tools[0].type");
    }

    #[test]
    fn a_choice_may_allow_forbid_or_bound_calls() {
        let mut body = json!({"tools": [{"name": "f", "input_schema": {}}]});
        body["tool_choice"] = json!({"type": "none"});
        assert!(read(body.clone()).unwrap().is_empty());
        body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
        assert_eq!(read(body.clone()).unwrap().len(), 1);
        assert!(!choice(&Object::root(&body).unwrap()).unwrap().parallel);
        for forced in ["any", "tool"] {
            body["tool_choice"] = json!({"type": forced, "name": "f"});
            assert_eq!(refused(body.clone()), "tool_choice.type");
        }
    }

    #[test]
    fn what_is_not_served_is_named() {
        let tool = |tool: Value| json!({"tools": [tool]});
        assert_eq!(refused(tool(json!({"name": "f"}))), "tools[0].input_schema");
        assert_eq!(
            refused(tool(json!({"name": "a b", "input_schema": {}}))),
            "tools[0].name"
        );
        let strict = json!({"name": "f", "input_schema": {}, "strict": true});
        assert_eq!(refused(tool(strict)), "tools[0].strict");
        let one = json!({"name": "f", "input_schema": {}});
        assert_eq!(refused(json!({"tools": [one, one]})), "tools[1].name");
    }
}
