//! `tools` and `tool_choice` of the Responses API, and the names under which tools are called.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Object};
use crate::generate::conversation_tools::{ConversationTools, Presented, functions};
use crate::generate::tool_policy::{ToolChoice, ToolPolicy, allowed, index_of};
use crate::generate::tools::{
    CUSTOM_ARGUMENT, check_name, check_parameters, misspelt, not_run_here,
};
use crate::limits::{MESSAGES_MAX, TOOLS_MAX};

/// Type of input items that add tools and are no part of the conversation.
pub const ADDITIONAL_TOOLS: &str = "additional_tools";
/// Type of the tool that searches for tools, also its name for the model if the client runs it.
pub const TOOL_SEARCH: &str = "tool_search";
/// Field of a message that has the tools which a search found.
pub const FOUND_TOOLS: &str = "found_tools";

/// Types of tools that are served.
const SERVED: &[&str] = &["function", "custom", "namespace", TOOL_SEARCH];

/// Warning about custom tools with a grammar.
const UNENFORCED: &str = "the grammar of a custom tool's input is told to the model, not enforced";

/// Kind of a tool, which decides the form of its calls for the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolKind {
    #[default]
    Function,
    /// The tool takes free text instead of JSON.
    Custom,
    /// The tool finds further tools.
    Search,
}

/// A tool by the name that the client gave it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tool {
    pub namespace: Option<String>,
    pub name: String,
    pub kind: ToolKind,
}

/// Tools by the name under which the model calls them.
#[derive(Debug, Default)]
pub struct ToolNames {
    tools: HashMap<String, Tool>,
    /// Warnings about parts of the callable tools that are not enforced.
    pub warnings: Vec<String>,
    /// Warnings about tools that another server would run itself, which are left out.
    pub left_out: Vec<String>,
}

impl ToolNames {
    /// The tool that the model calls `name`; a plain function if the request has none.
    pub fn tool(&self, name: &str) -> Tool {
        self.tools.get(name).cloned().unwrap_or_else(|| Tool {
            name: name.to_string(),
            ..Tool::default()
        })
    }

    /// Adds the tools of a search result to `known`, with their names; known tools are skipped.
    fn add_found(
        &mut self,
        message: &Value,
        known: &mut ConversationTools,
    ) -> Result<(), ApiError> {
        let Some(value) = message.get(FOUND_TOOLS) else {
            return Ok(());
        };
        // The tools were checked when the input was read, so only their number can be at fault.
        let path = "input[0].tools".to_string();
        let mut found = List::default();
        found.add_all(&Field { value, path }, None)?;
        for tool in found.tools {
            let name = tool["function"]["name"].as_str();
            let name = name.unwrap_or_default().to_string();
            if known.find(tool) {
                let named = found.names.tool(&name);
                self.tools.insert(name, named);
            }
        }
        for warning in found.names.warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        match known.count() {
            0..=TOOLS_MAX => Ok(()),
            _ => Err(ApiError::field("input", too_many())),
        }
    }
}

/// Name under which the model knows a tool: unique across namespaces.
pub fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_string(),
    }
}

/// Tools that the reply may call, and whether it must.
#[derive(Debug)]
pub struct Offered {
    pub tools: Presented,
    pub names: ToolNames,
}

/// Reads `tools` and `tool_choice`: the tools that the reply may call, in the form of the chat
/// completions API, and whether it must. Tools that searches in `history` found are among them.
pub fn offered(object: &Object<'_>, history: &[Value]) -> Result<Offered, ApiError> {
    let mut list = List::default();
    if let Some(tools) = object.get("tools") {
        list.add_all(&tools, None)?;
    }
    for tools in brought(object)? {
        list.add_all(&tools, None)?;
    }
    let List { tools, mut names } = list;
    let mut known = ConversationTools::new(tools, Vec::new());
    for message in history {
        names.add_found(message, &mut known)?;
    }
    let tools = (known.callable(), &names.left_out[..]);
    let policy = ToolPolicy::read(object, tools, "a tool by its name", chosen)?;
    match policy.choice {
        ToolChoice::Never => names.warnings.clear(),
        _ => names.warnings.extend(names.left_out.iter().cloned()),
    }
    let tools = known.present(policy);
    Ok(Offered { tools, names })
}

/// Description of the tools that a search found, in place of its result: the head of the prompt
/// does not change, so it stays cached.
pub fn found(tools: &Field<'_>) -> Result<String, ApiError> {
    let mut list = List::default();
    list.add_all(tools, None)?;
    Ok(functions(&list.tools))
}

/// Lists of tools in items of the input: some agents send their tools in this way.
fn brought<'v>(object: &Object<'v>) -> Result<Vec<Field<'v>>, ApiError> {
    let Some(input) = object.get("input").filter(|input| input.value.is_array()) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for item in input.list(MESSAGES_MAX)? {
        if item.value["type"] == ADDITIONAL_TOOLS {
            found.push(item.object()?.require("tools")?);
        }
    }
    Ok(found)
}

/// Policy of a `tool_choice` that is an object.
fn chosen(choice: &Object<'_>, tools: Vec<Value>) -> Result<ToolPolicy, ApiError> {
    if choice.require("type")?.string()? == "allowed_tools" {
        return allowed(choice, tools, named);
    }
    let at = named(choice, &tools)?;
    Ok(ToolPolicy::of(tools, ToolChoice::Named(at)))
}

/// Index of the tool that `{"type": "function", "name": …}` names.
fn named(tool: &Object<'_>, tools: &[Value]) -> Result<usize, ApiError> {
    let kind = tool.require("type")?;
    if !matches!(kind.string()?, "function" | "custom") {
        return Err(kind.error("must be function or custom"));
    }
    let name = tool.require("name")?;
    let namespace = tool.optional_string("namespace")?;
    index_of(&name, &flat_name(namespace, name.string()?), tools)
}

#[derive(Debug, Default)]
struct List {
    tools: Vec<Value>,
    names: ToolNames,
}

impl List {
    fn add_all(&mut self, list: &Field<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        for item in list.list(TOOLS_MAX)? {
            let object = item.object()?;
            let named = object.require("type")?;
            let kind = named.string()?;
            match kind {
                "function" => self.add_named(&object, namespace, ToolKind::Function)?,
                "custom" => self.add_named(&object, namespace, ToolKind::Custom)?,
                TOOL_SEARCH if is_clients(&object)? => {
                    let path = object.path_of("type");
                    let name = Value::from(TOOL_SEARCH);
                    self.add(
                        &object,
                        &Field { value: &name, path },
                        None,
                        ToolKind::Search,
                    )?;
                }
                "namespace" if namespace.is_none() => {
                    let name = object.require("name")?;
                    check_name(&name)?;
                    self.add_all(&object.require("tools")?, Some(name.string()?))?;
                }
                // Clients also offer tools that OpenAI's server runs, and manage without calls of
                // these.
                _ => match misspelt(kind, SERVED) {
                    Some(meant) => return Err(named.error(format!("must be {meant}"))),
                    None => self.leave_out(kind),
                },
            }
        }
        match self.tools.len() {
            0..=TOOLS_MAX => Ok(()),
            _ => Err(list.error(too_many())),
        }
    }

    fn leave_out(&mut self, kind: &str) {
        let warning = not_run_here(kind);
        if !self.names.left_out.contains(&warning) {
            self.names.left_out.push(warning);
        }
    }

    fn add_named(
        &mut self,
        object: &Object<'_>,
        namespace: Option<&str>,
        kind: ToolKind,
    ) -> Result<(), ApiError> {
        self.add(object, &object.require("name")?, namespace, kind)
    }

    fn add(
        &mut self,
        object: &Object<'_>,
        name: &Field<'_>,
        namespace: Option<&str>,
        kind: ToolKind,
    ) -> Result<(), ApiError> {
        let flat = flat_name(namespace, name.string()?);
        let whole = Value::from(flat.as_str());
        check_name(&Field {
            value: &whole,
            path: name.path.clone(),
        })?;
        let tool = Tool {
            namespace: namespace.map(str::to_string),
            name: name.string()?.to_string(),
            kind,
        };
        if self.names.tools.insert(flat.clone(), tool).is_some() {
            return Err(name.error("is the name of another tool already"));
        }
        let grammar = match kind {
            ToolKind::Custom => grammar(object)?,
            ToolKind::Function | ToolKind::Search => None,
        };
        if grammar.is_some() {
            self.names.warnings.push(format!("{UNENFORCED}: {flat}"));
        }
        let mut function = Map::new();
        function.insert("name".to_string(), Value::from(flat));
        if let Some(description) = description(object, grammar)? {
            function.insert("description".to_string(), Value::from(description));
        }
        if let Some(parameters) = parameters(object, kind)? {
            function.insert("parameters".to_string(), parameters);
        }
        if object.boolean("strict", false)? {
            function.insert("strict".to_string(), Value::from(true));
        }
        let tool = json!({"type": "function", "function": function});
        self.tools.push(tool);
        Ok(())
    }
}

fn too_many() -> String {
    format!("at most {TOOLS_MAX} tools are taken")
}

/// Whether the client runs the search; else OpenAI's server would run it.
fn is_clients(search: &Object<'_>) -> Result<bool, ApiError> {
    let Some(execution) = search.get("execution") else {
        return Ok(false);
    };
    match execution.string()? {
        "client" => Ok(true),
        "server" => Ok(false),
        _ => Err(execution.error("must be client or server")),
    }
}

fn parameters(object: &Object<'_>, kind: ToolKind) -> Result<Option<Value>, ApiError> {
    if kind == ToolKind::Custom {
        return Ok(Some(json!({
            "type": "object",
            "properties": {CUSTOM_ARGUMENT: {"type": "string"}},
            "required": [CUSTOM_ARGUMENT],
        })));
    }
    let Some(parameters) = object.get("parameters") else {
        return Ok(None);
    };
    check_parameters(&parameters)?;
    Ok(Some(parameters.value.clone()))
}

/// Description of a tool for the model. The grammar of a custom tool's input is part of the text:
/// the model reads the grammar, this server does not enforce it, and the tool checks its input.
fn description(object: &Object<'_>, grammar: Option<String>) -> Result<Option<String>, ApiError> {
    let described = object.optional_string("description")?;
    let described = described.map(str::to_string).into_iter();
    let texts: Vec<String> = described.chain(grammar).collect();
    Ok((!texts.is_empty()).then(|| texts.join("\n\n")))
}

/// Text that describes the grammar of a custom tool's input; None without a grammar.
fn grammar(object: &Object<'_>) -> Result<Option<String>, ApiError> {
    let Some(format) = object.optional_object("format")? else {
        return Ok(None);
    };
    let kind = format.require("type")?;
    match kind.string()? {
        "text" => Ok(None),
        "grammar" => {
            let syntax = format.require("syntax")?;
            if !matches!(syntax.string()?, "lark" | "regex") {
                return Err(syntax.error("must be lark or regex"));
            }
            let definition = format.require("definition")?.string()?;
            Ok(Some(format!(
                "{CUSTOM_ARGUMENT} follows this {} grammar:\n{definition}",
                syntax.string()?
            )))
        }
        _ => Err(kind.error("must be text or grammar")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: Value) -> String {
        let error = offered(&Object::root(&body).unwrap(), &[]).unwrap_err();
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
        let Offered { tools, names } = offered(&Object::root(&body).unwrap(), &[]).unwrap();
        let tools = tools.head;
        let expected = json!({"type": "function", "function": {"name": "shell",
            "description": "d", "parameters": {"type": "object"}}});
        assert_eq!((tools.len(), &tools[0]), (3, &expected));
        let spawn = names.tool("multi_agent_v1.spawn");
        assert_eq!(spawn.namespace.as_deref(), Some("multi_agent_v1"));
        assert_eq!(
            flat_name(spawn.namespace.as_deref(), &spawn.name),
            "multi_agent_v1.spawn"
        );
        assert_eq!(names.tool("patch").kind, ToolKind::Custom);
        assert_eq!(names.tool("shell").kind, ToolKind::Function);
        assert_eq!(names.tool("unheard").name, "unheard");
    }

    #[test]
    fn tools_may_come_as_an_item_of_the_input() {
        let space = json!({"type": "namespace", "name": "n", "tools": [function("g")]});
        let body = json!({"tools": [function("f")], "input": [
            {"type": "additional_tools", "role": "developer", "tools": [space]},
            {"role": "user", "content": "hi"}]});
        let Offered { tools, names } = offered(&Object::root(&body).unwrap(), &[]).unwrap();
        assert_eq!(tools.head.len(), 2);
        assert_eq!(names.tool("n.g").namespace.as_deref(), Some("n"));
    }

    #[test]
    fn a_search_of_the_client_is_a_tool_and_what_it_found_follows_the_known_ones() {
        let search = |execution: &str| {
            json!({"type": "tool_search", "execution": execution, "description": "d",
                "parameters": {"type": "object"}})
        };
        let space = json!({"type": "namespace", "name": "n", "tools": [function("g")]});
        let history = [
            json!({FOUND_TOOLS: [space, function("f")]}),
            json!({FOUND_TOOLS: [space]}),
        ];
        let read = |execution: &str| {
            let body = json!({"tools": [function("f"), search(execution)]});
            offered(&Object::root(&body).unwrap(), &history).unwrap()
        };
        let clients = read("client");
        let Presented { head, loaded, .. } = &clients.tools;
        assert_eq!((head.len(), loaded.len()), (2, 1));
        assert_eq!(clients.names.tool("tool_search").kind, ToolKind::Search);
        assert_eq!(clients.names.tool("n.g").namespace.as_deref(), Some("n"));
        assert_eq!(read("server").tools.head.len(), 1);
        let odd = json!({"tools": [search("both")]});
        assert_eq!(refused(odd), "tools[0].execution");
        let twice = json!({"tools": [search("client"), search("client")]});
        assert_eq!(refused(twice), "tools[1].type");
    }

    #[test]
    fn what_another_server_runs_is_left_out_and_reported() {
        let hosted = json!({"type": "file_search", "vector_store_ids": ["v"]});
        let mut body = json!({"tools": [hosted, hosted, function("f")]});
        let names = |body: &Value| {
            let offered = offered(&Object::root(body).unwrap(), &[]).unwrap();
            offered.names.warnings
        };
        let warnings = names(&body);
        assert!(
            warnings.len() == 1 && warnings[0].contains("file_search"),
            "{warnings:?}"
        );
        body["tool_choice"] = json!("none");
        assert_eq!(names(&body), [""; 0]);
        let alone = json!({"tools": [hosted], "tool_choice": "required"});
        let error = offered(&Object::root(&alone).unwrap(), &[]).unwrap_err();
        assert!(error.message.contains("file_search"), "{}", error.message);
        let slip = json!({"tools": [hosted, {"type": "fucntion", "name": "f"}]});
        assert_eq!(refused(slip), "tools[1].type");
    }

    #[test]
    fn the_grammar_of_free_text_is_described() {
        let mut body = json!({"tools": [{"type": "custom", "name": "patch", "description": "d",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}]});
        let Offered { tools, names } = offered(&Object::root(&body).unwrap(), &[]).unwrap();
        let described = tools.head[0]["function"]["description"].as_str().unwrap();
        assert!(described.starts_with("d\n\n") && described.ends_with("start: \"x\""));
        assert_eq!(names.warnings, [format!("{UNENFORCED}: patch")]);
        body["tool_choice"] = json!("none");
        let names = offered(&Object::root(&body).unwrap(), &[]).unwrap().names;
        assert!(
            names.warnings.is_empty(),
            "nothing of the tool is asked for"
        );
    }

    #[test]
    fn a_choice_may_allow_forbid_or_force_calls() {
        let space = json!({"type": "namespace", "name": "n", "tools": [function("g")]});
        let choose = |choice: Value| {
            let body = json!({"tools": [function("f"), space], "tool_choice": choice});
            let policy = offered(&Object::root(&body).unwrap(), &[])
                .unwrap()
                .tools
                .policy;
            (policy.tools.len(), policy.choice)
        };
        assert_eq!(choose(json!("auto")), (2, ToolChoice::Auto));
        assert_eq!(choose(json!("none")), (0, ToolChoice::Never));
        assert_eq!(choose(json!("required")), (2, ToolChoice::Required));
        let named = json!({"type": "function", "name": "g", "namespace": "n"});
        assert_eq!(choose(named), (2, ToolChoice::Named(1)));
        assert_eq!(refused(json!({"tool_choice": "required"})), "tool_choice");
        let unknown = json!({"tool_choice": {"type": "function", "name": "g"}});
        assert_eq!(refused(unknown), "tool_choice.name");
        let names = json!([{"type": "function", "name": "g", "namespace": "n"}]);
        let allowed =
            |names: &Value| json!({"type": "allowed_tools", "mode": "required", "tools": names});
        assert_eq!(choose(allowed(&names)), (2, ToolChoice::Required));
        let tools = json!([function("f")]);
        let unknown = json!({"tools": tools, "tool_choice": allowed(&names)});
        assert_eq!(refused(unknown), "tool_choice.tools[0].name");
        let none = json!({"tools": tools, "tool_choice": allowed(&json!([]))});
        assert_eq!(refused(none), "tool_choice.tools");
        let hosted = json!({"tool_choice": {"type": "web_search"}});
        assert_eq!(refused(hosted), "tool_choice.type");
    }

    #[test]
    fn what_is_not_served_is_named() {
        let tools = |tool: Value| json!({"tools": [tool]});
        assert_eq!(refused(tools(json!({"name": "f"}))), "tools[0].type");
        assert_eq!(refused(tools(function("a b"))), "tools[0].name");
        let mut strict = function("f");
        strict["strict"] = json!(1);
        assert_eq!(refused(tools(strict)), "tools[0].strict");
        let custom = |format: Value| json!({"type": "custom", "name": "f", "format": format});
        let of_xml = custom(json!({"type": "xml"}));
        assert_eq!(refused(tools(of_xml)), "tools[0].format.type");
        let unsaid = custom(json!({"type": "grammar", "syntax": "lark"}));
        assert_eq!(refused(tools(unsaid)), "tools[0].format.definition");
        let brought = json!({"input": [{"type": "additional_tools", "tools": [function("a b")]}]});
        assert_eq!(refused(brought), "input[0].tools[0].name");
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
