//! `tools` and `tool_choice` of the Messages API.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::http::chat::messages::check_name;
use crate::http::error::ApiError;
use crate::http::fields::{Field, Object};
use crate::http::generate::offer::{Offer, ToolChoice, place_of};
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
pub struct Calls {
    pub offer: Offer,
    /// Whether there may be more than one.
    pub parallel: bool,
}

/// Reads `tools` and `tool_choice`: the tools that the reply may call, in the form of the chat
/// completions API, and whether it must.
///
/// # Errors
/// Names the first field that is not served.
pub fn calls(object: &Object<'_>) -> Result<Calls, ApiError> {
    let tools = tools(object)?;
    let Some(choice) = object.optional_object("tool_choice")? else {
        return Ok(Calls {
            offer: Offer::of(tools, ToolChoice::Auto),
            parallel: true,
        });
    };
    let kind = choice.require("type")?;
    let offer = match kind.string()? {
        "auto" => Offer::of(tools, ToolChoice::Auto),
        "none" => Offer::withheld(&tools),
        "any" if tools.is_empty() => return Err(kind.error("needs tools")),
        "any" => Offer::of(tools, ToolChoice::Required),
        "tool" => {
            let at = named(&choice, &tools)?;
            Offer::of(tools, ToolChoice::Named(at))
        }
        _ => return Err(kind.error("must be auto, none, any or tool")),
    };
    Ok(Calls {
        offer,
        parallel: !choice.boolean("disable_parallel_tool_use", false)?,
    })
}

fn named(choice: &Object<'_>, tools: &[Value]) -> Result<usize, ApiError> {
    let name = choice.require("name")?;
    place_of(&name, name.string()?, tools)
}

fn tools(object: &Object<'_>) -> Result<Vec<Value>, ApiError> {
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
    Ok(tools)
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
    let schema = object.require("input_schema")?;
    schema.object()?;
    let mut function = Map::new();
    function.insert("name".to_string(), name.value.clone());
    if let Some(description) = object.get("description") {
        description.string()?;
        function.insert("description".to_string(), description.value.clone());
    }
    function.insert("parameters".to_string(), schema.value.clone());
    if object.boolean("strict", false)? {
        function.insert("strict".to_string(), Value::from(true));
    }
    Ok(json!({"type": "function", "function": function}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Vec<Value>, ApiError> {
        calls(&Object::root(&body).unwrap()).map(|calls| calls.offer.tools)
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
    fn a_choice_may_allow_forbid_force_or_bound_calls() {
        let choose = |choice: Value| {
            let body = json!({"tools": [{"name": "f", "input_schema": {}}],
                "tool_choice": choice});
            let calls = calls(&Object::root(&body).unwrap()).unwrap();
            (calls.offer.tools.len(), calls.offer.choice, calls.parallel)
        };
        let auto = json!({"type": "auto", "disable_parallel_tool_use": true});
        assert_eq!(choose(auto), (1, ToolChoice::Auto, false));
        let none = json!({"type": "none"});
        assert_eq!(choose(none), (0, ToolChoice::Never, true));
        let any = json!({"type": "any"});
        assert_eq!(choose(any), (1, ToolChoice::Required, true));
        let tool = json!({"type": "tool", "name": "f"});
        assert_eq!(choose(tool), (1, ToolChoice::Named(0), true));
        let any = json!({"tool_choice": {"type": "any"}});
        assert_eq!(refused(any), "tool_choice.type");
        let unknown = json!({"tool_choice": {"type": "tool", "name": "g"}});
        assert_eq!(refused(unknown), "tool_choice.name");
    }

    #[test]
    fn what_is_not_served_is_named() {
        let tool = |tool: Value| json!({"tools": [tool]});
        assert_eq!(refused(tool(json!({"name": "f"}))), "tools[0].input_schema");
        assert_eq!(
            refused(tool(json!({"name": "a b", "input_schema": {}}))),
            "tools[0].name"
        );
        let strict = json!({"name": "f", "input_schema": {}, "strict": 1});
        assert_eq!(refused(tool(strict)), "tools[0].strict");
        let one = json!({"name": "f", "input_schema": {}});
        assert_eq!(refused(json!({"tools": [one, one]})), "tools[1].name");
    }
}
