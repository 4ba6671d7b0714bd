//! `tools` and `tool_choice` of the Responses API, and the names under which tools are called.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::http::chat::messages::check_name;
use crate::http::error::ApiError;
use crate::http::fields::{Field, Object};
use crate::http::limits::TOOLS_MAX;
use crate::log;

/// The one argument of a tool that takes free text.
pub const CUSTOM_ARGUMENT: &str = "input";

/// A tool as its client knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tool {
    pub namespace: Option<String>,
    pub name: String,
    /// Takes free text in place of JSON.
    pub custom: bool,
}

/// Tools by the name that the model calls them by.
#[derive(Debug, Default)]
pub struct ToolNames {
    tools: HashMap<String, Tool>,
}

impl ToolNames {
    /// The tool that is called `name`; the model may name one that does not exist.
    pub fn tool(&self, name: &str) -> Tool {
        self.tools.get(name).cloned().unwrap_or_else(|| Tool {
            name: name.to_string(),
            ..Tool::default()
        })
    }
}

/// The name under which the model knows a tool: names of two namespaces must not meet.
pub fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_string(),
    }
}

/// Reads `tools` and `tool_choice`: the tools that the reply may call, in the form of the chat
/// completions API, and their names.
///
/// # Errors
/// Names the first field that is not served.
pub fn offered(object: &Object<'_>) -> Result<(Vec<Value>, ToolNames), ApiError> {
    let mut offer = Offer::default();
    if let Some(tools) = object.get("tools") {
        offer.add_all(&tools, None)?;
    }
    match object.get("tool_choice") {
        None => Ok((offer.tools, offer.names)),
        Some(choice) => match choice.value.as_str() {
            Some("auto") => Ok((offer.tools, offer.names)),
            Some("none") => Ok((Vec::new(), offer.names)),
            _ => Err(choice.error("must be auto or none; no call can be forced")),
        },
    }
}

#[derive(Debug, Default)]
struct Offer {
    tools: Vec<Value>,
    names: ToolNames,
}

impl Offer {
    fn add_all(&mut self, list: &Field<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        for item in list.list(TOOLS_MAX)? {
            let object = item.object()?;
            let kind = object.require("type")?.string()?;
            match kind {
                "function" => self.add(&object, namespace, false)?,
                "custom" => self.add(&object, namespace, true)?,
                "namespace" if namespace.is_none() => {
                    let name = object.require("name")?;
                    check_name(&name)?;
                    self.add_all(&object.require("tools")?, Some(name.string()?))?;
                }
                // Clients offer what the first server of this API runs itself beside their own
                // tools, and do without where it is not called.
                _ => log::debug(format_args!("the tool of type {kind:?} is left out")),
            }
        }
        match self.tools.len() {
            0..=TOOLS_MAX => Ok(()),
            _ => Err(list.error(format!("at most {TOOLS_MAX} tools are taken"))),
        }
    }

    fn add(
        &mut self,
        object: &Object<'_>,
        namespace: Option<&str>,
        custom: bool,
    ) -> Result<(), ApiError> {
        let name = object.require("name")?;
        let flat = flat_name(namespace, name.string()?);
        let whole = Value::from(flat.as_str());
        check_name(&Field {
            value: &whole,
            path: name.path.clone(),
        })?;
        let tool = Tool {
            namespace: namespace.map(str::to_string),
            name: name.string()?.to_string(),
            custom,
        };
        if self.names.tools.insert(flat.clone(), tool).is_some() {
            return Err(name.error("is the name of another tool already"));
        }
        let mut function = Map::new();
        function.insert("name".to_string(), Value::from(flat));
        if let Some(description) = object.get("description") {
            description.string()?;
            function.insert("description".to_string(), description.value.clone());
        }
        if let Some(parameters) = parameters(object, custom)? {
            function.insert("parameters".to_string(), parameters);
        }
        let tool = json!({"type": "function", "function": function});
        self.tools.push(tool);
        Ok(())
    }
}

fn parameters(object: &Object<'_>, custom: bool) -> Result<Option<Value>, ApiError> {
    if custom {
        check_text(object)?;
        return Ok(Some(json!({
            "type": "object",
            "properties": {CUSTOM_ARGUMENT: {"type": "string"}},
            "required": [CUSTOM_ARGUMENT],
        })));
    }
    if object.boolean("strict", false)? {
        let path = object.path_of("strict");
        let problem = "arguments are not constrained; send false";
        return Err(ApiError::field(path, problem));
    }
    let Some(parameters) = object.get("parameters") else {
        return Ok(None);
    };
    parameters.object()?;
    Ok(Some(parameters.value.clone()))
}

/// Free text follows no grammar.
fn check_text(object: &Object<'_>) -> Result<(), ApiError> {
    let Some(format) = object.optional_object("format")? else {
        return Ok(());
    };
    let kind = format.require("type")?;
    match kind.string()? {
        "text" => Ok(()),
        _ => Err(kind.error("must be text; input is not constrained")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: Value) -> String {
        let error = offered(&Object::root(&body).unwrap()).unwrap_err();
        error.param.unwrap()
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "name": name, "description": "d", "strict": false,
               "parameters": {"type": "object"}})
    }

    #[test]
    fn a_coding_agents_tools_are_taken() {
        let namespace = json!({"type": "namespace", "name": "multi_agent_v1", "description": "x",
            "tools": [function("spawn")]});
        let body = json!({"tools": [
            function("shell"),
            namespace,
            {"type": "web_search", "external_web_access": false},
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
        ]});
        let (tools, names) = offered(&Object::root(&body).unwrap()).unwrap();
        let expected = json!({"type": "function", "function": {"name": "shell",
            "description": "d", "parameters": {"type": "object"}}});
        assert_eq!((tools.len(), &tools[0]), (3, &expected));
        let spawn = names.tool("multi_agent_v1.spawn");
        assert_eq!(spawn.namespace.as_deref(), Some("multi_agent_v1"));
        assert_eq!(
            flat_name(spawn.namespace.as_deref(), &spawn.name),
            "multi_agent_v1.spawn"
        );
        assert!(names.tool("patch").custom && !names.tool("shell").custom);
        assert_eq!(names.tool("unheard").name, "unheard");
    }

    #[test]
    fn a_choice_may_allow_or_forbid_calls() {
        let mut body = json!({"tools": [function("f")], "tool_choice": "none"});
        assert!(offered(&Object::root(&body).unwrap()).unwrap().0.is_empty());
        for forced in [json!("required"), json!({"type": "function", "name": "f"})] {
            body["tool_choice"] = forced;
            assert_eq!(refused(body.clone()), "tool_choice");
        }
    }

    #[test]
    fn what_is_not_served_is_named() {
        let tools = |tool: Value| json!({"tools": [tool]});
        assert_eq!(refused(tools(json!({"name": "f"}))), "tools[0].type");
        assert_eq!(refused(tools(function("a b"))), "tools[0].name");
        let mut strict = function("f");
        strict["strict"] = json!(true);
        assert_eq!(refused(tools(strict)), "tools[0].strict");
        let grammar = json!({"type": "custom", "name": "f", "format": {"type": "grammar"}});
        assert_eq!(refused(tools(grammar)), "tools[0].format.type");
        let long = function(&"a".repeat(100));
        let namespace = json!({"type": "namespace", "name": "b".repeat(100), "tools": [long]});
        assert_eq!(refused(tools(namespace)), "tools[0].tools[0].name");
        let twice = json!({"tools": [function("f"), function("f")]});
        assert_eq!(refused(twice), "tools[1].name");
        let many: Vec<Value> = (0..=TOOLS_MAX / 2)
            .map(|at| function(&format!("f{at}")))
            .collect();
        let pair = |name: &str| json!({"type": "namespace", "name": name, "tools": many});
        let error = refused(json!({"tools": [pair("a"), pair("b")]}));
        assert_eq!(error, "tools[1].tools");
    }
}
