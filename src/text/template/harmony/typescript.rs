//! Tools as harmony shows them to the model: a namespace of function types in TypeScript.
//!
//! Models have learnt the output of OpenAI's renderer, so all its oddities are kept: keywords that
//! this module does not read are not shown, and only a function's description is split into one
//! comment a line.

use std::fmt::Write;

use serde_json::Value;

/// Additional indentation of an object's members.
const MEMBER: &str = "    ";
const ALTERNATIVE: &str = "   ";
const UNKNOWN: &str = "any";

/// Writes the namespace `name` of tools, which are in the form of the chat completions API.
pub fn namespace(name: &str, tools: &[Value], out: &mut String) {
    let _ = write!(out, "## {name}\n\nnamespace {name} {{\n");
    for tool in tools {
        out.push('\n');
        function(&tool["function"], out);
    }
    let _ = write!(out, "\n}} // namespace {name}");
}

fn function(function: &Value, out: &mut String) {
    let description = function["description"].as_str().unwrap_or_default();
    for line in description.lines() {
        let _ = writeln!(out, "// {line}");
    }
    let name = function["name"].as_str().unwrap_or_default();
    let _ = write!(out, "type {name} = (");
    if let Some(parameters) = function.get("parameters").filter(|one| !one.is_null()) {
        out.push_str("_: ");
        value(parameters, "", out);
    }
    out.push_str(") => any;\n");
}

/// Writes the type of a schema's values.
fn value(schema: &Value, indent: &str, out: &mut String) {
    if let Some(options) = schema["oneOf"].as_array() {
        return alternatives(options, indent, out);
    }
    if let Some(names) = listed(&schema["type"]) {
        return out.push_str(&names);
    }
    match schema["type"].as_str() {
        Some("object") => object(schema, indent, out),
        Some("array") => match schema.get("items") {
            Some(items) => {
                value(items, indent, out);
                out.push_str("[]");
            }
            None => out.push_str("Array<any>"),
        },
        Some("string") => out.push_str(&choice(schema).unwrap_or("string".to_string())),
        Some("number" | "integer") => out.push_str("number"),
        Some("boolean") => out.push_str("boolean"),
        _ => out.push_str(UNKNOWN),
    }
}

/// Union of the types that a list names.
fn listed(names: &Value) -> Option<String> {
    let names = names.as_array()?.iter().filter_map(Value::as_str);
    let names = names.map(|name| if name == "integer" { "number" } else { name });
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| names.join(" | "))
}

/// Union of the strings that an `enum` allows.
fn choice(schema: &Value) -> Option<String> {
    let choices = schema["enum"].as_array()?.iter().filter_map(Value::as_str);
    let choices: Vec<String> = choices.map(|choice| format!("\"{choice}\"")).collect();
    (!choices.is_empty()).then(|| choices.join(" | "))
}

/// Writes alternatives, each on a line with its comment.
fn alternatives(options: &[Value], indent: &str, out: &mut String) {
    for option in options {
        let _ = write!(out, "\n{indent} | ");
        alternative(option, indent, out);
        comment(option["description"].as_str(), option, out);
    }
}

fn alternative(option: &Value, indent: &str, out: &mut String) {
    nullable(option, &format!("{indent}{ALTERNATIVE}"), out);
}

/// Writes the type, with null if the keyword `nullable` allows it.
fn nullable(schema: &Value, indent: &str, out: &mut String) {
    let start = out.len();
    value(schema, indent, out);
    if schema["nullable"] == true && !out[start..].contains("null") {
        out.push_str(" | null");
    }
}

/// Writes the comment after an alternative.
fn comment(description: Option<&str>, schema: &Value, out: &mut String) {
    let default = default(schema);
    let parts: Vec<&str> = description.into_iter().chain(default.as_deref()).collect();
    if !parts.is_empty() {
        let _ = write!(out, " // {}", parts.join(" "));
    }
}

/// Text of the default, which is quoted if it is a string, unless the schema lists its values.
fn default(schema: &Value) -> Option<String> {
    let value = schema.get("default")?;
    let listed = schema["enum"].as_array();
    let is_listed = listed.is_some_and(|values| !values.is_empty());
    Some(match value.as_str() {
        Some(text) if is_listed => format!("default: {text}"),
        Some(text) => format!("default: \"{text}\""),
        None => format!("default: {value}"),
    })
}

fn object(schema: &Value, indent: &str, out: &mut String) {
    if let Some(description) = schema["description"].as_str() {
        let _ = writeln!(out, "{indent}// {description}");
    }
    out.push_str("{\n");
    let required = schema["required"].as_array();
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = required.is_some_and(|all| all.iter().any(|one| one == name));
        let key = format!("{name}{}", if is_required { "" } else { "?" });
        match member["oneOf"].as_array() {
            Some(options) => one_of(&key, member, options, indent, out),
            None => property(&key, member, indent, out),
        }
    }
    let _ = write!(out, "{indent}}}");
}

fn property(key: &str, member: &Value, indent: &str, out: &mut String) {
    title(member, indent, out);
    if let Some(description) = member["description"].as_str() {
        let _ = writeln!(out, "{indent}// {description}");
    }
    examples(member, indent, out);
    let _ = write!(out, "{indent}{key}: ");
    nullable(member, &format!("{indent}{MEMBER}"), out);
    out.push(',');
    if let Some(default) = default(member) {
        let _ = write!(out, " // {default}");
    }
    out.push('\n');
}

/// A member of several alternatives, one on each line. A description equal to the first
/// alternative's is not shown, and another one replaces that of the first alternative.
fn one_of(key: &str, member: &Value, options: &[Value], indent: &str, out: &mut String) {
    title(member, indent, out);
    examples(member, indent, out);
    let own = member["description"].as_str();
    let first = options.first().and_then(|one| one["description"].as_str());
    if let Some(own) = own.filter(|own| first != Some(own)) {
        let _ = writeln!(out, "{indent}// {own}");
    }
    if let Some(default) = default(member) {
        let _ = writeln!(out, "{indent}// {default}");
    }
    let _ = writeln!(out, "{indent}{key}:");
    for (at, option) in options.iter().enumerate() {
        let _ = write!(out, "{indent} | ");
        alternative(option, indent, out);
        let description = option["description"].as_str();
        let shown = description.filter(|text| own.is_none_or(|own| at > 0 && own != *text));
        comment(shown, option, out);
        out.push('\n');
    }
    let _ = writeln!(out, "{indent},");
}

fn title(member: &Value, indent: &str, out: &mut String) {
    if let Some(title) = member["title"].as_str() {
        let _ = write!(out, "{indent}// {title}\n{indent}//\n");
    }
}

fn examples(member: &Value, indent: &str, out: &mut String) {
    let Some(examples) = member["examples"].as_array().filter(|all| !all.is_empty()) else {
        return;
    };
    let _ = writeln!(out, "{indent}// Examples:");
    for example in examples.iter().filter_map(Value::as_str) {
        let _ = writeln!(out, "{indent}// - \"{example}\"");
    }
}
