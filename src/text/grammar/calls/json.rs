//! Calls whose arguments are one JSON object.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::tools::hermes::{self, Hermes};
use crate::tools::llama3_json::{self, Llama3Json};
use crate::tools::mistral::{self, Mistral};

use super::{ANY, CallGrammar, Form, Function, Lark, quoted};

/// Schema of the arguments of a function without parameters.
static EMPTY: LazyLock<Value> = LazyLock::new(|| json!({"additionalProperties": false}));

impl CallGrammar for Hermes {
    const BETWEEN: &'static str = "\n";
    const AROUND: (&'static str, &'static str) = ("\n", hermes::CALL.1);

    fn head(name: &str) -> String {
        format!("{{\"name\": {}, \"arguments\": ", quoted(name))
    }

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let open = quoted(&Self::head(function.name));
        let close = quoted("}\n");
        Ok(format!("{open} {} {close}", arguments(lark, function)?))
    }
}

impl CallGrammar for Llama3Json {
    const BETWEEN: &'static str = "; ";
    const AROUND: (&'static str, &'static str) = ("", "}");
    const JSON: bool = true;

    /// Expression of text after `{"name": "` up to its first difference from a call.
    fn other() -> Option<String> {
        let after = &llama3_json::PARAMETERS[1..];
        Some(format!(r#"([^"\\]|\\(?s:.))*"{}"#, differs(after, "{")))
    }

    fn head(name: &str) -> String {
        format!("{name}{}", llama3_json::PARAMETERS)
    }

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        if function.whole {
            return written(lark, function, Some(call));
        }
        let open = quoted(&Self::head(function.name));
        Ok(format!("{open} {}", arguments(lark, function)?))
    }
}

/// The schema of a call of `name`, whose arguments have `schema`.
fn call(name: &str, mut schema: Value) -> Value {
    let mut call = json!({"type": "object", "additionalProperties": false});
    // llguidance looks for `$defs` and `x-guidance` only at the root of a schema.
    for root in ["$defs", "x-guidance"] {
        let found = schema.as_object_mut().and_then(|map| map.remove(root));
        if let Some(value) = found {
            call[root] = value;
        }
    }
    call["properties"] = json!({"name": {"const": name}, "parameters": schema});
    call["required"] = json!(["name", "parameters"]);
    call
}

/// Expression of texts that differ from `text` followed by `end`, each up to the first difference.
fn differs(text: &str, end: &str) -> String {
    let last = format!("[^{end}]");
    let before = |rest: String, char: char| format!("([^{char}]|{char}{rest})");
    text.chars().rev().fold(last, before)
}

impl CallGrammar for Mistral {
    const AROUND: (&'static str, &'static str) = ("", "");

    fn head(name: &str) -> String {
        format!("{name}{}", mistral::ARGUMENTS)
    }

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let open = quoted(&Self::head(function.name));
        Ok(format!("{open} {}", arguments(lark, function)?))
    }
}

pub(super) fn arguments(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
    written(lark, function, None)
}

/// Rule part for arguments as one JSON value, or for the whole call whose schema `call` makes.
fn written(
    lark: &mut Lark,
    function: &Function<'_>,
    call: Option<fn(&str, Value) -> Value>,
) -> Result<String, String> {
    let schema = match function.root.value() {
        _ if function.free => &ANY,
        schema if schema.is_object() => schema,
        _ => &*EMPTY,
    };
    let form = Form {
        whitespace: true,
        of_types: &["object"],
        call,
    };
    function.json(lark, "", schema, form)
}
