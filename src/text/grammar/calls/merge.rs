//! Schemas that apply to a value at once (`allOf`, a reference with keywords beside it, a schema
//! around alternatives), merged into one equivalent schema if there is one.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::fits::Judge;
use super::text::{NUMBER_KEYWORDS, TEXT_KEYWORDS};
use crate::grammar::keywords::{self, is_silent, spelt};
use crate::tools::Root;

/// Keywords whose meaning does not depend on the keywords beside them.
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

/// Keywords that list schemas: a value obeys all, some or exactly one of the list.
const TOGETHER: &[&str] = &["allOf", "anyOf", "oneOf"];

/// `document` with each schema merged, if one equivalent schema exists, with all that applies to
/// the same values: references, `allOf`, listed values, alternatives and types.
pub fn merged(document: &Value) -> Value {
    // Merging would break references into a list of schemas.
    let text = document.to_string();
    let inside = ["/allOf/", "/anyOf/", "/oneOf/"];
    if inside.iter().any(|inside| text.contains(inside)) {
        return document.clone();
    }
    let root = Root::new(document);
    let judge = Judge::new(&root);
    let write = |schema: Map<String, Value>| {
        let gathered = gathered(&schema);
        let together = together(gathered.as_ref().unwrap_or(&schema), &root);
        let schema = together.unwrap_or(schema);
        let listed = judge.listed(&schema).filter(|schema| !is_empty(schema));
        let schema = listed.unwrap_or(schema);
        let spread = spread(&schema, &judge, &root).filter(|schema| !is_empty(schema));
        spread.or_else(|| by_types(&schema)).unwrap_or(schema)
    };
    keywords::rewritten(document, &write)
}

/// `schema` with its reference moved into `allOf`; None without a reference or other keywords.
fn gathered(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let reference = schema.get("$ref")?;
    restrictions(schema).find(|(name, _)| *name != "$ref")?;
    let mut one = schema.clone();
    one.shift_remove("$ref");
    Some(with_part(one, json!({"$ref": reference})))
}

/// `schema` merged with the entries of its `allOf`; None if no single schema is equivalent.
fn together(schema: &Map<String, Value>, root: &Root<'_>) -> Option<Map<String, Value>> {
    let parts = schema.get("allOf")?.as_array()?;
    let mut one = schema.clone();
    one.shift_remove("allOf");
    let mut all: Vec<&Map<String, Value>> = Vec::with_capacity(parts.len());
    for part in parts {
        let target = keywords::followed(part, root).unwrap_or(part);
        let part = match stands_alone(target.as_object()?) {
            true => target,
            false => part,
        };
        all.push(part.as_object()?);
    }
    let own = !stands_alone(&one);
    let others = all.iter().filter(|part| !stands_alone(part)).count();
    // Beside a reference no other keyword counts, so schemas with references are not merged.
    let refers = all.iter().any(|part| part.contains_key("$ref"));
    let beside = all.len() > 1 || restrictions(&one).next().is_some();
    if others + usize::from(own) > 1 || (refers && beside) {
        return None;
    }
    for (keyword, value) in all.into_iter().flat_map(restrictions) {
        add(&mut one, keyword, value)?;
    }
    Some(one)
}

/// `schema` with the keywords beside its alternatives merged into each of them, without
/// alternatives under which no value is valid; None if keywords cannot be merged.
fn spread(
    schema: &Map<String, Value>,
    judge: &Judge<'_, '_>,
    root: &Root<'_>,
) -> Option<Map<String, Value>> {
    let lifted = lifted(schema);
    let schema = lifted.as_ref().unwrap_or(schema);
    let keyword = alternatives_of(schema)?;
    let (mut one, mut said) = (schema.clone(), schema.clone());
    one.retain(|name, value| is_silent(name, value));
    said.retain(|name, value| name != keyword && !is_silent(name, value));
    let plain = |name: &String| ALONE.contains(&name.as_str()) || TOGETHER.contains(&name.as_str());
    if said.is_empty() || !said.keys().all(plain) {
        return None;
    }
    let size = Value::Object(said.clone()).to_string().len();
    let mut all = Vec::new();
    for option in schema[keyword].as_array()? {
        judge.write(size)?;
        let target = keywords::followed(option, root).unwrap_or(option);
        if are_apart(said.get("type"), &target["type"]) {
            continue;
        }
        let both = match target.as_object().filter(|target| stands_alone(target)) {
            Some(target) => with(said.clone(), target),
            None => together(&with_part(said.clone(), option.clone()), root)?,
        };
        let both = spread(&both, judge, root).unwrap_or(both);
        let both = judge.listed(&both).unwrap_or(both);
        let both = by_types(&both).unwrap_or(both);
        if !is_empty(&both) {
            all.push(Value::Object(both));
        }
    }
    one.insert(keyword.to_string(), Value::from(all));
    Some(one)
}

/// Merges `other`, whose keywords are all in [`ALONE`], into `schema`; keywords that do not merge
/// become an entry of `allOf`.
fn with(mut schema: Map<String, Value>, other: &Map<String, Value>) -> Map<String, Value> {
    let mut rest = Map::new();
    for (keyword, value) in restrictions(other) {
        if add(&mut schema, keyword, value).is_none() {
            rest.insert(keyword.clone(), value.clone());
        }
    }
    match rest.is_empty() {
        true => schema,
        false => with_part(schema, Value::Object(rest)),
    }
}

/// Adds `part` to the `allOf` of `schema`.
fn with_part(mut schema: Map<String, Value>, part: Value) -> Map<String, Value> {
    match schema.get_mut("allOf") {
        Some(Value::Array(parts)) => parts.push(part),
        _ => drop(schema.insert("allOf".to_string(), json!([part]))),
    }
    schema
}

/// The keyword that has a schema's alternatives, if it has any.
fn alternatives_of(schema: &Map<String, Value>) -> Option<&'static str> {
    let mut keywords = ["anyOf", "oneOf"].into_iter();
    keywords.find(|keyword| schema.contains_key(*keyword))
}

/// `schema` with the alternatives from an entry of its `allOf` as its own; None if it has its own,
/// or no entry has only alternatives.
fn lifted(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let parts = schema.get("allOf")?.as_array()?;
    if alternatives_of(schema).is_some() {
        return None;
    }
    let only = |part: &Value| {
        let part = part.as_object()?;
        let keyword = alternatives_of(part)?;
        (restrictions(part).count() == 1).then(|| (keyword, part[keyword].clone()))
    };
    let mut all = parts.iter().map(only).enumerate();
    let (at, (keyword, options)) = all.find_map(|(at, only)| Some((at, only?)))?;
    let mut one = schema.clone();
    one.get_mut("allOf")?.as_array_mut()?.remove(at);
    one.insert(keyword.to_string(), options);
    Some(one)
}

/// `schema` without keywords that do not restrict its type. Several types become alternatives with
/// the keywords of each.
fn by_types(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let names = keywords::each(schema.get("type")?).iter();
    let names: Option<Vec<&str>> = names.map(Value::as_str).collect();
    let bound = restrictions(schema).any(|(name, _)| name != "type");
    let listed = schema.contains_key("const") || schema.contains_key("enum");
    if !bound || listed || !stands_alone(schema) {
        return None;
    }
    let of = |name: &str| {
        let mut one = schema.clone();
        one.retain(|keyword, value| !is_silent(keyword, value) && binds(keyword, name));
        one.insert("type".to_string(), Value::from(name));
        one
    };
    let mut one = schema.clone();
    one.retain(|name, value| is_silent(name, value));
    match names?.as_slice() {
        [name] => one.extend(of(name)),
        names => {
            let options = names.iter().map(|name| Value::Object(of(name)));
            one.insert("anyOf".to_string(), options.collect());
        }
    }
    Some(one)
}

/// Whether a keyword of [`ALONE`] restricts values of the type `name`.
fn binds(keyword: &str, name: &str) -> bool {
    let text = TEXT_KEYWORDS.contains(&keyword) && name == "string";
    text || NUMBER_KEYWORDS.contains(&keyword) && matches!(name, "integer" | "number")
}

/// Whether a schema lists no values or has no alternatives, so that nothing is valid under it.
fn is_empty(schema: &Map<String, Value>) -> bool {
    let mut lists = ["anyOf", "enum", "oneOf"].into_iter();
    lists.any(|list| schema.get(list).is_some_and(|values| *values == json!([])))
}

/// Whether `one` and `other`, values of the keyword `type`, have no type in common.
fn are_apart(one: Option<&Value>, other: &Value) -> bool {
    let known = |names: &Value| !names.is_null() && keywords::unknown_type(names).is_none();
    let one = one.filter(|one| known(one) && known(other));
    one.is_some_and(|one| types_of_both(one, other).is_none())
}

/// Keywords of a schema that restrict values.
fn restrictions(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let all = schema.iter();
    all.filter(|(name, value)| !is_silent(name, value))
}

fn stands_alone(schema: &Map<String, Value>) -> bool {
    restrictions(schema).all(|(name, _)| ALONE.contains(&name.as_str()))
}

/// Adds a keyword of another schema to `one`; None if one schema cannot express both keywords.
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

/// Keeps the values that both schemas list; None if there are none.
fn add_values(one: &mut Map<String, Value>, keyword: &str, value: &Value) -> Option<()> {
    let list = |keyword: &str, value: &Value| match keyword {
        "const" => Some(vec![value.clone()]),
        _ => value.as_array().cloned(),
    };
    let mut values = list(keyword, value)?;
    for own in ["const", "enum"] {
        if let Some(value) = one.shift_remove(own) {
            let own: HashSet<String> = list(own, &value)?.iter().map(spelt).collect();
            values.retain(|value| own.contains(&spelt(value)));
        }
    }
    one.insert("enum".to_string(), Value::from(values));
    Some(()).filter(|()| one["enum"] != Value::Array(Vec::new()))
}

fn types_of_both(one: &Value, other: &Value) -> Option<Value> {
    let names = |names| {
        let names = keywords::each(names).iter().map(Value::as_str);
        names.collect::<Option<Vec<&str>>>()
    };
    let (one, other) = (names(one)?, names(other)?);
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
    use super::*;

    fn written(schema: Value) -> Value {
        let document = json!({"$defs": {
            "e": {"enum": ["p", "q"], "type": "string"},
            "short": {"maxLength": 3},
            "via": {"$ref": "#/$defs/short", "minLength": 2},
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
                json!({"type": "string", "enum": ["p"]}),
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
            (
                json!({"$ref": "#/$defs/e", "pattern": "q"}),
                json!({"type": "string", "enum": ["q"]}),
            ),
            (
                json!({"allOf": [{"$ref": "#/$defs/via"}]}),
                json!({"$ref": "#/$defs/via"}),
            ),
            (
                json!({"type": "string", "minLength": 2, "title": "t", "anyOf": [
                    {"$ref": "#/$defs/short"}, {"enum": ["a", "bb", 3]}, {"type": "null"},
                    {"const": "x"}]}),
                json!({"title": "t", "anyOf": [
                    {"type": "string", "minLength": 2, "maxLength": 3},
                    {"type": "string", "enum": ["bb"]}]}),
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
            json!({"$ref": "#/$defs/o", "minProperties": 1}),
            json!({"minLength": 3, "anyOf": [{"$ref": "#/$defs/o"}, {"type": "string"}]}),
            json!({"enum": ["a"], "minLength": 2}),
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
