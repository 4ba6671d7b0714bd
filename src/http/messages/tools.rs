//! `tools` and `tool_choice` of the Messages API.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::conversation_tools::{ConversationTools, Presented};
use crate::generate::tool_policy::{ToolChoice, ToolPolicy, index_of};
use crate::generate::tools::{check_name, check_parameters, needs_tools, not_run_here};
use crate::limits::TOOLS_MAX;

use super::typed;

const SERVER_SEARCH: &str = "tool_search_tool_";

/// Prefixes of the types of tools that run inside another server. Clients offer such tools beside
/// their own, and must be prepared for replies that call none, so the tools are left out.
const SERVER_TOOLS: &[&str] = &[
    "web_search_",
    "web_fetch_",
    "code_execution_",
    SERVER_SEARCH,
    "mcp_toolset",
    "advisor_",
];

/// Tools of a request, and the request's choices about calls.
#[derive(Debug)]
pub struct Calls {
    pub tools: Presented,
    /// Warnings about tools that another server would run itself, which are left out.
    pub left_out: Vec<String>,
    /// Whether a reply may have more than one call.
    pub parallel: bool,
}

/// Reads `tool_choice`: which of the tools shown to the model the reply may call, and whether
/// it must.
pub fn calls(object: &Object<'_>, known: ConversationTools) -> Result<Calls, ApiError> {
    let tools = known.callable();
    let mut left_out = left_out(object)?;
    let choice = object.optional_object("tool_choice")?;
    let (policy, parallel) = match choice {
        None => (ToolPolicy::of(tools, ToolChoice::Auto), true),
        Some(choice) => {
            let single = choice.boolean("disable_parallel_tool_use", false)?;
            (policy(&choice, tools, &known, &left_out)?, !single)
        }
    };
    if policy.choice == ToolChoice::Never {
        left_out.clear();
    }
    let tools = known.present(policy);
    Ok(Calls {
        tools,
        left_out,
        parallel,
    })
}

/// Warnings about the tools that another server would run, which are left out.
fn left_out(object: &Object<'_>) -> Result<Vec<String>, ApiError> {
    let mut found = Vec::new();
    for item in object.items("tools", TOOLS_MAX)? {
        let kind = item.value["type"].as_str().unwrap_or_default();
        let warning = not_run_here(kind);
        if is_servers(kind) && !found.contains(&warning) {
            found.push(warning);
        }
    }
    Ok(found)
}

fn is_servers(kind: &str) -> bool {
    SERVER_TOOLS.iter().any(|start| kind.starts_with(start))
}

fn policy(
    choice: &Object<'_>,
    tools: Vec<Value>,
    known: &ConversationTools,
    left_out: &[String],
) -> Result<ToolPolicy, ApiError> {
    let kind = choice.require("type")?;
    Ok(match kind.string()? {
        "auto" => ToolPolicy::of(tools, ToolChoice::Auto),
        "none" => ToolPolicy::withheld(&tools),
        "any" if tools.is_empty() => return Err(kind.error(needs_tools(left_out))),
        "any" => ToolPolicy::of(tools, ToolChoice::Required),
        "tool" => {
            let at = named(choice, &tools, known)?;
            ToolPolicy::of(tools, ToolChoice::Named(at))
        }
        _ => return Err(kind.error("must be auto, none, any or tool")),
    })
}

fn named(
    choice: &Object<'_>,
    tools: &[Value],
    known: &ConversationTools,
) -> Result<usize, ApiError> {
    let name = choice.require("name")?;
    let wanted = name.string()?;
    match known.why_not(wanted) {
        Some(why) => Err(name.error(why)),
        None => index_of(&name, wanted, tools),
    }
}

/// Reads `tools`: those that the client runs, in the form of the chat completions API.
pub fn tools(object: &Object<'_>) -> Result<ConversationTools, ApiError> {
    let mut names = HashSet::new();
    let mut tools = Vec::new();
    let mut searched_elsewhere = false;
    for item in object.items("tools", TOOLS_MAX)? {
        let object = item.object()?;
        let Some((name, tool)) = defined(&object)? else {
            let kind = item.value["type"].as_str();
            searched_elsewhere |= kind.is_some_and(|kind| kind.starts_with(SERVER_SEARCH));
            continue;
        };
        if !names.insert(name.string()?) {
            return Err(name.error("is the name of another tool already"));
        }
        let deferred = object.boolean("defer_loading", false)?;
        tools.push((tool, deferred));
    }
    // Deferred tools are shown at once if only another server could search them, or if all are
    // deferred.
    let found = !searched_elsewhere && tools.iter().any(|(_, deferred)| !deferred);
    let (waiting, head): (Vec<_>, Vec<_>) = tools
        .into_iter()
        .partition(|(_, deferred)| found && *deferred);
    let plain = |tools: Vec<(Value, bool)>| tools.into_iter().map(|(tool, _)| tool).collect();
    Ok(ConversationTools::new(plain(head), plain(waiting)))
}

/// A tool defined in the conversation, and the field of its name; None if another server runs it.
pub fn defined<'v>(object: &Object<'v>) -> Result<Option<(Field<'v>, Value)>, ApiError> {
    let kind = object.get("type");
    let kind_name = kind.as_ref().map_or(Ok("custom"), |kind| kind.string())?;
    if is_servers(kind_name) {
        return Ok(None);
    }
    let typed = typed::function(kind_name);
    if let Some(kind) = kind.filter(|_| kind_name != "custom" && typed.is_none()) {
        return Err(kind.error("must be custom; describe the tool with an input_schema"));
    }
    let name = object.require("name")?;
    check_name(&name)?;
    let mut function = Map::from_iter([("name".to_string(), name.value.clone())]);
    function.extend(match typed {
        Some(typed) => typed,
        None => described(object)?,
    });
    let tool = json!({"type": "function", "function": function});
    Ok(Some((name, tool)))
}

/// Description of a client's tool, without the name.
fn described(object: &Object<'_>) -> Result<Map<String, Value>, ApiError> {
    let schema = object.require("input_schema")?;
    check_parameters(&schema)?;
    let mut function = Map::new();
    if let Some(description) = object.optional_string("description")? {
        function.insert("description".to_string(), Value::from(description));
    }
    function.insert("parameters".to_string(), schema.value.clone());
    if object.boolean("strict", false)? {
        function.insert("strict".to_string(), Value::from(true));
    }
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_calls(body: &Value) -> Result<Calls, ApiError> {
        let object = Object::root(body).unwrap();
        calls(&object, tools(&object)?)
    }

    fn read(body: Value) -> Result<Vec<Value>, ApiError> {
        read_calls(&body).map(|calls| calls.tools.policy.tools)
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
        let calls = read_calls(&json!({"tools": tools})).unwrap();
        assert_eq!(
            (calls.tools.policy.tools.len(), calls.left_out.len()),
            (1, 1)
        );
        assert!(calls.left_out[0].contains("web_search_20250305"));
        let any = json!({"tools": [tools[0]], "tool_choice": {"type": "any"}});
        assert!(read_calls(&any).unwrap_err().message.contains("web_search"));
        let unknown = json!([{"type": "computer_20250124", "name": "computer"}]);
        assert_eq!(refused(json!({"tools": unknown})), "tools[0].type");
    }

    #[test]
    fn a_tool_that_its_type_describes_is_shown_under_its_name() {
        for (kind, field) in [
            ("bash_20250124", "restart"),
            ("text_editor_20250728", "insert_text"),
            ("memory_20250818", "new_path"),
        ] {
            let body = json!({"tools": [{"type": kind, "name": "n"}]});
            let function = &read(body).unwrap()[0]["function"];
            assert_eq!(function["name"], "n");
            let properties = &function["parameters"]["properties"];
            assert!(properties[field].is_object(), "{kind}: {properties}");
        }
        let unnamed = json!([{"type": "bash_20250124"}]);
        assert_eq!(refused(json!({"tools": unnamed})), "tools[0].name");
    }

    #[test]
    fn a_choice_may_allow_forbid_force_or_bound_calls() {
        let choose = |choice: Value| {
            let body = json!({"tools": [{"name": "f", "input_schema": {}}],
                "tool_choice": choice});
            let calls = read_calls(&body).unwrap();
            (
                calls.tools.policy.tools.len(),
                calls.tools.policy.choice,
                calls.parallel,
            )
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
    fn a_tool_that_nothing_would_find_does_not_wait() {
        let shown = |others: &[Value]| {
            let mut list = others.to_vec();
            list.push(json!({"name": "f", "input_schema": {}, "defer_loading": true}));
            let body = json!({"tools": list});
            tools(&Object::root(&body).unwrap())
                .unwrap()
                .callable()
                .len()
        };
        let search = json!({"name": "g", "input_schema": {}});
        let elsewhere = json!({"type": "tool_search_tool_regex_20251119", "name": "h"});
        assert_eq!(shown(&[]), 1);
        assert_eq!(shown(std::slice::from_ref(&search)), 1);
        assert_eq!(shown(&[search, elsewhere]), 2);
    }

    #[test]
    fn a_deferred_tool_is_no_choice() {
        let tools = json!([{"name": "f", "input_schema": {}},
            {"name": "g", "input_schema": {}, "defer_loading": true}]);
        let any = json!({"tools": tools, "tool_choice": {"type": "any"}});
        let calls = read_calls(&any).unwrap();
        assert_eq!(
            (calls.tools.policy.tools.len(), calls.tools.head.len()),
            (1, 1)
        );
        let named = json!({"tools": tools, "tool_choice": {"type": "tool", "name": "g"}});
        let error = read_calls(&named).unwrap_err();
        assert_eq!(error.param.unwrap(), "tool_choice.name");
        assert!(error.message.contains("defer_loading"));
        let odd = json!([{"name": "f", "input_schema": {}, "defer_loading": 1}]);
        let at = refused(json!({"tools": odd}));
        assert_eq!(at, "tools[0].defer_loading");
    }

    #[test]
    fn a_removed_tool_is_shown_and_no_choice() {
        let choose = |choice: Value| {
            let body = json!({"tools": [{"name": "f", "input_schema": {}},
                {"name": "g", "input_schema": {}}], "tool_choice": choice});
            let object = Object::root(&body).unwrap();
            let mut known = tools(&object).unwrap();
            let (value, path) = (json!("f"), String::new());
            known
                .remove(&Field {
                    value: &value,
                    path,
                })
                .unwrap();
            calls(&object, known)
        };
        let presented = choose(json!({"type": "any"})).unwrap().tools;
        assert_eq!((presented.head.len(), presented.policy.tools.len()), (2, 1));
        let error = choose(json!({"type": "tool", "name": "f"})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tool_choice.name"));
        assert!(error.message.contains("removed"), "{}", error.message);
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
