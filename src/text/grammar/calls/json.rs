//! Calls whose arguments are one object of JSON.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::text::tools::hermes::{self, Hermes};
use crate::text::tools::mistral::{self, Mistral};

use super::{ANY, CallGrammar, Form, Function, Lark, quoted};

/// The schema of the arguments of a function that has none.
static EMPTY: LazyLock<Value> = LazyLock::new(|| json!({"additionalProperties": false}));

impl CallGrammar for Hermes {
    const BETWEEN: &'static str = "\n";
    const AROUND: (&'static str, &'static str) = ("\n", hermes::CALL.1);

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let name = quoted(function.name);
        let open = quoted(&format!("{{\"name\": {name}, \"arguments\": "));
        let close = quoted("}\n");
        Ok(format!("{open} {} {close}", arguments(lark, function)?))
    }
}

impl CallGrammar for Mistral {
    const AROUND: (&'static str, &'static str) = ("", "");

    fn function(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
        let open = quoted(&format!("{}{}", function.name, mistral::ARGUMENTS));
        Ok(format!("{open} {}", arguments(lark, function)?))
    }
}

fn arguments(lark: &mut Lark, function: &Function<'_>) -> Result<String, String> {
    let schema = match function.root.value() {
        _ if function.free => &ANY,
        schema if schema.is_object() => schema,
        _ => &*EMPTY,
    };
    let form = Form {
        whitespace: true,
        of_types: &["object"],
    };
    function.json(lark, "", schema, form)
}
