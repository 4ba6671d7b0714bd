//! The fields that say which calls a reply may and must make: `tools` with their `strict`, and
//! `tool_choice`.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Object;
use crate::generate::tool_policy::{ToolChoice, ToolPolicy, allowed, index_of};

use super::messages;

/// Reads `tools` and `tool_choice`.
pub fn policy(object: &Object<'_>) -> Result<ToolPolicy, ApiError> {
    let tools = object.get("tools").map(|tools| messages::tools(&tools));
    let tools = tools.transpose()?.unwrap_or_default();
    ToolPolicy::read(object, (tools, &[]), "a function by its name", chosen)
}

/// Policy of a `tool_choice` that is an object: `{"type": "function", "function": {"name": …}}` or
/// `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`.
fn chosen(choice: &Object<'_>, tools: Vec<Value>) -> Result<ToolPolicy, ApiError> {
    let kind = choice.require("type")?;
    match kind.string()? {
        "function" => {
            let at = named(choice, &tools)?;
            Ok(ToolPolicy::of(tools, ToolChoice::Named(at)))
        }
        "allowed_tools" => {
            let choice = choice.require("allowed_tools")?.object()?;
            allowed(&choice, tools, named)
        }
        _ => Err(kind.error("must be function or allowed_tools")),
    }
}

/// Index of the tool that `{"function": {"name": …}}` names.
fn named(tool: &Object<'_>, tools: &[Value]) -> Result<usize, ApiError> {
    let name = tool.require("function")?.object()?.require("name")?;
    index_of(&name, name.string()?, tools)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use step::testing::TINY;

    use super::*;
    use crate::chat::request::ChatRequest;
    use crate::generate::constraint::Rule;
    use crate::testing::with;
    use text::testing::chat_model;

    fn tool(name: &str, strict: bool) -> Value {
        json!({"type": "function", "function": {"name": name, "strict": strict,
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}},
                           "required": ["a"], "additionalProperties": false}}})
    }

    fn body(fields: Value) -> Value {
        with(
            json!({"messages": [{"role": "user", "content": "hi"}]}),
            fields,
        )
    }

    /// The rule of a request, compiled.
    fn compiled(fields: &Value) -> Result<Option<Rule>, ApiError> {
        let mut rule = ChatRequest::parse(&body(fields.clone()), &TINY)?.ask.rule;
        if let Some(rule) = &mut rule {
            rule.compile(&chat_model(), 0)?;
        }
        Ok(rule)
    }

    fn refused(fields: Value) -> (String, String) {
        let error = compiled(&fields)
            .map(|_| ())
            .expect_err(&fields.to_string());
        assert_eq!(error.status, 400);
        (error.param.unwrap_or_default(), error.message)
    }

    #[test]
    fn each_way_to_ask_for_a_form_makes_a_rule() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema,
            "strict": true}});
        for fields in [
            json!({"response_format": {"type": "json_object"}}),
            json!({"response_format": format}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"structured_outputs": {"json": schema}}),
            json!({"structured_outputs": {"json": schema.to_string()}}),
            json!({"structured_outputs": {"json": schema, "disable_any_whitespace": true}}),
            json!({"structured_outputs": {"regex": "[a-z]+"}}),
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
            json!({"structured_outputs": {"grammar": "start: \"a\""}}),
            json!({"structured_outputs": {"json_object": true}}),
            json!({"guided_json": schema}),
            json!({"guided_regex": "a|b"}),
            json!({"guided_choice": ["a"]}),
            json!({"guided_grammar": "start: \"a\""}),
            json!({"structured_outputs": {"grammar": "root ::= \"a\" root?"}}),
            json!({"ebnf": "root ::= [a-z]+"}),
            json!({"grammar": "root ::= \"a\""}),
            json!({"json_schema": schema.to_string()}),
            json!({"regex": "a|b"}),
            json!({"tools": [tool("f", false)]}),
            json!({"tools": [tool("f", false)], "tool_choice": "required"}),
            json!({"tools": [tool("f", true), tool("g", false)]}),
            json!({"tools": [tool("f", false)], "response_format": format}),
        ] {
            let rule = compiled(&fields).unwrap_or_else(|error| panic!("{fields}: {error:?}"));
            assert!(rule.is_some(), "{fields}");
        }
    }

    #[test]
    fn a_request_that_asks_for_no_form_has_no_rule() {
        for fields in [
            json!({}),
            json!({"response_format": {"type": "text"}}),
            json!({"tools": []}),
            json!({"tool_choice": "none"}),
        ] {
            assert!(compiled(&fields).unwrap().is_none(), "{fields}");
        }
    }

    #[test]
    fn tools_that_may_not_be_called_are_not_reported_and_no_call_is_opened() {
        let fields = json!({"tools": [tool("f", true)], "tool_choice": "none"});
        let ask = ChatRequest::parse(&body(fields), &TINY).unwrap().ask;
        assert!(ask.tools.is_empty() && matches!(ask.rule, Some(Rule::NoCalls)));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_its_field() {
        let set = json!({"type": "array", "uniqueItems": true});
        let format = |strict: bool| {
            let format = json!({"schema": set, "strict": strict});
            json!({"type": "json_schema", "json_schema": format})
        };
        for (fields, param) in [
            (
                json!({"response_format": {"type": "grammar"}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.json_schema",
            ),
            (json!({"response_format": format(true)}), "response_format"),
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (
                json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}),
                "structured_outputs",
            ),
            (
                json!({"structured_outputs": {"structural_tag": "{}"}}),
                "structured_outputs.structural_tag",
            ),
            (
                json!({"structured_outputs": {"regex": "("}}),
                "structured_outputs",
            ),
            (
                json!({"structured_outputs": {"grammar": "root ::= <think>"}}),
                "structured_outputs.grammar",
            ),
            (json!({"guided_json": "[1"}), "guided_json"),
            (json!({"guided_json": set}), "guided_json"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_regex": "a", "regex": "b"}), "regex"),
            (json!({"ebnf": "root ::= other"}), "ebnf"),
            (json!({"grammar": "root ::= \"a"}), "grammar"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (
                json!({"tools": [tool("f", false)], "tool_choice": "f"}),
                "tool_choice",
            ),
            (
                json!({"tools": [tool("f", false)],
                "tool_choice": {"type": "function", "function": {"name": "g"}}}),
                "tool_choice.function.name",
            ),
            (
                json!({"tools": [tool("f", false)], "tool_choice": {"type": "allowed_tools"}}),
                "tool_choice.allowed_tools",
            ),
            (
                json!({"tools": [tool("f", false)], "tool_choice": {"type": "hosted"}}),
                "tool_choice.type",
            ),
        ] {
            let (found, message) = refused(fields.clone());
            assert_eq!(found, param, "{fields}: {message}");
        }
        assert!(
            refused(json!({"response_format": format(true)}))
                .1
                .contains("uniqueItems")
        );
        let lenient = compiled(&json!({"response_format": format(false)}))
            .unwrap()
            .unwrap();
        assert!(lenient.warnings().concat().contains("uniqueItems"));
    }

    #[test]
    fn a_strict_tool_is_refused_with_the_keyword_and_its_name() {
        let with = |schema: Value, strict: bool| {
            let mut tool = tool("f", strict);
            tool["function"]["parameters"]["properties"]["b"] = schema;
            json!({"tools": [tool], "tool_choice": "required"})
        };
        for (schema, keyword) in [
            (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
            (json!({"type": "string", "format": "phone"}), "phone"),
            (json!({"type": "string", "pattern": "a^b"}), "a^b"),
            (
                json!({"allOf": [{"type": "string"}, {"type": "null"}]}),
                "allOf",
            ),
        ] {
            let (param, message) = refused(with(schema.clone(), true));
            assert!(
                ["tools", "tool_choice"].contains(&param.as_str()),
                "{message}"
            );
            assert!(message.contains(keyword), "{message}");
            assert!(compiled(&with(schema, false)).unwrap().is_some());
        }
    }
}
