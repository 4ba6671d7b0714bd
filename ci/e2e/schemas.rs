//! Schemas of every kind that replies are held to, and a check of values against them that shares
//! nothing with what compiles them.

use regex::Regex;
use serde_json::{Value, json};

/// Schemas with their names; all of them can be enforced to the letter.
pub fn schemas() -> Vec<(&'static str, Value)> {
    let object = |properties: Value, required: Value| {
        json!({"type": "object", "properties": properties, "required": required,
               "additionalProperties": false})
    };
    let string = json!({"type": "string"});
    let person = object(
        json!({"name": string, "age": {"type": "integer"}}),
        json!(["name", "age"]),
    );
    vec![
        ("person", person.clone()),
        (
            "city",
            object(
                json!({"city": string, "country": string}),
                json!(["city", "country"]),
            ),
        ),
        (
            "optional",
            object(
                json!({"a": {"type": "boolean"}, "b": {"type": "null"}}),
                json!([]),
            ),
        ),
        (
            "nested",
            object(
                json!({"who": person, "at": {"type": "number"}}),
                json!(["who", "at"]),
            ),
        ),
        (
            "deep",
            (0..12).fold(json!({"type": "boolean"}), |inner, _| {
                object(json!({"x": inner}), json!(["x"]))
            }),
        ),
        ("open object", json!({"type": "object"})),
        (
            "map",
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        ),
        (
            "patterned keys",
            json!({"type": "object", "patternProperties": {"^[a-c]$": string},
                                  "additionalProperties": false}),
        ),
        ("enum", json!({"enum": ["red", "green", "blue"]})),
        (
            "mixed enum",
            json!({"enum": [1, "1", null, true, [2], {"k": 3}]}),
        ),
        (
            "enum that a pattern narrows",
            json!({"allOf": [{"enum": ["red", "blue", "black"]}, {"pattern": "^b"}]}),
        ),
        ("const", json!({"const": {"kind": "fixed", "n": -4}})),
        ("text const", json!({"const": "say \"é\" <|im_end|>\n"})),
        ("integer", json!({"type": "integer"})),
        (
            "bounded integer",
            json!({"type": "integer", "minimum": -3, "maximum": 1200}),
        ),
        (
            "exclusive",
            json!({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 4}),
        ),
        (
            "bounded number",
            json!({"type": "number", "minimum": -1.5, "maximum": 2.25}),
        ),
        (
            "multiple",
            json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 500}),
        ),
        ("boolean", json!({"type": "boolean"})),
        ("nullable", json!({"type": ["string", "null"]})),
        (
            "length",
            json!({"type": "string", "minLength": 3, "maxLength": 8}),
        ),
        (
            "pattern",
            json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
        ),
        (
            "inner pattern",
            json!({"type": "string", "pattern": "ab+c", "maxLength": 20}),
        ),
        ("date", json!({"type": "string", "format": "date"})),
        ("uuid", json!({"type": "string", "format": "uuid"})),
        (
            "list",
            json!({"type": "array", "items": {"type": "integer", "minimum": 0}}),
        ),
        (
            "short list",
            json!({"type": "array", "items": {"enum": ["x", "y"]},
                              "minItems": 2, "maxItems": 4}),
        ),
        (
            "tuple",
            json!({"type": "array", "prefixItems": [string, {"type": "integer"}],
                         "items": false, "minItems": 2}),
        ),
        (
            "objects",
            json!({"type": "array", "items": object(json!({"id": {"type": "integer"}}),
                           json!(["id"])), "minItems": 1, "maxItems": 3}),
        ),
        (
            "any of",
            json!({"anyOf": [{"type": "integer"}, object(json!({"t": {"const": "a"}}),
                          json!(["t"])), {"type": "null"}]}),
        ),
        (
            "one of",
            json!({"oneOf": [{"type": "string", "maxLength": 5}, {"type": "boolean"}]}),
        ),
        (
            "all of",
            json!({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]}),
        ),
        (
            "reference",
            json!({"$defs": {"p": {"type": "integer", "minimum": 1}},
                             "type": "array", "items": {"$ref": "#/$defs/p"}, "maxItems": 3}),
        ),
        (
            "escaped reference",
            json!({"$defs": {"a/b~": {"type": "integer", "minimum": 1, "maximum": 9}},
                   "$ref": "#/$defs/a~1b~0"}),
        ),
        (
            "a member as a definition",
            object(
                json!({"low": {"type": "integer", "minimum": 0, "maximum": 20},
                       "high": {"$ref": "#/properties/low"}}),
                json!(["low", "high"]),
            ),
        ),
        (
            "named choices",
            json!({"oneOf": [{"const": "a", "title": "A"}, {"enum": ["b", "none"]},
                             {"type": "null"}]}),
        ),
        (
            "never null",
            json!({"type": ["string", "null"], "enum": ["none", "x"], "default": "x"}),
        ),
        (
            "told apart",
            json!({"oneOf": [
                object(json!({"kind": {"const": "a"}, "n": {"type": "integer"}}), json!(["kind"])),
                object(json!({"kind": {"const": "b"}, "n": {"type": "null"}}), json!(["kind"]))]}),
        ),
        (
            "open members",
            json!({"type": "object", "properties": {"a": {"type": "integer"}},
                   "required": ["a"]}),
        ),
        (
            "list of objects",
            json!({"type": "array", "minItems": 1, "maxItems": 2,
                   "items": object(json!({"a": string, "b": {"type": ["integer", "null"]}}),
                                   json!(["a"]))}),
        ),
        (
            "tree",
            json!({"$ref": "#/$defs/node", "$defs": {"node": object(
            json!({"v": {"type": "integer"}, "left": {"anyOf": [{"$ref": "#/$defs/node"},
                   {"type": "null"}]}}), json!(["v", "left"]))}}),
        ),
    ]
}

/// Whether `value` is valid under the part `schema` of the schema `root`.
pub fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let Some(keywords) = schema.as_object() else {
        return schema.as_bool().unwrap();
    };
    keywords
        .iter()
        .all(|(keyword, rule)| obeys(value, keyword, rule, keywords, root))
}

fn obeys(
    value: &Value,
    keyword: &str,
    rule: &Value,
    schema: &serde_json::Map<String, Value>,
    root: &Value,
) -> bool {
    let valid = |value: &Value, schema: &Value| is_valid(value, schema, root);
    let rules = || rule.as_array().unwrap().iter();
    let chars = value.as_str().map(|text| text.chars().count() as u64);
    let items = value.as_array().map(|items| items.len() as u64);
    let at_least = |found: Option<u64>| found.is_none_or(|found| found >= rule.as_u64().unwrap());
    let at_most = |found: Option<u64>| found.is_none_or(|found| found <= rule.as_u64().unwrap());
    let number = |holds: fn(f64, f64) -> bool| {
        value
            .as_f64()
            .is_none_or(|found| holds(found, rule.as_f64().unwrap()))
    };
    match keyword {
        "$defs" | "default" | "title" => true,
        "$ref" => {
            let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
            valid(value, root.pointer(pointer).unwrap())
        }
        "type" => match rule {
            Value::String(name) => has_type(value, name),
            _ => rules().any(|name| has_type(value, name.as_str().unwrap())),
        },
        "enum" => rules().any(|one| same(one, value)),
        "const" => same(rule, value),
        "anyOf" => rules().any(|schema| valid(value, schema)),
        "allOf" => rules().all(|schema| valid(value, schema)),
        "oneOf" => rules().filter(|schema| valid(value, schema)).count() == 1,
        "minimum" => number(|found, bound| found >= bound),
        "maximum" => number(|found, bound| found <= bound),
        "exclusiveMinimum" => number(|found, bound| found > bound),
        "exclusiveMaximum" => number(|found, bound| found < bound),
        "multipleOf" => number(|found, bound| found % bound == 0.0),
        "minLength" => at_least(chars),
        "maxLength" => at_most(chars),
        "minItems" => at_least(items),
        "maxItems" => at_most(items),
        "pattern" => is_match(value, rule.as_str().unwrap()),
        "format" if rule == "date" => is_match(value, r"^\d{4}-\d\d-\d\d$"),
        "format" => is_match(
            value,
            "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
        ),
        "required" => {
            let missing = |object: &serde_json::Map<_, _>| {
                rules().any(|name| !object.contains_key(name.as_str().unwrap()))
            };
            !value.as_object().is_some_and(missing)
        }
        "prefixItems" => {
            let found = value.as_array().into_iter().flatten();
            found.zip(rules()).all(|(item, schema)| valid(item, schema))
        }
        "items" => {
            let first = schema
                .get("prefixItems")
                .and_then(Value::as_array)
                .map_or(0, Vec::len);
            let rest = value.as_array().into_iter().flatten().skip(first);
            rest.into_iter().all(|item| valid(item, rule))
        }
        "properties" | "patternProperties" => entries(value).all(|(name, value)| {
            let mut rules = rule.as_object().unwrap().iter();
            rules.all(|(key, schema)| !names(keyword, key, name) || valid(value, schema))
        }),
        "additionalProperties" => entries(value).all(|(name, value)| {
            let known = ["properties", "patternProperties"].iter().any(|keyword| {
                let rules = schema.get(*keyword).and_then(Value::as_object);
                rules.is_some_and(|rules| rules.keys().any(|key| names(keyword, key, name)))
            });
            known || valid(value, rule)
        }),
        other => panic!("{other} is not checked"),
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn names(keyword: &str, key: &str, name: &str) -> bool {
    match keyword {
        "properties" => key == name,
        _ => Regex::new(key).unwrap().is_match(name),
    }
}

fn is_match(value: &Value, pattern: &str) -> bool {
    let pattern = Regex::new(pattern).unwrap();
    value.as_str().is_none_or(|text| pattern.is_match(text))
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("{other} is no type"),
    }
}

/// Equal, numbers by their value and objects in any order.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let held = |(key, value)| b.get(key).is_some_and(|other| same(value, other));
            a.len() == b.len() && a.iter().all(held)
        }
        _ => a == b,
    }
}
