//! Schemas that hold together, written as one where that says all that they say.

use serde_json::{Map, Value};

use crate::grammar::keywords::{self, is_silent, spelt};
use crate::tools::Root;

/// Keywords that say the same of a value whatever stands beside them.
const ALONE: &[&str] = &[
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxLength",
    "maximum",
    "minLength",
    "minimum",
    "multipleOf",
    "pattern",
    "type",
];

/// A document in which each `allOf` is written as one schema where it can be.
pub fn merged(document: &Value) -> Value {
    // A reference would lead nowhere any more.
    if document.to_string().contains("/allOf/") {
        return document.clone();
    }
    let root = Root::new(document);
    let write = |schema: Map<String, Value>| together(&schema, &root).unwrap_or(schema);
    keywords::rewritten(document, &write)
}

/// Schema that says what another and the entries of its `allOf` say; None where no schema
/// says that.
fn together(schema: &Map<String, Value>, root: &Root<'_>) -> Option<Map<String, Value>> {
    let parts = schema.get("allOf")?.as_array()?;
    let mut one = schema.clone();
    one.shift_remove("allOf");
    let mut all: Vec<&Map<String, Value>> = Vec::with_capacity(parts.len());
    for part in parts {
        let target = root.resolved(part);
        let part = if stands_alone(target.as_object()?) {
            target
        } else {
            part
        };
        all.push(part.as_object()?);
    }
    let own = !stands_alone(&one);
    let others = all.iter().filter(|part| !stands_alone(part)).count();
    // A reference says all that there is to say.
    let refers = all.iter().any(|part| part.contains_key("$ref"));
    let beside = all.len() > 1 || told(&one).next().is_some();
    if others + usize::from(own) > 1 || (refers && beside) {
        return None;
    }
    for (keyword, value) in all.into_iter().flat_map(told) {
        add(&mut one, keyword, value)?;
    }
    Some(one)
}

/// The keywords of a schema that say something of a value.
fn told(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    schema
        .iter()
        .filter(|(name, value)| !is_silent(name, value))
}

fn stands_alone(schema: &Map<String, Value>) -> bool {
    told(schema).all(|(name, _)| ALONE.contains(&name.as_str()))
}

/// Adds what another schema says; None where both cannot be said by one.
fn add(one: &mut Map<String, Value>, keyword: &str, value: &Value) -> Option<()> {
    let both = match (keyword, one.get(keyword)) {
        ("const" | "enum", _) => return add_values(one, keyword, value),
        (_, None) => value.clone(),
        (_, Some(own)) if own == value => return Some(()),
        ("type", Some(own)) => types_of_both(own, value)?,
        ("minLength" | "minimum" | "exclusiveMinimum", Some(own)) => {
            let larger = own.as_f64()? >= value.as_f64()?;
            if larger { own } else { value }.clone()
        }
        ("maxLength" | "maximum" | "exclusiveMaximum", Some(own)) => {
            let smaller = own.as_f64()? <= value.as_f64()?;
            if smaller { own } else { value }.clone()
        }
        _ => return None,
    };
    one.insert(keyword.to_string(), both);
    Some(())
}

/// Leaves the values that are listed by both; None where there are none.
fn add_values(one: &mut Map<String, Value>, keyword: &str, value: &Value) -> Option<()> {
    let list = |keyword: &str, value: &Value| match keyword {
        "const" => Some(vec![value.clone()]),
        _ => value.as_array().cloned(),
    };
    let mut values = list(keyword, value)?;
    for own in ["const", "enum"] {
        if let Some(value) = one.shift_remove(own) {
            let own: Vec<String> = list(own, &value)?.iter().map(spelt).collect();
            values.retain(|value| own.contains(&spelt(value)));
        }
    }
    one.insert("enum".to_string(), Value::from(values));
    Some(()).filter(|()| one["enum"] != Value::Array(Vec::new()))
}

fn types_of_both(one: &Value, other: &Value) -> Option<Value> {
    let [one, other] = [one, other].map(|names| match names {
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        name => name.as_str().map(|name| vec![name]),
    });
    let (one, other) = (one?, other?);
    let fits =
        |name: &&str| other.contains(name) || (*name == "integer" && other.contains(&"number"));
    let mut both: Vec<&str> = one.iter().copied().filter(fits).collect();
    let whole = other.contains(&"integer") && one.contains(&"number");
    if whole && !both.contains(&"integer") {
        both.push("integer");
    }
    match both.as_slice() {
        [] => None,
        [name] => Some(Value::from(*name)),
        names => Some(Value::from(names)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(schema: Value) -> Value {
        let document = json!({"$defs": {
            "e": {"enum": ["p", "q"], "type": "string"},
            "short": {"maxLength": 3},
            "o": {"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/e"}]}}}
        }, "properties": {"s": schema}});
        merged(&document)["properties"]["s"].clone()
    }

    #[test]
    fn what_holds_together_is_one_schema_that_says_all_of_it() {
        let e = json!({"enum": ["p", "q"], "type": "string"});
        for (schema, expected) in [
            (json!({"allOf": [{"$ref": "#/$defs/e"}]}), e.clone()),
            (
                json!({"allOf": [{"$ref": "#/$defs/o"}]}),
                json!({"$ref": "#/$defs/o"}),
            ),
            (
                json!({"type": "string", "allOf": [{"enum": ["p", 1]}, {"enum": [1.0, "p", 2]}]}),
                json!({"type": "string", "enum": [1.0, "p"]}),
            ),
            (
                json!({"allOf": [{"minLength": 2}, {"$ref": "#/$defs/short"}, {"minLength": 1}]}),
                json!({"minLength": 2, "maxLength": 3}),
            ),
            (
                json!({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]}),
                json!({"type": "null"}),
            ),
            (
                json!({"allOf": [{"type": ["string", "number"]}, {"type": "integer"}]}),
                json!({"type": "integer"}),
            ),
            (
                json!({"anyOf": [
                    {"allOf": [{"allOf": [{"$ref": "#/$defs/e"}]}]}, {"type": "null"}]}),
                json!({"anyOf": [e, {"type": "null"}]}),
            ),
            (
                json!({"type": "object", "allOf": [
                    {"properties": {}, "additionalProperties": false}]}),
                json!({"type": "object", "properties": {}, "additionalProperties": false}),
            ),
        ] {
            assert_eq!(written(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn what_one_schema_cannot_say_stays_as_it_is() {
        for schema in [
            json!({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": false}]}),
            json!({"maxLength": 3, "allOf": [{"$ref": "#/$defs/o"}]}),
            json!({"allOf": [{"anyOf": [{"const": 1}]}, {"anyOf": [{"const": 2}]}]}),
            json!({"allOf": [{"enum": ["a"]}, {"enum": ["b"]}]}),
            json!({"allOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"allOf": [false]}),
            json!({"allOf": "a"}),
            json!({"enum": [{"allOf": [{"type": "string"}]}]}),
        ] {
            assert_eq!(written(schema.clone()), schema);
        }
        let leads_inside = json!({"properties": {"a": {"allOf": [{"type": "string"}]},
            "b": {"$ref": "#/properties/a/allOf/0"}}});
        assert_eq!(merged(&leads_inside), leads_inside);
    }
}
